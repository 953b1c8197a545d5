"""How far a method's parameters are from those of the method it is measured against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from baselines.interface import Exactness, Runner

State = Mapping[str, torch.Tensor]
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Difference:
    """How far two states are apart, and by which parameter."""

    value: float
    """The largest `max|a - b| / max|b|` of any parameter, b the reference's; inf if one is not finite."""
    parameter: str


def max_difference(state: State, reference: State) -> Difference:
    """The parameter that differs most; one that is zero everywhere in the reference counts absolutely.

    Methods may leave parameters on different devices: they are compared on the CPU, a part at a time.
    """
    if state.keys() != reference.keys():
        names = sorted(state.keys() ^ reference.keys())
        raise RuntimeError(f"parameters that only one of two compared methods has: {', '.join(names)}")
    differences = [Difference(_difference(state[name], reference[name], name), name) for name in state]
    return max(differences, key=lambda difference: difference.value)


def _difference(value: torch.Tensor, reference: torch.Tensor, name: str) -> float:
    if value.shape != reference.shape:
        raise RuntimeError(
            f"parameter {name} has shape {list(value.shape)} here and {list(reference.shape)} there"
        )
    distance = scale = 0.0
    parts = zip(
        value.detach().flatten().split(_CHUNK), reference.detach().flatten().split(_CHUNK), strict=True
    )
    for part, other in ((part.cpu(), other.cpu()) for part, other in parts):
        if not part.numel():
            continue
        if not bool(part.isfinite().all() & other.isfinite().all()):
            return float("inf")
        distance = max(distance, (part.double() - other.double()).abs().max().item())
        scale = max(scale, other.double().abs().max().item())
    return distance / scale if scale else distance


def compare_runners(
    runners: Mapping[str, Runner], promises: Mapping[str, Exactness], rank: int
) -> dict[str, Difference]:
    """On rank 0 the difference of every method with a promise; a collective, holding two states at most."""
    differences: dict[str, Difference] = {}
    for against in dict.fromkeys(promise.against for promise in promises.values()):
        reference = runners[against].state_dict()
        for name, promise in promises.items():
            if promise.against == against:
                state = runners[name].state_dict()
                if rank == 0:
                    differences[name] = max_difference(state, reference)
                del state
        del reference
    return differences
