"""The rank test: against scipy, against brute force, and on simulated noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from harness.regress.findings import Verdict, judge
from harness.regress.shift import ALPHA, design_effect, shift

Values = list[list[float]]


def noisy_launches(
    generator: np.random.Generator,
    num_launches: int,
    *,
    scale: float = 1.0,
    round_sd: float = 0.03,
    launch_sd: float = 0.01,
    num_rounds: int = 6,
) -> Values:
    """Ratios around 0.6: each launch off by its own, its rounds by more, the next like the one before."""
    found = []
    for _ in range(num_launches):
        noise = generator.normal(0, round_sd, num_rounds)
        for index in range(1, num_rounds):
            noise[index] = 0.3 * noise[index - 1] + math.sqrt(1 - 0.3**2) * noise[index]
        found.append((0.6 * scale * np.exp(noise + generator.normal(0, launch_sd))).tolist())
    return found


def shifted(values: Values, factor: float) -> Values:
    return [[factor * value for value in launch] for launch in values]


def test_one_round_a_launch_is_the_plain_rank_test() -> None:
    generator = np.random.default_rng(1)
    before, after = generator.lognormal(0, 0.1, 9), generator.lognormal(0.05, 0.1, 7)
    found = shift([[x] for x in before], [[x] for x in after])
    plain = stats.mannwhitneyu(
        after, before, alternative="greater", method="asymptotic", use_continuity=False
    )
    # Student's t with 14 degrees of freedom instead of the normal distribution.
    assert found.p_slower == pytest.approx(stats.t.sf(stats.norm.isf(plain.pvalue), 14))
    assert found.p_faster == pytest.approx(1 - found.p_slower)
    ratios = sorted(b / a for a in before for b in after)
    assert found.effect == pytest.approx(np.median(ratios) - 1, rel=1e-3)


def test_rounds_that_repeat_their_launch_add_no_evidence() -> None:
    before, after = [1.0, 1.01, 0.98, 1.03, 0.99, 1.02], [1.1, 1.12]
    once = shift([[x] for x in before], [[x] for x in after])
    often = shift([[x * (1 + 1e-9 * i) for i in range(6)] for x in before], [[x] * 6 for x in after])
    assert design_effect([[x] * 6 for x in before], [[x] * 6 for x in after]) == pytest.approx(6.0)
    assert often.p_slower == pytest.approx(once.p_slower, rel=0.3)


def test_independent_rounds_count_almost_in_full() -> None:
    generator = np.random.default_rng(0)
    effects = []
    for _ in range(50):
        independent = generator.lognormal(0, 0.02, (11, 6)).tolist()
        effects.append(design_effect(independent[:8], independent[8:]))
    assert min(effects) == 1.0
    assert float(np.mean(effects)) < 1.3


def test_the_interval_holds_what_the_test_does_not_reject() -> None:
    generator = np.random.default_rng(4)
    before, after = noisy_launches(generator, 8), noisy_launches(generator, 3, scale=1.04)
    found = shift(before, after)
    assert found.low < found.effect < found.high
    assert shift(before, shifted(after, 1 / (1 + found.low + 0.004))).p_slower > ALPHA
    assert shift(before, shifted(after, 1 / (1 + found.low - 0.004))).p_slower < ALPHA
    assert shift(before, shifted(after, 1 / (1 + found.high + 0.004))).p_faster < ALPHA


@pytest.mark.parametrize(("before", "after"), [(3, 1), (8, 0), (0, 8)])
def test_too_few_launches_are_no_sample(before: int, after: int) -> None:
    with pytest.raises(ValueError, match="launches in all are too few"):
        shift([[1.0, 1.1]] * before, [[1.0, 1.1]] * after)


def test_equal_values_everywhere_are_the_same() -> None:
    assert judge(shift([[1.0] * 6] * 8, [[1.0] * 6] * 3)) == Verdict.SAME


def test_verdicts_on_simulated_noise_are_right_as_often_as_promised() -> None:
    generator = np.random.default_rng(7)
    verdicts: dict[float, list[Verdict]] = {0.0: [], 0.1: [], -0.1: []}
    for change, found in verdicts.items():
        for _ in range(150):
            now = noisy_launches(generator, 3, scale=1 + change)
            found.append(judge(shift(noisy_launches(generator, 8), now)))
    assert verdicts[0.0].count(Verdict.SLOWER) + verdicts[0.0].count(Verdict.FASTER) == 0
    assert verdicts[0.1].count(Verdict.SLOWER) >= 0.95 * 150
    assert verdicts[-0.1].count(Verdict.FASTER) >= 0.95 * 150


def test_launches_that_differ_more_than_their_rounds_do_not_fool_it() -> None:
    """Treating rounds as independent calls many of these shifted; the design effect prevents it."""
    generator = np.random.default_rng(11)
    corrected = naive = 0
    for _ in range(200):
        before = noisy_launches(generator, 8, round_sd=0.01, launch_sd=0.04)
        after = noisy_launches(generator, 3, round_sd=0.01, launch_sd=0.04)
        corrected += shift(before, after).p_slower < ALPHA
        naive += stats.mannwhitneyu(np.ravel(after), np.ravel(before), alternative="greater").pvalue < ALPHA
    assert corrected <= 6  # 2 expected; more than 6 happens once in 200 seeds
    assert naive > 20


def test_a_very_noisy_machine_makes_it_inconclusive_and_not_wrong() -> None:
    generator = np.random.default_rng(5)
    found = [
        judge(
            shift(
                noisy_launches(generator, 8, round_sd=0.2, launch_sd=0.1),
                noisy_launches(generator, 3, round_sd=0.2, launch_sd=0.1),
            )
        )
        for _ in range(60)
    ]
    assert found.count(Verdict.INCONCLUSIVE) >= 55
    assert found.count(Verdict.SLOWER) <= 1
