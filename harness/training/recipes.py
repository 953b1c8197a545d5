"""Published settings by name; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.options import nearest

DEFAULT_WORKLOAD = "movielens"
DEFAULT_NUM_EPOCHS = 20


@dataclass(frozen=True)
class Recipe:
    """How a published result was trained."""

    workload: str
    num_epochs: int
    global_batch_size: int
    """Samples of a step over all workers."""
    settings: Mapping[str, str]


RECIPES: Mapping[str, Recipe] = {
    # HSTU (Zhai et al., ICML 2024) on ML-1M. One optimizer trains rows and dense part there; here the rows
    # have an Adam of their own that leaves rows alone which a step does not touch.
    "hstu-ml-1m": Recipe(
        workload="movielens",
        num_epochs=101,
        global_batch_size=128,
        settings={
            "model": "hstu",
            "variant": "ml-1m",
            "sparse_optimizer": "adam",
            "sparse_lr": "1e-3",
            "dense_optimizer": "adamw",
            "dense_lr": "1e-3",
            "beta1": "0.9",
            "beta2": "0.98",
        },
    ),
}


@dataclass(frozen=True)
class Resolved:
    """What is trained for how long, and with which settings."""

    workload: str
    num_epochs: int
    pairs: tuple[str, ...]


def resolve(
    recipe: str | None,
    workload: str | None,
    num_epochs: int | None,
    pairs: Sequence[str],
    worker_counts: Sequence[int],
) -> Resolved:
    """What the user gave, with a recipe's values where he gave none.

    ValueError for an unknown recipe (with the nearest name), and for workers that do not divide its batch.
    """
    if recipe is None:
        return Resolved(workload or DEFAULT_WORKLOAD, num_epochs or DEFAULT_NUM_EPOCHS, tuple(pairs))
    if recipe not in RECIPES:
        raise ValueError(f"unknown recipe {recipe!r}: {nearest(recipe, RECIPES)}")
    found = RECIPES[recipe]
    given = {pair.partition("=")[0].strip() for pair in pairs}
    settings = {key: value for key, value in found.settings.items() if key not in given}
    if "batch_size" not in given:
        settings["batch_size"] = str(_batch_size(recipe, found, worker_counts))
    return Resolved(
        workload or found.workload,
        num_epochs or found.num_epochs,
        (*(f"{key}={value}" for key, value in settings.items()), *pairs),
    )


def _batch_size(name: str, recipe: Recipe, worker_counts: Sequence[int]) -> int:
    """Samples a worker and step."""
    if len(worker_counts) > 1:
        raise ValueError(f"recipe {name} has one global batch: give one number of workers, or batch_size")
    share, rest = divmod(recipe.global_batch_size, worker_counts[0])
    if rest or not share:
        raise ValueError(
            f"{worker_counts[0]} workers do not divide recipe {name}'s batch of {recipe.global_batch_size}: "
            "use fewer --workers, or --set batch_size=..."
        )
    return share
