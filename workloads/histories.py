"""Users' histories: what each user did, in order of time, as memory-mapped arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.cache import prepared
from workloads.grouping import write_histories
from workloads.npy import mapped
from workloads.tables import Chunk, Layout, Names, read_chunks

FORMAT_VERSION = 2


@dataclass(frozen=True)
class Histories:
    """Interactions grouped by user, each user's in order of time.

    User `u` owns `offsets[u]` to `offsets[u + 1]` of `items` (0 to num_items - 1, int64), `timestamps_s`
    (int64, seconds) and `actions` (float32: the source's weight of the action). `user_ids` and `item_ids`
    give the source's ids back, both ascending. Where the source's ids are text, they are codes into
    `user_names` and `item_names`, UTF-8 bytes.
    """

    offsets: NDArray[np.int64]
    items: NDArray[np.int64]
    timestamps_s: NDArray[np.int64]
    actions: NDArray[np.float32]
    user_ids: NDArray[np.int64]
    item_ids: NDArray[np.int64]
    user_names: NDArray[np.bytes_] | None = None
    item_names: NDArray[np.bytes_] | None = None

    @property
    def num_users(self) -> int:
        return len(self.user_ids)

    @property
    def num_items(self) -> int:
        return len(self.item_ids)

    @classmethod
    def load(cls, folder: Path) -> Histories:
        """What `write_histories` left in a folder: one .npy file a field, memory-mapped, read-only."""
        paths = {field.name: folder / f"{field.name}.npy" for field in fields(cls)}
        return cls(**{name: mapped(path) for name, path in paths.items() if path.is_file()})


def load_histories(kind: str, files: Sequence[Path], layout: Layout, cache_dir: Path) -> Histories:
    """The histories in text `files`, which share one layout; see `gathered`."""
    return gathered(
        kind,
        files,
        {"layout": layout.name},
        lambda file, names: read_chunks(file, layout, names),
        cache_dir,
        times_a_second=layout.times_a_second,
        ties_by_item=layout.ties_by_item,
    )


def gathered(
    kind: str,
    files: Sequence[Path],
    settings: Mapping[str, Any],
    read: Callable[[Path, Names], Iterable[Chunk]],
    cache_dir: Path,
    *,
    times_a_second: int,
    ties_by_item: bool = False,
) -> Histories:
    """The histories in `files`, whose interactions `read` gives: read once, then mapped from the cache.

    `settings` are what else the interactions depend on. ValueError for a malformed file, with file and
    line, and for a file without interactions; then nothing is left in the cache.
    """

    def build(folder: Path) -> None:
        names = Names()
        chunks = (chunk for file in files for chunk in read(file, names))
        write_histories(chunks, folder, times_a_second=times_a_second, ties_by_item=ties_by_item)
        for field, texts in (("user_names", names.user.names()), ("item_names", names.item.names())):
            if len(texts):
                np.save(folder / f"{field}.npy", texts)

    versioned = {"version": FORMAT_VERSION, **settings}
    return Histories.load(prepared(cache_dir, kind, files, versioned, build))
