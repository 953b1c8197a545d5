"""What a comparison found: one verdict a counter and a ratio, and what they mean together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from statistics import median
from typing import Any

from harness.regress.reference import Counter, Reference, TimedLaunch, Times
from harness.regress.shift import ALPHA, Launches, Shift, shift

MIN_EFFECT = 0.05
"""Smaller shifts of a time are none, however sure."""
WIDE = 2 * MIN_EFFECT
"""A comparison that cannot exclude a shift of this size is inconclusive."""
MIN_SHARE = 0.02
"""An op's shift must be worth this share of its method's step."""
MAX_DRIFT = 1.5
"""How much slower or faster the base itself may have become: beyond, the machine is in another state."""
_MACHINE = ("cpu", "cores")
_VERSIONS = ("python", "torch", "torchrec", "fbgemm-gpu-cpu", "fbgemm-gpu", "numpy")


class Verdict(StrEnum):
    """What became of one number."""

    SAME = "same"
    FASTER = "faster"
    SLOWER = "slower"
    MORE = "more"
    LESS = "less"
    INCONCLUSIVE = "inconclusive"
    NOT_COMPARABLE = "not comparable"
    NEW = "new"
    GONE = "gone"


REGRESSIONS = frozenset({Verdict.SLOWER, Verdict.MORE, Verdict.LESS})
UNDECIDED = frozenset({Verdict.INCONCLUSIVE, Verdict.NOT_COMPARABLE, Verdict.GONE})


@dataclass(frozen=True)
class Finding:
    """One number then and now."""

    name: str
    verdict: Verdict
    reference: float | None
    now: float | None
    unit: str
    note: str = ""
    effect: float | None = None
    """Of a time: how much longer it takes, as a fraction."""
    p_value: float | None = None
    """Of a time, one-sided, in the direction of the effect."""

    @property
    def group(self) -> str:
        """The kind of number: count, simulated, kernel, time or op."""
        return self.name.partition("/")[0]

    @property
    def decides(self) -> bool:
        """Whether an undecided verdict leaves the whole undecided: an op that cannot be told does not."""
        return self.group != "op"

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self) | {"verdict": self.verdict.value}


def exit_code(findings: Sequence[Finding]) -> int:
    """1: something has become worse, or a counter has moved; 2: that could not be told; 0: neither."""
    if any(finding.verdict in REGRESSIONS for finding in findings):
        return 1
    return 2 if any(finding.verdict in UNDECIDED and finding.decides for finding in findings) else 0


def compare(reference: Reference, counters: Sequence[Counter], times: Times | None) -> list[Finding]:
    """Every counter, and every ratio where `times` were measured."""
    findings = list(compare_counters(reference.counters, counters))
    return findings if times is None else [*findings, *compare_times(reference.times, times)]


def compare_counters(reference: Sequence[Counter], now: Sequence[Counter]) -> Iterator[Finding]:
    """A counter must be within the reference's tolerance of the reference's value, to either side.

    Fewer bytes than before are as likely lost updates as they are progress: both need a word of why.
    """
    known = {counter.name: counter for counter in reference}
    for counter in now:
        before = known.pop(counter.name, None)
        if before is None:
            yield Finding(counter.name, Verdict.NEW, None, counter.value, counter.unit)
            continue
        verdict = Verdict.SAME
        if not math.isclose(counter.value, before.value, rel_tol=0, abs_tol=before.tolerance * before.value):
            verdict = Verdict.MORE if counter.value > before.value else Verdict.LESS
        note = f"within {before.tolerance:g} of it" if before.tolerance and verdict != Verdict.SAME else ""
        yield Finding(counter.name, verdict, before.value, counter.value, counter.unit, note)
    for before in known.values():
        yield Finding(before.name, Verdict.GONE, before.value, None, before.unit)


def compare_times(reference: Times | None, now: Times) -> Iterator[Finding]:
    """Steps of every method and busy times of its ops, as ratios to the base's step."""
    names = list(dict.fromkeys(_ratios(now.launches)) | dict.fromkeys(_ratios(_launches(reference))))
    problem = "" if reference is None else difference_of(reference, now)
    before, after = _ratios(_launches(reference)), _ratios(now.launches)
    for name in names:
        step = f"time/{name.split('/')[1]}"
        if reference is None or name not in before:
            yield Finding(name, Verdict.NEW, None, _middle(after[name]), "of the base's step")
        elif name not in after:
            yield Finding(name, Verdict.GONE, _middle(before[name]), None, "of the base's step")
        elif problem:
            values = _middle(before[name]), _middle(after[name])
            yield Finding(name, Verdict.NOT_COMPARABLE, *values, "of the base's step", problem)
        else:
            share = _middle(before[name]) / _middle(before[step])
            yield _judged(name, before[name], after[name], share, drift(reference, now))


def drift(reference: Times, now: Times) -> float:
    """How many times as long the base's own step takes now."""
    then = median(launch.base_ms for launch in reference.launches)
    return median(launch.base_ms for launch in now.launches) / then


def difference_of(reference: Times, now: Times) -> str:
    """What keeps times from being comparable: another processor, or another version of what they use."""
    parts = (
        (_MACHINE, reference.machine, now.machine),
        (_VERSIONS, reference.versions, now.versions),
    )
    return ", ".join(
        f"{key} {then.get(key, 'none')} then, {here.get(key, 'none')} now"
        for keys, then, here in parts
        for key in keys
        if then.get(key) != here.get(key)
    )


def judge(found: Shift, share: float = 1.0) -> Verdict:
    """Slower or faster where the rank test and the minimum effect agree; same where no large shift is left.

    `share` is the part of the step that shifts: 1 for the step itself. An op must move by MIN_EFFECT of
    itself and by MIN_SHARE of the step.
    """
    needed = max(MIN_EFFECT, MIN_SHARE / share) if share < 1.0 else MIN_EFFECT
    wide = needed * WIDE / MIN_EFFECT
    if found.p_slower < ALPHA and found.effect >= needed:
        return Verdict.SLOWER
    if found.p_faster < ALPHA and found.effect <= 1 / (1 + needed) - 1:
        return Verdict.FASTER
    is_same = 1 / (1 + needed) - 1 < found.effect < needed and found.high < wide
    return Verdict.SAME if is_same else Verdict.INCONCLUSIVE


def _judged(name: str, before: Launches, after: Launches, share: float, drifted: float) -> Finding:
    values = _middle(before), _middle(after)
    if min(values) <= 0:
        return Finding(name, Verdict.INCONCLUSIVE, *values, "of the base's step", "takes no time to compare")
    try:
        found = shift(before, after)
    except ValueError as error:
        return Finding(name, Verdict.INCONCLUSIVE, *values, "of the base's step", str(error))
    verdict, note = judge(found, share), f"{found.low:+.1%} to {found.high:+.1%}"
    if not 1 / MAX_DRIFT < drifted < MAX_DRIFT:
        verdict = Verdict.INCONCLUSIVE
        note = f"the base itself takes {drifted:.2f} times as long: measure when the machine is as before"
    p_value = found.p_slower if found.effect >= 0 else found.p_faster
    return Finding(name, verdict, *values, "of the base's step", note, found.effect, p_value)


def _ratios(launches: Sequence[TimedLaunch]) -> dict[str, Launches]:
    """Every ratio by name, `time/METHOD` and `op/METHOD/OP`."""
    found: dict[str, list[Sequence[float]]] = {}
    for launch in launches:
        for method, values in launch.steps.items():
            found.setdefault(f"time/{method}", []).append(values)
        for method, by_op in launch.ops.items():
            for op, values in by_op.items():
                found.setdefault(f"op/{method}/{op}", []).append(values)
    return dict(found)


def _launches(times: Times | None) -> Sequence[TimedLaunch]:
    return () if times is None else times.launches


def _middle(launches: Launches) -> float:
    return median(value for launch in launches for value in launch)


Counts = Mapping[tuple[str, Verdict], int]


def count_verdicts(findings: Sequence[Finding]) -> Counts:
    """How many of each group came out how."""
    counts: dict[tuple[str, Verdict], int] = {}
    for finding in findings:
        key = finding.group, finding.verdict
        counts[key] = counts.get(key, 0) + 1
    return counts
