"""The paper's tables and figures as data: which run fills which line, and with which metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.emulation import profiles
from harness.options import nearest
from harness.reproduce.measured import Run

SIZES = (128, 256, 512, 1024, 1536)
LARGEST = SIZES[-1]
METHODS = ("torchrec", "2d-sp", "uniemb", "nestpipe")
BASE = METHODS[0]
NOT_IN_THE_PAPER = ("torchrec-nodedup", "torchrec-sparse-dist", "nestpipe-chosen", "nestpipe-2d")
BATCH_SIZE = 512


@dataclass(frozen=True)
class Line:
    """One line of cells: a row and, where the item sweeps something, one point of the sweep."""

    row: str
    group: str
    run: Run
    base: Run
    """What speedups and what is saved are relative to; the run itself where no metric asks."""
    smallest: Run
    """What the efficiency is relative to; as above."""
    dense_from: Run
    """The run whose modelled dense time stands for the paper's."""
    metrics: tuple[str, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        """Every run that this line needs."""
        return tuple(dict.fromkeys((self.run, self.base, self.smallest, self.dense_from)))


@dataclass(frozen=True)
class Item:
    """One table or figure."""

    name: str
    title: str
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    """What a reader must know of how it came about here."""

    @property
    def runs(self) -> tuple[Run, ...]:
        """Every run it needs, each once."""
        return tuple(dict.fromkeys(run for line in self.lines for run in line.runs))


def plain(method: str, num_workers: int = LARGEST) -> Run:
    """A method as it is on the paper's NPU cluster of that size."""
    return Run(method, f"paper-npu-{num_workers}")


def _line(method: str, num_workers: int, metrics: Sequence[str], group: str = "", base: str = BASE) -> Line:
    run = plain(method, num_workers)
    return Line(
        row=method,
        group=group,
        run=run,
        base=plain(base, num_workers) if "speedup" in metrics else run,
        smallest=plain(method, SIZES[0]) if "efficiency" in metrics else run,
        dense_from=run,
        metrics=tuple(metrics),
    )


def _by_size(methods: Sequence[str], *metrics: str) -> tuple[Line, ...]:
    return tuple(_line(method, size, metrics, str(size)) for size in SIZES for method in methods)


def _table2() -> Item:
    metrics = ("step_ms", "speedup", "lookup_ms", "comm_ms")
    lines = tuple(_line(method, LARGEST, metrics) for method in (*METHODS, *NOT_IN_THE_PAPER))
    return Item("table2", "Step latency, 1,536 workers", lines)


def _table3() -> Item:
    lines = _by_size(METHODS, "step_ms", "qps", "speedup", "efficiency")
    return Item("table3", "Weak scaling, 512 samples a worker", lines)


def _table4() -> Item:
    metrics = ("total_comm_ms", "exposed_comm_ms", "qps", "efficiency")
    methods = ("torchrec", "2d-sp", "nestpipe", "nestpipe-2d")
    lines = tuple(_line(method, LARGEST, metrics) for method in methods)
    return Item("table4", "NestPipe with 2D sparse parallelism, 1,536 workers", lines)


def _fig2() -> Item:
    return Item("fig2", "What TorchRec's step waits for", _by_size((BASE,), "lookup_share", "comm_share"))


def _fig7() -> Item:
    lines = _by_size(METHODS, "step_ms", "lookup_ms", "comm_ms", "dense_ms", "other_ms")
    return Item("fig7", "Step breakdown by cluster size", lines)


def _fig8() -> Item:
    notes = ("utilisation: modelled dense / step; a stated bound that holds has no error",)
    return Item("fig8", "Utilisation by cluster size", _by_size(METHODS, "utilisation"), notes)


def _fig9() -> Item:
    lines = []
    for row, clustering in (("nestpipe-unclustered", (("clustering", "none"),)), ("nestpipe", ())):
        for micro_batches in (4, 8, 16, 32):
            settings = (*clustering, ("micro_batches", str(micro_batches)))
            run = Run("nestpipe", f"paper-npu-{LARGEST}", settings=settings)
            metrics = ("total_comm_ms", "exposed_comm_ms", "exposed_share")
            group = str(BATCH_SIZE // micro_batches)
            lines.append(Line(row, group, run, run, run, run, metrics))
    notes = ("columns: samples a micro-batch; on keys without interest clusters there is little to cluster",)
    return Item("fig9", "Micro-batch size, with and without key-centric clustering", tuple(lines), notes)


_SWEEPS = {"dim": (512, 768, 1024), "layers": (2, 4, 8), "length": (512, 1024, 2048)}


def _fig10() -> Item:
    lines = []
    for swept, points in _SWEEPS.items():
        for point in points:
            # Both the paper's tables and the profiles say nothing of these sizes: the middle stands for them.
            overrides = _scaled(swept, point / points[1])
            for method in (BASE, "nestpipe"):
                run = Run(method, f"paper-npu-{LARGEST}", profile_overrides=overrides)
                base = Run(BASE, run.profile, profile_overrides=overrides)
                metrics = ("step_ms", "speedup", "exposed_comm_ms")
                lines.append(Line(method, f"{swept}-{point}", run, base, run, plain(method), metrics))
    notes = (
        "communication grows with dim, dense with layers and with length, each in proportion; the middle of "
        "a sweep is the profile as it is, an assumption: the paper does not say which point its tables use",
    )
    return Item("fig10", "Embedding dim, dense layers and sequence length", tuple(lines), notes)


def _scaled(swept: str, factor: float) -> tuple[tuple[str, float], ...]:
    if factor == 1:
        return ()
    profile = profiles.get(f"paper-npu-{LARGEST}")
    if swept == "dim":
        return (("comm_ms", profile.comm_ms * factor), ("group_comm_ms", profile.group_comm_ms * factor))
    return (("dense_ms", profile.dense_ms * factor),)


def ablation() -> Item:
    """Each of the two pipelines alone, against this engine's synchronous step."""
    metrics = ("step_ms", "saved_ms", "speedup", "lookup_ms", "comm_ms", "dense_ms", "other_ms")
    shares = ("lookup_removed", "comm_left")
    lines = [_line(name, LARGEST, (*metrics, *shares), base="sync") for name in ("sync", "dbp", "fwp")]
    run = Run("fwp", f"paper-npu-{LARGEST}", settings=(("clustering", "none"),))
    base = plain("sync")
    lines.append(Line("fwp-unclustered", "", run, base, run, run, (*metrics, *shares)))
    lines.append(_line("nestpipe", LARGEST, (*metrics, *shares), base="sync"))
    return Item("ablation", "What each pipeline contributes, 1,536 workers", tuple(lines))


_ITEMS = {
    "table2": _table2,
    "table3": _table3,
    "table4": _table4,
    "fig2": _fig2,
    "fig7": _fig7,
    "fig8": _fig8,
    "fig9": _fig9,
    "fig10": _fig10,
}
NAMES = (*_ITEMS, "all")


def get(name: str) -> tuple[Item, ...]:
    """The items of that name, every one for "all"; ValueError with the nearest name for an unknown one."""
    if name == "all":
        return tuple(make() for make in _ITEMS.values())
    if name not in _ITEMS:
        raise ValueError(f"nothing to reproduce is named {name!r}: {nearest(name, NAMES)}")
    return (_ITEMS[name](),)
