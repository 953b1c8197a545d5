"""Interactions from Parquet files, in batches of rows, with errors that name the row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
from numpy.typing import NDArray

from workloads.configs import TIME_UNITS, LogConfig
from workloads.ids import TextIds
from workloads.parsing import unknown
from workloads.tables import Chunk, Names, whole

BATCH_ROWS = 1 << 18


def parquet_times_a_second(path: Path, config: LogConfig) -> int:
    """How many of the times that `read_parquet` gives make a second."""
    with _opened(path) as file:
        kind = _column_type(path, file.schema_arrow, config.time)
    return TIME_UNITS["us"] if pa.types.is_timestamp(kind) else TIME_UNITS[config.time_unit]


def read_parquet(
    path: Path, config: LogConfig, names: Names, batch_rows: int = BATCH_ROWS
) -> Iterator[Chunk]:
    """Interactions of one file in its order: user, item, time (int64) and action (float32).

    Text ids become codes, which `names` hands out, timestamps microseconds; numbers as times are rounded
    down. ValueError names the file and the row or column that does not fit.
    """
    wanted = [config.user, config.item, config.time, *([config.action] if config.action else [])]
    with _opened(path) as file:
        for name in wanted:
            _column_type(path, file.schema_arrow, name)
        if file.metadata.num_rows == 0:
            raise ValueError(f"{path}: no rows, expected columns {', '.join(wanted)}")
        first_row = 1
        try:
            for batch in file.iter_batches(batch_rows, columns=wanted, use_threads=False):
                where = f"{path}, rows from {first_row}"
                columns = {name: _column(path, first_row, name, batch.column(name)) for name in wanted}
                yield {
                    "user": _ids(
                        columns[config.user], f"{where}: {config.user}", names.user, config.text_ids
                    ),
                    "item": _ids(
                        columns[config.item], f"{where}: {config.item}", names.item, config.text_ids
                    ),
                    "time": whole(_times(columns[config.time], f"{where}: {config.time}"), where),
                    "action": _weights(columns, config.action, len(batch), where),
                }
                first_row += len(batch)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path}, rows from {first_row}: {error}") from error


def _opened(path: Path) -> pa.parquet.ParquetFile:
    try:
        return pa.parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: expected a whole Parquet file ({error})") from error


def _column_type(path: Path, schema: pa.Schema, name: str) -> pa.DataType:
    if name not in schema.names:
        raise ValueError(f"{path}: {unknown('column', name, schema.names)}")
    return schema.field(name).type


def _column(path: Path, first_row: int, name: str, cells: pa.Array) -> pa.Array:
    if cells.null_count:
        row = first_row + pa.compute.index(cells.is_null(), True).as_py()
        raise ValueError(f"{path}, row {row}: {name} is missing, expected a value in every row")
    return cells


def _ids(cells: pa.Array, where: str, text_ids: TextIds, are_text: bool) -> NDArray[np.int64]:
    kind = cells.type.value_type if pa.types.is_dictionary(cells.type) else cells.type
    if pa.types.is_integer(kind) and not are_text:
        numbers: NDArray[np.int64] = cells.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return numbers
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)):
        raise ValueError(f"{where} is of type {kind}, expected integers or text")
    return text_ids.codes(cells.cast(pa.string()))


def _times(cells: pa.Array, where: str) -> NDArray[np.int64] | NDArray[np.float64]:
    if pa.types.is_timestamp(cells.type):
        numbers: NDArray[np.int64] = (
            cells.cast(pa.timestamp("us", cells.type.tz), safe=False).cast(pa.int64()).to_numpy()
        )
        return numbers
    return _numbers(cells, where)


def _weights(columns: dict[str, pa.Array], action: str, num: int, where: str) -> NDArray[np.float32]:
    if not action:
        return np.ones(num, dtype=np.float32)
    return _numbers(columns[action], f"{where}: {action}").astype(np.float32)


def _numbers(cells: pa.Array, where: str) -> NDArray[np.int64] | NDArray[np.float64]:
    if pa.types.is_boolean(cells.type):
        cells = cells.cast(pa.int8())
    if pa.types.is_integer(cells.type):
        integers: NDArray[np.int64] = cells.cast(pa.int64()).to_numpy()
        return integers
    if not pa.types.is_floating(cells.type):
        raise ValueError(f"{where} is of type {cells.type}, expected numbers")
    numbers: NDArray[np.float64] = cells.cast(pa.float64()).to_numpy()
    if not np.isfinite(numbers).all():
        raise ValueError(f"{where} has a value that is not finite, expected finite numbers")
    return numbers
