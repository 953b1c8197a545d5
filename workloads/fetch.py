"""Data sets that the user's own pip fetches, because their terms forbid passing them on."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from workloads.cache import temporary_folder

_REQUIREMENT = "recbole==1.2.1"
_MEMBER = "recbole/dataset_example/ml-100k/ml-100k.inter"
_HEADER = b"user_id:token\titem_id:token\trating:float\ttimestamp:float"
_NUM_RATINGS = 100_000
_TIMEOUT_S = 300

ML_100K_TERMS = (
    "MovieLens 100K is provided by GroupLens, University of Minnesota, for research. It may not be "
    "redistributed without permission nor used commercially without permission, and must not be taken to "
    "imply an endorsement. Publications that use it cite: F. Maxwell Harper and Joseph A. Konstan. The "
    "MovieLens Datasets: History and Context. ACM Transactions on Interactive Intelligent Systems 5, 4, "
    "Article 19 (2015). https://doi.org/10.1145/2827872"
)
"""What a user agrees to by fetching; callers show it."""


class FetchError(RuntimeError):
    """A data set could not be fetched; the message says why and how to do without."""


def ml_100k_path(cache_dir: Path) -> Path:
    """Where `fetch_ml_100k` puts the ratings."""
    return cache_dir / "downloads" / "ml-100k" / "ml-100k.inter"


def fetch_ml_100k(cache_dir: Path) -> Path:
    """Fetch the ratings of MovieLens 100K into the cache, unless they are there, and return their path.

    They come out of the wheel of RecBole, an MIT-licensed library that carries them as its example.
    FetchError without a network, and for a wheel that does not hold what is expected.
    """
    target = ml_100k_path(cache_dir)
    if target.is_file():
        return target
    with temporary_folder(target.parent) as temporary:
        _run_pip(temporary)
        content = _read_member(temporary)
        unfinished = temporary / target.name
        unfinished.write_bytes(content)
        unfinished.replace(target)
    return target


def _run_pip(destination: Path) -> None:
    """Download the wheel, and nothing it depends on, into `destination`."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(destination), _REQUIREMENT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise _failure(f"pip took longer than {_TIMEOUT_S} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise _failure(f"pip could not download {_REQUIREMENT}: {lines[-1]}")


def _read_member(folder: Path) -> bytes:
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise _failure(f"pip left {len(wheels)} wheels, expected one")
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            content = wheel.read(_MEMBER)
    except (KeyError, zipfile.BadZipFile) as error:
        raise _failure(f"{wheels[0].name} has no {_MEMBER} ({error})") from error
    lines = content.splitlines()
    if not lines or lines[0] != _HEADER or len(lines) != _NUM_RATINGS + 1:
        raise _failure(f"{_MEMBER} does not hold {_NUM_RATINGS} ratings under the expected header")
    return content


def _failure(reason: str) -> FetchError:
    return FetchError(
        f"MovieLens 100K could not be fetched: {reason}. Without a network, download ml-100k by hand from "
        "https://grouplens.org/datasets/movielens/100k/ and give --set path=FOLDER"
    )
