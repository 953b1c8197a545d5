"""Check of collectives: every worker issues the same ones, as the emulated fabric counts them."""

from __future__ import annotations

from harness.conformance.subject import Skip, Subject, Violation


def check_collectives(subject: Subject) -> str:
    """In every stretch of training each worker issues as many collectives of each kind as rank 0."""
    if subject.num_workers == 1:
        raise Skip("needs several workers")
    if subject.fabric is None:
        raise Skip("counted on the CPU, where all workers share a machine")
    mine = [phase.num_collectives for phase in subject.phases]
    theirs = subject.gather(mine)
    expected = theirs[0]
    if not any(counts for phases in theirs for counts in phases):
        raise Skip("none went through the process groups that the method was given")
    for phase, own, first in zip(subject.phases, mine, expected, strict=True):
        for kind in sorted(own.keys() | first.keys()):
            if own[kind] != first[kind]:
                what = f"{kind[0]} of {kind[1]}"
                raise Violation(f"{own[kind]} {what} in {len(phase.losses)} steps, {first[kind]} on rank 0")
    num_steps = sum(len(phase.losses) for phase in subject.phases)
    return f"{sum(counts.total() for counts in mine) / num_steps:.1f} a step, the same on every worker"
