"""The simulator against the emulated cluster: every method's step, predicted from other runs.

    python scripts/check_simulator.py

Methods without groups on two processes, those with groups on four. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pandas as pd

from harness.emulation import profiles
from harness.simulation.methods import find, names
from harness.simulation.validation import validate


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", default="paper-npu-1536")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    grouped = [name for name in names() if find(name).is_grouped]
    others = [name for name in names() if not find(name).is_grouped]
    with tempfile.TemporaryDirectory() as folder:
        for methods, num_workers in ((others, 2), (grouped, 4)):
            found = validate(
                methods, profiles.get(arguments.profile), num_workers, arguments.steps, Path(folder)
            )
            table = pd.DataFrame([{**vars(one), "error": f"{one.error:+.1%}"} for one in found])
            print(f"{arguments.profile}, {num_workers} processes, {arguments.steps} steps")
            print(table.round(1).to_string(index=False))


if __name__ == "__main__":
    main()
