"""Sequence models in float64 far from their start, an uneven batch, and the loop they are held against."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.workloads.batches import in_full_precision, rows_of
from workloads.interface import SequenceBatch, SideTable
from workloads.models import fuxi, hstu, sasrec
from workloads.models.configs import FuxiConfig, HstuConfig, SasrecConfig, SequenceModelConfig

LENGTHS = (5, 1, 2, 9, 3, 7, 1, 0)
NUM_NEGATIVES = (0, 5, 5, 2, 5, 3, 5, 5)
NUM_ITEMS = 11
MAX_LENGTH = max(LENGTHS)
SMALL: dict[str, Any] = {"embedding_dim": 6, "max_length": MAX_LENGTH, "temperature": 0.3}
SIDES = (SideTable("user", num_rows=4), SideTable("tab", num_rows=3, per_token=True))
MODELS: dict[str, tuple[type[SequenceModelConfig], Callable[..., nn.Module]]] = {
    "hstu": (HstuConfig, hstu.build),
    "fuxi": (FuxiConfig, fuxi.build),
    "sasrec": (SasrecConfig, sasrec.build),
}


def config_of(name: str, **settings: Any) -> Any:
    """A small config of the model `name`."""
    return MODELS[name][0](**{**SMALL, **settings})


def create(name: str, sides: Sequence[SideTable] = (), **settings: Any) -> nn.Module:
    """A model in float64 with every parameter moved away from zero and one."""
    model = MODELS[name][1](config_of(name, **settings), [NUM_ITEMS], 2, sides)
    model = in_full_precision(model.to(torch.float64))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64), alpha=0.5)
    return model


def uneven_batch(
    sides: Sequence[SideTable] = (), num_negatives: Sequence[int] = NUM_NEGATIVES
) -> SequenceBatch:
    """Samples of length 0, 1 and the longest, with repeated items and times and uneven negatives."""
    generator = torch.Generator().manual_seed(7)
    lengths = {"item": LENGTHS, "negative": tuple(num_negatives)}
    num_rows = {"item": NUM_ITEMS, "negative": NUM_ITEMS}
    for side in sides:
        lengths[side.name] = LENGTHS if side.per_token else (1,) * len(LENGTHS)
        num_rows[side.name] = side.num_rows
    gaps = torch.randint(50_000, (sum(LENGTHS),), generator=generator)
    gaps[::5] = 0
    values = [torch.randint(num_rows[key], (sum(lengths[key]),), generator=generator) for key in lengths]
    return SequenceBatch(
        sparse_features=KeyedJaggedTensor(
            keys=list(lengths),
            values=torch.cat(values),
            lengths=torch.tensor([length for key in lengths for length in lengths[key]]),
        ),
        context=KeyedJaggedTensor(
            keys=["timestamp"], values=1_600_000_000 + gaps.cumsum(0), lengths=torch.tensor(LENGTHS)
        ),
        labels=torch.zeros(len(LENGTHS)),
        sample_ids=torch.arange(len(LENGTHS)),
        seeds=torch.arange(len(LENGTHS)) ** 3 - 100,
    )


def silu(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + torch.exp(-x))


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Over the last dim of [..., dim]."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5) * weight + bias


def time_bias(times: list[int], bias: torch.Tensor) -> torch.Tensor:
    """[n, n], from the published formula in plain numbers."""
    gaps = [[max(abs(a - b), 1) for b in times] for a in times]
    buckets = torch.tensor(gaps, dtype=torch.float64).log().div(0.301).floor().long().clamp(max=128)
    return torch.stack([torch.stack([bias[bucket] for bucket in row]) for row in buckets])


def position_bias(num: int, bias: torch.Tensor) -> torch.Tensor:
    """[n, n]; ahead of the diagonal anything."""
    return torch.stack([torch.stack([bias[abs(i - j)] for j in range(num)]) for i in range(num)])


class Reference(ABC):
    """Sample by sample, dense, with the parameters of a model by their names."""

    def __init__(self, model: nn.Module, config: Any, sides: Sequence[SideTable] = ()) -> None:
        self.weights: dict[str, torch.Tensor] = dict(model.named_parameters())
        self.config = config
        self.sides = sides
        self.table = self.weights["embedding_collection.embeddings.item.weight"]

    @abstractmethod
    def block(self, x: torch.Tensor, times: list[int], w: dict[str, torch.Tensor]) -> torch.Tensor:
        """One block on the n tokens of one sample, [n, dim] -> [n, dim]; `w` the block's parameters."""

    def end(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def hidden(self, sample: dict[str, list[int]]) -> torch.Tensor:
        """Every token's last state: [n, dim]."""
        x = self.table[sample["item"]]
        if self.config.positions:
            x = x + self.weights["head.positions.weight"][: len(x)]
        for side in self.sides:
            of_side = self.weights[f"embedding_collection.embeddings.{side.name}.weight"]
            x = x + torch.stack([of_side[k] for k in self._keys_of(side, sample)])
        for number in range(self.config.num_blocks):
            prefix = f"head.blocks.{number}."
            own = {n.removeprefix(prefix): w for n, w in self.weights.items() if n.startswith(prefix)}
            x = self.block(x, sample["timestamp"], own)
        return self.end(x)

    def _keys_of(self, side: SideTable, sample: dict[str, list[int]]) -> list[int]:
        keys = sample[side.name]
        return keys if side.per_token else keys * len(sample["item"])

    def sample_loss(self, sample: dict[str, list[int]], hidden: torch.Tensor) -> torch.Tensor:
        items, losses = sample["item"], []
        for position in range(len(items) - 1):
            target = items[position + 1]
            candidates = [target, *(item for item in sample["negative"] if item != target)]
            state = hidden[position] / hidden[position].norm()
            logits = torch.stack([state @ (self.table[c] / self.table[c].norm()) for c in candidates])
            losses.append(-torch.log_softmax(logits / self.config.temperature, dim=0)[0])
        return torch.stack(losses).mean() if losses else 0.0 * self.table.sum()

    def __call__(self, batch: SequenceBatch) -> tuple[torch.Tensor, torch.Tensor]:
        assert batch.context is not None
        columns = {key: rows_of(batch.sparse_features, key) for key in batch.sparse_features.keys()}  # noqa: SIM118
        columns["timestamp"] = rows_of(batch.context, "timestamp")
        samples = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        losses, lasts = [], []
        for sample in samples:
            hidden = self.hidden(sample) if sample["item"] else self.table[:0]
            losses.append(self.sample_loss(sample, hidden))
            lasts.append(hidden[-1] if len(hidden) else torch.zeros_like(self.table[0]))
        return torch.stack(losses).mean(), torch.stack(lasts)


def check_against(
    name: str, reference: type[Reference], sides: Sequence[SideTable] = (), **settings: Any
) -> None:
    """Loss, output and the gradient of every parameter against `reference`."""
    model, other = create(name, sides, **settings), create(name, sides, **settings)
    batch = uneven_batch(sides)
    loss, last = model(batch)
    expected_loss, expected_last = reference(other, config_of(name, **settings), sides)(batch)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(last, expected_last, rtol=1e-11, atol=1e-12)
    (loss + (last**2).sum()).backward()
    (expected_loss + (expected_last**2).sum()).backward()
    for (name, ours), (_, theirs) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert ours.grad is not None, name
        assert ours.grad.abs().max() > 0, name
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-8, atol=1e-11, msg=name)
