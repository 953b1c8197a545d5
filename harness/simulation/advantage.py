"""When a method pays: its speedup over the best other exact method, over two axes of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.options import nearest
from harness.simulation.costs import Conditions, CostModel
from harness.simulation.keys import KeyStatistics
from harness.simulation.methods import SimulatedMethod, find
from harness.simulation.predict import GROUP_SHARE, predict
from nestpipe.schedule import OpKind

EXACT_METHODS = ("torchrec", "torchrec-sparse-dist", "sync", "dbp", "fwp", "nestpipe")
_NUM_STEPS = 4
_LOOKUP = (OpKind.PREFETCH, OpKind.H2D, OpKind.ROUTE, OpKind.RETRIEVE, OpKind.WRITE_BACK)
_COMM = (OpKind.EXCHANGE, OpKind.REDUCE)


@dataclass(frozen=True)
class Scene:
    """What a point of the map is simulated under."""

    model: CostModel
    conditions: Conditions
    micro_batches: int = 8
    group_share: float | None = None
    """With a value, every method runs in sharding groups of that share of the cluster."""


@dataclass(frozen=True)
class Axis:
    """A quantity that is varied."""

    label: str
    values: tuple[float, ...]
    apply: Callable[[Scene, float], Scene]


@dataclass(frozen=True)
class Advantage:
    """A map: rows follow y, columns x."""

    method: str
    x: Axis
    y: Axis
    speedup: tuple[tuple[float, ...], ...]
    """Step of the best other exact method / step of the method; below 1 it loses."""
    best_other: tuple[tuple[str, ...], ...]

    @property
    def share_lost(self) -> float:
        """Share of the map where the method is slower than another exact one."""
        cells = [value for row in self.speedup for value in row]
        return sum(value < 1 for value in cells) / len(cells)


def advantage(method: str, x: str, y: str, scene: Scene) -> Advantage:
    """Simulate the method and the exact ones at every point; ValueError for an unknown axis."""
    axes = []
    for name in (x, y):
        if name not in AXES:
            raise ValueError(f"unknown axis {name!r}: {nearest(name, AXES)}")
        axes.append(AXES[name])
    if x == y:
        raise ValueError(f"the two axes must differ, got {x!r} twice")
    points = [
        [_point(method, axes[1].apply(axes[0].apply(scene, across), up)) for across in axes[0].values]
        for up in axes[1].values
    ]
    return Advantage(
        method=method,
        x=axes[0],
        y=axes[1],
        speedup=tuple(tuple(speedup for speedup, _ in row) for row in points),
        best_other=tuple(tuple(other for _, other in row) for row in points),
    )


def _point(method: str, scene: Scene) -> tuple[float, str]:
    own = find(method, scene.micro_batches)
    own_ms = _step_ms(own, scene)
    # A method that chooses its window is no rival of the one whose window it chooses.
    rivals = [name for name in EXACT_METHODS if name != own.name and not own.name.startswith(f"{name}-")]
    others = {name: _step_ms(find(name, scene.micro_batches), scene) for name in rivals}
    best = min(others, key=lambda name: others[name])
    return others[best] / own_ms, best


def _step_ms(method: SimulatedMethod, scene: Scene) -> float:
    if scene.group_share is not None:
        method = replace(method, is_grouped=True)
    share = GROUP_SHARE if scene.group_share is None else scene.group_share
    return predict(method, scene.model, scene.conditions, _NUM_STEPS, share).step_ms


def _relative_to_dense(kinds: Sequence[OpKind]) -> Callable[[Scene, float], Scene]:
    def apply(scene: Scene, ratio: float) -> Scene:
        model, num_workers = scene.model, scene.conditions.num_workers
        missing = [kind for kind in kinds if kind not in model.ops]
        if missing:
            raise ValueError(f"cost model {model.name!r} has no op {missing[0].value!r}")
        total_ms = sum(model.ops[kind].of_batch(num_workers) for kind in kinds)
        if not total_ms:
            raise ValueError(f"cost model {model.name!r}: {', '.join(kinds)} take no time, so nothing scales")
        factor = ratio * model.dense_ms(Conditions(num_workers)) / total_ms
        return replace(scene, model=model.scaled(dict.fromkeys(kinds, factor)))

    return apply


def _overlap(scene: Scene, overlap: float) -> Scene:
    return replace(scene, conditions=replace(scene.conditions, key_overlap=overlap))


def _zipf(scene: Scene, exponent: float) -> Scene:
    return replace(scene, conditions=replace(scene.conditions, keys=KeyStatistics(exponent)))


def _micro_batches(scene: Scene, num: float) -> Scene:
    return replace(scene, micro_batches=int(num))


def _group(scene: Scene, share: float) -> Scene:
    return replace(scene, group_share=share)


_RATIOS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0)
AXES: Mapping[str, Axis] = {
    "comm": Axis("communication / dense", _RATIOS, _relative_to_dense(_COMM)),
    "lookup": Axis("lookup / dense", _RATIOS, _relative_to_dense(_LOOKUP)),
    "overlap": Axis("rows shared with the batch before", (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0), _overlap),
    "zipf": Axis("Zipf exponent", (0.0, 0.4, 0.7, 0.9, 1.0, 1.1, 1.3), _zipf),
    "n": Axis("micro-batches", (1, 2, 4, 8, 16, 32, 64), _micro_batches),
    "group": Axis("share of the cluster in a sharding group", (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0), _group),
}
