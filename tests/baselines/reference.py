"""One process, float64, no TorchRec distributed code: what training on several workers must compute.

The arithmetic: the loss is a mean over each worker's batch; gradients of dense parameters are averaged
over workers; gradients of a row are summed over all workers and duplicates, divided by the number of
workers that share the table, and applied once a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from nestpipe.optim import SGD, Adagrad, RowWiseAdagrad, SparseOptimizer
from tests.baselines.models import Case

State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Values:
    """Stands in for TorchRec's results, of which the models ask for nothing else."""

    tensor: torch.Tensor

    def values(self) -> torch.Tensor:
        return self.tensor


class PlainCollection(nn.Module):
    """Looks rows up feature by feature; parameters have the names of TorchRec's collection."""

    def __init__(self, collection: EmbeddingCollection) -> None:
        super().__init__()
        self.embeddings = collection.embeddings
        self.tables = {f: c.name for c in collection.embedding_configs() for f in c.feature_names}

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Values]:
        return {
            feature: Values(self.embeddings[table].weight[features[feature].values()])
            for feature, table in self.tables.items()
        }


class PlainBags(nn.Module):
    """Pools rows feature by feature and sample by sample."""

    def __init__(self, collection: EmbeddingBagCollection) -> None:
        super().__init__()
        self.embedding_bags = collection.embedding_bags
        self.configs = {f: c for c in collection.embedding_bag_configs() for f in c.feature_names}

    def forward(self, features: KeyedJaggedTensor) -> Values:
        return Values(torch.cat([self.pool(features, feature) for feature in self.configs], dim=1))

    def pool(self, features: KeyedJaggedTensor, feature: str) -> torch.Tensor:
        config, jagged = self.configs[feature], features[feature]
        weights = jagged.weights_or_none()
        bags = []
        for begin, end in zip(jagged.offsets()[:-1], jagged.offsets()[1:], strict=True):
            rows = self.embedding_bags[config.name].weight[jagged.values()[begin:end]]
            if weights is not None:
                rows = rows * weights[begin:end, None]
            divisor = max(int(end - begin), 1) if config.pooling.name == "MEAN" else 1
            bags.append(rows.sum(dim=0) / divisor)
        return torch.stack(bags)


def plain_model(case: Case) -> nn.Module:
    """The case's model in float64 with TorchRec's modules replaced."""
    model = case.model().double()
    for name, module in list(model.named_children()):
        if isinstance(module, EmbeddingCollection):
            setattr(model, name, PlainCollection(module))
        elif isinstance(module, EmbeddingBagCollection):
            setattr(model, name, PlainBags(module))
    return model


def constant(step: int) -> float:
    return 1.0


class Tables:
    """The tables of one replica and their optimizer state, updated by plain formulas."""

    def __init__(self, weights: State) -> None:
        self.weights = {name: weight.clone() for name, weight in weights.items()}
        self.sums = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    def update(self, gradients: State, optimizer: SparseOptimizer, lr: float) -> None:
        assert isinstance(optimizer, SGD | RowWiseAdagrad | Adagrad)
        for name, gradient in gradients.items():
            weight, total = self.weights[name], self.sums[name]
            if optimizer.weight_decay:
                touched = (gradient != 0).any(dim=1, keepdim=True)
                gradient = gradient + optimizer.weight_decay * weight * touched
            if isinstance(optimizer, SGD):
                weight -= lr * gradient
                continue
            squares = gradient**2
            if isinstance(optimizer, RowWiseAdagrad):
                squares = squares.mean(dim=1, keepdim=True)
            total += squares
            weight -= lr * gradient / (total.sqrt() + optimizer.eps)


@dataclass(frozen=True)
class Updates:
    """How an update differs from the optimizers' own: factors on the learning rates, and clipping."""

    dense_lr_factor: Callable[[int], float] = constant
    sparse_lr_factor: Callable[[int], float] = constant
    max_norm: float = math.inf
    """Limit of the dense gradients' global norm, after averaging; as torch's clip_grad_norm_."""


def train(
    case: Case,
    optimizer: SparseOptimizer,
    dense_lr: float,
    num_steps: int,
    num_workers: int,
    num_groups: int = 1,
    updates: Updates | None = None,
) -> tuple[State, list[list[float]]]:
    """Parameters after `num_steps`, and the losses by step and worker.

    Worker w belongs to group w % num_groups; after each step the groups' tables and their optimizer
    state are averaged.
    """
    updates = updates or Updates()
    model = plain_model(case)
    dense = {name: p for name, p in model.named_parameters() if "embedding" not in name}
    dense_optimizer = torch.optim.Adam(dense.values(), lr=dense_lr)
    weights = {name: p.detach() for name, p in model.named_parameters() if name not in dense}
    groups = [Tables(weights) for _ in range(num_groups)]
    losses: list[list[float]] = []
    for step in range(num_steps):
        dense_optimizer.zero_grad()
        gradients = [{name: torch.zeros_like(w) for name, w in weights.items()} for _ in groups]
        losses.append([])
        for worker in range(num_workers):
            group = worker % num_groups
            _load(model, groups[group].weights)
            loss, _ = model(case.batch(step, worker))
            loss.backward()
            losses[-1].append(loss.item())
            for name, parameter in model.named_parameters():
                if name in weights and parameter.grad is not None:
                    gradients[group][name] += parameter.grad / (num_workers // num_groups)
                    parameter.grad = None
        for parameter in dense.values():
            if parameter.grad is not None:
                parameter.grad /= num_workers
        _clip(list(dense.values()), updates.max_norm)
        for settings in dense_optimizer.param_groups:
            settings["lr"] = dense_lr * updates.dense_lr_factor(step)
        dense_optimizer.step()
        for tables, gradient in zip(groups, gradients, strict=True):
            tables.update(gradient, optimizer, optimizer.lr * updates.sparse_lr_factor(step))
        _average(groups)
    _load(model, groups[0].weights)
    return {name: p.detach().clone() for name, p in model.named_parameters()}, losses


def _clip(parameters: list[nn.Parameter], max_norm: float) -> None:
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = math.sqrt(sum(gradient.square().sum().item() for gradient in gradients))
    for gradient in gradients:
        gradient *= min(1.0, max_norm / (norm + 1e-6))


def _load(model: nn.Module, weights: State) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])


def _average(groups: list[Tables]) -> None:
    for name in groups[0].weights:
        weight = sum((tables.weights[name] for tables in groups[1:]), groups[0].weights[name]) / len(groups)
        total = sum((tables.sums[name] for tables in groups[1:]), groups[0].sums[name]) / len(groups)
        for tables in groups:
            tables.weights[name].copy_(weight)
            tables.sums[name].copy_(total)
