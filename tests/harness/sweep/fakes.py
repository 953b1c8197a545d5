"""A ladder and cells that take no time; run as a program, a sweep that is killed. Imports no torch."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from harness.sweep.journal import CELLS_FILE, Journal, Measurement, Provenance, open_journal
from harness.sweep.plan import Cell, Step, Sweep, Variant
from harness.sweep.run import TimeLeft, run_missing

PROVENANCE = Provenance("0" * 40, False, {"torch": "2"}, {"cpu": "fake", "cores": 2})
STEP_MS = {"sync": 10.0, "dbp": 8.0, "fwp": 8.01, "nestpipe": 9.0}

MAX_LIFE_BYTES, MAX_REST_S, MAX_KILLED = 8_000, 0.003, 500


def fake_sweep(num_rounds: int = 3, workers: tuple[int, ...] = (1, 2), **changes: object) -> Sweep:
    steps: list[Step] = []
    for method in STEP_MS:
        base = steps[-1].name if steps else None
        steps.append(Step(f"with {method}", Variant(method, "synthetic", "local"), base, method))
    return Sweep("fake", tuple(steps), workers=workers, num_rounds=num_rounds, **changes)  # type: ignore[arg-type]


def measurement(step_ms: float, exactness: str = "unchecked", num_steps: int = 30) -> Measurement:
    return Measurement(
        batch_size=64,
        step_ms_p10=0.9 * step_ms,
        step_ms_p50=step_ms,
        step_ms_p90=1.1 * step_ms,
        qps=64e3 / step_ms,
        lookup_ms=0.25 * step_ms,
        comm_ms=0.25 * step_ms,
        dense_ms=0.5 * step_ms,
        other_ms=0.0,
        final_loss=0.5,
        exactness=exactness,
        max_difference=None,
        step_ms=(step_ms,) * num_steps,
    )


def fake_measure(cell: Cell) -> Measurement:
    """The machine grows 10 % slower each round; `fwp` fails in the second one."""
    if cell.method == "fwp" and cell.round == 1:
        raise ValueError("fwp does not work on Tuesdays")
    return measurement(STEP_MS[cell.method] * 1.1**cell.round * cell.workers)


def run_fake(folder: Path, sweep: Sweep) -> None:
    with open_journal(folder) as journal:
        run_missing(sweep, journal, fake_measure, PROVENANCE, no_estimate(sweep, journal), lambda text: None)


def no_estimate(sweep: Sweep, journal: Journal) -> TimeLeft:
    return TimeLeft(sweep, journal, lambda cell: None)


def kill_in_a_loop(folder: Path, num_rounds: int, seed: int) -> int:
    """Start the sweep anew in a process of its own and kill it at some moment, until one comes to its end.

    A moment is counted in bytes that were written, however slow the machine is, and a little time.
    """
    generator = random.Random(seed)
    path = folder / CELLS_FILE
    num_killed = 0
    while True:
        child = os.fork()
        if not child:
            run_fake(folder, fake_sweep(num_rounds))
            os._exit(0)
        status = _kill(child, path, generator.randrange(MAX_LIFE_BYTES), generator.uniform(0.0, MAX_REST_S))
        if not os.WIFSIGNALED(status):
            assert status == 0
            return num_killed
        num_killed += 1
        assert num_killed < MAX_KILLED


def _kill(child: int, path: Path, num_bytes: int, rest_s: float) -> int:
    """The status with which the child ended, one way or the other."""
    end = _size(path) + num_bytes
    while _size(path) < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(1e-4)
    time.sleep(rest_s)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


if __name__ == "__main__":
    print(kill_in_a_loop(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
