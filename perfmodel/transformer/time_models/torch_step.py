"""A prefill or decode step of a Llama-style model in plain PyTorch: the sum of its kernels, each as it runs inside a step.

Each kernel takes the time that its calibration predicts; the parameters correct these times for kernels inside a step.
Source: the sequence of kernels that the profiler shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD
from perfmodel.timing.base import Case, Model
from perfmodel.transformer.estimate import KnownDevice, ModelStep, all_ops, on_device
from perfmodel.transformer.op import Op
from perfmodel.transformer.op_time import LAUNCH_MODEL as NAME
from perfmodel.transformer.op_time import LaunchCorrection, op_estimate, predict_op


@lru_cache(maxsize=256)
def _times_alone(w: ModelStep, known: KnownDevice) -> list[tuple[Op, float, float]]:
    """Each row with the seconds of one run alone, and their lower bound."""
    device = known.device
    rows = [(op, float(op_estimate(op, device).lower_s)) for op in all_ops(w.model, on_device(w.step, device))]
    return [(op, predict_op(op, device, lower_s, tuple, w.attention).seconds, lower_s) for op, lower_s in rows]


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds; UnavailableError names a kernel that is not calibrated."""
    w: ModelStep = case.workload
    within = LaunchCorrection(p)
    rows = _times_alone(w, KnownDevice(device))
    return float(sum(op.count * within.seconds(alone_s, op, device, w.graph, lower_s) for op, alone_s, lower_s in rows))


def covers(case: Case) -> bool:
    """Prefill and decode steps in which each element-wise operation is a separate kernel."""
    return isinstance(case.workload, ModelStep) and not case.workload.step.fused and case.direction == FORWARD


MODEL = Model(
    NAME,
    "steps",
    covers,
    seconds,
    "the sum of its kernels",
    assumes="weights from DRAM in every step, each kernel launched behind the one before",
    implementations=("torch",),
    composite=True,
)
