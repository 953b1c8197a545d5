"""How often the regression gate is right: slowed methods against unchanged ones, beside a busy neighbour.

    python scripts/check_regress.py
    python scripts/check_regress.py --trials 4 --launches 5           # a quick look
    python scripts/check_regress.py --slowdowns 0.1 0.04              # small ones show in the op alone

Every trial measures the method unchanged and slowed, in new processes, and compares both with one
reference. The slowdown is work in the op `update`, so many times the reference's step. The neighbour
works on one core, on and off at random. Ends with 1 where fewer than 19 of 20 slowed methods are called
slower, or any unchanged one is. Takes about a quarter of an hour on two cores; nothing else should run
meanwhile.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch
from torch.distributed.launcher.api import LaunchConfig

import harness.launch
from baselines import registry
from baselines.interface import Method, Runner, Setup
from harness.regress.experiment import Timing
from harness.regress.findings import Finding, Verdict, compare_times, exit_code
from harness.regress.gate import NUM_REFERENCE_LAUNCHES, is_enough
from harness.regress.reference import TimedLaunch, Times, times_here
from harness.regress.times import measure

METHOD = "nestpipe"
ALLOWED_MISSES = 0.05
TIMEOUT_S = 120.0
_SLOWED = f"{METHOD}+"
_PRELOADED = [
    "torch",
    "torchrec",
    "harness.regress.time_worker",
    "baselines.torchrec_base",
    "nestpipe.pipeline",
]


class Slowed(Method):
    """Another method whose update works `delay_ms` longer."""

    def __init__(self, inner: Method, name: str, delay_ms: float) -> None:
        self.name, self.exactness = name, inner.exactness
        self._inner, self._delay_ms = inner, delay_ms

    def build(self, setup: Setup) -> Runner:
        make = setup.dense_optimizer

        def make_slowed(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
            optimizer = make(parameters)
            optimizer.register_step_pre_hook(lambda *_: work(self._delay_ms))
            return optimizer

        return self._inner.build(replace(setup, dense_optimizer=make_slowed))


def work(duration_ms: float) -> None:
    """Keep a core busy."""
    until = time.perf_counter() + duration_ms / 1e3
    while time.perf_counter() < until:
        pass


def find_slowed(delays_ms: dict[str, float], name: str) -> Method:
    """A method by name, slowed where it has a delay."""
    if name in delays_ms:
        return Slowed(registry.get(METHOD), name, delays_ms[name])
    return registry.get(name)


@contextmanager
def busy_neighbour(seed: int) -> Iterator[None]:
    """A process that works and rests in turns."""
    process = subprocess.Popen([sys.executable, __file__, "--be-busy", str(seed)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def be_busy(seed: int) -> None:
    """The neighbour's life: up to two seconds of work, up to two of rest."""
    generator = random.Random(seed)
    while True:
        work(generator.uniform(100, 2000))
        time.sleep(generator.uniform(0.1, 2.0))


def pick(launch: TimedLaunch, name: str) -> TimedLaunch:
    """What a launch that measured several variants says about one of them."""
    return TimedLaunch(launch.base_ms, {METHOD: launch.steps[name]}, {METHOD: launch.ops[name]})


def run_trial(
    reference: Times, names: Sequence[str], launch_one: Callable[[], TimedLaunch], limit: int
) -> dict[str, list[Finding]]:
    """Findings by variant: as the gate does, launches until there are enough of them, at most `limit`."""
    taken: list[TimedLaunch] = []
    found: dict[str, list[Finding]] = {}
    while len(found) < len(names):
        taken.append(launch_one())
        for name in names:
            now = times_here([pick(launch, name) for launch in taken])
            if name not in found and (len(taken) == limit or is_enough(reference, now)):
                found[name] = list(compare_times(reference, now))
    return {name: found[name] for name in names}


def describe(trial: int, slowdown: float, findings: Sequence[Finding]) -> dict[str, Any]:
    """A line of the table."""
    step = next(finding for finding in findings if finding.name == f"time/{METHOD}")
    slower = [f.name.rpartition("/")[2] for f in findings if f.group == "op" and f.verdict == Verdict.SLOWER]
    return {
        "trial": trial,
        "slowed by": f"{slowdown:.0%}",
        "step": step.verdict.value,
        "effect": "" if step.effect is None else f"{step.effect:+.1%}",
        "p": "" if step.p_value is None else f"{step.p_value:.1g}",
        "slower ops": ",".join(slower),
        "exit": exit_code(findings),
    }


def check(arguments: argparse.Namespace, folder: Path) -> pd.DataFrame:
    """All trials, one line a variant."""
    timing = Timing()
    step_ms = measure_step_ms(timing, folder)
    slowdowns = {METHOD: 0.0, **{f"{_SLOWED}{share:g}": share for share in arguments.slowdowns}}
    delays_ms = {name: share * step_ms for name, share in slowdowns.items() if share}
    timing = replace(timing, methods=tuple(slowdowns))
    # In the reference's launches the slowed variants run too, so that unchanged ones meet the same company.
    reference = times_here([pick(launch, METHOD) for launch in launches(timing, delays_ms, folder, None)])
    rows = []
    for trial in range(1, arguments.trials + 1):
        stream = launches(timing, delays_ms, folder, arguments.launches)
        found = run_trial(reference, list(slowdowns), partial(next, stream), arguments.launches)
        for name, findings in found.items():
            rows.append(describe(trial, slowdowns[name], findings))
            print(*rows[-1].values(), sep="  ", flush=True)
    return pd.DataFrame(rows)


def launches(
    timing: Timing, delays_ms: dict[str, float], folder: Path, limit: int | None
) -> Iterator[TimedLaunch]:
    """Timed launches, as many as a reference has without a limit."""
    num = limit or NUM_REFERENCE_LAUNCHES
    return measure(timing, num, folder, TIMEOUT_S, partial(find_slowed, delays_ms))


def measure_step_ms(timing: Timing, folder: Path) -> float:
    """What a step of the unchanged method takes here."""
    [launch] = measure(timing, 1, folder, TIMEOUT_S)
    ratio = median(launch.steps[METHOD])
    print(f"base {launch.base_ms:.1f} ms, {METHOD} {ratio:.3f} of it", flush=True)
    return ratio * launch.base_ms


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--launches", type=int, default=3, help="at most, of a trial")
    parser.add_argument("--slowdowns", type=float, nargs="+", default=[0.1], help="of the step")
    parser.add_argument("--seed", type=int, default=0, help="of the neighbour")
    parser.add_argument("--be-busy", type=int, metavar="SEED", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.be_busy is not None:
        be_busy(arguments.be_busy)
    # Workers are forked from a server that has imported everything: most of a launch is importing.
    get_context("forkserver").set_forkserver_preload(_PRELOADED)
    harness.launch.LaunchConfig = partial(LaunchConfig, start_method="forkserver")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, busy_neighbour(arguments.seed):
        table = check(arguments, Path(folder))
    print(table.to_string(index=False))
    unchanged, slowed = table[table["slowed by"] == "0%"], table[table["slowed by"] == "10%"]
    false_alarms = int((unchanged["exit"] == 1).sum())
    missed = int((slowed["step"] != Verdict.SLOWER).sum())
    print(f"unchanged: {false_alarms} of {len(unchanged)} called slower")
    print(f"slowed by 10 %: {len(slowed) - missed} of {len(slowed)} called slower")
    print(f"{(time.perf_counter() - began) / 60:.1f} minutes")
    return int(false_alarms > 0 or missed > ALLOWED_MISSES * len(slowed))


if __name__ == "__main__":
    sys.exit(main())
