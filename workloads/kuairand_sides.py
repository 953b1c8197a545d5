"""Features of KuaiRand's users and videos, from the files beside its logs, as side tables.

Only categories are offered: a table of rows has no use for counts and durations, whose ranges KuaiRand gives
as categories too. Row 0 of a side table stands for a value that is not there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from workloads.cache import prepared
from workloads.delimited import first_line, read_blocks
from workloads.forms import Column, Delimited, Kind
from workloads.histories import Histories
from workloads.ids import TextIds
from workloads.interface import SideTable
from workloads.npy import mapped
from workloads.parsing import unknown
from workloads.sequences import SideFeature

FORMAT_VERSION = 1

_TEXT, _NUMBER = Kind.ANYTHING, Kind.NUMBER_OR_BLANK

USER_FEATURES = {
    "user_active_degree": _TEXT,
    "is_lowactive_period": _NUMBER,
    "is_live_streamer": _NUMBER,
    "is_video_author": _NUMBER,
    "follow_user_num_range": _TEXT,
    "fans_user_num_range": _TEXT,
    "friend_user_num_range": _TEXT,
    "register_days_range": _TEXT,
    **{f"onehot_feat{number}": _NUMBER for number in range(18)},
}
VIDEO_FEATURES = {
    "author_id": _NUMBER,
    "video_type": _TEXT,
    "upload_type": _TEXT,
    "visible_status": _NUMBER,
    "music_id": _NUMBER,
    "music_type": _NUMBER,
    "tag": _TEXT,
}

# The log's name says which of the data sets it is of, and so do those of the feature files.
_SIZE = re.compile(r"_(27k|1k|pure)(_|$)")


def check_names(names: Sequence[str]) -> None:
    """ValueError for a side feature that does not exist, with the nearest name."""
    for name in names:
        if name not in {**USER_FEATURES, **VIDEO_FEATURES}:
            raise unknown("side feature of workload 'kuairand'", name, {**USER_FEATURES, **VIDEO_FEATURES})


def load_sides(
    names: Sequence[str], logs: Sequence[Path], histories: Histories, cache_dir: Path
) -> list[SideFeature]:
    """The side features `names` of the users and videos in `histories`, which were read from `logs`.

    A video with several tags has the first one. FileNotFoundError where the file of features does not lie
    beside the logs, ValueError where it is malformed, with file and line.
    """
    of_users = [name for name in names if name in USER_FEATURES]
    of_videos = [name for name in names if name in VIDEO_FEATURES]
    files = {}
    if of_users:
        files[_beside(logs, "user_features")] = ("user_id", of_users, histories.user_ids)
    if of_videos:
        files[_beside(logs, "video_features_basic")] = ("video_id", of_videos, histories.item_ids)

    def build(folder: Path) -> None:
        for file, (key, wanted, ids) in files.items():
            for name, keys in _read(file, key, wanted, ids).items():
                np.save(folder / f"{name}.npy", keys)

    settings = {"version": FORMAT_VERSION, "features": sorted(names)}
    folder = prepared(cache_dir, "kuairand-sides", [*logs, *files], settings, build)
    return [_side(name, mapped(folder / f"{name}.npy")) for name in names]


def _side(name: str, keys: NDArray[np.int64]) -> SideFeature:
    num_rows = int(keys.max(initial=0)) + 1
    return SideFeature(SideTable(name, num_rows, per_token=name in VIDEO_FEATURES), keys)


def _beside(logs: Sequence[Path], kind: str) -> Path:
    """The one file of features in the folders of the logs that is of the logs' data set."""
    found = sorted({file for log in logs for file in log.parent.glob(f"{kind}_*.csv")})
    sizes = {match[1] for log in logs if (match := _SIZE.search(log.stem.lower()))}
    if sizes:
        found = [file for file in found if any(file.stem.lower().endswith(f"_{size}") for size in sizes)]
    if len(found) != 1:
        expected = ", ".join(f"{kind}_{size}.csv" for size in sorted(sizes)) or f"{kind}_*.csv"
        raise FileNotFoundError(
            f"{logs[0].parent} holds {len(found)} files {expected}, expected one: put the file of features "
            "beside the logs, or leave side_features= out"
        )
    return found[0]


def _read(
    file: Path, key: str, wanted: Sequence[str], ids: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    """The key of each of `ids` (ascending) in each wanted feature's table: [len(ids)] each."""
    form = _form_of(file, key, wanted)
    values = {name: np.full(len(ids), np.nan) for name in wanted}
    texts = {name: TextIds() for name in wanted}
    for block in read_blocks(file, form):
        given = block.column(key).to_numpy()
        places = np.searchsorted(ids, given).clip(max=len(ids) - 1)
        known = np.flatnonzero(ids[places] == given)
        for name in wanted:
            cells = block.column(name).take(pa.array(known))
            values[name][places[known]] = _as_numbers(name, cells, texts[name])
    return {name: _numbered(found) for name, found in values.items()}


def _form_of(file: Path, key: str, wanted: Sequence[str]) -> Delimited:
    kinds = {key: Kind.INTEGER, **USER_FEATURES, **VIDEO_FEATURES}
    header = Delimited("features", ",", (), has_header=True, quoted=True).cells_of(first_line(file))
    for name in (key, *wanted):
        if name not in header:
            raise ValueError(f"{file}, line 1: the header lacks {name}, expected it in {','.join(header)!r}")
    columns = (Column(name, kinds.get(name, _TEXT), used=name in (key, *wanted)) for name in header)
    return Delimited("features", ",", tuple(columns), has_header=True, quoted=True)


def _as_numbers(name: str, cells: pa.Array, texts: TextIds) -> NDArray[np.float64]:
    """Equal numbers for equal values, NaN for none."""
    if pa.types.is_floating(cells.type):
        return np.asarray(cells.to_numpy(zero_copy_only=False), dtype=np.float64)
    if name == "tag":
        cells = pa.compute.list_element(pa.compute.split_pattern(cells, ",", max_splits=1), 0)
    blank = pa.compute.equal(cells, "").to_numpy(zero_copy_only=False)
    return np.where(blank, np.nan, texts.codes(cells).astype(np.float64))


def _numbered(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Distinct values as 1, 2, ... and NaN as 0."""
    codes, _ = pd.factorize(values, sort=True)
    return codes.astype(np.int64) + 1
