"""Errors that a device reports late, from a call beside the handlers: raised with an op's name, no hang."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from nestpipe import RowWiseAdagrad, schedules
from nestpipe.executor import MAX_STEPS_BEHIND, Executor
from nestpipe.schedule import Lane, Op, OpId, OpKind
from nestpipe.streams import CpuStreams, DeviceStreams
from nestpipe.trace import OpEvent
from tests.nestpipe.fake_accelerator import FakeAccelerator, stand_in
from tests.nestpipe.models import Data
from tests.nestpipe.training import build

DATA = Data()
OPTIMIZER = RowWiseAdagrad(lr=0.05)
FIRST, SECOND = OpId(OpKind.EXCHANGE, 0, 0), OpId(OpKind.COMPUTE, 0, 0)

# A worker that has died, or a waiter that nobody wakes, would otherwise wait for ever.
pytestmark = pytest.mark.timeout(20)


def _executor(device: FakeAccelerator, first: Callable[[Op], Any]) -> Executor:
    return Executor({OpKind.EXCHANGE: first, OpKind.COMPUTE: lambda op: None}, 0, DeviceStreams(device))


def _ops(first: Lane = Lane.COMM, second: Lane = Lane.COMPUTE) -> list[Op]:
    return [Op(FIRST, first), Op(SECOND, second, (FIRST,))]


def _note(error: BaseException) -> str:
    (note,) = error.__notes__
    return note


def _ends_without_waiting(executor: Executor, failure: BaseException) -> None:
    with pytest.raises(type(failure)) as again:
        executor.drain()
    assert again.value is failure
    executor.close()


@pytest.mark.parametrize(("first", "second"), [(Lane.COMM, Lane.COMPUTE), (Lane.COMPUTE, Lane.COMM)])
@pytest.mark.parametrize(("call", "culprit"), [("new_event", 0), ("record", 0), ("wait_event", 1)])
def test_an_error_reported_beside_a_handler(call: str, culprit: int, first: Lane, second: Lane) -> None:
    device = FakeAccelerator()
    executor = _executor(device, lambda op: device.broken.add(call))
    ops = _ops(first, second)
    executor.issue(ops)
    with pytest.raises(RuntimeError, match=f"device-side assert, reported by {call}") as caught:
        executor.run_until(SECOND)
    failed = ops[culprit]
    assert _note(caught.value) == f"raised in {failed.id} on rank 0 (lane {failed.lane.value})"
    _ends_without_waiting(executor, caught.value)


@pytest.mark.parametrize("call", ["new_event", "record"])
def test_an_error_reported_at_the_end_of_a_transfer(call: str) -> None:
    device = FakeAccelerator()

    class Pending:
        def wait(self) -> None:
            device.broken.add(call)

    executor = _executor(device, lambda op: Pending())
    executor.issue(_ops())
    with pytest.raises(RuntimeError, match=f"reported by {call}") as caught:
        executor.run_until(SECOND)
    assert _note(caught.value) == "raised in exchange(0, 0) on rank 0 (lane comm)"
    _ends_without_waiting(executor, caught.value)


@pytest.mark.parametrize(
    ("call", "ask"),
    [
        ("query", lambda executor: executor.forget(before_step=1)),
        ("synchronize", lambda executor: executor.forget(before_step=MAX_STEPS_BEHIND + 1)),
        ("synchronize", lambda executor: executor.wait_for_device(SECOND)),
        ("synchronize", lambda executor: executor.drain()),
        ("elapsed_time", lambda executor: executor.drain()),
    ],
)
def test_an_error_reported_to_who_waits_for_the_device(call: str, ask: Callable[[Executor], Any]) -> None:
    device = FakeAccelerator()
    executor = _executor(device, lambda op: None)
    executor.observers.append(lambda event: None)
    executor.issue(_ops())
    executor.run_until(SECOND)
    device.broken.add(call)
    with pytest.raises(RuntimeError, match=f"reported by {call}") as caught:
        ask(executor)
    assert "on rank 0 (lane com" in _note(caught.value)
    _ends_without_waiting(executor, caught.value)


@pytest.mark.parametrize("on_device", [False, True])
def test_an_observer_that_raises(on_device: bool) -> None:
    def observe(event: OpEvent) -> None:
        raise KeyError(str(event.op.id))

    streams = DeviceStreams(FakeAccelerator()) if on_device else CpuStreams()
    executor = Executor({OpKind.EXCHANGE: lambda op: None, OpKind.COMPUTE: lambda op: None}, 0, streams)
    executor.observers.append(observe)
    executor.issue(_ops())
    with pytest.raises(KeyError) as caught:
        executor.drain()
    assert _note(caught.value) == "raised in exchange(0, 0) on rank 0 (lane comm)"
    _ends_without_waiting(executor, caught.value)


def _lanes_alive() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("nestpipe-")]


def test_a_pipeline_whose_device_breaks_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = stand_in(monkeypatch)
    trained = build(DATA, schedules.nestpipe(2), OPTIMIZER)
    batches = DATA.batches(0, 1, 10)
    for _ in range(2):
        trained.progress(batches)
    fake.broken.add("record")
    with pytest.raises(RuntimeError, match="reported by record") as caught:
        trained.progress(batches)
    assert _note(caught.value).startswith("raised in ")
    trained.close()
    assert _lanes_alive() == []


def test_an_error_first_seen_in_close_is_raised_there(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = stand_in(monkeypatch)
    trained = build(DATA, schedules.nestpipe(2), OPTIMIZER)
    trained.progress(DATA.batches(0, 1, 10))
    fake.broken.add("synchronize")
    with pytest.raises(RuntimeError, match="reported by synchronize"):
        trained.close()
    assert _lanes_alive() == []
