"""What the simulator calls a method is what the registry and the engine mean by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from baselines import registry
from harness.map_command import AXIS_NAMES
from harness.simulation.advantage import AXES, EXACT_METHODS
from harness.simulation.costs import Conditions, CostModel, constant
from harness.simulation.methods import CANDIDATE_CUTS, find, names
from harness.simulation.paper import paper_model
from harness.simulation.predict import predict
from nestpipe.schedule import OpKind


def test_every_built_in_method_can_be_simulated() -> None:
    assert set(names()) <= set(registry.names())
    assert set(registry._BUILT_IN) == set(names())
    assert all(find(name).name == name for name in names())


def test_axes_have_the_names_that_help_gives() -> None:
    assert tuple(AXES) == AXIS_NAMES
    assert all(find(name).is_exact for name in EXACT_METHODS)


def test_a_free_fabric_is_not_worth_a_split() -> None:
    costs = {kind: constant(0.0) for kind in OpKind} | {OpKind.COMPUTE: constant(100.0, fixed_ms=1.0)}
    free = predict(find("nestpipe-chosen"), CostModel("free", costs), Conditions(4))
    assert free.cuts == (1,)
    busy = CostModel("busy", costs | {OpKind.EXCHANGE: constant(30.0), OpKind.REDUCE: constant(30.0)})
    chosen = predict(find("nestpipe-chosen"), busy, Conditions(4))
    assert chosen.cuts in CANDIDATE_CUTS[-2:], "tapered: what is exposed at the ends is small"
    assert chosen.step_ms < predict(find("nestpipe"), busy, Conditions(4)).step_ms


def test_sparse_dist_hides_routing_and_nothing_else() -> None:
    costs = {kind: constant(10.0) for kind in OpKind}
    model = CostModel("even", costs)
    base = predict(find("torchrec"), model, Conditions(4))
    step = predict(find("torchrec-sparse-dist"), model, Conditions(4))
    # The allreduce runs under nothing, as in the base; only the route is gone.
    assert step.step_ms == pytest.approx(base.step_ms - 10.0)


def test_2d_methods_communicate_in_groups() -> None:
    model, largest = paper_model(), Conditions(1536)
    for name, plain in (("2d-sp", "torchrec"), ("nestpipe-2d", "nestpipe")):
        grouped, whole = (predict(find(method), model, largest) for method in (name, plain))
        assert grouped.total_comm_ms == pytest.approx(412.7)
        assert whole.total_comm_ms == pytest.approx(1207.85)
        assert grouped.lookup_ms == pytest.approx(whole.lookup_ms)


def test_a_schedule_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from nestpipe import schedules\ndef schedule():\n    return schedules.nestpipe(3)\n")
    mine, built_in = find(str(path)), find("nestpipe", 3)
    assert mine.name == "mine"
    model = paper_model()
    steps = [predict(method, model, Conditions(512)).step_ms for method in (mine, built_in)]
    assert steps[0] == steps[1]


def test_unknown_methods_get_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'nestpipe'"):
        find("nestpip")
