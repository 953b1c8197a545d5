"""The commands below `nestpipe kernels`; imports wait until they run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.errors import user_errors
from harness.shared_options import AS_JSON

if TYPE_CHECKING:
    from harness.kernels.bench import KernelTiming

DTYPES = ("float32", "bfloat16", "float16")


@click.group()
def kernels() -> None:
    """Look at the kernels: what each takes, beside the plain version and what the memory can do.

    \b
    Example:
        nestpipe kernels bench
    """


@kernels.command()
@click.argument("ops", metavar="[OP]...", nargs=-1)
@click.option("--rows", type=click.IntRange(min=1), help="Rows of a table.  [default: by op and device]")
@click.option("--ids", type=click.IntRange(min=1), help="Ids of a batch.  [default: by op and device]")
@click.option("--dim", type=click.IntRange(min=1), default=128, show_default=True, help="Elements of a row.")
@click.option(
    "--dtype", type=click.Choice(DTYPES), default="float32", show_default=True, help="Of rows and gradients."
)
@click.option("--calls", type=click.IntRange(min=3), default=20, show_default=True, help="Timed calls.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="File for the JSON document, times raw."
)
@click.option("--force", is_flag=True, help="Overwrite an --out file that is there already.")
@AS_JSON
def bench(
    ops: tuple[str, ...],
    rows: int | None,
    ids: int | None,
    dim: int,
    dtype: str,
    calls: int,
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Measure OPs, all without any: time, bytes a second and their share of a copy's.

    Plain torch, the Triton kernel where it runs, and FBGEMM where it is installed and has the op. A kernel
    whose result is not the plain version's has no speedup, and the exit code is 1.

    \b
    Examples:
        nestpipe kernels bench
        nestpipe kernels bench gather row_update --dtype bfloat16 --dim 256 --json
    """
    with user_errors():
        from harness.targets import check_target

        if out is not None:
            check_target(out, force=force)
        import torch

        from harness.kernels.bench import measure
        from harness.kernels.cases import OPS, size_for
        from harness.machine import commit, fingerprint, versions
        from harness.options import nearest
        from nestpipe.kernels.dispatch import why_not

        for op in ops:
            if op not in OPS:
                raise ValueError(f"unknown op {op!r}: {nearest(op, OPS)}")
        device = _device()
        reason = why_not(device)
        sizes = [(op, size_for(op, device, dim, getattr(torch, dtype), rows, ids)) for op in ops or OPS]
        timings = list(measure(sizes, device, calls))
        _print(timings, reason)
        document = {
            "why_no_triton": reason,
            "machine": asdict(fingerprint()),
            "versions": versions(),
            "commit": commit()[0],
            "kernels": [_as_row(timing) for timing in timings],
        }
        if out is not None:
            out.write_text(json.dumps(document) + "\n", encoding="utf-8")
        if as_json:
            click.echo(json.dumps(document))
    if not all(timing.is_correct for timing in timings):
        raise click.exceptions.Exit(1)


def _device() -> Any:
    import torch

    from nestpipe.streams import indexed

    present = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.device("cpu") if present is None else indexed(present)


def _as_row(timing: KernelTiming) -> dict[str, Any]:
    return asdict(timing) | {"ms": timing.ms, "gb_s": timing.gb_s, "share": timing.share}


def _print(timings: Sequence[KernelTiming], reason: str) -> None:
    from rich import box
    from rich.table import Table

    from harness.tables import console_for

    first = timings[0]
    title = f"kernels on {first.device}, {first.dtype} rows of {first.dim}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("op", no_wrap=True)
    table.add_column("implementation", no_wrap=True)
    for name in ("ms", "MB moved", "GB/s", "of a copy", "speedup"):
        table.add_column(name, justify="right", no_wrap=True)
    for timing in timings:
        moved = (f"{timing.num_bytes / 1e6:.1f}", f"{timing.gb_s:.1f}", f"{timing.share:.0%}")
        table.add_row(
            timing.op,
            timing.impl,
            f"{timing.ms:.3f}",
            *(moved if timing.num_bytes else ("-", "-", "-")),
            "wrong result" if timing.speedup is None else f"{timing.speedup:.2f}",
        )
    console_for(table).print(table)
    if reason:
        click.echo(f"Plain versions only, no Triton kernel was measured: {reason}.")
