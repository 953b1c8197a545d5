"""TorchRec's own pipelining: the next batch's keys travel while this batch computes."""

from __future__ import annotations

from torchrec.distributed.train_pipeline import TrainPipelineSparseDist

from baselines.interface import Exactness, Method, Setup
from baselines.torchrec_common import make_dense_optimizer, shard
from baselines.torchrec_runner import TorchRecRunner


class TorchRecSparseDist(Method):
    """DistributedModelParallel with row-wise tables, index dedup and TrainPipelineSparseDist."""

    name = "torchrec-sparse-dist"
    summary = "TorchRec's TrainPipelineSparseDist: the next batch's keys travel during this one"
    exactness = Exactness("bitwise", against="torchrec", tolerance=0.0)

    def build(self, setup: Setup) -> TorchRecRunner:
        """Shard the model, which torch.fx must be able to trace; a collective."""
        model = shard(setup, dedup=True)
        optimizer = make_dense_optimizer(model, setup)
        pipeline = TrainPipelineSparseDist(model, optimizer, setup.device)
        return TorchRecRunner(setup, model, optimizer, pipeline)


TORCHREC_SPARSE_DIST = TorchRecSparseDist()
