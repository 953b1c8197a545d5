"""Compiles every kernel for every architecture and prints a line of JSON each; run in a process of its own.

    python -m tests.kernels.compile_all                    # what test_aot_compile.py compares
    python -m tests.kernels.compile_all --update           # writes results/reference/kernels-aot.json

The tests' process has the kernels interpreted, and a function is either interpreted or compiled.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import triton

from nestpipe.kernels.aot import ARCHITECTURES, all_variants, compile_variant

REFERENCE = Path(__file__).parents[2] / "results" / "reference" / "kernels-aot.json"


def main() -> None:
    rows = [
        asdict(compile_variant(v, architecture)) for v in all_variants() for architecture in ARCHITECTURES
    ]
    lines = [json.dumps(row) for row in rows]
    if sys.argv[1:] == ["--update"]:
        REFERENCE.parent.mkdir(parents=True, exist_ok=True)
        listed = ",\n  ".join(lines)
        REFERENCE.write_text(f'{{"triton": "{triton.__version__}", "kernels": [\n  {listed}\n]}}\n')
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
