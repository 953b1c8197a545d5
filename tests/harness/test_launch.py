"""Launches of real worker processes: what they report, and what is said when one of them dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from torch.distributed.launcher.api import LaunchConfig

from harness.job import Plan, plan_rounds
from harness.launch import LaunchError, launch, launch_function
from harness.options import Settings
from tests.harness.fakes import BATCH_SIZE, FakeModel, FakeWorkload, fake_job


def train_alone(num_workers: int, num_steps: int) -> list[float]:
    """The losses of the fake model trained in one process on the batches of all workers."""
    model = FakeModel(torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    streams = [FakeWorkload(3).batches(rank=rank, num_workers=num_workers) for rank in range(num_workers)]
    losses = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = torch.stack([model(next(stream))[0] for stream in streams]).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def measured(losses: list[float], plan: Plan) -> list[float]:
    """The losses of the measured steps among those of all steps."""
    kept, position = [], plan.num_warmup_steps
    for num_steps in plan.measured:
        position += plan.num_settle_steps
        kept += losses[position : position + num_steps]
        position += num_steps
    return kept


def own_workers() -> list[psutil.Process]:
    """Children of this process and of theirs, without the helpers that multiprocessing keeps."""
    keepers = ("resource_tracker", "forkserver")
    workers: list[psutil.Process] = []
    for child in psutil.Process().children():
        is_keeper = any(name in " ".join(child.cmdline()) for name in keepers)
        workers += child.children(recursive=True) if is_keeper else [child, *child.children(recursive=True)]
    return workers


def test_several_workers_are_started_with_what_several_gpus_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA reads it when it starts, which importing torchrec makes it do: nothing later is early enough."""

    def inherited(config: LaunchConfig, function: object) -> Callable[[object], dict[int, dict[str, str]]]:
        return lambda job: {rank: dict(os.environ) for rank in range(config.nproc_per_node)}

    monkeypatch.setattr("harness.launch.elastic_launch", inherited)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "16")  # as the user wants it
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    for num_workers, loading in ((1, None), (2, "EAGER")):
        environments: list[dict[str, str]] = launch_function(lambda job: {}, fake_job("plain"), num_workers)
        assert len(environments) == num_workers
        for environment in environments:
            assert environment.get("CUDA_MODULE_LOADING") == loading
            assert environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "16"
    assert "CUDA_MODULE_LOADING" not in os.environ


@pytest.mark.parametrize("num_workers", [1, 2])
def test_every_method_trains_on_the_same_batches_and_reports_each_measured_step(num_workers: int) -> None:
    job = fake_job("plain", "ahead", check=True)
    reports = launch(job, num_workers)
    plan = plan_rounds(7, 2)
    expected = measured(train_alone(num_workers, plan.num_steps), plan)
    assert [report.rank for report in reports] == list(range(num_workers))
    assert all(report.batch_size == BATCH_SIZE and report.batches_held for report in reports)
    for index, name in enumerate(("plain", "ahead")):
        methods = [report.methods[index] for report in reports]
        assert [method.method for method in methods] == [name] * num_workers
        assert all(
            len(method.step_ms) == len(method.lookup_ms) == len(method.loss) == 7 for method in methods
        )
        mean = [sum(values) / num_workers for values in zip(*(m.loss for m in methods), strict=True)]
        assert mean == pytest.approx(expected, rel=1e-5)
    difference = reports[0].methods[1].difference
    assert difference is not None
    assert difference.value == 0.0
    assert not own_workers()


def test_warmup_grows_to_the_neediest_method_for_all() -> None:
    reports = launch(fake_job("plain", "needy"), 1)
    assert reports[0].num_warmup_steps == 2 + 4
    assert reports[0].methods[0].loss == reports[0].methods[1].loss


def test_options_and_dtype_reach_the_method() -> None:
    settings = Settings(method={"micro_batches": 4})
    report = launch(fake_job("plain", settings=settings), 1)[0]
    assert report.methods[0].note == "micro_batches=4"
    checked = launch(replace(fake_job("plain", settings=settings), check_bounds=True), 1)[0]
    assert checked.methods[0].note == "micro_batches=4, bounds checked"
    double = replace(settings.training, dtype="float64")
    exact = launch(fake_job("plain", settings=Settings(training=double)), 1)[0]
    assert exact.methods[0].loss != report.methods[0].loss
    assert exact.methods[0].loss == pytest.approx(report.methods[0].loss, rel=1e-5)


def test_a_killed_worker_is_named_with_the_way_out() -> None:
    start = time.monotonic()
    with pytest.raises(LaunchError, match=r"rank 1 of 2 .* exit code -9 \(SIGKILL\).*fewer --workers"):
        launch(fake_job("plain", "dying"), 2)
    assert time.monotonic() - start < 25
    assert not own_workers()


def test_a_bug_in_a_worker_brings_its_traceback_and_no_other() -> None:
    with pytest.raises(LaunchError, match=r"rank 0 of 2 .* RuntimeError") as caught:
        launch(fake_job("raising"), 2)
    assert "misbehave" in caught.value.traceback
    assert "torch.zeros(2) @ torch.zeros(3)" in caught.value.traceback
    assert "by peer" not in caught.value.traceback


def test_a_message_to_the_user_comes_without_traceback() -> None:
    with pytest.raises(LaunchError, match=r"^workers must be at least 1, got 0 \(rank") as caught:
        launch(fake_job("refusing"), 1)
    assert caught.value.traceback == ""


def test_a_silent_peer_ends_the_run_at_the_time_limit() -> None:
    with pytest.raises(LaunchError, match=r"rank 1 of 2 .*waits 3 s for its peers; --timeout raises that"):
        launch(fake_job("hanging", timeout_s=3.0), 2)
    assert not own_workers()


def test_signal_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    launch(fake_job("plain", num_steps=1), 1)
    assert signal.getsignal(signal.SIGINT) is before


def test_no_file_is_left_in_the_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    launch(fake_job("plain", num_steps=1), 1)
    assert list(tmp_path.iterdir()) == []
