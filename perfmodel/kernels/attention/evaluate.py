"""Run algorithms over a workload on a device: tiles chosen, kernels listed, each kernel estimated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.core.arith import Number, maximum
from perfmodel.core.cost import Kernel, Tile, tensor_bytes
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate, estimate, total
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.attention.base import Algorithm
from perfmodel.kernels.attention.tiles import choose_tile

BOTH = "both"


@dataclass(frozen=True, slots=True)
class AttentionResult:
    """One algorithm, one pass (``both``: the sum): kernels, their estimates, the total, and memory in bytes.

    ``memory_bytes`` counts every tensor of the pass as allocated at once; ``extra_memory_bytes`` is the part beyond inputs
    and outputs. For ``both`` they are the larger of the two passes. ``implementation``: whose kernels these are; None for the
    algorithm's own.
    """

    algorithm: Algorithm
    direction: str
    tile: Tile | None
    kernels: list[tuple[Kernel, Estimate]]
    total: Estimate
    memory_bytes: Number
    extra_memory_bytes: Number
    passes: tuple[AttentionResult, ...] = ()
    implementation: str | None = None

    @property
    def parts(self) -> tuple[AttentionResult, ...]:
        """The passes of a sum; a single pass itself."""
        return self.passes or (self,)


def sram_bytes_for(algorithms: Sequence[Algorithm], device: Device) -> int | None:
    """M of the device in bytes; None where it has none and no algorithm needs one."""
    tiled = any(algorithm.tiling and algorithm.tiling.in_sram for algorithm in algorithms)
    sram = device.level("sram")
    return device.sram_per_block if tiled or (sram and sram.per_block) else None


def evaluate(
    algorithm: Algorithm, w: Attention, device: Device, direction: str, sram_bytes: int | None, br: int | None, bc: int | None
) -> AttentionResult:
    """One pass of ``algorithm``. UsageError if a given tile does not fit, UnavailableError if the device lacks the dtype."""
    return evaluate_tile(algorithm, w, device, direction, choose_tile(algorithm, w, device, direction, sram_bytes or 0, br, bc))


def evaluate_tile(algorithm: Algorithm, w: Attention, device: Device, direction: str, tile: Tile) -> AttentionResult:
    """One pass of ``algorithm`` with ``tile``, complete."""
    listed = (algorithm.forward if direction == FORWARD else algorithm.backward)(w, tile)
    kernels = [(kernel, estimate(kernel, device)) for kernel in listed]
    size, extra = memory(listed, w)
    shown = tile if algorithm.tiling else None
    return AttentionResult(algorithm, direction, shown, kernels, total(cost for _, cost in kernels), size, extra)


def memory(kernels: Sequence[Kernel], w: Attention) -> tuple[Number, Number]:
    """Bytes of all tensors of ``kernels``, inputs and outputs at their full size, and the part beyond those."""
    rows, keys = w.query_heads * w.n, w.stored_kv_heads * w.kv_len
    full = {"Q": rows * w.d, "O": rows * w.dv, "K": keys * w.d, "V": keys * w.dv}
    full |= {f"d{name}": elements for name, elements in full.items()} | {"mask": w.n * w.kv_len}
    touched = tensor_bytes(kernels)
    own = sum(full[name] * w.dtype.size for name in touched if name in full)
    partial = [maximum(size - full[name] * w.dtype.size, 0) for name, size in touched.items() if name in full]
    extra = sum(size for name, size in touched.items() if name not in full) + sum(partial)
    return own + extra, extra


def both(forward: AttentionResult, backward: AttentionResult) -> AttentionResult:
    """Forward and backward pass as one."""
    return AttentionResult(
        forward.algorithm,
        BOTH,
        None,
        forward.kernels + backward.kernels,
        forward.total + backward.total,
        maximum(forward.memory_bytes, backward.memory_bytes),
        maximum(forward.extra_memory_bytes, backward.extra_memory_bytes),
        (forward, backward),
        forward.implementation if forward.implementation == backward.implementation else None,
    )


def compare(
    algorithms: Sequence[Algorithm],
    w: Attention,
    device: Device,
    directions: Sequence[str],
    sram_bytes: int | None = None,
    br: int | None = None,
    bc: int | None = None,
) -> list[AttentionResult]:
    """Every algorithm over every pass; after a forward and a backward result comes their sum."""
    results: list[AttentionResult] = []
    for algorithm in algorithms:
        passes = [evaluate(algorithm, w, device, direction, sram_bytes, br, bc) for direction in directions]
        results += [*passes, both(*passes)] if len(passes) == 2 else passes
    return results
