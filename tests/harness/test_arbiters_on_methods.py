"""The arbiters on the real methods and a small HSTU: a stale row is found, another order of sums is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from baselines import registry
from baselines.engine_methods import EngineMethod
from baselines.interface import Exactness, Method
from baselines.torchrec_base import TORCHREC_NODEDUP
from harness.arbiters import FLOAT64, ULP
from harness.job import Job
from harness.launch import launch
from nestpipe import schedules
from tests.workloads.batches import histories_of
from workloads.configs import InteractionsConfig
from workloads.models import hstu
from workloads.models.configs import HstuConfig
from workloads.sequences import SequenceWorkload

HSTU = HstuConfig(embedding_dim=16, max_length=12, num_negatives=8)
LENGTHS = [5, 12, 2, 9, 3, 7, 4, 11] * 4
# Less than float32 can keep, so that every method needs its arbiter whatever this machine's rounding is.
TO_SYNC = Exactness("reordered", "sync", 1e-9)
TO_TORCHREC = Exactness("library", "torchrec", 1e-9)


def nested(name: str, promise: Exactness) -> Method:
    return EngineMethod(name, lambda _: schedules.nestpipe(3), promise)


def stale(name: str, promise: Exactness) -> Method:
    return EngineMethod(name, lambda _: schedules.uniemb(), promise)


METHODS = {
    "nested": nested("nested", TO_SYNC),
    "stale": stale("stale", TO_SYNC),
    "nested-to-torchrec": nested("nested-to-torchrec", TO_TORCHREC),
    "stale-to-torchrec": stale("stale-to-torchrec", TO_TORCHREC),
    "nodedup": replace(TORCHREC_NODEDUP, name="nodedup", exactness=TO_TORCHREC),
}


def find_method(name: str) -> Method:
    return METHODS[name] if name in METHODS else registry.get(name)


def make_workload(
    name: str, settings: Mapping[str, str], seed: int, num_workers: int, cache_dir: Path
) -> SequenceWorkload:
    return SequenceWorkload(
        name,
        histories_of(LENGTHS, 40),
        InteractionsConfig(batch_size=7),
        HSTU,
        lambda num_rows, model_seed: hstu.build(HSTU, num_rows, model_seed),
        seed=seed,
        num_workers=num_workers,
    )


@pytest.mark.slow
def test_a_stale_row_is_found_and_another_order_of_sums_is_confirmed() -> None:
    job = Job(
        methods=("nested", "stale", "nested-to-torchrec", "stale-to-torchrec", "nodedup"),
        workload="small HSTU",
        num_steps=12,
        num_warmup_steps=2,
        seed=1,
        cache_dir=Path("unused"),
        check_exactness=True,
        find_method=find_method,
        make_workload=make_workload,
    )
    confirmed = {}
    for report in launch(job, 2)[0].methods:
        assert report.difference is not None
        assert report.arbitration is not None, (report.method, report.difference)
        assert report.arbitration.kind == (FLOAT64 if report.method in ("nested", "stale") else ULP)
        confirmed[report.method] = report.arbitration.confirms(report.difference.value)
    assert confirmed == {
        "nested": True,
        "stale": False,
        "nested-to-torchrec": True,
        "stale-to-torchrec": False,
        "nodedup": True,
    }
