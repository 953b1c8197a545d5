"""Training launches of real worker processes, on methods that are small enough to train independently."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.launch import LaunchError, launch_function
from harness.options import Settings, Training
from harness.training.worker import run_training
from tests.harness.fakes import FakeBatch, FakeModel, FakeWorkload
from tests.harness.training.fakes import NUM_USERS, STEPS_AN_EPOCH, training_job


def train_alone(num_workers: int, num_epochs: int) -> tuple[list[float], list[float]]:
    """Loss of each epoch and mean output over users at its end, trained in this process."""
    model = FakeModel(torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    streams = [FakeWorkload(3).batches(rank=rank, num_workers=num_workers) for rank in range(num_workers)]
    losses, means = [], []
    for _ in range(num_epochs):
        own = []
        for _ in range(STEPS_AN_EPOCH):
            optimizer.zero_grad()
            loss = torch.stack([model(next(stream))[0] for stream in streams]).mean()
            loss.backward()
            optimizer.step()
            own.append(loss.item())
        losses.append(sum(own) / len(own))
        users = torch.arange(NUM_USERS).unsqueeze(1).expand(-1, 3)
        means.append(model(FakeBatch(users, torch.zeros(NUM_USERS)))[1].mean().item())
    return losses, means


@pytest.mark.parametrize("num_workers", [1, 2])
def test_every_method_trains_on_equal_batches_and_is_evaluated_in_between(num_workers: int) -> None:
    reports = launch_function(run_training, training_job("plain", "ahead"), num_workers)
    losses, means = train_alone(num_workers, 3)
    assert [report.rank for report in reports] == list(range(num_workers))
    for report in reports:
        assert [method.method for method in report.methods] == ["plain", "ahead"]
        for method in report.methods:
            assert [epoch.number for epoch in method.epochs] == [1, 2, 3]
            assert [epoch.num_steps for epoch in method.epochs] == [3, 6, 9]
            assert [epoch.loss for epoch in method.epochs] == pytest.approx(losses, rel=1e-5)
            assert not method.epochs[0].metrics
            for epoch in method.epochs[1:]:
                assert epoch.metrics == {"mean": pytest.approx(means[epoch.number - 1], rel=1e-5), "rows": 20}
    users = [method.users for method in reports[0].methods]
    assert all(
        found is not None and np.array_equal(found.sample_ids, np.arange(NUM_USERS)) for found in users
    )
    assert all(method.users is None for report in reports[1:] for method in report.methods)


def test_a_method_that_cannot_be_evaluated_is_refused_before_another_trains() -> None:
    # "raising" would fail at its third step.
    with pytest.raises(
        LaunchError, match=r"^method 'only-trains' cannot be evaluated: .*no evaluate"
    ) as error:
        launch_function(run_training, training_job("raising", "only-trains"), 1)
    assert error.value.traceback == ""


def test_settings_reach_model_and_optimizer() -> None:
    double = Settings(Training(dtype="float64", dense_lr=0.0))
    report = launch_function(run_training, training_job("plain", settings=double), 1)[0]
    (method,) = report.methods
    model = FakeModel(torch.float64)
    users = torch.arange(NUM_USERS).unsqueeze(1).expand(-1, 3)
    expected = model(FakeBatch(users, torch.zeros(NUM_USERS)))[1].mean().item()
    assert method.epochs[-1].metrics["mean"] == pytest.approx(expected, rel=1e-12)


def test_a_dead_worker_is_named() -> None:
    with pytest.raises(LaunchError, match=r"rank 1 of 2 .*SIGKILL"):
        launch_function(run_training, training_job("dying"), 2)
