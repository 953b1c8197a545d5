"""What `nestpipe kick-the-tires` runs: stages of commands, each a part of the suite at its smallest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from baselines import registry
from harness.schedule_file import BUILT_IN
from workloads.fetch import ml_100k_path

NUM_WORKERS = 2
REFERENCE = Path("results/reference/ci.json")
"""From the root of a checkout; elsewhere there is nothing to compare counters with."""
LADDER = """\
workers = [2]
steps = 4
warmup = 1
rounds = 1
method = "sync"
set = { preset = "tiny" }
step = [{ name = "sync" }, { name = "window", method = "nestpipe" }]
"""

Arguments = tuple[str, ...]
"""Of one `nestpipe` command."""


@dataclass(frozen=True)
class Stage:
    """One part of the suite."""

    name: str
    commands: tuple[Arguments, ...]
    """Each needs what those before it leave."""
    files: Mapping[Path, str] = field(default_factory=dict)
    """Written before the commands run."""


def stages(folder: Path, cache_dir: Path, reference: Path = REFERENCE) -> list[Stage]:
    """The tour, which leaves everything below `folder`; counters only where there is the `reference`."""

    def at(name: str) -> str:
        return str(folder / name)

    workers = ("--workers", str(NUM_WORKERS))
    run = (*workers, "--steps", "6", "--warmup", "2", "--set", "preset=tiny")
    simulated = ("--evidence", "simulated", "--out", at("reproduce"))
    small = ("--rows", "4096", "--ids", "1024", "--dim", "32", "--calls", "3")
    cell = ("claims", "run", "step-nestpipe-1536", "--evidence", "emulated", "--steps", "2", *workers)
    kept = ("--out", at("claims"))
    tour = [
        Stage("versions", (("--version",), ("doctor",), ("list",))),
        Stage("proofs", tuple(("verify", name) for name in BUILT_IN)),
        Stage(
            "schedules",
            (("schedule", "show", "nestpipe"), ("schedule", "export", "nestpipe", "--out", at("step.json"))),
        ),
        Stage("simulator", (("simulate", "all"),)),
        Stage("map", (("map", "--out", at("maps")),)),
        Stage("paper", (("reproduce", "all", *simulated), ("ablate", *simulated))),
        Stage("data", (("data", "stats", "synthetic:tiny", "--batches", "2"),)),
        Stage("kernels", (("kernels", "bench", *small),)),
        Stage("methods", (("run", *registry.names(), *run, "--check", "exact", "--out", at("runs")),)),
        Stage(
            "comparison",
            (
                ("run", "torchrec", "nestpipe", *run, "--out", at("again"), "--trace", at("trace.jsonl")),
                ("compare", at("runs"), at("again")),
            ),
        ),
        Stage("contract", (("conformance", "sync", *workers),)),
        Stage(
            "ladder",
            (("sweep", at("ladder.toml"), "--out", at("sweeps")),),
            files={folder / "ladder.toml": LADDER},
        ),
        Stage("emulated cell", ((*cell, *kept),)),
        Stage("claims", (("claims", "run", *kept), ("claims", "report", "--results", at("claims")))),
        Stage("training", (_training(cache_dir, (*workers, "--out", at("train"))),)),
        Stage("report", (("report", str(folder), "--out", at("report.html")),)),
    ]
    if reference.is_file():
        tour.insert(-1, Stage("counters", (("regress", "--against", str(reference)),)))
    return tour


def _training(cache_dir: Path, options: Arguments) -> Arguments:
    at_hand = ml_100k_path(cache_dir).is_file()
    data = (
        ("--workload", "movielens", "--cache", str(cache_dir))
        if at_hand
        else ("--workload", "synthetic", "--set", "preset=tiny")
    )
    return ("train", "nestpipe", *data, "--epochs", "1", *options)
