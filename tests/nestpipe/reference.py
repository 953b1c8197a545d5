"""One process, no engine: what training on several workers must compute, in plain torch.

Dense gradients are averaged over workers; a row's gradients are summed over all workers, features and
duplicates, divided by the number of workers, and applied once a step to rows that were looked up.
"""

from __future__ import annotations

import torch
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

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


def plain_model(dtype: torch.dtype) -> nn.Module:
    """The test model without TorchRec's modules, under the same parameter names."""
    model = Model().to(dtype)
    model.ec, model.words = PlainRows(model.ec), PlainRows(model.words)
    model.ebc = PlainBags(model.ebc)
    return model


def train(
    data: Data,
    optimizer: SparseOptimizer,
    num_workers: int,
    num_steps: int,
    dense_lr: float = 1e-2,
    staleness: int = 0,
) -> State:
    """Parameters after `num_steps`; rows are read as they were `staleness` steps before."""
    model = plain_model(data.dtype)
    tables = {n: p.detach().clone() for n, p in model.named_parameters() if ".embedding" in n}
    parameters = dict(model.named_parameters())
    dense = [p for n, p in parameters.items() if n not in tables]
    dense_optimizer = torch.optim.Adam(dense, lr=dense_lr)
    states: dict[str, State] = {n: {} for n in tables}
    history = [{n: t.clone() for n, t in tables.items()}]
    for step in range(num_steps):
        visible = history[max(0, len(history) - 1 - staleness)]
        with torch.no_grad():
            for name, values in visible.items():
                parameters[name].copy_(values)
        for parameter in parameters.values():
            parameter.grad = None
        for worker in range(num_workers):
            loss, _ = model(data.batch(step, worker, num_workers))
            (loss / num_workers).backward()
        dense_optimizer.step()
        for name, table in tables.items():
            gradient = parameters[name].grad
            assert gradient is not None
            update(
                table,
                states[name],
                gradient,
                optimizer,
                step + 1,
                _touched(model, name, data, step, num_workers),
            )
        history.append({n: t.clone() for n, t in tables.items()})
    return {n: tables.get(n, p.detach()) for n, p in parameters.items()}


def _touched(model: nn.Module, name: str, data: Data, step: int, num_workers: int) -> torch.Tensor:
    """Rows of a table that any worker looks up in a step."""
    module = model.get_submodule(name.split(".")[0])
    table = name.split(".")[2]
    slots = module.slots if isinstance(module, PlainBags) else None
    features = (
        [f for f, c in slots if c.name == table]
        if slots is not None
        else [f for f, t in module.tables.items() if t == table]  # type: ignore[union-attr, operator]
    )
    keys = [data.batch(step, w, num_workers).sparse_features for w in range(num_workers)]
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
        table[rows] = w - optimizer.lr * (m[rows] / (1 - first**step)) / corrected
