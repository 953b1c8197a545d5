"""Claims about accuracy: what `nestpipe reproduce fig6 --quick` says, on data that can be had."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.claims.experiments import Found, Place
from harness.targets import check_file

DOCUMENT = "fig6.json"
WORKLOAD, MODEL = "movielens", "fuxi"
NUM_WORKERS = 2
LISTS_DIFFERING = "float64_lists_differing"


class Accuracy:
    """Rows are methods; columns are metrics less TorchRec's, and users whose best items differ in float64."""

    def __init__(self, folder: Path, cache_dir: Path) -> None:
        self._folder = folder
        self._cache_dir = cache_dir

    def measure(self, places: Sequence[Place]) -> Found:
        """Train every method with three seeds; ValueError where the data are not there."""
        from harness.catalog import workload_keys
        from harness.options import parse_settings
        from harness.training import fig6
        from harness.training.job import TrainingJob

        job = TrainingJob(
            methods=fig6.METHODS,
            workload=WORKLOAD,
            num_epochs=fig6.QUICK_NUM_EPOCHS,
            eval_every=1,
            seed=0,
            cache_dir=self._cache_dir,
            settings=fig6.settings_of(parse_settings((f"model={MODEL}",), workload_keys(WORKLOAD))),
            timeout_s=300.0,
        )
        check_file(self._folder / DOCUMENT)
        fig6.reproduce(
            fig6.Accuracy(job, NUM_WORKERS, fig6.QUICK_NUM_SEEDS), self._folder, with_figures=False
        )
        document = json.loads((self._folder / DOCUMENT).read_text(encoding="utf-8"))
        return Found(values_of(document, places), settings_of(document))


def settings_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """What was trained, for the record."""
    return {name: document[name] for name in ("workload", "epochs", "settings")}


def values_of(document: Mapping[str, Any], places: Iterable[Place]) -> dict[Place, float | None]:
    """The figures out of what the comparison left; KeyError for a document that is none."""
    return {(row, column): _value(document, row, column) for row, column in places}


def _value(document: Mapping[str, Any], row: str, column: str) -> float | None:
    if column == LISTS_DIFFERING:
        mean: float | None = _of(document["float64"], row)["users_whose_top_items_differ"]["mean"]
        return mean
    mean = _of(document["differences"], row)["metrics"][column]["mean"]
    return mean


def _of(differences: Sequence[Mapping[str, Any]], method: str) -> Mapping[str, Any]:
    return next(difference for difference in differences if difference["method"] == method)
