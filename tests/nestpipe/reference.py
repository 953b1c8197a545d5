"""One process, no engine: what training on several workers must compute, in plain torch.

Dense gradients are averaged over workers; a row's gradients are summed over all workers, features and
duplicates, divided by the number of workers, and applied once a step to rows that were looked up. With
several groups each does so to tables of its own from its own workers' batches; whole tables and states
are averaged now and then. Clipping scales the gradients of a step, learning rates have a factor a step.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, replace

import torch
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from nestpipe.clipping import GradientClipping
from nestpipe.optim import SGD, Adagrad, Adam, RowWiseAdagrad, SparseOptimizer
from tests.nestpipe.models import Data, Model

State = dict[str, torch.Tensor]


class PlainRows(nn.Module):
    """Looks rows up feature by feature."""

    def __init__(self, collection: EmbeddingCollection) -> None:
        super().__init__()
        self.embeddings = collection.embeddings
        self.tables = {f: c.name for c in collection.embedding_configs() for f in c.feature_names}

    def forward(self, keys: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        return {
            f: JaggedTensor(self.embeddings[t].weight[keys[f].values()], lengths=keys[f].lengths())
            for f, t in self.tables.items()
        }


class PlainBags(nn.Module):
    """Pools rows sample by sample; offers `values()` like a KeyedTensor."""

    def __init__(self, collection: EmbeddingBagCollection) -> None:
        super().__init__()
        self.embedding_bags = collection.embedding_bags
        self.slots = [(f, c) for c in collection.embedding_bag_configs() for f in c.feature_names]

    def forward(self, keys: KeyedJaggedTensor) -> PlainBags:
        columns = []
        for feature, config in self.slots:
            weight = self.embedding_bags[config.name].weight
            bags = []
            for ids in keys[feature].values().split(keys[feature].lengths().tolist()):
                pooled = weight[ids].sum(0)
                bags.append(pooled / max(len(ids), 1) if config.pooling.name == "MEAN" else pooled)
            columns.append(torch.stack(bags))
        self.result = torch.cat(columns, dim=1)
        return self

    def values(self) -> torch.Tensor:
        return self.result


def plain_model(dtype: torch.dtype, kind: type[Model] = Model) -> nn.Module:
    """A test model without TorchRec's modules, under the same parameter names."""
    model = kind().to(dtype)
    model.ec, model.words = PlainRows(model.ec), PlainRows(model.words)
    model.ebc = PlainBags(model.ebc)
    return model


@dataclass(frozen=True)
class Rules:
    """How a step's gradients become updates, beside the optimizers."""

    sparse_lr_factor: Callable[[int], float] = lambda step: 1.0
    dense_lr_factor: Callable[[int], float] = lambda step: 1.0
    clipping: GradientClipping | None = None


def train(
    data: Data,
    optimizer: SparseOptimizer,
    num_workers: int,
    num_steps: int,
    dense_lr: float = 1e-2,
    staleness: int = 0,
    num_groups: int = 1,
    sync_after: Container[int] = (),
    rules: Rules | None = None,
    kind: type[Model] = Model,
) -> State:
    """Parameters after `num_steps`; rows are read as they were `staleness` steps before.

    Worker w belongs to group w mod `num_groups`; the groups are averaged after the numbers of steps in
    `sync_after`. The tables returned are those of group 0.
    """
    rules = rules or Rules()
    model = plain_model(data.dtype, kind)
    parameters = dict(model.named_parameters())
    initial = {n: p.detach().clone() for n, p in parameters.items() if ".embedding" in n}
    groups = [Group(initial, list(range(g, num_workers, num_groups))) for g in range(num_groups)]
    dense = [p for n, p in parameters.items() if n not in initial]
    dense_optimizer = torch.optim.Adam(dense, lr=dense_lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(dense_optimizer, rules.dense_lr_factor)
    for step in range(num_steps):
        dense_optimizer.zero_grad()
        for group in groups:
            visible = group.history[max(0, len(group.history) - 1 - staleness)]
            with torch.no_grad():
                for name, values in visible.items():
                    parameters[name].copy_(values)
                    parameters[name].grad = None
            batches = [data.batch(step, worker, num_workers) for worker in group.workers]
            for batch in batches:
                (model(batch)[0] / num_workers).backward()
            keys = [batch.sparse_features for batch in batches]
            group.touched = {name: _touched(model, name, keys) for name in group.tables}
            group.gradients = {name: _gradient(parameters[name]) * num_groups for name in group.tables}
        factor = _clip(rules.clipping, [_gradient(p) for p in dense], groups)
        at_this_rate = replace(optimizer, lr=optimizer.lr * rules.sparse_lr_factor(step))  # type: ignore[type-var]
        for group in groups:
            for name, table in group.tables.items():
                gradient = group.gradients[name] * factor
                update(table, group.states[name], gradient, at_this_rate, step + 1, group.touched[name])
            group.history.append({n: t.clone() for n, t in group.tables.items()})
        dense_optimizer.step()
        schedule.step()
        if step + 1 in sync_after:
            _average(groups)
    return {n: groups[0].tables.get(n, p.detach()) for n, p in parameters.items()}


class Group:
    """Workers that share tables, with what the tables were after each step."""

    def __init__(self, initial: State, workers: list[int]) -> None:
        self.workers = workers
        self.tables = {n: t.clone() for n, t in initial.items()}
        self.states: dict[str, State] = {n: {} for n in initial}
        self.history = [{n: t.clone() for n, t in initial.items()}]
        self.gradients: State = {}
        self.touched: State = {}


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _clip(clipping: GradientClipping | None, dense: list[torch.Tensor], groups: list[Group]) -> float:
    """Scale the `dense` gradients in place; the factor for those of tables."""
    if clipping is None:
        return 1.0
    of_tables = [g.view(-1) for group in groups for g in group.gradients.values()]
    squares = [torch.cat([g.view(-1) for g in dense]).square().sum()]
    if clipping.scope == "all":
        squares.append(torch.cat(of_tables).square().sum() / len(groups))
    factor = clipping.max_norm / (float(sum(squares)) ** 0.5 + 1e-6)
    if factor >= 1.0:
        return 1.0
    for gradient in dense:
        gradient.mul_(factor)
    return factor if clipping.scope == "all" else 1.0


def _average(groups: list[Group]) -> None:
    """Whole tables and states; what the groups read next is the average, however stale their reads are."""
    for name in groups[0].tables:
        alike = [[group.tables[name], *group.states[name].values()] for group in groups]
        for tensors in zip(*alike, strict=True):
            mean = torch.stack(tensors).mean(0)
            for tensor in tensors:
                tensor.copy_(mean)
    for group in groups:
        group.history = [{n: t.clone() for n, t in group.tables.items()}]


def _touched(model: nn.Module, name: str, keys: list[KeyedJaggedTensor]) -> torch.Tensor:
    """Rows of a table that any of `keys` looks up."""
    module = model.get_submodule(name.split(".")[0])
    table = name.split(".")[2]
    slots = module.slots if isinstance(module, PlainBags) else None
    features = (
        [f for f, c in slots if c.name == table]
        if slots is not None
        else [f for f, t in module.tables.items() if t == table]  # type: ignore[union-attr, operator]
    )
    return torch.cat([k[f].values() for k in keys for f in features]).unique()


def update(
    table: torch.Tensor,
    state: State,
    gradient: torch.Tensor,
    optimizer: SparseOptimizer,
    step: int,
    rows: torch.Tensor,
) -> None:
    """One optimizer step on the touched `rows`, by the textbook formulas."""
    g, w = gradient[rows], table[rows]
    decay = getattr(optimizer, "weight_decay", 0.0)
    if not isinstance(optimizer, Adam):
        g = g + decay * w
    if isinstance(optimizer, SGD):
        table[rows] = w - optimizer.lr * g
    elif isinstance(optimizer, RowWiseAdagrad | Adagrad):
        width = 1 if isinstance(optimizer, RowWiseAdagrad) else table.shape[1]
        total = state.setdefault("sum", table.new_zeros(len(table), width))
        total[rows] += g.square().mean(1, keepdim=True) if width == 1 else g.square()
        table[rows] = w - optimizer.lr * g / (total[rows].sqrt() + optimizer.eps)
    else:
        assert isinstance(optimizer, Adam)
        first, second = optimizer.betas
        m = state.setdefault("m", torch.zeros_like(table))
        v = state.setdefault("v", torch.zeros_like(table))
        m[rows] = first * m[rows] + (1 - first) * g
        v[rows] = second * v[rows] + (1 - second) * g.square()
        corrected = (v[rows] / (1 - second**step)).sqrt() + optimizer.eps
        table[rows] = w - optimizer.lr * (m[rows] / (1 - first**step) / corrected + decay * w)
