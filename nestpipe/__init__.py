"""NestPipe: exact nested pipelining for models written with TorchRec.

Names are loaded when they are first used, so that reading schedules does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nestpipe import lr as lr
    from nestpipe import schedules as schedules
    from nestpipe.clipping import GradientClipping as GradientClipping
    from nestpipe.optim import SGD as SGD
    from nestpipe.optim import Adagrad as Adagrad
    from nestpipe.optim import Adam as Adam
    from nestpipe.optim import RowWiseAdagrad as RowWiseAdagrad
    from nestpipe.pipeline import NestPipe as NestPipe
    from nestpipe.trace import Tracer as Tracer

_HOME = {
    "NestPipe": "nestpipe.pipeline",
    "GradientClipping": "nestpipe.clipping",
    "SGD": "nestpipe.optim",
    "Adagrad": "nestpipe.optim",
    "Adam": "nestpipe.optim",
    "RowWiseAdagrad": "nestpipe.optim",
    "Tracer": "nestpipe.trace",
}

_MODULES = ("lr", "schedules")

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "GradientClipping",
    "NestPipe",
    "RowWiseAdagrad",
    "Tracer",
    "lr",
    "schedules",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"nestpipe.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
