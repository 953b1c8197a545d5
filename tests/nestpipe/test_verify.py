"""The proof: of every named schedule, of broken ones, and against random runs."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import combinations

import pytest

from nestpipe import schedules
from nestpipe.averaging import average_replicas
from nestpipe.happens_before import ScheduleError
from nestpipe.late_sizes import read_sizes_late
from nestpipe.schedule import Buffer, Lane, Op, OpId, OpKind, Schedule
from nestpipe.verify import Proof, verify, window
from tests.nestpipe.random_runs import random_run, staleness

FRESH = {
    "sync": schedules.sync(),
    "dbp": schedules.dbp(),
    "fwp": schedules.fwp(),
    "nestpipe": schedules.nestpipe(),
    "nestpipe-1": schedules.nestpipe(1),
    "nestpipe-tapered": schedules.nestpipe([1, 2, 4, 4, 2, 1]),
    "nestpipe-chosen": schedules.nestpipe_chosen(),
    "nestpipe-2d": schedules.nestpipe_2d(),
    "sync-2d": average_replicas(schedules.sync()),
    "dbp-late-sizes": read_sizes_late(schedules.dbp()),
    "nestpipe-late-sizes": read_sizes_late(schedules.nestpipe()),
    "nestpipe-2d-late-sizes": read_sizes_late(schedules.nestpipe_2d()),
}
NESTPIPE = schedules.nestpipe(3)


def changed(
    schedule: Schedule, kind: OpKind, lane: Lane | None = None, without: Collection[OpId] = ()
) -> Schedule:
    """`schedule` with the ops of a kind on another lane, or not waiting for some ops."""

    def change(op: Op) -> Op:
        if op.kind is not kind:
            return op
        return replace(op, lane=lane or op.lane, after=tuple(ref for ref in op.after if ref not in without))

    return replace(schedule, steady=tuple(map(change, schedule.steady)))


def without_sync(schedule: Schedule) -> Schedule:
    ops = (op for op in schedule.steady if op.kind is not OpKind.SYNC)
    kept = (replace(op, after=tuple(r for r in op.after if r.kind is not OpKind.SYNC)) for op in ops)
    return replace(schedule, steady=tuple(kept))


def edge(ref: OpId, op: OpId) -> str:
    """An edge by kinds and micro-batches, with the distance in steps."""
    return f"{ref._replace(step=ref.step - op.step)} -> {op._replace(step=0)}"


def edges(schedule: Schedule) -> Iterator[tuple[str, Schedule]]:
    """Every declared dependency, with the schedule that lacks it."""
    for index, op in enumerate(schedule.steady):
        for ref in op.after:
            less = replace(op, after=tuple(other for other in op.after if other != ref))
            steady = (*schedule.steady[:index], less, *schedule.steady[index + 1 :])
            yield edge(ref, op.id), replace(schedule, steady=steady)


def missing(proof: Proof) -> set[str]:
    """Edges that a proof names as missing."""
    hazards = (*proof.buffer_hazards, *proof.collective_order)
    found = {edge(hazard.first, hazard.second) for hazard in hazards}
    if proof.counterexample is not None:
        found.add(proof.counterexample.missing)
    return found


@pytest.mark.parametrize("name", [*FRESH, "uniemb"])
def test_a_longer_window_finds_nothing_more(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = FRESH.get(name, schedules.uniemb())
    expected = verify(schedule)
    assert expected.is_bounded
    monkeypatch.setattr("nestpipe.verify.window", lambda schedule: 7)
    assert verify(schedule).worst_staleness == expected.worst_staleness


@pytest.mark.parametrize("name", FRESH)
def test_named_schedules_are_fresh(name: str) -> None:
    proof = verify(FRESH[name])
    assert proof.worst_staleness == 0
    assert proof.holds
    assert proof.counterexample is None
    assert not proof.buffer_hazards
    assert not proof.collective_order


def test_uniemb_is_stale_by_exactly_one() -> None:
    proof = verify(schedules.uniemb())
    assert proof.worst_staleness == proof.declared_staleness == 1
    assert proof.holds
    assert proof.loss is None
    example = proof.counterexample
    assert example is not None
    assert example.batches == (0, 1)
    assert example.life == (
        "update(0) changes the row of a key that is in batches 0 and 1",
        "write_back(0) brings the change to the table",
        "retrieve(1) read the row before, and so exchange(1, 0) sends it without the change",
    )
    assert example.missing == "sync(1), between update(0) and exchange(1, 0)"


def test_averaging_every_step_refreshes_rows_that_were_read_ahead() -> None:
    proof = verify(average_replicas(schedules.uniemb()))
    assert (proof.worst_staleness, proof.holds) == (0, True)


# Edges of `nestpipe` that something else implies; they are declared because they say what an op needs, and
# hold where another arrangement of lanes would not imply them.
REDUNDANT = {
    # The memory lane runs retrieve, sync and write_back one at a time, in the order of these edges.
    "write_back(-2) -> retrieve(0)",
    "retrieve(0) -> sync(0)",
    # sync(t + 1), which waits for update(t), comes before write_back(t) on that lane.
    "update(0) -> write_back(0)",
    # sync waits for retrieve.
    "retrieve(0) -> exchange(0, 0)",
    "retrieve(0) -> exchange(0, 1)",
    "retrieve(0) -> exchange(0, 2)",
    # exchange(t, 0), which waits for sync(t), comes first on the comm lane.
    "sync(0) -> exchange(0, 1)",
    "sync(0) -> exchange(0, 2)",
    # The compute lane runs one window, then its update.
    "update(-1) -> compute(0, 0)",
    "update(-1) -> compute(0, 1)",
    "update(-1) -> compute(0, 2)",
    "compute(0, 0) -> update(0)",
    "compute(0, 1) -> update(0)",
    "compute(0, 2) -> update(0)",
    # The reduce of each micro-batch, which waits for its compute, starts before the allreduce on that lane.
    "compute(0, 0) -> allreduce(0)",
    "compute(0, 1) -> allreduce(0)",
    "compute(0, 2) -> allreduce(0)",
}


def test_removing_any_edge_that_matters_is_found_and_named() -> None:
    redundant = set()
    for removed, schedule in edges(NESTPIPE):
        proof = verify(schedule)
        if proof.holds:
            redundant.add(removed)
        else:
            named = missing(proof)
            assert removed in named or _at_step(removed, 1) in named, (removed, named)
            # Nothing else is blamed: what follows from the missing edge is not listed again.
            assert len(named - {_at_step(removed, 1)}) == (removed in named)
    assert redundant == REDUNDANT


def _at_step(name: str, step: int) -> str:
    """An edge as a counterexample writes it, whose read is at `step`."""
    parts = []
    for op in name.split(" -> "):
        kind, _, inside = op.rstrip(")").partition("(")
        first, *rest = inside.split(", ")
        parts.append(f"{kind}({', '.join([str(int(first) + step), *rest])})")
    return " -> ".join(parts)


STALE_EDGES = {"sync(0) -> exchange(0, 0)": 1, "update(-1) -> sync(0)": 4}


def test_a_lookup_before_its_size_is_read_is_found_and_named() -> None:
    schedule = read_sizes_late(NESTPIPE)
    proof = verify(dict(edges(schedule))["route(1) -> retrieve(0)"])
    assert not proof.holds
    (hazard,) = proof.buffer_hazards
    assert str(hazard) == (
        "read too early: retrieve(0) reads sizes(0) before or while route(1) writes it; missing: "
        "route(1) -> retrieve(0)"
    )
    with pytest.raises(ScheduleError, match=r"route\(2\) must declare that it writes sizes\(1\)"):
        verify(replace(NESTPIPE, late_sizes=True))


def test_edges_whose_loss_makes_reads_stale() -> None:
    found = {removed: verify(schedule).worst_staleness for removed, schedule in edges(NESTPIPE)}
    assert {removed: worst for removed, worst in found.items() if worst} == STALE_EDGES


def test_retrieve_on_a_lane_of_its_own_needs_its_edge_to_the_write_back() -> None:
    """Trap: where one memory lane does not imply it, the edge alone keeps old rows out."""
    apart = changed(schedules.dbp(), OpKind.RETRIEVE, Lane.COPY)
    assert verify(apart).holds
    broken = verify(changed(apart, OpKind.RETRIEVE, without=[OpId(OpKind.WRITE_BACK, -1)]))
    assert broken.worst_staleness > 0
    assert broken.counterexample is not None
    assert broken.counterexample.batches == (0, 2)
    assert broken.counterexample.missing == "write_back(0) -> retrieve(2)"


def test_dropping_sync_alone_loses_updates() -> None:
    """Trap: without the read-modify-write of uniemb, rows are not late but lost."""
    proof = verify(without_sync(schedules.nestpipe(2)))
    assert not proof.holds
    assert proof.loss == "write_back(1) may leave the table without update(0), for good"
    assert proof.worst_staleness > 1
    assert proof.counterexample is not None
    assert proof.counterexample.missing.startswith("sync(1), between update(0) and exchange(1, ")
    assert verify(schedules.uniemb()).loss is None


def test_two_lanes_on_one_process_group() -> None:
    """Trap: collectives of a group match by order, which two lanes do not keep."""
    proof = verify(changed(NESTPIPE, OpKind.REDUCE, Lane.HOST))
    assert not proof.holds
    assert proof.worst_staleness == 0
    assert "exchange(0, 1) on lane comm and reduce(0, 0) on lane host" in str(proof.collective_order[0])
    serial = changed(schedules.sync(), OpKind.REDUCE, Lane.HOST)
    assert [edge(h.first, h.second) for h in verify(serial).collective_order] == [
        "reduce(0, 0) -> allreduce(0)"
    ]


def test_too_few_row_buffers() -> None:
    proof = verify(replace(schedules.dbp(), num_row_buffers=1))
    assert not proof.holds
    assert "retrieve(1) overwrites rows(0)" in str(proof.buffer_hazards[0])
    assert verify(replace(schedules.dbp(), num_row_buffers=3)).holds


def test_a_deeper_look_ahead_needs_more_than_buffers() -> None:
    """`sync` knows the batch before; a key that skips it is read two batches ahead, and too early."""

    def ahead(op: Op) -> Op:
        if op.kind is OpKind.RETRIEVE:
            op = replace(op, after=(OpId(OpKind.ROUTE, 1), OpId(OpKind.WRITE_BACK, -2)))
        early = {OpKind.PREFETCH, OpKind.H2D, OpKind.ROUTE, OpKind.RETRIEVE}
        return op.shifted(1) if op.kind in early else op

    steady = tuple(map(ahead, schedules.dbp().steady))
    proof = verify(replace(schedules.dbp(), steady=steady, num_row_buffers=3))
    assert not proof.buffer_hazards
    assert proof.counterexample is not None
    assert proof.counterexample.batches == (0, 2)
    assert proof.loss is not None


def test_two_writers_at_once() -> None:
    edges_lost = [OpId(OpKind.RETRIEVE, 1)]
    apart = changed(schedules.dbp(), OpKind.SYNC, Lane.HOST, without=edges_lost)
    proof = verify(apart)
    assert any(
        str(h)
        == "two writers: retrieve(0) and sync(0) write at once in rows(0); missing: retrieve(0) -> sync(0)"
        for h in proof.buffer_hazards
    )


def replaced(schedule: Schedule, kind: OpKind, **fields: object) -> Schedule:
    steady = tuple(replace(op, **fields) if op.kind is kind else op for op in schedule.steady)  # type: ignore[arg-type]
    return replace(schedule, steady=steady)


BAD = {
    "cycle: compute(0, 0) waits for reduce(0, 0) waits for compute(0, 0)": replaced(
        schedules.sync(), OpKind.COMPUTE, after=(OpId(OpKind.REDUCE, 0, 0),)
    ),
    "h2d(3) runs on the unknown lane 'copi': did you mean 'copy'?": replaced(
        schedules.dbp(), OpKind.H2D, lane="copi"
    ),
    "route(0) reads batch(0), which no op writes": replaced(schedules.dbp(), OpKind.H2D, writes=()),
    "compute(0, 0) reads scores(0), which no op writes": replaced(
        schedules.sync(), OpKind.COMPUTE, reads=(Buffer("scores"),)
    ),
    "update(0) must declare that it reads row_gradients(0)": replaced(
        schedules.sync(), OpKind.UPDATE, reads=()
    ),
    "update(0) is issued twice a step, with update(0)": replace(
        schedules.sync(), steady=(*schedules.sync().steady, schedules.sync().steady[-2])
    ),
    "update(0) is missing: 'sync' never issues it": replace(
        schedules.sync(), steady=tuple(op for op in schedules.sync().steady if op.kind is not OpKind.UPDATE)
    ),
    "update(0) waits for sync(0), which 'sync' never issues": replaced(
        schedules.sync(), OpKind.UPDATE, after=(OpId(OpKind.SYNC, 0),)
    ),
    "update(0) waits for write_back(1), which is issued 1 steps later": replaced(
        schedules.dbp(), OpKind.UPDATE, after=(OpId(OpKind.WRITE_BACK, 1),)
    ),
    "compute(0, 1) does not fit the schedule's 1 micro-batches": replace(schedules.fwp(2), cuts=(1,)),
}


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_run_is_named(message: str) -> None:
    with pytest.raises(ScheduleError) as raised:
        verify(BAD[message])
    assert message in str(raised.value)


def mutants(rng: random.Random, num: int) -> Iterator[Schedule]:
    """Named schedules with ops on other lanes and with dependencies missing, at random."""
    bases = [schedules.sync(), schedules.dbp(), schedules.nestpipe(2), schedules.uniemb()]
    for _ in range(num):
        base = rng.choice(bases)
        steady = []
        for op in base.steady:
            kept = tuple(ref for ref in op.after if rng.random() > 0.1)
            lane = rng.choice(list(Lane)) if rng.random() < 0.15 else op.lane
            steady.append(replace(op, after=kept, lane=lane))
        yield replace(base, steady=tuple(steady))


def lives(num_steps: int) -> list[tuple[int, ...]]:
    return [batches for size in range(2, num_steps + 1) for batches in combinations(range(num_steps), size)]


def measured(schedule: Schedule, rng: random.Random, num_runs: int) -> int:
    """The worst staleness of any read in random runs as long as the verifier's window."""
    worst, num_steps = 0, window(schedule)
    for _ in range(num_runs):
        events = random_run(schedule, num_steps, rng)
        worst = max(worst, *(staleness(events, schedule, batches) for batches in lives(num_steps)))
    return worst


def test_random_runs_are_never_staler_than_proven() -> None:
    rng = random.Random(0)
    num_stale = num_reached = 0
    for schedule in mutants(rng, 150):
        try:
            proof = verify(schedule)
        except ScheduleError as error:
            assert "cycle" in str(error)  # noqa: PT017 - the mutants have no other fault that is an error
            continue
        worst = measured(schedule, rng, 4)
        assert worst <= proof.worst_staleness, schedule
        num_stale += proof.worst_staleness > proof.declared_staleness
        num_reached += proof.worst_staleness > proof.declared_staleness and worst > 0
    assert num_stale > 20
    assert num_reached > 10


@pytest.mark.parametrize("removed", STALE_EDGES)
def test_a_counterexample_happens(removed: str) -> None:
    schedule = dict(edges(NESTPIPE))[removed]
    assert measured(NESTPIPE, random.Random(1), 20) == 0
    assert measured(schedule, random.Random(1), 60) == STALE_EDGES[removed]
