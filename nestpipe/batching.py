"""Micro-batches: cutting a batch into groups of samples, and putting the outputs back together.

Works on any nest of dataclasses, named tuples, dicts, lists and tuples. Inside, a tensor whose first
dim is the number of samples is indexed by sample, a KeyedJaggedTensor or JaggedTensor is selected by
sample, and everything else is handed on as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import accumulate
from typing import Any

import torch
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

Select = Callable[[Any, torch.Tensor], Any]


@dataclass
class MicroBatch:
    """Part of a batch, its keys and its weight in the batch's loss (the weights sum to 1)."""

    batch: Any
    features: KeyedJaggedTensor
    num_samples: int
    weight: float


def features_of(batch: Any) -> KeyedJaggedTensor:
    """The keys that a batch wants looked up: its `sparse_features`, or the batch itself."""
    features = batch if isinstance(batch, KeyedJaggedTensor) else getattr(batch, "sparse_features", None)
    if not isinstance(features, KeyedJaggedTensor):
        raise TypeError(
            f"a batch of type {type(batch).__name__} has no `sparse_features` of type KeyedJaggedTensor; "
            "pass NestPipe(features=...), a function that takes a batch and returns them"
        )
    return features


def cut_sizes(num_samples: int, cuts: Sequence[int]) -> list[int]:
    """Samples of each micro-batch, in proportion to `cuts`; some are 0 if there are too few samples."""
    total = sum(cuts)
    bounds = [round(num_samples * part / total) for part in accumulate(cuts)]
    return [high - low for low, high in zip([0, *bounds], bounds, strict=False)]


def select_samples(batch: Any, samples: torch.Tensor, num_samples: int) -> Any:
    """The given `samples` [k] of a batch of `num_samples`, in that order, as a batch of the same type."""
    if isinstance(batch, KeyedJaggedTensor):
        return _select_jagged(batch, samples)
    if isinstance(batch, JaggedTensor):
        keyed = KeyedJaggedTensor(["_"], batch.values(), batch.weights_or_none(), batch.lengths())
        return _select_jagged(keyed, samples)["_"]
    if isinstance(batch, torch.Tensor):
        matches = batch.dim() > 0 and batch.shape[0] == num_samples
        return batch.index_select(0, samples) if matches else batch
    return _rebuild(batch, lambda part: select_samples(part, samples, num_samples))


def split_batch(
    batch: Any,
    features: Callable[[Any], KeyedJaggedTensor],
    cuts: Sequence[int],
    order: Callable[[KeyedJaggedTensor, Sequence[int]], torch.Tensor] | None,
    select: Select | None,
) -> tuple[list[MicroBatch], torch.Tensor | None]:
    """Micro-batches of `batch` and the order [num_samples] in which its samples stand in them.

    `order` chooses it (key-centric clustering); without, samples stay where they are. One micro-batch
    is the batch itself, untouched, with order None.
    """
    keys = features(batch)
    num_samples = _num_samples(keys)
    if len(cuts) == 1:
        return [MicroBatch(batch, keys, num_samples, 1.0 if num_samples else 0.0)], None
    sizes = cut_sizes(num_samples, cuts)
    samples = torch.arange(num_samples) if order is None else order(keys, sizes)
    parts = []
    for chosen in samples.split(sizes):
        part = select(batch, chosen) if select else select_samples(batch, chosen, num_samples)
        parts.append(MicroBatch(part, features(part), chosen.numel(), 0.0))
    weights = [_loss_weight(part) for part in parts]
    total = sum(weights)
    for part, weight in zip(parts, weights, strict=True):
        part.weight = weight / total if total else 0.0
    return parts, samples


def merge_outputs(outputs: Sequence[Any], sizes: Sequence[int], order: torch.Tensor | None) -> Any:
    """Outputs of micro-batches as one for the batch, samples in the batch's own order.

    Tensors with one entry a sample are joined; where outputs are of any other kind, the result is the
    list of the micro-batches' outputs (None for one without samples).
    """
    present = [output for output, size in zip(outputs, sizes, strict=True) if size]
    counts = [size for size in sizes if size]
    if not present:
        return None
    if len(sizes) == 1:
        return _detach(outputs[0])
    if not _joinable(present, counts):
        return [_detach(output) for output in outputs]
    back = None if order is None else torch.argsort(order)
    return _join(present, back)


def sync_keys(batch: Any) -> None:
    """Let every KeyedJaggedTensor inside a batch in host memory count the values of each key.

    It and its copies remember; on a device, to look up a key would wait for the device.
    """
    if isinstance(batch, KeyedJaggedTensor):
        batch.sync()
        return
    for part in _parts(batch):
        sync_keys(part)


def move_batch(batch: Any, device: torch.device) -> Any:
    """`batch` on `device`; a batch that cannot be moved is left where it is on a CPU."""
    if device.type == "cpu" and not hasattr(batch, "to"):
        return batch
    return batch.to(device=device, non_blocking=True)


def _num_samples(features: KeyedJaggedTensor) -> int:
    if features.variable_stride_per_key():
        raise ValueError("a KeyedJaggedTensor with a batch size a feature (stride_per_key) is not supported")
    return features.stride()


def _loss_weight(part: MicroBatch) -> float:
    weight = getattr(part.batch, "loss_weight", None)
    if weight is None:
        return float(part.num_samples)
    return float(weight.sum()) if isinstance(weight, torch.Tensor) else float(weight)


def _select_jagged(keys: KeyedJaggedTensor, samples: torch.Tensor) -> KeyedJaggedTensor:
    stride, num_keys = keys.stride(), len(keys.keys())
    first = torch.arange(num_keys, device=samples.device).unsqueeze(1) * stride
    segments = (first + samples).view(-1).to(torch.int32)
    lengths, values, weights = torch.ops.fbgemm.permute_1D_sparse_data(
        segments, keys.lengths(), keys.values(), keys.weights_or_none(), None
    )
    return KeyedJaggedTensor(keys.keys(), values, weights, lengths, stride=samples.numel())


def _parts(nest: Any) -> Iterable[Any]:
    if is_dataclass(nest) and not isinstance(nest, type):
        return [getattr(nest, field.name) for field in fields(nest)]
    if isinstance(nest, dict):
        return nest.values()
    return nest if isinstance(nest, list | tuple) else ()


def _rebuild(nest: Any, function: Callable[[Any], Any]) -> Any:
    if is_dataclass(nest) and not isinstance(nest, type):
        new = copy.copy(nest)
        for field in fields(nest):
            object.__setattr__(new, field.name, function(getattr(nest, field.name)))
        return new
    if isinstance(nest, dict):
        return type(nest)((name, function(part)) for name, part in nest.items())
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*map(function, nest))
    if isinstance(nest, list | tuple):
        return type(nest)(map(function, nest))
    return nest


def _detach(nest: Any) -> Any:
    return nest.detach() if isinstance(nest, torch.Tensor) else _rebuild(nest, _detach)


def _joinable(parts: Sequence[Any], counts: Sequence[int]) -> bool:
    first = parts[0]
    if any(type(part) is not type(first) for part in parts):
        return False
    if isinstance(first, torch.Tensor):
        return all(p.dim() > 0 and p.shape[0] == count for p, count in zip(parts, counts, strict=True))
    if isinstance(first, dict):
        return all(p.keys() == first.keys() for p in parts) and all(
            _joinable([p[name] for p in parts], counts) for name in first
        )
    if isinstance(first, list | tuple):
        return all(len(p) == len(first) for p in parts) and all(
            _joinable(inner, counts) for inner in zip(*parts, strict=True)
        )
    return False


def _join(parts: Sequence[Any], back: torch.Tensor | None) -> Any:
    first = parts[0]
    if isinstance(first, torch.Tensor):
        joined = torch.cat([part.detach() for part in parts])
        return joined if back is None else joined.index_select(0, back.to(joined.device))
    if isinstance(first, dict):
        return type(first)((name, _join([part[name] for part in parts], back)) for name in first)
    joined_parts = [_join(inner, back) for inner in zip(*parts, strict=True)]
    return type(first)(*joined_parts) if hasattr(first, "_fields") else type(first)(joined_parts)
