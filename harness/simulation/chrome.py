"""A timeline as a Chrome trace, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nestpipe.schedule import Lane
from nestpipe.trace import GROUP_OF, OpEvent

_LANES = [lane.value for lane in Lane]


def chrome_trace(events: Iterable[OpEvent], process: str) -> dict[str, Any]:
    """One thread a lane and a complete event ("X", microseconds) an op; transfers get a thread of their own.

    A transfer appears twice: on the comm lane while it is issued, on "transfers" from then to its finish.
    """
    threads = [*_LANES, "transfers"]
    entries: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": process}},
    ]
    for number, thread in enumerate(threads):
        entries.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": number, "args": {"name": thread}})
        entries.append(
            {"name": "thread_sort_index", "ph": "M", "pid": 0, "tid": number, "args": {"sort_index": number}}
        )
    for event in sorted(events, key=lambda e: e.started):
        lane = _LANES.index(event.op.lane.value)
        is_transfer = event.op.lane is Lane.COMM
        if is_transfer:
            entries.append(_entry(event, len(_LANES), event.returned, event.finished))
        entries.append(_entry(event, lane, event.started, event.returned if is_transfer else event.finished))
    return {"traceEvents": entries, "displayTimeUnit": "ms"}


def save_chrome_trace(path: Path, events: Iterable[OpEvent], process: str) -> None:
    """Write the trace as JSON."""
    path.write_text(json.dumps(chrome_trace(events, process), allow_nan=False), encoding="utf-8")


def _entry(event: OpEvent, thread: int, start_s: float, end_s: float) -> dict[str, Any]:
    op = event.op
    return {
        "name": str(op.id),
        "cat": GROUP_OF[op.kind],
        "ph": "X",
        "pid": 0,
        "tid": thread,
        "ts": 1e6 * start_s,
        "dur": 1e6 * max(0.0, end_s - start_s),
        "args": {"step": op.step, "micro_batch": op.id.micro_batch, "after": [str(ref) for ref in op.after]},
    }
