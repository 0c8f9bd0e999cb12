"""Algorithms evaluated on a workload and a device: tile, kernels, the estimate of each, IO lower bounds, and explanations.

The IO bounds are those of exact attention in the two-level model: SRAM of M elements, everything else memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perfmodel.core.arith import Number, maximum, minimum
from perfmodel.core.cost import READ, WRITE, Kernel, Tile, tensor_bytes
from perfmodel.core.explain import explain_kernels, sourced, with_symbols
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate, estimate, total
from perfmodel.core.trace import FormulaStep, Trace, plain
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.attention.algorithms.flash1 import paper_tile_edges
from perfmodel.kernels.attention.base import Algorithm, key_rows_stored, seeing_rows, seen_keys
from perfmodel.kernels.attention.tiles import fitting_tile
from perfmodel.kernels.attention.walk import visible_scores

BOTH = "both"


class AttentionResult(NamedTuple):
    """One algorithm, one pass (``both``: the sum): kernels, their estimates, the total, and memory in bytes.

    ``memory_bytes`` counts every tensor of the pass as allocated at once; ``extra_memory_bytes`` is the part beyond inputs and outputs. For
    ``both`` they are the larger of the two passes. ``implementation``: library of these kernels; None for the algorithm's own.
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
        """The two passes of a sum, or the result itself."""
        return self.passes or (self,)


def sram_bytes_for(algorithms: Sequence[Algorithm], device: Device) -> int | None:
    """M of the device in bytes; None if the profile lacks it and no algorithm needs it."""
    tiled = any(algorithm.tiling and algorithm.tiling.in_sram for algorithm in algorithms)
    sram = device.level("sram")
    return device.sram_per_block if tiled or (sram and sram.per_block) else None


def evaluate(
    algorithm: Algorithm,
    w: Attention,
    device: Device,
    direction: str,
    sram_bytes: int | None = None,
    br: int | None = None,
    bc: int | None = None,
) -> AttentionResult:
    """One pass of ``algorithm``. UsageError if a given tile does not fit, UnavailableError if the device lacks the dtype."""
    tile = fitting_tile(algorithm, w, device, direction, sram_bytes or 0, br, bc)
    return evaluate_tile(algorithm, w, device, direction, algorithm.tiling.complete(w, device, tile) if algorithm.tiling else tile)


def evaluate_tile(algorithm: Algorithm, w: Attention, device: Device, direction: str, tile: Tile) -> AttentionResult:
    """One pass of ``algorithm`` with a ``tile`` that is complete."""
    listed = (algorithm.forward if direction == FORWARD else algorithm.backward)(w, tile)
    kernels = [(kernel, estimate(kernel, device)) for kernel in listed]
    size, extra = memory(listed, w)
    shown = tile if algorithm.tiling else None
    return AttentionResult(algorithm, direction, shown, kernels, total(cost for _, cost in kernels), size, extra)


def memory(kernels: Sequence[Kernel], w: Attention) -> tuple[Number, Number]:
    """Bytes of all tensors of ``kernels``, with inputs and outputs at their full size; and the part beyond inputs and outputs."""
    rows, keys = w.query_heads * w.n, w.stored_kv_heads * w.kv_len
    full = {"Q": rows * w.d, "O": rows * w.dv, "K": keys * w.d, "V": keys * w.dv}
    full |= {f"d{name}": elements for name, elements in full.items()} | {"mask": w.n * w.kv_len}
    touched = tensor_bytes(kernels)
    inputs_outputs = sum(full[name] * w.dtype.size for name in touched if name in full)
    larger = [maximum(size - full[name] * w.dtype.size, 0) for name, size in touched.items() if name in full]  # a copy per query head
    extra = sum(size for name, size in touched.items() if name not in full) + sum(larger)
    return inputs_outputs + extra, extra


def both(forward: AttentionResult, backward: AttentionResult) -> AttentionResult:
    """The sum of the forward and the backward pass."""
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
    """Results of every algorithm for every pass, followed by the sum if both passes were asked for."""
    results: list[AttentionResult] = []
    for algorithm in algorithms:
        passes = [evaluate(algorithm, w, device, direction, sram_bytes, br, bc) for direction in directions]
        results += [*passes, both(*passes)] if len(passes) == 2 else passes
    return results


COMPULSORY_SOURCE = "each input read once, each output written once"
THETA_SOURCE = "Saha & Ye, ICML 2024, arXiv 2402.07443; Dao et al. 2022, Theorem 2 and Proposition 3"


class Theta(NamedTuple):
    """A tight growth class without its constant, which is not known."""

    io_class: str
    regime: str
    value_without_constant: Number


def compulsory_elements(w: Attention, direction: str) -> Number:
    """Matrix elements that any exact algorithm moves, over batch and heads; statistics not counted.

    Forward: Q, K, V in, O out. Backward: Q, K, V, O, dO in, dQ, dK, dV out. Query rows that see no key, and inputs
    of keys that no query sees, are left out. An additive mask is read once, where a score is visible.

    >>> compulsory_elements(Attention(n=4096, kv_len=4096, d=64, dv=64), "forward")
    1048576
    """
    query, keys = seeing_rows(w), seen_keys(w)
    mask = visible_scores(w) if w.mask else 0
    if direction == FORWARD:
        return (query + keys) * (w.d + w.dv) + mask
    return 2 * query * (w.d + w.dv) + (keys + key_rows_stored(w)) * (w.d + w.dv) + mask


def theta(w: Attention, m: Number) -> Theta | None:
    """Growth class of the forward pass for SRAM of ``m`` elements; None outside d <= M <= N d, where it is not proved.

    M >= d^2: N^2 d^2 / M, which FlashAttention reaches. M < d^2: N^2 d / sqrt(M), as for rectangular matmul. Also None with a window or a
    block pattern, as the theorem is about all scores.
    """
    if w.window is not None or w.sparsity is not None:
        return None
    d, rows = max(w.d, w.dv), min(w.n, w.kv_len)
    if not d <= m <= rows * d:
        return None
    heads = w.batch * w.heads
    if m >= d * d:
        return Theta("N^2 d^2 / M", "M >= d^2", heads * w.n * w.kv_len * d * d / m)
    return Theta("N^2 d / sqrt(M)", "M < d^2", heads * w.n * w.kv_len * d / m**0.5)


_SYMBOLS = {
    "batch": ("B", "batch"),
    "heads": ("H", "query heads"),
    "kv_heads": ("H_kv", "KV heads"),
    "n": ("N_q", "query length"),
    "kv_len": ("N_k", "key length"),
    "d": ("d", "head dim of Q and K"),
    "dv": ("d_v", "head dim of V and O"),
    "window": ("W_k", "keys of the sliding window"),
}
MEMORY_SOURCE = "every tensor of the pass allocated at once"


def explain(result: AttentionResult, w: Attention, device: Device, sram_bytes: int | None = None) -> list[FormulaStep]:
    """The formula of every number of ``result`` (one pass), as steps; a step uses the results of earlier ones."""
    trace = Trace()
    traced = with_symbols(trace, w, _SYMBOLS)
    algorithm = result.algorithm
    m = None
    if sram_bytes is not None:
        m = trace.symbol("M", sram_bytes // w.dtype.size, "elements of SRAM per block", f"--sram, or the profile of {device.id}")
    tile = _traced_tile(trace, result.tile, traced, m)
    kernels = (algorithm.forward if result.direction == FORWARD else algorithm.backward)(traced, tile)
    kernels = explain_kernels(trace, kernels, device, w.dtype)
    size, extra = memory(kernels, traced)
    trace.define("extra memory", "bytes beyond inputs and outputs", extra, MEMORY_SOURCE)
    trace.define("memory", "bytes", size, MEMORY_SOURCE)
    compulsory = compulsory_elements(traced, result.direction)
    compulsory = trace.define("compulsory elements", "that any exact algorithm moves", compulsory, COMPULSORY_SOURCE)
    moved = sum(kernel.elements(READ, WRITE) for kernel in kernels)
    trace.define("over compulsory", "accesses over compulsory elements", moved / compulsory, COMPULSORY_SOURCE)
    bound = None if m is None or result.direction != FORWARD else theta(traced, m)
    if bound is not None:
        trace.define("theta", f"{bound.io_class}, {bound.regime}, without its constant", bound.value_without_constant, THETA_SOURCE)
    return sourced(trace, algorithm.source)


def _traced_tile(trace: Trace, tile: Tile | None, w: Attention, m: Number | None) -> Tile:
    """The tile as symbols of ``trace``; B_c and B_r get formulas if M set them."""
    if tile is None:
        return Tile(1, 1)
    by_sram = None if m is None else paper_tile_edges(w, m)
    for br, bc in by_sram or ():
        if (plain(br), plain(bc)) == (tile.br, tile.bc) and tile.origin.startswith("B_c"):
            columns = trace.define("B_c", "tile columns", bc, f"Dao et al. 2022, Algorithm 1, line 1: {tile.origin}")
            rows = trace.define("B_r", "tile rows", minimum(columns, w.d), "Dao et al. 2022, Algorithm 1, line 1")
            return tile._replace(br=rows, bc=columns)
    rows = trace.symbol("B_r", tile.br, "tile rows", tile.origin)
    return tile._replace(br=rows, bc=trace.symbol("B_c", tile.bc, "tile columns", tile.origin))
