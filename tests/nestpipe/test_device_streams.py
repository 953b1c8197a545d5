"""The engine's lanes on streams of their own: order, lifetime and host waits, on a fake accelerator."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from nestpipe import GradientClipping, NestPipe, RowWiseAdagrad, Tracer, pipeline, schedules, streams
from nestpipe.executor import MAX_STEPS_BEHIND, Executor
from nestpipe.happens_before import ScheduleError
from nestpipe.schedule import Lane, Op, OpId, OpKind, Schedule
from nestpipe.streams import CpuStreams, DeviceStreams, TorchAccelerator, streams_of
from nestpipe.verify import verify
from tests.nestpipe.fake_accelerator import FakeAccelerator, FakeEvent, FakeStream, Pageable, stand_in
from tests.nestpipe.models import Data, Model
from tests.nestpipe.training import build, step_until_stop, weights

DATA = Data(dtype=torch.float64)
OPTIMIZER = RowWiseAdagrad(lr=0.05)
SCHEDULES = [schedules.sync(), schedules.dbp(), schedules.uniemb(), schedules.nestpipe(3)]
NUM_STEPS = 5


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeAccelerator:
    return stand_in(monkeypatch)


def train(fake: FakeAccelerator, schedule: Schedule, **options: Any) -> dict[str, torch.Tensor]:
    with build(DATA, schedule, OPTIMIZER, **options) as trained, fake.recording():
        step_until_stop(trained, DATA.batches(0, 1, NUM_STEPS))
        return weights(trained.state_dict())


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_every_operator_comes_after_what_it_needs(fake: FakeAccelerator, schedule: Schedule) -> None:
    found = train(fake, schedule)
    assert fake.num_operators > 100 * NUM_STEPS
    assert fake.races == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "streams_of", lambda _: CpuStreams())
        with build(DATA, schedule, OPTIMIZER) as plain:
            step_until_stop(plain, DATA.batches(0, 1, NUM_STEPS))
            expected = weights(plain.state_dict())
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("place", ["keys", "memory", "comm", "transfers", "compute"])
def test_a_lane_that_nobody_waits_for_is_found(fake: FakeAccelerator, place: str) -> None:
    """The detector's own test: without the marks of one stream there are races."""

    class Deaf(Pageable):
        def section(self, place: Any, after: Any) -> Any:
            return super().section(place, [m for m in after if m is None or m.stream is not unheard])

    deaf = Deaf(fake)
    unheard = deaf._streams.get(place, fake.current_stream())  # type: ignore[call-overload]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "streams_of", lambda _: deaf)
        train(fake, schedules.nestpipe(2))
    assert fake.races


def test_work_beside_the_lanes_is_waited_for(fake: FakeAccelerator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded state is read into buffers by the caller; another stream of its own is no harm either."""

    def load_and_go_on() -> list[str]:
        with build(DATA, schedules.nestpipe(2), OPTIMIZER) as trained, fake.recording():
            batches = DATA.batches(0, 1, NUM_STEPS)
            for _ in range(2):
                trained.progress(batches)
            trained.load_state_dict(trained.state_dict())
            with fake.new_stream() as other:
                event = fake.new_event(timed=False)
                event.record(fake._callers)
                other.wait_event(event)  # as a user must who changes streams
                trained.progress(batches)
        return fake.races

    assert load_and_go_on() == []
    monkeypatch.setattr(Pageable, "follow_caller", lambda self: None)
    assert load_and_go_on()


@pytest.mark.parametrize(
    ("schedule", "reads_a_route", "clipping"),
    [
        (schedules.nestpipe(2), 1, None),
        (schedules.nestpipe(2), 1, GradientClipping(0.1, "all")),
        (schedules.dbp(), 1, None),
        (schedules.uniemb(), 1, GradientClipping(0.1)),
        (schedules.sync(), 2, None),
        (schedules.fwp(2), 2, None),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_host_reads_on_the_keys_lane_alone(
    fake: FakeAccelerator,
    monkeypatch: pytest.MonkeyPatch,
    schedule: Schedule,
    reads_a_route: int,
    clipping: GradientClipping | None,
) -> None:
    """Route reads the counts, and with them what has come of those before; no other thread waits for the
    device. Without a batch ahead it reads twice.

    Plain versions of kernels, which an accelerator does not run, may read.
    """
    lists: list[str] = []
    tolist = torch.Tensor.tolist

    def recorded(tensor: torch.Tensor) -> Any:
        lists.append(threading.current_thread().name)
        return tolist(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", recorded)
    with (
        NestPipe(
            Model().to(DATA.dtype),
            sparse_optimizer=OPTIMIZER,
            dense_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            schedule=schedule,
            clipping=clipping,
        ) as trained,
        fake.recording(),
    ):
        batches = DATA.batches(0, 1, 100)
        lists.clear()
        for _ in range(NUM_STEPS):
            trained.progress(batches)
        reads = {thread for thread, _ in fake.host_reads}
        waits = set(fake.host_waits)
    keys, host = "nestpipe-0-keys", "nestpipe-0-host"
    assert reads == {host}  # which works on what is still in host memory
    assert set(lists) <= {keys, host}
    num_routed, rest = divmod(lists.count(keys), reads_a_route)
    assert NUM_STEPS <= num_routed <= NUM_STEPS + trained.schedule.look_ahead
    assert rest == 0
    assert waits <= {"MainThread"}  # of the device as a whole, once it is steps behind


DBP = schedules.dbp()


def waiting(kind: OpKind, *refs: OpId) -> Schedule:
    """`dbp` with the ops of a kind waiting for more."""
    ops = (replace(op, after=(*op.after, *refs)) if op.kind is kind else op for op in DBP.steady)
    return replace(DBP, name=f"{kind} after {refs[0]}", steady=tuple(ops))


def on_one_lane() -> Schedule:
    """`dbp` that looks rows up before it routes the next batch, by one thread."""
    route = replace(next(op for op in DBP.steady if op.kind is OpKind.ROUTE), lane=Lane.MEMORY)
    ops = [op for op in DBP.steady if op.kind is not OpKind.ROUTE]
    retrieve = next(index for index, op in enumerate(ops) if op.kind is OpKind.RETRIEVE)
    return replace(DBP, name="one lane", steady=(*ops[: retrieve + 1], route, *ops[retrieve + 1 :]))


@pytest.mark.parametrize(
    "schedule",
    [
        waiting(OpKind.ROUTE, OpId(OpKind.WRITE_BACK, 0)),
        waiting(OpKind.ROUTE, OpId(OpKind.RETRIEVE, 1)),
        waiting(OpKind.ROUTE, OpId(OpKind.SYNC, 1)),
        on_one_lane(),
    ],
    ids=lambda s: s.name,
)
def test_schedules_that_cannot_wait_for_the_next_route_run_too(
    fake: FakeAccelerator, schedule: Schedule
) -> None:
    assert verify(schedule).holds
    found = train(fake, schedule)
    assert fake.races == []
    expected = train(fake, DBP)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_schedule_that_waits_for_itself_is_refused(fake: FakeAccelerator) -> None:
    schedule = waiting(OpKind.RETRIEVE, OpId(OpKind.SYNC, 1))
    with pytest.raises(ScheduleError, match=r"cycle: .*retrieve.* waits for .*sync"):
        build(DATA, schedule, OPTIMIZER)


def test_a_loaded_state_waits_for_what_evaluation_has_queued(fake: FakeAccelerator) -> None:
    """Its reads of the tables in host memory, which the host is about to overwrite."""
    with build(DATA, schedules.nestpipe(2), OPTIMIZER) as trained, fake.recording():
        trained.progress(DATA.batches(0, 1, 2))
        state = trained.state_dict()
        trained.drain()
        assert len(list(trained.evaluate(DATA.batches(0, 1, 1)))) == 1
        queued = dict(fake.current_stream().clock)
        assert any(fake.host.get(stream, 0) < tick for stream, tick in queued.items())
        trained.load_state_dict(state)
        assert all(fake.host.get(stream, 0) >= tick for stream, tick in queued.items())


def test_batches_are_evaluated_from_pinned_memory(
    fake: FakeAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: list[Any] = []

    def pin(streams: Pageable, batch: Any) -> Any:
        pinned.append(batch)
        return batch

    monkeypatch.setattr(Pageable, "pinned", pin)
    with build(DATA, schedules.sync(), OPTIMIZER) as trained:
        batches = [batch for batch, _, _ in trained.evaluate(DATA.batches(0, 1, 2))]
    assert [id(batch) for batch in pinned] == [id(batch) for batch in batches]


def test_a_trace_has_the_times_of_the_device(fake: FakeAccelerator) -> None:
    tracer = Tracer()
    with build(DATA, schedules.nestpipe(2), OPTIMIZER, tracer=tracer) as trained, fake.recording():
        step_until_stop(trained, DATA.batches(0, 1, 3))
    events = {event.op.id: event for event in tracer.take() if 0 <= event.op.step < 3}
    assert {op.kind for op in events} == {*OpKind} - {OpKind.AVERAGE}
    for event in events.values():
        assert event.started <= event.finished
        for ref in event.op.after:
            if ref in events:
                assert events[ref].finished <= event.finished


@dataclass
class Arriving:
    """A transfer on a stream of a library's own, as NCCL's; `wait` queues and does not block."""

    stream: FakeStream
    device: FakeAccelerator
    memory: torch.Tensor

    def wait(self) -> None:
        event = FakeEvent(self.device)
        event.record(self.stream)
        self.device.current_stream().wait_event(event)
        self.memory.add_(1.0)


def _ops(step: int) -> list[Op]:
    sent, used = OpId(OpKind.EXCHANGE, step, 0), OpId(OpKind.COMPUTE, step, 0)
    return [Op(sent, Lane.COMM), Op(used, Lane.COMPUTE, (sent,))]


def test_what_a_transfer_uses_lives_until_the_device_has_used_it() -> None:
    device = FakeAccelerator()
    library = device.new_stream()
    alive: list[weakref.ref[torch.Tensor]] = []

    def exchange(op: Op) -> Arriving:
        transfer = Arriving(library, device, torch.zeros(2))
        alive.append(weakref.ref(transfer.memory))
        device._kept.clear()
        return transfer

    executor = Executor(
        {OpKind.EXCHANGE: exchange, OpKind.COMPUTE: lambda op: None}, 0, DeviceStreams(device)
    )
    for step in range(MAX_STEPS_BEHIND + 2):
        executor.issue(_ops(step))
        executor.run_until(OpId(OpKind.COMPUTE, step, 0))
    device._kept.clear()
    device._accesses.clear()
    gc.collect()
    assert executor.forget(before_step=MAX_STEPS_BEHIND) == 0
    assert device.host_waits == []
    assert all(ref() is not None for ref in alive)
    # One more, and the caller waits for the device.
    assert executor.forget(before_step=MAX_STEPS_BEHIND + 1) == 1
    assert device.host_waits
    executor.drain()
    gc.collect()
    assert all(ref() is None for ref in alive)
    executor.close()


def test_observers_are_told_when_the_device_is_done() -> None:
    def work(op: Op) -> None:
        torch.zeros(2)

    device = FakeAccelerator()
    executor = Executor({OpKind.EXCHANGE: work, OpKind.COMPUTE: work}, 0, DeviceStreams(device))
    told: list[OpId] = []
    executor.observers.append(lambda event: told.append(event.op.id))
    with device.recording():
        for step in range(2):
            executor.issue(_ops(step))
            executor.run_until(OpId(OpKind.COMPUTE, step, 0))
    assert executor.forget(before_step=1) == 0
    assert told == []
    executor.wait_for_device(OpId(OpKind.COMPUTE, 0, 0))
    assert sorted(told) == sorted(op.id for op in _ops(0))
    executor.drain()
    assert sorted(told) == sorted(op.id for step in range(2) for op in _ops(step))
    executor.close()


def test_a_failure_on_a_stream_is_raised_with_its_op() -> None:
    def fail(op: Op) -> None:
        raise OSError("out of memory")

    device = FakeAccelerator()
    executor = Executor({OpKind.EXCHANGE: fail, OpKind.COMPUTE: fail}, 0, DeviceStreams(device))
    executor.issue(_ops(0))
    with pytest.raises(OSError, match="out of memory") as caught:
        executor.run_until(OpId(OpKind.COMPUTE, 0, 0))
    assert any("exchange(0, 0) on rank 0 (lane comm)" in note for note in caught.value.__notes__)
    executor.close()


def test_a_cpu_has_no_streams() -> None:
    none = streams_of(torch.device("cpu"))
    assert not none.is_asynchronous
    with none.section(Lane.COMM, (None,)):
        assert none.mark(timed=True) is None
    batch = object()
    assert none.pinned(batch) is batch


def test_every_lane_works_on_the_device_of_the_pipeline() -> None:
    """The current device of a thread is the first one, whatever that of the thread is that started it."""
    device = FakeAccelerator(index=1)
    seen: dict[str, int] = {}

    class Pending:
        def wait(self) -> None:
            seen["transfers"] = device.current_index

    def work(op: Op) -> Pending | None:
        seen[op.lane] = device.current_index
        return Pending() if op.lane is Lane.COMM else None

    executor = Executor({OpKind.EXCHANGE: work}, 0, DeviceStreams(device))
    executor.issue([Op(OpId(OpKind.EXCHANGE, 0, number), lane) for number, lane in enumerate(Lane)])
    executor.drain()
    executor.close()
    assert seen == dict.fromkeys((*Lane, "transfers"), 1)
    assert device.current_index == 0


def test_the_current_device_is_set_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    current = [0]

    @contextmanager
    def device_index(index: int) -> Iterator[None]:
        current.append(index)
        yield
        current.pop()

    monkeypatch.setattr(torch.accelerator, "device_index", device_index)
    with TorchAccelerator(torch.device("cuda:1")).on_device():
        assert current == [0, 1]
    assert current == [0]


def test_a_device_that_is_not_the_current_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(streams, "TorchAccelerator", lambda device: FakeAccelerator(device.index))
    message = (
        r'device="cuda:1" is not the current device, which is "cuda:0"; '
        r"call torch.accelerator.set_device_index\(1\) before"
    )
    with pytest.raises(ValueError, match=message):
        build(DATA, schedules.sync(), OPTIMIZER, device="cuda:1")
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 1)
    assert streams_of(torch.device("cuda:1")).is_asynchronous


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r'device="cuda" is not there: torch .* sees no accelerator'):
        build(DATA, schedules.sync(), OPTIMIZER, device="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_a_gpu_trains_as_a_cpu_does(schedule: Schedule) -> None:
    found = {}
    for device in ("cpu", "cuda"):
        with build(DATA, schedule, OPTIMIZER, device=device) as trained:
            step_until_stop(trained, DATA.batches(0, 1, NUM_STEPS))
            found[device] = weights(trained.state_dict())
    for name, expected in found["cpu"].items():
        torch.testing.assert_close(found["cuda"][name].cpu(), expected, rtol=1e-9, atol=1e-12)
