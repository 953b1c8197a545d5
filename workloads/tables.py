"""Reading interactions from text files of one layout, in blocks, with errors that name the line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.delimited import BLOCK_BYTES, read_blocks
from workloads.forms import Delimited
from workloads.ids import TextIds

Columns = Mapping[str, NDArray[Any]]
"""The used columns of a block by their names; equally long."""

Chunk = dict[str, NDArray[Any]]
"""Interactions in any order: user, item and time as integers, action as numbers; equally long."""


@dataclass(frozen=True)
class Layout:
    """How a family of files is written, and what its columns mean.

    `user`, `item` and `time` name three columns of `form`, and `action` makes an action's weight from all
    of those that it uses. Times count `times_a_second` to the second. Interactions of a user at the same
    time stay in the order of the files, or go by the source's item id where `ties_by_item`.
    """

    form: Delimited
    user: str
    item: str
    time: str
    action: Callable[[Columns], NDArray[np.float32]]
    times_a_second: int = 1
    ties_by_item: bool = False

    @property
    def name(self) -> str:
        return self.form.name


class Names:
    """The codes of users and items whose ids are text, for all files of a log."""

    def __init__(self) -> None:
        self.user = TextIds()
        self.item = TextIds()


def read_chunks(
    path: Path, layout: Layout, names: Names | None = None, block_bytes: int = BLOCK_BYTES
) -> Iterator[Chunk]:
    """Interactions of one file in its order: user, item, time (int64) and action (float32).

    Ids that are text become codes, which `names` hands out. Times that are no whole numbers are rounded
    down. ValueError names the file and the line that does not fit the layout, or a file without rows.
    """
    names = names or Names()
    numeric = [column.name for column in layout.form.columns if column.used and column.kind.is_numeric]
    for block in read_blocks(path, layout.form, block_bytes):
        columns = {name: block.column(name).to_numpy() for name in numeric}
        user, item = (
            columns[name] if name in columns else text_ids.codes(block.column(name))
            for name, text_ids in ((layout.user, names.user), (layout.item, names.item))
        )
        yield {
            "user": user,
            "item": item,
            "time": whole(columns[layout.time], f"{path}: {layout.time}"),
            "action": layout.action(columns),
        }


def whole(times: NDArray[Any], where: str) -> NDArray[np.int64]:
    """Times [n] rounded down to integers; ValueError, naming `where`, for one beyond 64 bits."""
    if not np.issubdtype(times.dtype, np.floating):
        return times.astype(np.int64, copy=False)
    if len(times) and np.abs(times).max() >= 2.0**63:
        raise ValueError(f"{where} is {times[np.abs(times).argmax()]:g}, expected less than 2**63")
    return np.floor(times).astype(np.int64)
