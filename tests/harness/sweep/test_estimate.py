"""Estimates: their arithmetic on known costs, and one against what a small run then takes."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
import torch
from click.testing import CliRunner

from harness.cli import main
from harness.emulation import profiles
from harness.estimate import Estimate, Estimator
from harness.options import Settings, Training
from harness.probe import Costs, measure_costs
from harness.reproduce import items
from harness.reproduce.rehearsal import estimate_reproduction
from tests.harness.fakes import fake_job
from workloads.registry import create

COSTS = Costs(
    table_bytes=8 << 30,
    num_rows=1 << 24,
    dense_bytes=1 << 20,
    batch_bytes=1 << 10,
    batch_s=0.01,
    build_s=3.0,
    step_s=0.5,
)


@pytest.fixture
def known_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.estimate.measure_costs", lambda *_: COSTS)
    monkeypatch.setattr("harness.estimate.num_cores", lambda: 2)


def test_a_run_is_starts_models_and_steps(known_costs: None) -> None:
    job = fake_job("plain", "needy", num_steps=7)
    # Two steps of warm-up, four more that one method needs, three rounds of two steps that settle.
    num_steps = 7 + 2 + 4 + 3 * 2
    estimator = Estimator(age_s=lambda: 5.0)
    each_s = 2.0 + 1.25 * 5.0 + 2 * 3.0 + 0.01 * (num_steps + 8) + 2 * num_steps * 0.5
    assert estimator.run(job, [2]).seconds == pytest.approx(each_s)
    # Twice as many workers as cores, and both launches.
    crowded_s = 2.0 + 2 * (each_s - 2.0)
    assert estimator.run(job, [2, 4]).seconds == pytest.approx(each_s + crowded_s)


def test_memory_is_whole_models_first_and_then_every_methods_share(known_costs: None) -> None:
    def extra(num_workers: int, *methods: str, sparse_optimizer: str = "rowwise_adagrad") -> float:
        settings = Settings(training=Training(sparse_optimizer=sparse_optimizer))
        job = fake_job(*methods, settings=settings)
        own = psutil.Process().memory_info().rss
        return Estimator().run(job, [num_workers]).memory_bytes / 2**30 - (1 + num_workers) * own / 2**30

    gib = pytest.approx
    assert extra(1, "plain", sparse_optimizer="sgd") == gib(8 + 8, abs=0.1)
    assert extra(2, "plain", sparse_optimizer="sgd") == gib(2 * 8 + 8, abs=0.1)
    assert extra(2, "plain", "same", sparse_optimizer="sgd") == gib(2 * 8 + 2 * 8, abs=0.1)
    assert extra(2, "plain", sparse_optimizer="adam") == gib(2 * 8 + 3 * 8, abs=0.1)
    assert extra(2, "plain") == gib(2 * 8 + 8 + 4 * 2**24 / 2**30, abs=0.1)


def test_an_emulated_step_is_the_simulators(known_costs: None) -> None:
    profile = profiles.get("paper-npu-1536")
    plain = fake_job("plain").find_method("plain")
    job = replace(fake_job("torchrec"), clusters=(profile,), find_method=lambda name: plain)
    steps_s = (7 + 2 + 6) * 5793.83 / 1714.99 * 0.5
    fixed_s = 2.0 + 3.0 + 0.01 * (7 + 2 + 6 + 8)
    assert Estimator(age_s=lambda: 0.0).run(job, [2]).seconds == pytest.approx(fixed_s + steps_s, rel=0.01)


def test_all_items_of_the_paper_take_what_they_took(monkeypatch: pytest.MonkeyPatch) -> None:
    # As measured on two cores: all items of speed with 20 steps and 4 workers, 23 minutes.
    quick = replace(COSTS, step_s=0.01, build_s=0.1, batch_s=0.001)
    monkeypatch.setattr("harness.estimate.measure_costs", lambda *_: quick)
    monkeypatch.setattr("harness.estimate.num_cores", lambda: 2)
    estimate = estimate_reproduction(items.get("all"), 4, 20, Estimator(age_s=lambda: 5.0))
    assert estimate.seconds == pytest.approx(23 * 60, rel=0.3)


def test_sizes_are_those_of_the_model_whatever_its_size() -> None:
    costs = measure_costs(
        create("synthetic", {"preset": "tiny"}, seed=0, num_workers=1, cache_dir=Path("unused")),
        Training(),
        1,
    )
    workload = create("synthetic", {"preset": "tiny"}, seed=0, num_workers=1, cache_dir=Path("unused"))
    model = workload.model(torch.device("cpu"))
    assert costs.table_bytes == 1000 * 16 * 4
    assert costs.num_rows == 1000
    assert costs.table_bytes + costs.dense_bytes == sum(
        p.numel() * p.element_size() for p in model.parameters()
    )
    assert costs.step_s is not None
    assert 0 < costs.step_s < 1
    huge = create(
        "industrial",
        {"num_items": "4000000000", "num_live": "1000", "num_topics": "8"},
        seed=0,
        num_workers=1,
        cache_dir=Path("unused"),
    )
    costs = measure_costs(huge, Training(), 1)
    assert costs.table_bytes > 4e9 * 16 * 4
    assert costs.step_s is None


def test_an_unknown_time_stays_unknown_and_too_much_memory_is_told() -> None:
    total = Estimate(3.0, 5.0) + Estimate(None, 2.0)
    assert total == Estimate(None, 5.0)
    assert str(total).startswith("estimate: an unknown time and 0.0 GiB of memory")
    assert "more than the" in str(Estimate(200.0, 1e15))
    assert "about 3 min" in str(Estimate(200.0, 0.0))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["run", "dbp", "torchrec", "--workers", "1,2", "--steps", "4", "--check", "exact"],
            ["would run: dbp, torchrec on synthetic, cluster local, 1, 2 workers, 15 steps", "check: sync"],
        ),
        (
            ["train", "nestpipe", "--workload", "synthetic", "--epochs", "1", "--seeds", "0,1"],
            ["would train: nestpipe on synthetic in float32, 1 epoch, 2 workers, 2 seeds"],
        ),
        (
            ["reproduce", "table2", "--evidence", "emulated"],
            ["would emulate on 4 processes: table2, 8 runs of a method"],
        ),
        (["ablate", "--evidence", "simulated"], ["would simulate: ablation, 5 runs of a method"]),
    ],
)
def test_a_dry_run_says_what_would_run_and_ends(
    tmp_path: Path, arguments: list[str], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.estimate.measure_costs", lambda *_: COSTS)
    out = tmp_path / "out"
    tiny = ["--set", "preset=tiny"] if arguments[0] in ("run", "train") else []
    result = CliRunner().invoke(main, [*arguments, *tiny, "--out", str(out), "--dry-run"])
    assert result.exit_code == 0, result.output
    for text in said:
        assert text in result.output
    assert ("estimate: about" in result.output) == ("simulated" not in arguments)
    assert not out.exists()


@dataclass
class Peak:
    """The largest memory of a process with its children, sampled until it ends."""

    process: psutil.Process
    bytes: int = 0

    def watch(self) -> None:
        while self.process.is_running():
            try:
                family = [self.process, *self.process.children(recursive=True)]
                self.bytes = max(self.bytes, sum(each.memory_info().rss for each in family))
            except psutil.NoSuchProcess:
                continue
            time.sleep(0.1)


def ratios_of_a_small_run(folder: Path) -> tuple[float, float]:
    """Estimated over actual: seconds from the estimate to the end, and bytes."""
    command = [sys.executable, "-c", "from harness.cli import main; main()", "run", "sync", "dbp"]
    command += ["--workers", "2", "--steps", "40", "--set", "num_rows=100000"]
    command += ["--out", str(folder), "--cache", str(folder / "cache")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        peak = Peak(psutil.Process(process.pid))
        watcher = threading.Thread(target=peak.watch, daemon=True)
        watcher.start()
        assert process.stdout is not None
        found = re.search(r"estimate: about (\d+) s and ([\d.]+) GiB", process.stdout.readline())
        began = time.perf_counter()
        process.communicate(timeout=100)
        took_s = time.perf_counter() - began
    watcher.join(timeout=10)
    assert process.returncode == 0
    assert found is not None
    return float(found[1]) / took_s, float(found[2]) * 2**30 / peak.bytes


@pytest.mark.timed
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_small_run_takes_what_was_estimated_within_a_factor_of_three(tmp_path: Path) -> None:
    time_ratio, memory_ratio = ratios_of_a_small_run(tmp_path)
    assert 1 / 3 < memory_ratio < 3
    assert 1 / 3 < time_ratio < 3
