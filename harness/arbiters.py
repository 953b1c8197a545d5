"""Who is right where a float32 difference exceeds a promise: an error of the method, or rounding alone.

A model can be ill-conditioned: Adagrad's first touch of a row moves it by the learning rate however small
the gradient, so the rounding of a gradient near zero decides where the row goes, and training amplifies it.
No tolerance separates that from an error, but a second training does:

- *float64*, where the method and its reference can both hold it: they train again in float64. Its rounding
  errors are 2^-29 of float32's; those of a wrong schedule or a lost gradient are what they were.
- *ulp*, where one of them holds float32 alone: the reference trains again, every initial weight moved by one
  unit in the last place. How far that takes it from itself is what rounding does to this model in this run.

On 100 steps of HSTU the first gave 1e-12 and the second 4e-4; rows one step stale differed by 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from baselines.interface import Method, Runner, Setup
from harness.batches import BatchSource
from harness.exactness import Difference, State, max_difference
from harness.job import Plan
from harness.rounds import Contestant, run_rounds

FLOAT64 = "float64"
ULP = "ulp"

# Float32 rounding that has grown to a difference of one half is 1e-9 in float64 (0.5 x 2^-29); a dropped
# update or a stale row differs by some fraction of a step, which is many orders of magnitude more.
FLOAT64_TOLERANCE = 1e-9
# One seeded direction is one sample of what rounding can do, and a method rounds in every step, not once.
ULP_FACTOR = 10.0
# Ten times more than this is as far as a stale row takes a model: such a run is too chaotic to tell.
ULP_LIMIT = 1e-2


@dataclass(frozen=True)
class Arbitration:
    """What a second training showed about one method."""

    kind: str
    """"float64" or "ulp"."""
    difference: Difference
    """float64: of the method from its reference; ulp: of the reference from itself."""

    def confirms(self, float32_difference: float) -> bool:
        """Whether rounding explains the method's difference in float32; never where one is not finite."""
        value = self.difference.value
        if not (math.isfinite(value) and math.isfinite(float32_difference)):
            return False
        if self.kind == FLOAT64:
            return value <= FLOAT64_TOLERANCE
        return value <= ULP_LIMIT and float32_difference <= ULP_FACTOR * value

    @property
    def note(self) -> str:
        """What a reader of the table must know to read the second number."""
        if self.kind == FLOAT64:
            return (
                "float64: the difference after method and reference trained again in float64, where rounding "
                f"shrinks and an error does not; {FLOAT64_TOLERANCE:g} is allowed"
            )
        return (
            "one ulp: how far the reference is from itself when every initial weight moves by one unit in "
            f"the last place, what rounding does to this model; {ULP_FACTOR:g} times that is allowed, "
            f"nothing where it exceeds {ULP_LIMIT:g} (check fewer steps)"
        )


@dataclass(frozen=True)
class Repetition:
    """Trains methods of a launch again, unmeasured, in the turns and on the batches that were measured."""

    methods: Mapping[str, Method]
    make_setup: Callable[[str], Setup]
    """From the name of a dtype to a setup with the launch's initial weights in it."""
    source: BatchSource
    plan: Plan

    def train(self, name: str, dtype: str, change: Callable[[nn.Module], None] | None = None) -> State:
        """A collective: what `state_dict` gives after training; `change` may move the initial weights."""
        setup = self.make_setup(dtype)
        if change is not None:
            change(setup.model)
        contestant = Contestant(name, self.methods[name].build(setup), self.source.batches())
        run_rounds([contestant], self.plan, setup.device, lambda num_steps: None)
        state = contestant.runner.state_dict()
        contestant.runner.close()
        return state


@dataclass(frozen=True)
class Dispute:
    """A method whose float32 difference exceeds its promise, and the arbiter that decides."""

    method: str
    against: str
    kind: str


def find_disputes(
    differences: Mapping[str, Difference], methods: Mapping[str, Method], dtype: str
) -> list[Dispute]:
    """A collective: the methods whose difference on rank 0 exceeds what they promise.

    Bitwise promises and differences that are not finite need no arbiter: rounding explains neither. Nor has a
    run in float64 one, whose tolerances are wider than the arbiter's.
    """
    disputes = []
    for name, difference in differences.items():
        promise = methods[name].exactness
        assert promise is not None
        if dtype != "float32" or not promise.tolerance:
            continue
        if math.isfinite(difference.value) and difference.value > promise.tolerance:
            both = methods[name].supports_float64 and methods[promise.against].supports_float64
            disputes.append(Dispute(name, promise.against, FLOAT64 if both else ULP))
    box = [disputes]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def measured_references(disputes: Sequence[Dispute], runners: Mapping[str, Runner]) -> dict[str, State]:
    """A collective: on rank 0 the states that *ulp* compares with, to be had before runners are closed."""
    names = dict.fromkeys(dispute.against for dispute in disputes if dispute.kind == ULP)
    return {name: runners[name].state_dict() for name in names}


def arbitrate(
    disputes: Sequence[Dispute], references: Mapping[str, State], repetition: Repetition, seed: int
) -> dict[str, Arbitration]:
    """On rank 0 an arbitration by method; a collective that has one runner at a time.

    `references` is what `measured_references` gave; `seed` draws the directions of the moved weights.
    """
    is_root = dist.get_rank() == 0
    arbitrations: dict[str, Arbitration] = {}
    for kind, against in dict.fromkeys((dispute.kind, dispute.against) for dispute in disputes):
        names = [d.method for d in disputes if (d.kind, d.against) == (kind, against)]
        if kind == ULP:
            moved = repetition.train(against, "float32", lambda model: move_by_one_ulp(model, seed))
            if is_root:
                ruling = Arbitration(ULP, max_difference(moved, references[against]))
                arbitrations |= dict.fromkeys(names, ruling)
            continue
        reference = repetition.train(against, "float64")
        for name in names:
            state = repetition.train(name, "float64")
            if is_root:
                arbitrations[name] = Arbitration(FLOAT64, max_difference(state, reference))
    return arbitrations


def move_by_one_ulp(model: nn.Module, seed: int) -> None:
    """Move every parameter's elements to the next number up or down, each drawn with equal chance."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_floating_point():
                continue
            draws = torch.randint(0, 2, parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.copy_(torch.nextafter(parameter, draws.sub_(0.5).mul_(math.inf)))
