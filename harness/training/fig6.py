"""`nestpipe reproduce fig6`: does a method train as well as synchronous TorchRec?

The paper trains FuXi on KuaiRand-27K, which is not shipped: what is measured here is the same question on
other data, never a reproduction of the paper's figures.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from harness import paper
from harness.options import Settings
from harness.targets import check_target
from harness.training.experiment import Outcome, raise_failure, remarks, title_of, train_all
from harness.training.fig6_plot import save_figure
from harness.training.fig6_table import print_against_paper
from harness.training.job import TrainingJob
from harness.training.statistics import Difference, Estimate, differences, levels
from harness.training.tables import print_levels

BASE = "torchrec"
SYNC = "sync"
SUBJECT = "nestpipe"
METHODS = (BASE, "2d-sp", "uniemb", SUBJECT, SYNC)
EXACT_METHODS = (SYNC, SUBJECT)
METRICS = ("hr@10", "hr@50", "ndcg@10", "ndcg@50")
ALLOWED = 1e-3
"""A difference up to this is none in practice, whatever its standard error."""

DOCUMENT = "fig6.json"
QUICK_NUM_EPOCHS, QUICK_NUM_SEEDS = 5, 3
NUM_EPOCHS, NUM_SEEDS = 20, 5


@dataclass(frozen=True)
class Accuracy:
    """What is compared: `job` in float32, the methods on the engine in float64 as well."""

    job: TrainingJob
    num_workers: int
    num_seeds: int

    @property
    def seeds(self) -> range:
        """Of weights and batches."""
        return range(self.num_seeds)

    @property
    def exact_job(self) -> TrainingJob:
        """The same in float64, where rounding cannot reorder a list of best items."""
        training = replace(self.job.settings.training, dtype="float64", autocast="none")
        settings = replace(self.job.settings, training=training)
        return replace(self.job, methods=EXACT_METHODS, settings=settings)


def settings_of(settings: Settings) -> Settings:
    """The user's settings, and two replicas where he gave no number."""
    return replace(settings, method={"replicas": 2, **settings.method})


def check_document(folder: Path, *, force: bool) -> None:
    """Refuse a folder that has a `DOCUMENT`, before anything is trained; ValueError with the way out."""
    check_target(folder / DOCUMENT, force=force, instead="name another folder with --out FOLDER")


def reproduce(accuracy: Accuracy, folder: Path, *, as_json: bool = False, with_figures: bool = True) -> None:
    """Train, save, draw and print; a ClickException at the end where a worker died.

    Replaces a `DOCUMENT` in the folder: `check_document` is for whoever must not lose it.
    """
    reference = paper.load("fig6")
    outcome = train_all(accuracy.job, (accuracy.num_workers,), accuracy.seeds, folder)
    raise_failure(outcome)
    exact = train_all(accuracy.exact_job, (accuracy.num_workers,), accuracy.seeds, folder)
    raise_failure(exact)
    compared = differences(outcome.launches, BASE)
    title = f"fig6: {title_of(accuracy.job, outcome)} (measured; the paper: KuaiRand-27K)"
    print_levels(levels(outcome.launches), title)
    print_against_paper(compared, METRICS, reference)
    found = verdicts(outcome, exact)
    for verdict in found:
        click.echo(verdict.text)
    for line in (*reference.notes, *remarks(outcome, (accuracy.num_workers,), accuracy.seeds)):
        click.echo(line)
    if with_figures:
        drawn = save_figure(outcome.launches, BASE, METRICS, reference, title, folder)
        click.echo(f"drawn: {', '.join(map(str, drawn))}")
    document = as_document(accuracy, outcome, exact, found)
    write_whole(folder / DOCUMENT, json.dumps(document, allow_nan=False, indent=1))
    if as_json:
        click.echo(json.dumps(document, allow_nan=False))


@dataclass(frozen=True)
class Verdict:
    """One statement about nestpipe, and whether it holds."""

    name: str
    holds: bool
    text: str


def verdicts(outcome: Outcome, exact: Outcome) -> list[Verdict]:
    """Equal lists in float64; no difference in float32 from the engine's synchronous step and TorchRec."""
    return [
        _equal_lists(_of(differences(exact.launches, SYNC))),
        *(_no_difference(_of(differences(outcome.launches, base))) for base in (SYNC, BASE)),
    ]


def agrees(difference: Estimate) -> bool:
    """Whether a mean difference is within two standard errors, or within 1e-3."""
    return abs(difference.mean) <= max(ALLOWED, 2 * (difference.standard_error or 0.0))


def _of(compared: Sequence[Difference]) -> Difference:
    return next(difference for difference in compared if difference.method == SUBJECT)


def _equal_lists(difference: Difference) -> Verdict:
    assert difference.top_items is not None
    holds = not any(difference.top_items.values)
    text = (
        f"float64, {SUBJECT} against {difference.base}: {_users(difference)} differ in their 50 best items: "
        + ("equal" if holds else "NOT EQUAL")
    )
    return Verdict("float64-top-items", holds, text)


def _no_difference(difference: Difference) -> Verdict:
    off = [name for name in METRICS if not agrees(difference.metrics[name])]
    text = (
        f"float32, {SUBJECT} against {difference.base}: {_users(difference)} differ in their 50 best items; "
        f"paired differences within two standard errors or {ALLOWED:g}: "
        + ("all" if not off else f"all but {', '.join(off)}")
    )
    return Verdict(f"float32-against-{difference.base}", not off, text)


def _users(difference: Difference) -> str:
    assert difference.top_items is not None
    counts = ", ".join(f"{count:.0f}" for count in difference.top_items.values)
    return f"{counts} of {difference.num_users} users"


def as_document(
    accuracy: Accuracy, outcome: Outcome, exact: Outcome, found: Sequence[Verdict]
) -> dict[str, Any]:
    """The whole comparison for machines."""
    return {
        **{key: value for key, value in vars(outcome.run).items() if key != "seed"},
        "item": "fig6",
        "reproduced": False,
        "epochs": accuracy.job.num_epochs,
        "results": [level.as_json() for level in levels(outcome.launches)],
        "differences": [difference.as_json() for difference in differences(outcome.launches, BASE)],
        "float64": [difference.as_json() for difference in differences(exact.launches, SYNC)],
        "verdicts": {verdict.name: verdict.holds for verdict in found},
    }


def write_whole(path: Path, text: str) -> None:
    """Write a file under another name first: what bears the final name is whole."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:
        file.write(text)
    Path(file.name).replace(path)
