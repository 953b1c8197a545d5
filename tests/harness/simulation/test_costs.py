"""Cost models: by workers, micro-batches, groups and keys; from files and from traces."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.op_trace import read_trace, traced, write_trace
from harness.simulation.cost_files import load_costs
from harness.simulation.costs import Conditions, CostModel, OpCost, constant
from harness.simulation.engine import OpTime
from harness.simulation.keys import KeyStatistics
from harness.simulation.methods import find
from harness.simulation.paper import paper_model
from harness.simulation.predict import predict, steady_timeline
from nestpipe import schedules
from nestpipe.schedule import OpKind

FREE = {kind: constant(0.0) for kind in OpKind}


def times_of(model: CostModel, conditions: Conditions, micro_batches: int = 1) -> dict[str, OpTime]:
    schedule = schedules.nestpipe(micro_batches)
    times = model.times(schedule, conditions)
    return {str(op.id): time for op, time in zip(schedule.steady, times, strict=True)}


def test_costs_follow_straight_lines_between_and_beyond_points() -> None:
    cost = OpCost(((100.0, 10.0), (200.0, 30.0), (400.0, 40.0)))
    workers = (100, 150, 200, 300, 400, 600, 50, 10)
    assert [cost.of_batch(num) for num in workers] == pytest.approx([10, 20, 30, 35, 40, 50, 0, 0])
    assert constant(7.0).of_batch(1536) == 7.0


def test_a_micro_batch_takes_its_share_and_the_fixed_part() -> None:
    model = CostModel("m", FREE | {OpKind.COMPUTE: constant(60.0, fixed_ms=1.5)})
    schedule = schedules.nestpipe([1, 2, 3])
    found = [
        time.lane_ms
        for op, time in zip(schedule.steady, model.times(schedule, Conditions(8)), strict=True)
        if op.kind is OpKind.COMPUTE
    ]
    assert found == pytest.approx([11.5, 21.5, 31.5])
    assert model.dense_ms(Conditions(8, relative_batch=2.0)) == pytest.approx(121.5)


def test_only_what_travels_in_groups_is_cheaper_there() -> None:
    grow = OpCost(((1.0, 1.0), (101.0, 101.0)), latency_us_per_peer=10.0)
    model = CostModel("m", dict.fromkeys(OpKind, grow))
    whole, group = times_of(model, Conditions(100)), times_of(model, Conditions(100, group_share=0.25))
    assert whole["exchange(0, 0)"].link_ms == pytest.approx(100.0)
    assert group["exchange(0, 0)"].link_ms == pytest.approx(25.0)
    assert group["exchange(0, 0)"].latency_ms == pytest.approx(0.25)
    assert group["retrieve(1)"].lane_ms == whole["retrieve(1)"].lane_ms == pytest.approx(100.0)


def test_an_op_without_cost_is_named() -> None:
    model = CostModel("mine", {kind: cost for kind, cost in FREE.items() if kind is not OpKind.SYNC})
    with pytest.raises(ValueError, match="cost model 'mine' has no op 'sync'"):
        predict(find("nestpipe"), model, Conditions(4))
    with pytest.raises(ValueError, match="cost model 'mine' has no op 'sync'"):
        model.scaled({OpKind.SYNC: 2.0})


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.2])
def test_unique_keys_are_those_of_the_exact_sum(exponent: float) -> None:
    num_keys, num_tokens = 20_000, 5_000
    weights = np.arange(1, num_keys + 1, dtype=np.float64) ** -exponent
    probabilities = weights / weights.sum()
    exact = (1 - (1 - probabilities) ** num_tokens).sum()
    keys = KeyStatistics(exponent, num_keys, num_tokens)
    assert keys.unique(num_tokens) == pytest.approx(exact, rel=2e-3)
    draws = np.random.default_rng(5).choice(num_keys, size=(30, num_tokens), p=probabilities)
    assert keys.unique(num_tokens) == pytest.approx(np.mean([len(set(row)) for row in draws]), rel=2e-2)


def test_cutting_a_skewed_batch_sends_rows_twice() -> None:
    keys = KeyStatistics(1.0, 20_000, 5_000)
    assert keys.inflation((1,)) == pytest.approx(1.0)
    assert 1.0 < keys.inflation((1,) * 2) < keys.inflation((1,) * 8) < keys.inflation((1,) * 63)
    assert keys.relative_rows == pytest.approx(1.0)
    assert KeyStatistics(1.3, 20_000, 5_000).relative_rows < 1
    model = CostModel("m", FREE | {OpKind.EXCHANGE: constant(80.0)})
    whole = times_of(model, Conditions(8, keys=keys))["exchange(0, 0)"].link_ms
    part = times_of(model, Conditions(8, keys=keys), micro_batches=8)["exchange(0, 3)"].link_ms
    assert whole == pytest.approx(80.0)
    assert 8 * part == pytest.approx(80.0 * keys.inflation((1,) * 8))


def test_more_shared_rows_take_longer_to_copy() -> None:
    model = paper_model()

    def step_ms(name: str, overlap: float | None) -> float:
        return predict(find(name), model, Conditions(1536, key_overlap=overlap)).step_ms

    assert step_ms("nestpipe", model.key_overlap) == pytest.approx(step_ms("nestpipe", None))
    # 2 ms for 12 % of the rows: all of them take 2 / 0.12.
    assert step_ms("dbp", 1.0) - step_ms("dbp", 0.12) == pytest.approx(2.0 / 0.12 - 2.0)
    assert step_ms("uniemb", 1.0) == pytest.approx(step_ms("uniemb", 0.0))


def test_without_deduplication_every_token_is_sent() -> None:
    keys = KeyStatistics(1.0, 20_000, 5_000)
    model = CostModel("m", FREE | {OpKind.EXCHANGE: constant(80.0)})
    step = predict(find("torchrec-nodedup"), model, Conditions(8, keys=keys))
    assert step.total_comm_ms == pytest.approx(80.0 * 5_000 / keys.unique(5_000))


TOML = """
name = "mine"
batch_size = 64
residual_lookup_ms = 2
[ops]
prefetch = 5
[ops.exchange]
batch_ms = { 8 = 10.0, 16 = 20 }
fixed_ms = 0.5
latency_us_per_peer = 1
"""


def test_a_users_own_costs(tmp_path: Path) -> None:
    path = tmp_path / "costs.toml"
    path.write_text(TOML)
    model = load_costs(str(path))
    assert (model.name, model.batch_size, model.residual_lookup_ms) == ("mine", 64, 2.0)
    assert model.ops[OpKind.EXCHANGE] == OpCost(((8.0, 10.0), (16.0, 20.0)), 0.5, 1.0)
    as_json = {"ops": {"prefetch": 5, "exchange": {"batch_ms": {"8": 10.0, "16": 20}}}}
    (tmp_path / "costs.json").write_text(json.dumps(as_json))
    assert load_costs(str(tmp_path / "costs.json")).ops[OpKind.EXCHANGE].of_batch(12) == pytest.approx(15.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "needs a table"),
        ("[ops]\nexchnge = 1", "unknown op 'exchnge': did you mean 'exchange'"),
        ("[ops.exchange]\nbatch = 1", "unknown field of op exchange 'batch': did you mean 'batch_ms'"),
        ("[ops.exchange]\nfixed_ms = 1", "op exchange needs batch_ms"),
        ("[ops]\nexchange = -1", "exchange.batch_ms must be a number of at least 0"),
        ("[ops]\nexchange = nan", "exchange.batch_ms must be a number of at least 0"),
        ("[ops]\nexchange = true", "exchange.batch_ms must be a number"),
        ("[ops.exchange]\nbatch_ms = { some = 1 }", "whole numbers of at least 1, got 'some'"),
        ("[ops.exchange]\nbatch_ms = { }", "needs points"),
        ("batchsize = 1\n[ops]\nexchange = 1", "unknown field 'batchsize': did you mean 'batch_size'"),
        ("batch_size = 0\n[ops]\nexchange = 1", "batch_size must be a whole number"),
        ("[ops", "costs.toml"),
    ],
)
def test_a_broken_file_says_where(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "costs.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_costs(str(path))


@pytest.mark.parametrize(
    ("name", "message"), [("papre", "give 'paper'"), ("missing.toml", "no file missing")]
)
def test_an_unknown_model_is_told(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_costs(name)


def test_a_trace_gives_back_the_costs_it_was_made_with(tmp_path: Path) -> None:
    costs = {kind: constant(4.0 + number) for number, kind in enumerate(FREE)}
    for kind, fixed_ms in ((OpKind.EXCHANGE, 0.5), (OpKind.COMPUTE, 1.0), (OpKind.REDUCE, 0.25)):
        costs[kind] = replace(costs[kind], fixed_ms=fixed_ms)
    model, path = CostModel("truth", costs), tmp_path / "trace.jsonl"
    for name, cuts in (("dbp", 1), ("nestpipe", 4)):
        method = find(name, cuts)
        times = model.times(method.schedule, Conditions(2))
        events = steady_timeline(method.schedule, times, 6).events()
        for rank in range(2):
            write_trace(path, traced(events, method=name, workers=2, rank=rank, batch_size=16))
    found = load_costs(str(path))
    assert found.batch_size == 16
    for kind in (op.kind for op in schedules.nestpipe(4).steady):
        assert found.ops[kind].of_batch(2) == pytest.approx(costs[kind].of_batch(2)), kind
        assert found.ops[kind].fixed_ms == pytest.approx(costs[kind].fixed_ms), kind
    for name, cuts in (("dbp", 1), ("nestpipe", 4), ("nestpipe", 8)):
        expected = predict(find(name, cuts), model, Conditions(2)).step_ms
        assert predict(find(name, cuts), found, Conditions(2)).step_ms == pytest.approx(expected)


def test_a_broken_trace_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("")
    with pytest.raises(ValueError, match="empty"):
        load_costs(str(path))
    method = find("sync")
    events = steady_timeline(
        method.schedule, CostModel("m", FREE).times(method.schedule, Conditions(1)), 1
    ).events()
    write_trace(path, traced(events, method="sync", workers=1, rank=0, batch_size=16))
    num_lines = len(read_trace(path))
    with path.open("a") as file:
        file.write('{"method": "sync"}\n')
    with pytest.raises(ValueError, match=f"line {num_lines + 1} "):
        load_costs(str(path))


def test_the_paper_model_meets_what_it_is_calibrated_on() -> None:
    model = paper_model()
    steps = {128: 2569.0, 256: 2815.9, 512: 3855.0, 1024: 4814.4, 1536: 5793.83}
    for num_workers, step_ms in steps.items():
        found = predict(find("torchrec"), model, Conditions(num_workers))
        assert found.step_ms == pytest.approx(step_ms, rel=1e-9)
        assert found.lookup_ms + found.comm_ms + found.dense_ms == pytest.approx(step_ms)
    assert found.comm_ms == pytest.approx(1207.85)
    between = predict(find("torchrec"), model, Conditions(768)).step_ms
    assert steps[512] < between < steps[1024]
