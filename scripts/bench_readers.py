"""Rows a minute and peak memory of the readers, on one core, on files made up here.

python scripts/bench_readers.py
python scripts/bench_readers.py --rows 200000 --readers kuairand criteo

Each reader runs in a process of its own, first pass over a file to a finished cache. Memory before counts the
interpreter and the libraries, peak all of it, files mapped in memory included. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from workloads.configs import LogConfig
from workloads.criteo_files import load_clicks
from workloads.histories import load_histories
from workloads.kuairand import RAW
from workloads.log import load_log
from workloads.movielens import LAYOUTS

NUM_USERS, NUM_ITEMS, BLOCK_ROWS = 27_285, 32_038_725, 250_000


def interactions(generator: np.random.Generator, num: int) -> pd.DataFrame:
    """As many interactions as KuaiRand-27K has users and videos for, in no order."""
    return pd.DataFrame(
        {
            "user": generator.integers(0, NUM_USERS, num),
            "item": (NUM_ITEMS * generator.random(num) ** 4).astype(np.int64),
            "time": generator.integers(1_649_000_000_000, 1_652_000_000_000, num),
        }
    )


def kuairand_rows(generator: np.random.Generator, num: int) -> pd.DataFrame:
    made = interactions(generator, num)
    frame = pd.DataFrame(generator.integers(0, 2, (num, len(RAW.form.columns))))
    frame.columns = pd.Index([column.name for column in RAW.form.columns])
    durations = {name: generator.integers(0, 200_000, num) for name in ("play_time_ms", "duration_ms")}
    renamed = {"user_id": made["user"], "video_id": made["item"], "time_ms": made["time"], "date": 20220421}
    return frame.assign(**renamed, **durations, hourmin=generator.integers(0, 2400, num))


def ratings_rows(generator: np.random.Generator, num: int) -> pd.DataFrame:
    made = interactions(generator, num)
    return pd.DataFrame(
        {
            "userId": made["user"],
            "movieId": made["item"] % 60_000,
            "rating": generator.integers(1, 11, num) / 2,
            "timestamp": made["time"] // 1000,
        }
    )


def text_rows(generator: np.random.Generator, num: int) -> pd.DataFrame:
    made = interactions(generator, num)
    return pd.DataFrame(
        {
            "user_id": "user-" + made["user"].astype(str),
            "item_id": "item-" + (made["item"] % 1_000_000).astype(str),
            "timestamp": made["time"] // 1000,
        }
    )


def criteo_rows(generator: np.random.Generator, num: int) -> pd.DataFrame:
    frame = pd.DataFrame({"label": generator.integers(0, 2, num)})
    for field in range(13):
        integers = pd.Series((1000 * generator.random(num) ** 4).astype(np.int64)).astype(str)
        frame[f"i{field}"] = integers.mask(generator.random(num) < 0.1, "")
    known = pd.Series([f"{value:08x}" for value in generator.integers(0, 2**32, 100_000)])
    for field in range(26):
        categories = known.iloc[(len(known) * generator.random(num) ** 3).astype(np.int64)]
        frame[f"c{field}"] = categories.reset_index(drop=True).mask(generator.random(num) < 0.1, "")
    return frame


def read_kuairand(file: Path, cache: Path) -> int:
    return len(load_histories("kuairand", [file], RAW, cache).items)


def read_ratings(file: Path, cache: Path) -> int:
    return len(load_histories("movielens", [file], LAYOUTS[1], cache).items)


def read_log(file: Path, cache: Path) -> int:
    return len(load_log(LogConfig(path=str(file)), cache).items)


def read_criteo(file: Path, cache: Path) -> int:
    return load_clicks([file], cache).num_samples


Make = Callable[[np.random.Generator, int], pd.DataFrame]
READERS: dict[str, tuple[str, Make, Callable[[Path, Path], int]]] = {
    "kuairand": ("log_standard_27k.csv", kuairand_rows, read_kuairand),
    "movielens": ("ratings.csv", ratings_rows, read_ratings),
    "log-csv": ("log.csv", text_rows, read_log),
    "log-parquet": ("log.parquet", text_rows, read_log),
    "criteo": ("train.txt", criteo_rows, read_criteo),
}


def blocks(make: Make, num_rows: int) -> Iterator[pd.DataFrame]:
    generator = np.random.default_rng(0)
    for first in range(0, num_rows, BLOCK_ROWS):
        yield make(generator, min(BLOCK_ROWS, num_rows - first))


def write(path: Path, make: Make, num_rows: int) -> None:
    if path.suffix == ".parquet":
        pd.concat(list(blocks(make, num_rows))).to_parquet(path, index=False, row_group_size=BLOCK_ROWS)
        return
    is_criteo = path.suffix == ".txt"
    for number, frame in enumerate(blocks(make, num_rows)):
        header = number == 0 and not is_criteo
        frame.to_csv(path, sep="\t" if is_criteo else ",", header=header, index=False, mode="a")


def peak_mib() -> float:
    # Not getrusage's: that one begins with what the parent had when this process was forked.
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return int(line.split()[1]) / 1024


def measure(name: str, file: Path) -> dict[str, float | str]:
    """Read one file on one core into a new cache."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    before_mib = peak_mib()
    wall, cpu = time.perf_counter(), time.process_time()
    num_rows = READERS[name][2](file, file.parent / "cache")
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "reader": name,
        "rows": num_rows,
        "file_mib": round(file.stat().st_size / 2**20, 1),
        "wall_s": round(wall, 2),
        "cpu_s": round(cpu, 2),
        "million_rows_a_minute": round(60e-6 * num_rows / wall, 2),
        "million_rows_a_cpu_minute": round(60e-6 * num_rows / cpu, 2),
        "before_mib": round(before_mib),
        "peak_mib": round(peak_mib()),
    }


def measured_alone(name: str, num_rows: int) -> dict[str, float | str]:
    """Make a file up and measure its reader in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file_name, make, _ = READERS[name]
        write(Path(folder) / file_name, make, num_rows)
        command = [sys.executable, __file__, "--measure", name, str(Path(folder) / file_name)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    found: dict[str, float | str] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--readers", nargs="+", choices=READERS, default=list(READERS))
    parser.add_argument("--measure", nargs=2, metavar=("READER", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure[0], Path(arguments.measure[1]))))
        return
    found = [measured_alone(name, arguments.rows) for name in arguments.readers]
    print(pd.DataFrame(found).to_string(index=False))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
