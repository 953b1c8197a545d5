"""Cost models of the paper's cluster, from the emulated cluster's profiles: one calibration for both.

The profiles are calibrated on TorchRec's five step latencies and Figure 2's shares; two constants are
declared. The residual lookup of 30 ms is charged between the update of a step and the issue of the next
one's ops, where nothing can hide it; a sharding group of 2D is a quarter of the cluster.
"""

from __future__ import annotations

from harness.emulation import profiles
from harness.emulation.profiles import PAPER_DENSE_MS, Profile
from harness.simulation.costs import CostModel, OpCost, constant
from nestpipe.schedule import OpKind

SIZES = (128, 256, 512, 1024, 1536)
# "Typically under 2 ms" for the rows that consecutive batches share, about one in eight.
_SYNC_MS, _KEY_OVERLAP = 2.0, 0.12


def model_of(*clusters: Profile, name: str = "", scale: float = 1.0) -> CostModel:
    """The costs of profiles that differ in their number of workers, in milliseconds times `scale`."""
    clusters = tuple(sorted(clusters, key=lambda cluster: cluster.num_workers))
    first = clusters[0]

    def lookup(share: str) -> OpCost:
        points = ((c.num_workers, c.lookup_ms * _share(c, share) * scale) for c in clusters)
        return OpCost(tuple(points))

    transfer = OpCost(_one_way(clusters, scale), 0.0, first.latency_us_per_peer * scale)
    dense = tuple((float(c.num_workers), (c.dense_ms - c.launch_ms) * scale) for c in clusters)
    ops = {
        OpKind.PREFETCH: lookup("prepare"),
        OpKind.H2D: lookup("copy"),
        OpKind.ROUTE: constant(0.0),  # part of the paper's lookup, whose shares are the profile's
        OpKind.RETRIEVE: lookup("read"),
        OpKind.SYNC: constant(_SYNC_MS * first.dense_ms * scale / PAPER_DENSE_MS),
        OpKind.EXCHANGE: transfer,
        OpKind.COMPUTE: OpCost(dense, first.launch_ms * scale),
        OpKind.REDUCE: transfer,
        OpKind.ALLREDUCE: constant(0.0),  # part of the paper's dense time, as is the update
        OpKind.UPDATE: constant(0.0),
        OpKind.WRITE_BACK: lookup("write"),
    }
    return CostModel(
        name=name or first.name,
        ops=ops,
        residual_lookup_ms=first.residual_lookup_ms * scale,
        key_overlap=_KEY_OVERLAP,
    )


def paper_model() -> CostModel:
    """The paper's NPU cluster at any number of workers, in the paper's milliseconds."""
    clusters = [profiles.get(f"paper-npu-{size}") for size in SIZES]
    return model_of(*clusters, name="paper", scale=PAPER_DENSE_MS / clusters[0].dense_ms)


def _share(cluster: Profile, part: str) -> float:
    shares = {
        "prepare": cluster.prepare_share,
        "copy": cluster.copy_share,
        "read": cluster.read_share,
    }
    return shares.get(part, max(0.0, 1.0 - sum(shares.values())))


def _one_way(clusters: tuple[Profile, ...], scale: float) -> tuple[tuple[float, float], ...]:
    """Time on the link of a batch's rows, by the workers that share the tables; latency not counted."""
    totals = {float(c.num_workers): c.comm_ms for c in clusters}
    for c in clusters:
        totals.setdefault(c.num_workers * c.group_share, c.group_comm_ms)
    latency_ms = clusters[0].latency_us_per_peer / 1e3
    return tuple(
        (workers, max(0.0, totals[workers] / 2 - latency_ms * workers) * scale) for workers in sorted(totals)
    )
