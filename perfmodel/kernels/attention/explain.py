"""Each number of a result as its formula, by running the same functions on traced numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfmodel.core.arith import Number, minimum
from perfmodel.core.cost import READ, WRITE, Tile
from perfmodel.core.explain import explain_kernels, sourced, with_symbols
from perfmodel.core.hardware import Device
from perfmodel.core.trace import FormulaStep, Trace, plain
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.attention.algorithms.flash1 import paper_tile_edges
from perfmodel.kernels.attention.evaluate import AttentionResult, memory
from perfmodel.kernels.attention.io_bounds import COMPULSORY_SOURCE, THETA_SOURCE, compulsory_elements, theta

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
    """How every number of ``result`` (one pass) comes about; each step rests on earlier ones."""
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
    """The tile as symbols; B_c and B_r as their formulas where M set them."""
    if tile is None:
        return Tile(1, 1)
    by_sram = None if m is None else paper_tile_edges(w, m)
    for br, bc in by_sram or ():
        if (plain(br), plain(bc)) == (tile.br, tile.bc) and tile.origin.startswith("B_c"):
            columns = trace.define("B_c", "tile columns", bc, f"Dao et al. 2022, Algorithm 1, line 1: {tile.origin}")
            rows = trace.define("B_r", "tile rows", minimum(columns, w.d), "Dao et al. 2022, Algorithm 1, line 1")
            named_edges: dict[str, Any] = {"br": rows, "bc": columns}
            return replace(tile, **named_edges)
    edges: dict[str, Any] = {
        "br": trace.symbol("B_r", tile.br, "tile rows", tile.origin),
        "bc": trace.symbol("B_c", tile.bc, "tile columns", tile.origin),
    }
    return replace(tile, **edges)
