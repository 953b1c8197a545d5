"""Users' histories: what each user did, in order of time, as memory-mapped arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workloads.cache import prepared
from workloads.jagged import offsets_of
from workloads.tables import Layout, read_chunks

FORMAT_VERSION = 1

Chunk = dict[str, NDArray[Any]]
"""Interactions in any order: user, item and time as integers, action as numbers; equally long."""


@dataclass(frozen=True)
class Histories:
    """Interactions grouped by user, each user's in order of time.

    User `u` owns `offsets[u]` to `offsets[u + 1]` of `items` (0 to num_items - 1, int64), `timestamps_s`
    (int64, seconds) and `actions` (float32: the source's weight of the action). `user_ids` and `item_ids`
    give the source's ids back.
    """

    offsets: NDArray[np.int64]
    items: NDArray[np.int64]
    timestamps_s: NDArray[np.int64]
    actions: NDArray[np.float32]
    user_ids: NDArray[np.int64]
    item_ids: NDArray[np.int64]

    @property
    def num_users(self) -> int:
        return len(self.user_ids)

    @property
    def num_items(self) -> int:
        return len(self.item_ids)

    def save(self, folder: Path) -> None:
        """One .npy file a field."""
        for field in fields(self):
            np.save(folder / f"{field.name}.npy", getattr(self, field.name))

    @classmethod
    def load(cls, folder: Path) -> Histories:
        """Memory-mapped, read-only."""
        mapped = {f.name: np.load(folder / f"{f.name}.npy", mmap_mode="r") for f in fields(cls)}
        # The plain view of the same memory skips the subclass's bookkeeping at every access.
        return cls(**{name: array.view(np.ndarray) for name, array in mapped.items()})


def group_by_user(chunks: Iterable[Chunk], *, times_a_second: int, ties_by_item: bool) -> Histories:
    """Histories from interactions in any order; `time` counts `times_a_second` to the second.

    Interactions of a user at the same time stay in the order of the source, or go by the source's item
    id where `ties_by_item`. Peak memory is about 60 bytes an interaction.
    """
    parts = list(chunks)
    # Popping frees a column's parts as soon as the whole of it is there.
    user, item, time, action = (
        np.concatenate([part.pop(name) for part in parts]) for name in ("user", "item", "time", "action")
    )
    order = np.lexsort((item, time, user) if ties_by_item else (time, user))
    user_ids, lengths = np.unique(user, return_counts=True)
    codes, item_ids = pd.factorize(item, sort=True)
    return Histories(
        offsets=offsets_of(lengths.astype(np.int64)),
        items=codes[order].astype(np.int64),
        timestamps_s=time[order] // times_a_second,
        actions=action[order].astype(np.float32),
        user_ids=user_ids,
        item_ids=np.asarray(item_ids),
    )


def load_histories(kind: str, files: Sequence[Path], layout: Layout, cache_dir: Path) -> Histories:
    """The histories in `files`, which share one layout: read once, then mapped from the cache.

    ValueError for a malformed file, with file and line, and where the files hold no interactions.
    """

    def build(folder: Path) -> None:
        chunks = (chunk for file in files for chunk in read_chunks(file, layout))
        group_by_user(chunks, times_a_second=layout.times_a_second, ties_by_item=layout.ties_by_item).save(
            folder
        )

    settings = {"version": FORMAT_VERSION, "layout": layout.name}
    return Histories.load(prepared(cache_dir, kind, files, settings, build))
