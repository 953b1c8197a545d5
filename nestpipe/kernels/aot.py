"""Kernels compiled ahead of time: what the compiler says of registers, spills and accesses, without a GPU."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nestpipe import kernels

ARCHITECTURES = (80, 90, 100)
ROW_DTYPES = ("fp32", "bf16", "fp16")
"""Triton's names of the dtypes that rows come in."""
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_WIDE_ACCESS = re.compile(r"(ld|st)\.global[.\w:]*\.(?:v4\.[bfu]32|v2\.[bfu]64|v8\.[bfu]16|v8\.[bfu]32|b128)")


@dataclass(frozen=True)
class Variant:
    """One specialisation of a kernel; parameters are named as in the kernel."""

    op: str
    name: str
    kernel: Any
    """The JITFunction."""
    signature: Mapping[str, str]
    """Type of each argument that is no constant, in Triton's names: `*fp32`, `i64`."""
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    aligned: tuple[str, ...] = ()
    """Pointers at and sizes in multiples of 16."""
    num_warps: int = 4
    num_stages: int = 3
    is_memory_bound: bool = True
    moves_rows: bool = True
    """Whether it reads and writes rows, which then must move in 16-byte accesses."""


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a variant."""

    op: str
    variant: str
    architecture: str
    registers: int
    stack_bytes: int
    """Of a thread; spilled registers live there."""
    shared_bytes: int
    wide_loads: int
    """16-byte accesses in the generated code."""
    wide_stores: int
    is_memory_bound: bool
    moves_rows: bool


def all_variants() -> Iterator[Variant]:
    """Every variant that an op's `triton.py` declares in `variants()`."""
    for module in sorted(found.name for found in pkgutil.iter_modules(kernels.__path__) if found.ispkg):
        yield from importlib.import_module(f"nestpipe.kernels.{module}.triton").variants()


def compile_variant(variant: Variant, architecture: int) -> Compiled:
    """Compile for `sm_<architecture>`; needs no GPU, only Triton's own tools."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = variant.kernel.arg_names
    source = ASTSource(
        fn=variant.kernel,
        signature={name: variant.signature.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in variant.constexprs.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in variant.aligned},
    )
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    registers, stack, shared, _ = _usage(compiled.asm["cubin"])
    wide = _WIDE_ACCESS.findall(compiled.asm["ptx"])
    return Compiled(
        op=variant.op,
        variant=variant.name,
        architecture=f"sm_{architecture}",
        registers=registers,
        stack_bytes=stack,
        shared_bytes=max(shared, compiled.metadata.shared),
        wide_loads=wide.count("ld"),
        wide_stores=wide.count("st"),
        is_memory_bound=variant.is_memory_bound,
        moves_rows=variant.moves_rows,
    )


def _usage(cubin: bytes) -> tuple[int, ...]:
    """Registers, stack, shared and local bytes of the one function in `cubin`."""
    import triton.backends.nvidia

    tool = Path(triton.backends.nvidia.__path__[0]) / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    found = _USAGE.search(text)
    assert found is not None, f"cuobjdump says nothing of resources: {text}"
    return tuple(map(int, found.groups()))
