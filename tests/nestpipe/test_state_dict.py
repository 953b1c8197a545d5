"""Full state: names, optimizer state, other numbers of workers, loading in mid-stream."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection

from nestpipe import NestPipe, RowWiseAdagrad, schedules
from nestpipe.optim import Adam, SparseOptimizer
from tests.distributed import run_workers
from tests.nestpipe.models import Data, Model
from tests.nestpipe.reference import train as reference
from tests.nestpipe.training import State, build, difference, step_until_stop, weights

DATA = Data(dtype=torch.float64)
OPTIMIZERS: list[SparseOptimizer] = [RowWiseAdagrad(lr=0.05), Adam(lr=0.01)]


def _first_half(rank: int, num_workers: int, optimizer: SparseOptimizer) -> State:
    with build(DATA, schedules.nestpipe(3), optimizer) as pipeline:
        step_until_stop(pipeline, DATA.batches(rank, num_workers, 6))
        return pipeline.state_dict()


def _second_half(rank: int, num_workers: int, optimizer: SparseOptimizer, state: State) -> tuple[State, int]:
    """Batches are of two workers' data; a third worker would have none, so all have the same shares."""
    with build(DATA, schedules.nestpipe(3), optimizer) as pipeline:
        pipeline.load_state_dict(state if rank == 0 else {})
        step_until_stop(pipeline, DATA.batches(rank, num_workers, 6, first_step=6))
        return weights(pipeline.state_dict()), pipeline.num_steps


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_a_loaded_run_goes_on_like_an_uninterrupted_one(optimizer: SparseOptimizer) -> None:
    state = run_workers(_first_half, 2, optimizer)[0]
    resumed, num_steps = run_workers(_second_half, 2, optimizer, state)[0]
    assert num_steps == 12
    assert difference(resumed, reference(DATA, optimizer, 2, 12)) < 1e-12


def _roundtrip(rank: int, num_workers: int, state: State) -> State:
    with build(DATA, schedules.nestpipe(2), OPTIMIZERS[0]) as pipeline:
        pipeline.load_state_dict(state if rank == 0 else {})
        return pipeline.state_dict()


@pytest.mark.parametrize("num_workers", [1, 3, 4])
def test_state_moves_between_numbers_of_workers(num_workers: int) -> None:
    state = run_workers(_first_half, 2, OPTIMIZERS[0])[0]
    again = run_workers(_roundtrip, num_workers, state)
    assert again[0].keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(again[0][name].view(-1), tensor.view(-1)), name
    assert all(other == {} for other in again[1:])


def test_names_are_those_of_the_unsharded_model() -> None:
    model = Model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with build(Data(), schedules.nestpipe(2), OPTIMIZERS[0]) as pipeline:
        state = pipeline.state_dict(full=True)
    assert set(weights(state)) == set(before)
    for name, tensor in before.items():
        assert torch.equal(state[name], tensor), name
    assert state["optimizer.ec.embeddings.item.weight.sum"].shape == (53, 1)
    Model().load_state_dict(weights(state))


class TwoEqualTables(nn.Module):
    """At two workers each shard of the row space has the shape of one of the tables."""

    def __init__(self) -> None:
        super().__init__()
        self.ec = EmbeddingCollection(
            tables=[
                EmbeddingConfig(name=name, num_embeddings=6, embedding_dim=4, feature_names=[name])
                for name in ("a", "b")
            ]
        )
        self.bias = nn.Parameter(torch.zeros(1))
        for index, table in enumerate(self.ec.embeddings.values()):
            nn.init.constant_(table.weight, index + 1.0)


def _initial_state(rank: int, num_workers: int) -> State:
    with NestPipe(
        TwoEqualTables(),
        sparse_optimizer=OPTIMIZERS[0],
        dense_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    ) as pipeline:
        return pipeline.state_dict()


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_initial_weights_are_the_models_own(num_workers: int) -> None:
    state = run_workers(_initial_state, num_workers)[0]
    for index, name in enumerate(("a", "b")):
        assert torch.equal(state[f"ec.embeddings.{name}.weight"], torch.full((6, 4), index + 1.0))


def _load_in_mid_stream(rank: int, num_workers: int, state: State) -> State:
    """Rows that were retrieved ahead must not survive a load."""
    with build(DATA, schedules.nestpipe(2), OPTIMIZERS[0]) as pipeline:
        batches = DATA.batches(rank, num_workers, 12)
        for _ in range(6):
            pipeline.progress(batches)
        pipeline.load_state_dict(state if rank == 0 else {})
        step_until_stop(pipeline, batches)
        return weights(pipeline.state_dict())


def test_loading_in_mid_stream_replaces_rows_that_were_read_ahead() -> None:
    state = run_workers(_first_half, 2, OPTIMIZERS[0])[0]
    fresh = run_workers(_load_in_mid_stream, 2, state)[0]
    assert difference(fresh, reference(DATA, OPTIMIZERS[0], 2, 12)) < 1e-12


def test_weights_alone_can_be_loaded() -> None:
    with build(Data(), schedules.sync(), OPTIMIZERS[0]) as pipeline:
        step_until_stop(pipeline, Data().batches(0, 1, 3))
        pipeline.load_state_dict(Model().state_dict())
        state = weights(pipeline.state_dict())
    for name, tensor in Model().state_dict().items():
        assert torch.equal(state[name], tensor)


def test_optimizer_state_goes_to_where_its_parameter_is() -> None:
    """Device and type are one rule of torch's, so a type stands in for a device; `step` stays as it came."""
    with build(DATA, schedules.sync(), OPTIMIZERS[0]) as pipeline:
        step_until_stop(pipeline, DATA.batches(0, 1, 3))
        state = pipeline.state_dict()
        elsewhere = {
            name: tensor.half() if "exp_avg" in name else tensor.clone() for name, tensor in state.items()
        }
        copy = {name: tensor.clone() for name, tensor in elsewhere.items()}
        pipeline.load_state_dict(elsewhere)
        optimizer = pipeline.dense_optimizer
        for parameter in optimizer.param_groups[0]["params"]:
            values = optimizer.state[parameter]
            assert {values[name].dtype for name in ("exp_avg", "exp_avg_sq")} == {parameter.dtype}
            assert values["step"].dtype == torch.float32
            assert float(values["step"]) == 3
        step_until_stop(pipeline, DATA.batches(0, 1, 3, first_step=3))
    assert all(torch.equal(elsewhere[name], copy[name]) for name in copy)  # and is not worked on


class Remote(torch.Tensor):
    """As one on an accelerator of rank 0's machine: others cannot take it in, but a copy on the host."""

    def cpu(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise AssertionError("shared from the device")


def _load_from_a_device(rank: int, num_workers: int, state: State) -> State:
    tables = ("ec.", "words.", "ebc.")
    remote: State = {}
    for name, tensor in state.items():
        is_of_table = name.removeprefix("optimizer.").startswith(tables)
        remote[name] = tensor if is_of_table else tensor.as_subclass(Remote)
    return _roundtrip(rank, num_workers, remote)


def test_what_is_loaded_is_shared_from_the_host() -> None:
    state = run_workers(_first_half, 2, OPTIMIZERS[0])[0]
    again = run_workers(_load_from_a_device, 2, state)[0]
    assert all(torch.equal(again[name].view(-1), state[name].view(-1)) for name in state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("ec.embeddings.item.weight"), "no entry 'ec.embeddings.item.weight'; did you mean"),
        (lambda s: s.update({"mlp.0.bias": torch.zeros(3)}), "'mlp.0.bias' has shape"),
        (lambda s: s.update({"extra": torch.zeros(3)}), "does not know: .'extra'."),
    ],
)
def test_a_state_that_does_not_fit_is_named(change: object, message: str) -> None:
    with build(Data(), schedules.sync(), OPTIMIZERS[0]) as pipeline:
        state = pipeline.state_dict()
        change(state)  # type: ignore[operator]
        with pytest.raises(ValueError, match=message):
            pipeline.load_state_dict(state)


def test_meta_tables_are_initialised_by_their_init_fn() -> None:
    model = Model()
    for module in (model.ec, model.words, model.ebc):
        module.to("meta")
    for config in (*model.ec.embedding_configs(), *model.words.embedding_configs()):
        config.init_fn = lambda weight: torch.nn.init.constant_(weight, 0.25)
    with NestPipe(
        model, sparse_optimizer=OPTIMIZERS[0], dense_optimizer=lambda p: torch.optim.SGD(p, lr=0.1)
    ) as pipeline:
        state = pipeline.state_dict()
    assert bool((state["ec.embeddings.item.weight"] == 0.25).all())
    assert float(state["ebc.embedding_bags.tag.weight"].abs().max()) <= (1 / 19) ** 0.5
