"""What torchrun's and Slurm's variables say about this process, and what does not fit them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from harness.place import Place, check_place, find_place, first_host

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SLURM = {
    "SLURM_JOB_ID": "123",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NNODES": "2",
    "SLURM_STEP_NODELIST": "gpu[003-004]",
}


def test_torchrun_says_where_its_workers_meet() -> None:
    place = find_place(TORCHRUN)
    assert place == Place("torchrun", 3, 4, 1, "node1", 29500, is_store_up=True, is_one_machine=False)
    assert place.environment() == {
        key: TORCHRUN[key] for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    }
    assert find_place({**SLURM, **TORCHRUN}) == place, "torchrun inside of a Slurm job"


def test_a_slurm_step_meets_on_its_first_host() -> None:
    place = find_place(SLURM)
    assert place == Place("Slurm", 5, 8, 1, "gpu003", 15_123, is_one_machine=False)
    others = [find_place({**SLURM, "SLURM_PROCID": str(rank)}) for rank in range(8)]
    assert {(other.address, other.port) for other in others if other} == {("gpu003", 15_123)}
    assert find_place({**SLURM, "SLURM_STEP_ID": "1"}) != place, "a second step needs another port"
    own = find_place({**SLURM, "MASTER_ADDR": "elsewhere", "MASTER_PORT": "1234"})
    assert own is not None
    assert (own.address, own.port) == ("elsewhere", 1234)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": "0"},
        {key: value for key, value in SLURM.items() if key != "SLURM_STEP_ID"},
        {**SLURM, "SLURM_NTASKS": "1"},
        {**SLURM, "SLURM_STEP_NUM_TASKS": "1"},
    ],
    ids=["nothing", "half", "batch script", "one task", "one task of a job of several"],
)
def test_a_process_without_peers_launches_its_own(environment: Mapping[str, str]) -> None:
    assert find_place(environment) is None


def test_a_broken_number_is_named() -> None:
    with pytest.raises(ValueError, match="WORLD_SIZE must be a whole number, got 'two'"):
        find_place({**TORCHRUN, "WORLD_SIZE": "two"})


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("gpu[003-007,010],cpu1", "gpu003"),
        ("gpu[7,9-12]", "gpu7"),
        ("a,b,c", "a"),
        ("rack[1-2]node[03-04]-ib", "rack1node03-ib"),
        ("", ""),
    ],
)
def test_the_first_of_a_list_of_hosts(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_what_does_not_fit_is_told() -> None:
    place = find_place(TORCHRUN)
    check_place(None, [1, 2])
    check_place(place, [4])
    with pytest.raises(ValueError, match="--workers 1,2 does not fit: torchrun has started 4"):
        check_place(place, [1, 2])
    with pytest.raises(ValueError, match="on one machine"):
        check_place(place, [4], is_emulated=True)
    with pytest.raises(ValueError, match="set MASTER_ADDR"):
        check_place(find_place({"RANK": "0", "WORLD_SIZE": "2"}), [2])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "dbp", "--workers", "3"], 1, "does not fit: torchrun has started 4"),
        (["run", "dbb"], 1, "did you mean 'dbp'?"),
        (["rum"], 2, "No such command"),
        (["verify", "dbp"], 0, ""),
        (["claims", "run"], 2, "claims starts workers of its own"),
    ],
)
def test_a_worker_among_others_ends_with_its_exit_code(arguments: list[str], code: int, message: str) -> None:
    command = [sys.executable, "-c", "from harness.cli import main; main()", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **TORCHRUN}
    )
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == "", "rank 3 is no one to print"
