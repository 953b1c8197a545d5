"""A user's own log of interactions: CSV or Parquet files whose columns he names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from workloads.configs import SEPARATORS, TIME_UNITS, LogConfig
from workloads.delimited import first_lines
from workloads.forms import Column, Delimited, Kind
from workloads.histories import Histories, gathered, load_histories
from workloads.interface import Workload
from workloads.log_parquet import parquet_times_a_second, read_parquet
from workloads.models.configs import SequenceModelConfig
from workloads.parsing import unknown
from workloads.paths import existing_paths
from workloads.sequences import SequenceWorkload
from workloads.tables import Columns, Layout

_ROWS_TO_JUDGE_BY = 1000
_SUFFIXES = (".parquet", ".csv", ".tsv", ".txt")


def find_files(path: str) -> list[Path]:
    """The files that `path` names, those of a folder by name.

    FileNotFoundError where a folder holds none, ValueError where Parquet files and others are mixed.
    """
    files: list[Path] = []
    for given in existing_paths(path):
        files += _files_in(given) if given.is_dir() else [given]
    if len({_is_parquet(file) for file in files}) > 1:
        raise ValueError(f"path={path} has Parquet files and others: give files of one kind")
    return files


def _files_in(folder: Path) -> list[Path]:
    found = sorted(file for file in folder.iterdir() if file.name.removesuffix(".gz").endswith(_SUFFIXES))
    if not found:
        raise FileNotFoundError(f"{folder} holds no {', '.join(_SUFFIXES)} file: give path= the files")
    return found


def _is_parquet(file: Path) -> bool:
    return file.suffix == ".parquet"


def load_log(config: LogConfig, cache_dir: Path) -> Histories:
    """The histories in the log that `config` describes.

    ValueError for a column that is not there, with the nearest name, and for a malformed file, with file
    and line (in Parquet the row).
    """
    files = find_files(config.path)
    if not _is_parquet(files[0]):
        layouts = [layout_of(file, config, files[0]) for file in files]
        for file, layout in zip(files, layouts, strict=True):
            if layout.form != layouts[0].form:
                raise ValueError(f"{files[0]} and {file} have different headers: give files of one kind")
        return load_histories("log", files, layouts[0], cache_dir)
    settings = {
        "parquet": [config.user, config.item, config.time, config.action],
        "time_unit": config.time_unit,
        "text_ids": config.text_ids,
    }
    return gathered(
        "log",
        files,
        settings,
        lambda file, names: read_parquet(file, config, names),
        cache_dir,
        times_a_second=parquet_times_a_second(files[0], config),
    )


def layout_of(file: Path, config: LogConfig, first_file: Path) -> Layout:
    """How a CSV file is written: its header tells the columns, the first rows of all whether ids are text."""
    separator = SEPARATORS.get(config.separator, config.separator)
    rough = Delimited("log", separator, (), has_header=True, quoted=True)
    header = rough.cells_of(first_lines(file, 1)[0])
    used = [config.user, config.item, config.time, *([config.action] if config.action else [])]
    for name in used:
        if name not in header:
            hint = f"; is separator={config.separator} right?" if len(header) == 1 else ""
            raise ValueError(f"{file}, line 1: {unknown('column', name, header)}{hint}")
    if len(set(header)) < len(header):
        raise ValueError(f"{file}, line 1: a column's name stands twice, expected each once ({header})")
    seen = _first_cells(first_file, rough, header)
    kinds = {
        **{name: _kind_of_ids(seen[name], config.text_ids) for name in (config.user, config.item)},
        config.time: _kind_of_times(seen[config.time]),
        config.action: Kind.NUMBER,
    }
    columns = tuple(Column(name, kinds.get(name, Kind.ANYTHING), used=name in used) for name in header)
    return Layout(
        form=Delimited(_name_of(columns, separator), separator, columns, has_header=True, quoted=True),
        user=config.user,
        item=config.item,
        time=config.time,
        action=_weights(config.action, config.time),
        times_a_second=TIME_UNITS[config.time_unit],
    )


def _name_of(columns: Sequence[Column], separator: str) -> str:
    """What the cached histories depend on: columns, kinds and their use."""
    return f"log {separator!r} " + ", ".join(f"{c.name}:{c.kind.name}:{c.used}" for c in columns)


def _first_cells(file: Path, form: Delimited, header: Sequence[str]) -> dict[str, list[str]]:
    """The cells of the first rows, by column."""
    rows = [form.cells_of(line) for line in first_lines(file, 1 + _ROWS_TO_JUDGE_BY)[1:] if line]
    whole = [row for row in rows if len(row) == len(header)]
    return {name: [row[place] for row in whole] for place, name in enumerate(header)}


def _kind_of_ids(seen: Sequence[str], are_text: bool) -> Kind:
    # The first row decides, so that a broken one further on is an error and not a reason for text. But an
    # id that begins with a zero would lose it as an integer.
    integers = Kind.INTEGER.fits(seen[0]) if seen else True
    has_zeros = any(cell.isdigit() and str(int(cell)) != cell for cell in seen)
    return Kind.INTEGER_ID if integers and not has_zeros and not are_text else Kind.NAME


def _kind_of_times(seen: Sequence[str]) -> Kind:
    # Nanoseconds have more digits than a float: they must not become one.
    return Kind.INTEGER if all(Kind.INTEGER.fits(cell) for cell in seen) else Kind.NUMBER


def _weights(action: str, time: str) -> Callable[[Columns], NDArray[np.float32]]:
    def weights(columns: Columns) -> NDArray[np.float32]:
        if not action:
            return np.ones(len(columns[time]), dtype=np.float32)
        return columns[action].astype(np.float32)

    return weights


def build(
    config: LogConfig,
    model_config: SequenceModelConfig,
    build_model: Callable[..., nn.Module],
    *,
    seed: int,
    num_workers: int,
    cache_dir: Path,
) -> Workload:
    """The workload for the registry; ValueError or FileNotFoundError where `path` does not do."""
    if not config.path:
        raise ValueError("workload 'log' needs path=FILE-OR-FOLDER, CSV or Parquet files with interactions")
    histories = load_log(config, cache_dir)
    return SequenceWorkload(
        "log", histories, config, model_config, build_model, seed=seed, num_workers=num_workers
    )
