"""Cost models from files: what a user fills in (TOML or JSON), or the trace of a measured run.

name = "my cluster"
batch_size = 512                 # samples a worker that the figures are of
residual_lookup_ms = 0           # optional, as is key_overlap

[ops.exchange]                   # one table an op
batch_ms = { 128 = 100.0, 1536 = 600.0 }   # a whole batch, by workers; or one number
fixed_ms = 0.2                   # optional: on top, a micro-batch
latency_us_per_peer = 0.3        # optional
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from harness.options import nearest
from harness.simulation.costs import CostModel, OpCost
from harness.simulation.paper import paper_model
from harness.simulation.trace_costs import model_of_trace
from nestpipe.schedule import OpKind

PAPER = "paper"
_MODEL_FIELDS = ("name", "ops", "batch_size", "residual_lookup_ms", "key_overlap")
_OP_FIELDS = tuple(field.name for field in fields(OpCost))


def load_costs(name_or_file: str) -> CostModel:
    """The cost model "paper", or one from a `.toml`, `.json` or, for a trace, `.jsonl` file.

    Raises ValueError that names file and field for what cannot be used.
    """
    if name_or_file == PAPER:
        return paper_model()
    path = Path(name_or_file)
    if path.suffix not in (".toml", ".json", ".jsonl"):
        raise ValueError(
            f"unknown cost model {name_or_file!r}: give {PAPER!r}, a file of costs that ends in .toml or "
            ".json, or a trace that ends in .jsonl (from `nestpipe run --trace`)"
        )
    if not path.is_file():
        raise ValueError(f"no file {path}; give its path from {Path.cwd()}")
    try:
        if path.suffix == ".jsonl":
            return model_of_trace(path)
        text = path.read_text(encoding="utf-8")
        return parse_costs(tomllib.loads(text) if path.suffix == ".toml" else json.loads(text), path.stem)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse_costs(entry: Any, default_name: str) -> CostModel:
    """The cost model in a file's contents; ValueError that names the field."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("ops"), Mapping):
        raise ValueError("a cost model needs a table [ops.<op>] for every op")
    _check_names("field", entry, _MODEL_FIELDS)
    _check_names("op", entry["ops"], [kind.value for kind in OpKind])
    ops = {OpKind(name): _op_cost(name, cost) for name, cost in entry["ops"].items()}
    batch_size = entry.get("batch_size", 512)
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
    return CostModel(
        name=str(entry.get("name", default_name)),
        ops=ops,
        batch_size=batch_size,
        residual_lookup_ms=_number("residual_lookup_ms", entry.get("residual_lookup_ms", 0.0)),
        key_overlap=_number("key_overlap", entry.get("key_overlap", 1.0)),
    )


def _op_cost(name: str, entry: Any) -> OpCost:
    entry = entry if isinstance(entry, Mapping) else {"batch_ms": entry}
    _check_names(f"field of op {name}", entry, _OP_FIELDS)
    if "batch_ms" not in entry:
        raise ValueError(f"op {name} needs batch_ms, milliseconds of a whole batch")
    by_workers = entry["batch_ms"]
    points = by_workers if isinstance(by_workers, Mapping) else {"1": by_workers}
    where = f"{name}.batch_ms"
    return OpCost(
        tuple(sorted((_workers(where, workers), _number(where, ms)) for workers, ms in points.items())),
        *(_number(f"{name}.{field}", entry.get(field, 0.0)) for field in _OP_FIELDS[1:]),
    )


def _check_names(what: str, entry: Mapping[str, Any], known: Any) -> None:
    for name in entry:
        if name not in known:
            raise ValueError(f"unknown {what} {name!r}: {nearest(name, known)}")


def _workers(where: str, text: str) -> float:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"{where}: workers must be whole numbers of at least 1, got {text!r}")
    return float(text)


def _number(where: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < float("inf"):
        raise ValueError(f"{where} must be a number of at least 0, got {value!r}")
    return float(value)
