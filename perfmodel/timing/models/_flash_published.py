"""How attention kernels of published benchmarks lay their work out, where ``_flash_plan`` does not say it yet.

cuDNN is closed source: Blackwell's backward pass is supposed to take tiles of 128 x 128. Triton: tutorial 06-fused-attention,
whose autotuner prefers 128 queries by 64 keys; one block per multiprocessor is supposed. Overlap and operand reads of the
backward pass were chosen on the measured shapes that fits may see, on one GB200.
"""

from __future__ import annotations

from perfmodel.core.hardware import Device
from perfmodel.core.workload import BACKWARD, Attention
from perfmodel.timing.base import Case
from perfmodel.timing.models._flash_launch import TCGEN05, WGMMA, Plan, major
from perfmodel.timing.models._flash_torch import cudnn, side_kernels

_BLACKWELL = 10
BACKWARD_FEEDING = 0.0
"""cuDNN's backward pass on Blackwell: share of the operand reads that is not hidden."""
TUNED = ("BACKWARD_FEEDING",)
"""Chosen on measurements that fits may see, beside the fitted parameters."""
KNOWN = ("_BLACKWELL",)
"""Given by hardware, by the source of a kernel, or by definition."""


def cudnn_attention(case: Case, device: Device) -> Plan:
    """cuDNN by its own API: as PyTorch calls it, but for Blackwell's backward pass, compiled for head dims 64, 128, 192 and 256."""
    w: Attention = case.workload
    if major(device) < _BLACKWELL or case.direction != BACKWARD:
        return cudnn(case, device)
    width = next((dim for dim in (64, 128, 192) if max(w.d, w.dv) <= dim), 256)
    return Plan(128, 128, TCGEN05, feeding=BACKWARD_FEEDING, width=width, side_kernels=side_kernels(w))


def triton(case: Case, device: Device) -> Plan:
    """Triton's tutorial: a program per 128 queries of a head, first rows first."""
    return Plan(128, 64, TCGEN05 if major(device) >= _BLACKWELL else WGMMA)


PLANS = {
    "cudnn-attention": cudnn_attention,
    "cudnn-attention-deterministic": cudnn_attention,
    "cudnn-attention-mxfp8": cudnn_attention,
    "cudnn-attention-mxfp8-deterministic": cudnn_attention,
    "triton-attention": triton,
    "triton-tileir": triton,
}
