"""A workload and methods that evaluate, small enough to reason about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from baselines.interface import Method, Runner, Setup
from harness.training.job import TrainingJob
from tests.harness import fakes
from workloads.interface import EvaluationResult

NUM_USERS = 7
NUM_ITEMS = 60
STEPS_AN_EPOCH = 3


class EvaluableWorkload(fakes.FakeWorkload):
    """Its metric is the mean output over users; user u's rank is u + 1, plus 10 in odd seeds for user 0."""

    def num_steps_an_epoch(self, num_workers: int) -> int:
        return STEPS_AN_EPOCH

    def training_batches(self, *, rank: int, num_workers: int, start_epoch: int = 0) -> Iterator[Any]:
        return self.batches(rank=rank, num_workers=num_workers, start_step=start_epoch * STEPS_AN_EPOCH)

    def evaluation_batches(self, *, rank: int, num_workers: int) -> Iterator[Any]:
        for user in range(rank, NUM_USERS, num_workers):
            yield fakes.FakeBatch(torch.tensor([[user, user, user]]), torch.zeros(1))

    def evaluate(
        self,
        results: Iterator[tuple[Any, torch.Tensor, torch.Tensor]],
        rows_of: Callable[[str], Iterator[tuple[torch.Tensor, torch.Tensor]]],
        group: dist.ProcessGroup | None,
    ) -> EvaluationResult:
        outputs = torch.cat([torch.zeros(0), *(output for _, _, output in results)]).double()
        sums = torch.tensor([outputs.sum(), len(outputs)], dtype=torch.float64)
        dist.all_reduce(sums, group=group)
        assert sums[1] == NUM_USERS
        metrics = {"mean": float(sums[0] / NUM_USERS), "rows": float(sum(len(i) for i, _ in rows_of("item")))}
        if dist.get_rank():
            return EvaluationResult(metrics)
        ranks = torch.arange(1, NUM_USERS + 1)
        ranks[0] += 10 * (self._seed % 2)
        tops = torch.arange(50).repeat(NUM_USERS, 1)
        return EvaluationResult(metrics, torch.arange(NUM_USERS), ranks, tops)


class EvaluatingRunner(fakes.FakeRunner):
    def evaluate(self, batches: Iterator[Any]) -> Iterator[tuple[Any, torch.Tensor, Any]]:
        with torch.no_grad():
            for batch in batches:
                yield batch, *self._model(batch)

    def rows_of(self, table: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield torch.arange(20), self._model.state_dict()["table.weight"]


class EvaluatingMethod(fakes.FakeMethod):
    def build(self, setup: Setup) -> Runner:
        return EvaluatingRunner(self, setup)


class DyingMethod(EvaluatingMethod, fakes.DyingMethod):
    """Its last worker is killed at step 3 if there is more than one."""


class RaisingMethod(EvaluatingMethod, fakes.RaisingMethod):
    """A bug on rank 0 at step 2."""


METHODS: dict[str, Method] = {
    "dying": DyingMethod("dying"),
    "raising": RaisingMethod("raising"),
    "plain": EvaluatingMethod("plain", supports_float64=True),
    "ahead": EvaluatingMethod("ahead", look_ahead=3),
    "skipping": EvaluatingMethod("skipping", skipped_step=3),
    "only-trains": fakes.FakeMethod("only-trains"),
}


def find_method(name: str) -> Method:
    return METHODS[name]


def make_workload(
    name: str, settings: Mapping[str, str], seed: int, num_workers: int, cache_dir: Path
) -> EvaluableWorkload:
    return EvaluableWorkload(seed)


def training_job(*methods: str, **changes: Any) -> TrainingJob:
    """Three epochs on the fakes, evaluated every other one."""
    job = TrainingJob(
        methods=methods,
        workload="fake",
        num_epochs=3,
        eval_every=2,
        seed=3,
        cache_dir=Path("unused"),
        timeout_s=30.0,
        find_method=find_method,
        make_workload=make_workload,
    )
    return replace(job, **changes)
