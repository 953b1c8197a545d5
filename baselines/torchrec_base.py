"""TorchRec's base pipeline: one batch at a time, nothing overlapped but DDP's all-reduce."""

from __future__ import annotations

from dataclasses import dataclass

from torchrec.distributed.train_pipeline import TrainPipelineBase

from baselines.interface import Exactness, Method, Setup
from baselines.torchrec_common import make_dense_optimizer, shard
from baselines.torchrec_runner import TorchRecRunner


@dataclass(frozen=True)
class TorchRecBase(Method):
    """DistributedModelParallel with row-wise tables and TrainPipelineBase."""

    name: str
    summary: str
    dedup: bool
    exactness: Exactness | None

    def build(self, setup: Setup) -> TorchRecRunner:
        """Shard the model; a collective."""
        model = shard(setup, dedup=self.dedup)
        optimizer = make_dense_optimizer(model, setup)
        pipeline = TrainPipelineBase(model, optimizer, setup.device)
        return TorchRecRunner(setup, model, optimizer, pipeline)


TORCHREC = TorchRecBase(
    name="torchrec", summary="TorchRec, index dedup, one batch at a time", dedup=True, exactness=None
)
TORCHREC_NODEDUP = TorchRecBase(
    name="torchrec-nodedup",
    summary="TorchRec without index dedup, one batch at a time",
    dedup=False,
    # A sum of gradients that nearly cancels keeps few digits, and Adagrad's first touch of a row moves it by
    # lr whatever the sum's size: where that makes more of it than the class allows, the arbiter decides.
    exactness=Exactness("reordered", against="torchrec", tolerance=2e-6),
)
