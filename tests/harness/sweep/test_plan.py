"""From a sweep's file to its cells: ladders, grids, the order of rounds, identities, and mistakes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.sweep.file import load
from harness.sweep.launched import jobs_of
from harness.sweep.plan import Sweep
from tests.harness.sweep.fakes import fake_sweep

LADDER = """
workers = [1, 2]
rounds = 2
method = "sync"
set = { preset = "tiny", batch_size = 8 }

[[step]]
name = "sync"

[[step]]
name = "overlap"
method = "dbp"
change = "double buffers"

[[step]]
name = "window"
method = "nestpipe"
set = { micro_batches = [1, 2, 1] }

[[step]]
name = "unclustered"
after = "window"
set = { clustering = "none" }
unset = ["batch_size"]

[[step]]
name = "alone"
after = "sync"
method = "fwp"
"""
GRID = """
method = "nestpipe"
[set]
preset = "tiny"
[grid]
workload = ["synthetic"]
micro_batches = [2, [1, 2, 1]]
batch_size = [8, 16]
"""


def write(folder: Path, text: str, name: str = "ladder.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def changes(sweep: Sweep) -> dict[str, tuple[str | None, str]]:
    return {step.name: (step.base, step.change) for step in sweep.steps}


def test_a_ladder_builds_each_step_on_the_one_before_or_another(tmp_path: Path) -> None:
    sweep = load(write(tmp_path, LADDER))
    assert (sweep.name, sweep.workers, sweep.num_rounds) == ("ladder", (1, 2), 2)
    assert changes(sweep) == {
        "sync": (None, "sync, batch_size=8, preset=tiny"),
        "overlap": ("sync", "double buffers"),
        "window": ("overlap", "nestpipe, micro_batches=1,2,1"),
        "unclustered": ("window", "clustering=none, without batch_size"),
        "alone": ("sync", "fwp"),
    }
    variant = sweep.steps[3].variant
    assert (variant.method, variant.workload, variant.cluster) == ("nestpipe", "synthetic", "local")
    assert dict(variant.settings) == {"preset": "tiny", "micro_batches": "1,2,1", "clustering": "none"}


def test_a_grid_is_every_combination_against_the_first(tmp_path: Path) -> None:
    sweep = load(write(tmp_path, GRID))
    first = "synthetic, micro_batches=2, batch_size=8"
    assert changes(sweep) == {
        first: (None, first),
        "synthetic, micro_batches=2, batch_size=16": (first, "batch_size=16"),
        "synthetic, micro_batches=1,2,1, batch_size=8": (first, "micro_batches=1,2,1"),
        "synthetic, micro_batches=1,2,1, batch_size=16": (first, "batch_size=16, micro_batches=1,2,1"),
    }


def test_a_python_file_says_the_same(tmp_path: Path) -> None:
    text = f"import tomllib\ndef sweep():\n    return tomllib.loads({LADDER!r})\n"
    assert load(write(tmp_path, text, "ladder.py")) == load(write(tmp_path, LADDER))


def test_rounds_are_interleaved_and_rotate() -> None:
    order = [(step.variant.method, cell.workers, cell.round) for step, cell in fake_sweep(2).cells()]
    names = ["sync", "dbp", "fwp", "nestpipe"]
    rotated = ["dbp", "fwp", "nestpipe", "sync"]
    expected = [(name, workers, 0) for workers in (1, 2) for name in names]
    expected += [(name, workers, 1) for workers in (1, 2) for name in rotated]
    assert order == expected


def test_an_identity_is_of_the_settings_alone() -> None:
    sweep = fake_sweep()
    cells = [cell for _, cell in sweep.cells()]
    assert len({cell.identity for cell in cells}) == len(cells) == 3 * 2 * 4
    renamed = replace(sweep, name="other", steps=tuple(replace(s, name=s.name + "!") for s in sweep.steps))
    assert [cell.identity for _, cell in renamed.cells()] == [cell.identity for cell in cells]
    first = cells[0]
    for name in ("workers", "num_steps", "num_warmup_steps", "seed", "round"):
        change: dict[str, Any] = {name: 77}
        assert replace(first, **change).identity != first.identity
    assert replace(first, check=True).identity != first.identity
    assert replace(first, settings=(("batch_size", "8"),)).identity != first.identity
    # One that is on disk today must be found again tomorrow.
    assert first.identity == "019dbe02f026b60a"


def test_jobs_are_those_of_run(tmp_path: Path) -> None:
    sweep = load(write(tmp_path, "check = true\nsteps = 4\n" + LADDER))
    jobs = jobs_of(sweep, tmp_path)
    job = jobs[sweep.cell(sweep.steps[2], 2, 1).identity]
    assert (job.methods, job.num_steps, job.check_exactness) == (("nestpipe",), 4, True)
    assert job.settings.method == {"micro_batches": [1, 2, 1]}
    assert job.settings.workload == {"preset": "tiny", "batch_size": "8"}


STEP = '[[step]]\nname = "a"\nmethod = "sync"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x =", "not TOML"),
        ("", r"\[\[step\]\] entries.* or one \[grid\]"),
        (STEP + "[grid]\nseed = [1]\n", r"\[\[step\]\] entries.* or one \[grid\]"),
        ("worker = 2\n" + STEP, "unknown key 'worker': did you mean 'workers'"),
        ("workers = [2, 2]\n" + STEP, "differ from each other"),
        ("workers = []\n" + STEP, "workers must be"),
        ("workers = 0\n" + STEP, "workers must be a whole number of at least 1, got 0"),
        ("steps = true\n" + STEP, "steps must be a whole number of at least 1, got True"),
        ('check = "exact"\n' + STEP, "check must be true or false"),
        ('name = "../up"\n' + STEP, "name must be letters"),
        (STEP + "sets = {}\n", "step 'a': key 'sets': did you mean 'set'"),
        ('[[step]]\nname = "a"\n', "step 'a' has no method"),
        ('[[step]]\nmethod = "sync"\n', "step 1: name must be a text"),
        (STEP + STEP, "two steps are named 'a'"),
        (STEP + '[[step]]\nname = "b"\n', "step 'b' is the same as 'a'"),
        (STEP + '[[step]]\nname = "b"\nafter = "aa"\n', "no step before it is named 'aa': did you mean 'a'"),
        (STEP + 'unset = ["batch_size"]\n', "'batch_size' is not set before it"),
        (STEP + "set = 3\n", "set needs keys and values"),
        ("[grid]\nmethod = 'sync'\n", "method: expected a list of values"),
        ("[grid]\n", r"\[grid\] needs a list"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=message) as raised:
        load(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[step]]\nname = "a"\nmethod = "synk"\n', "step 'a': unknown method 'synk': did you mean 'sync'"),
        (
            STEP + "set = { batchsize = 3 }\n",
            "step 'a': unknown setting 'batchsize': did you mean 'batch_size'",
        ),
        (STEP + "set = { dense_ms = 3 }\n", "step 'a': unknown setting 'dense_ms'"),
        (STEP + 'cluster = "paper-npu-1"\n', "step 'a': unknown profile 'paper-npu-1'"),
        ("workers = 5\n" + STEP + 'cluster = "paper-npu-128"\n', "5 real workers do not divide"),
        (STEP + '[[step]]\nname = "b"\ncluster = "paper-npu-128"\n', "some steps are emulated"),
    ],
)
def test_what_cannot_be_run_is_told_before_anything_is(tmp_path: Path, text: str, message: str) -> None:
    sweep = load(write(tmp_path, text))
    with pytest.raises(ValueError, match=message):
        jobs_of(sweep, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", r"write a function sweep\(\)"),
        ("def sweep():\n    return 1 / 0\n", r"ZeroDivisionError: division by zero \(line 2\)"),
        ("def sweep():\n    return []\n", "returned list, not a dict"),
        ("def sweep(\n", "SyntaxError"),
    ],
)
def test_mistakes_in_a_python_file_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(write(tmp_path, text, "ladder.py"))


def test_what_is_no_file_of_a_sweep_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no sweep file"):
        load(tmp_path / "none.toml")
    with pytest.raises(ValueError, match=r"a \.toml or a \.py file, not \.json"):
        load(write(tmp_path, "{}", "ladder.json"))


def test_planning_loads_no_torch(tmp_path: Path) -> None:
    path = write(tmp_path, LADDER)
    code = (
        "import sys; from pathlib import Path; from harness.sweep.file import load;"
        "from harness.sweep.launched import jobs_of;"
        f"jobs_of(load(Path({str(path)!r})), Path('.')); print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"
