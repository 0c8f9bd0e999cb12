"""A linear layer in fp8 on 16-bit activations: kernels find the scale of x and round it, then the matmul runs in fp8, its result 16-bit.

The matmul is that of ``gemm``, with parameters of its own; what 16-bit inputs and results move beside it is added.
Source: NVIDIA TensorRT-LLM, tensorrt_llm/_torch/modules/linear.py (dynamic scale per tensor, matmul by cuBLAS).
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.hardware import Device
from perfmodel.core.roofline import rates_of
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import Case, Model, Parameter, once_per_case
from perfmodel.timing.models import gemm

ACTIVATION_SIZE = 2
"""Bytes of an element of x and of the result."""
SPLIT_US = 2.5
"""As ``gemm`` starts from: the eighth parameter prices the rounding instead."""

PARAMETERS = (
    *(parameter for parameter in gemm.PARAMETERS if parameter.name != "split_us"),
    Parameter("quantize_share", "of the DRAM bandwidth, x and its rounded copy", 1.0),
)
TUNED = ("SPLIT_US",)
KNOWN = ("ACTIVATION_SIZE",)


@once_per_case
def _rounding(case: Case, device: Device) -> tuple[float, float]:
    """Bytes that the matmul's neighbours move, and the DRAM bandwidth."""
    w: Matmul = case.workload
    moved = w.batch * w.m * (w.k * (ACTIVATION_SIZE + w.dtype.size) + w.n * (ACTIVATION_SIZE - w.dtype.size))
    return moved, float(rates_of(device, w.dtype).dram)


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of both kernels; UnavailableError as in ``gemm``."""
    moved, bandwidth = _rounding(case, device)
    return float(gemm.seconds(case, device, {**p, "split_us": SPLIT_US}) + moved / (bandwidth * p["quantize_share"]))


def covers(case: Case) -> bool:
    """Forward, both operands in fp8."""
    return gemm.covers(case) and case.direction == FORWARD and case.workload.dtype.name == "fp8"


MODEL = Model(
    "fp8-linear", PARAMETERS, covers, seconds, gemm.MODEL.source, assumes=gemm.MODEL.assumes, implementations=("trtllm-fp8-linear",)
)
