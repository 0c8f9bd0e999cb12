"""Tensor by tensor: keep it or compute it again, by the roofline; and which frees the most memory for the time it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfmodel.core.arith import Number
from perfmodel.core.dtypes import Dtype
from perfmodel.core.hardware import Device
from perfmodel.kernels.recompute import Recompute, Result, evaluate


@dataclass(frozen=True, slots=True)
class Tensor:
    """``size`` bytes that ``flops`` FLOP make, ``count`` of them alike. ``seconds``: of the kernel that makes one, at its roof."""

    name: str
    size: Number
    flops: Number
    seconds: float
    count: int = 1


@dataclass(frozen=True, slots=True)
class Choice:
    """Both ways for one tensor, its inputs at hand."""

    tensor: Tensor
    result: Result

    @property
    def freed_bytes_per_s(self) -> float:
        """Bytes that running its kernel again frees per second that this takes."""
        return float(self.tensor.size) / self.tensor.seconds


def choices(tensors: Sequence[Tensor], dtype: Dtype, device: Device) -> list[Choice]:
    """Each kind of tensor once, the one that frees the most per second first. UnavailableError if the device lacks a rate."""
    counts: dict[tuple[Number, Number], int] = {}
    first: dict[tuple[Number, Number], Tensor] = {}
    for tensor in tensors:
        kind = (tensor.size, tensor.flops)
        counts[kind] = counts.get(kind, 0) + tensor.count
        first.setdefault(kind, tensor)
    alike = [replace(one, count=counts[kind]) for kind, one in first.items()]
    found = [Choice(tensor, evaluate(Recompute(tensor.size, tensor.flops, dtype), device)) for tensor in alike]
    return sorted(found, key=lambda choice: -choice.freed_bytes_per_s)
