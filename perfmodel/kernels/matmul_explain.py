"""Explanation of a matrix product: each number with its formula."""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.core.cost import Tile, memory_bytes
from perfmodel.core.explain import explain_kernels, sourced, with_symbols
from perfmodel.core.occupancy import SOURCE as OCCUPANCY_SOURCE
from perfmodel.core.occupancy import ThreadBlock, mark, multiprocessor, occupancy
from perfmodel.core.trace import FormulaStep, Trace
from perfmodel.kernels.matmul import (
    BOUND_SOURCE,
    COMPULSORY_SOURCE,
    MEMORY_SOURCE,
    SOURCE,
    MatmulResult,
    extra_memory_bytes,
    in_bytes,
    io_lower_bound,
    minimum_elements,
    minimum_intensity,
    tile_quantization,
    tile_reuse,
    tiled_loads,
    wave_count,
    wave_quantization,
)
from perfmodel.kernels.tile import slices_bytes, tile_block

_SYMBOLS = {
    "m": ("m", "rows of A and C"),
    "n": ("n", "columns of B and C"),
    "k": ("k", "columns of A, rows of B"),
    "batch": ("b", "matmuls"),
    "split_k": ("s", "blocks that share a tile"),
}


def explain(result: MatmulResult) -> list[FormulaStep]:
    """The formula of every number of ``result``, as steps; a step uses the results of earlier ones."""
    trace, tile = Trace(), result.tile
    w = with_symbols(trace, result.workload, _SYMBOLS)
    rows: Number = trace.symbol("B_m", tile.br, "tile rows", tile.origin)
    columns: Number = trace.symbol("B_n", tile.bc, "tile columns", tile.origin)
    tile = tile._replace(br=rows, bc=columns)
    slots = _explain_slots(trace, tile, result)
    listed = explain_kernels(trace, w.kernels(tile), result.device, w.dtype)
    trace.define("memory", "bytes", memory_bytes(listed), MEMORY_SOURCE)
    trace.define("extra memory", "bytes beyond A, B and C", extra_memory_bytes(w), MEMORY_SOURCE)
    minimum = trace.define("minimum traffic", "elements, each operand moved once", minimum_elements(w), COMPULSORY_SOURCE)
    trace.define("minimum traffic in B", "B", in_bytes(w, minimum), COMPULSORY_SOURCE)
    trace.define("intensity, minimum traffic", "FLOP/B", minimum_intensity(w))
    tiled = trace.define("tiled traffic", "elements, without the partial sums of split-k", tiled_loads(w, tile) + w.outputs)
    trace.define("tile reuse", "loads without tiles over loads with them", tile_reuse(w, tile))
    trace.define("tile quantization", "share of the tiles' area that is C", tile_quantization(w, tile))
    launch = listed[0].launch
    if slots is not None and launch is not None:
        trace.define("waves", "waves of blocks", wave_count(launch.blocks, slots), SOURCE)
        trace.define("wave quantization", "share of the waves' slots that work", wave_quantization(launch.blocks, slots))
    sram = trace.symbol("M_sram", result.chip.sram, "B of SRAM per block", f"profile of {result.device.id}, or --sram")
    registers = trace.symbol("M_registers", result.chip.registers, "B of registers per multiprocessor", f"profile of {result.device.id}")
    fast = trace.define("M", "elements of fast memory", (sram + registers) / w.dtype.bytes, BOUND_SOURCE)
    bound = trace.define("IO lower bound", "elements", io_lower_bound(w, fast), BOUND_SOURCE)
    trace.define("minimum / bound", "ratio", minimum / bound, BOUND_SOURCE)
    trace.define("tiled / bound", "ratio", tiled / bound, BOUND_SOURCE)
    return sourced(trace, SOURCE)


def _explain_slots(trace: Trace, tile: Tile, result: MatmulResult) -> Number | None:
    """Slots by the occupancy of the tile, as steps of ``trace``; None if the profile has no limits."""
    if result.occupancy is None:
        return None
    device = result.device
    block = tile_block(result.tile, result.workload.dtype.bytes, device)
    registers = trace.symbol("registers", block.registers, "per thread, the most it can have", device.id) if block.registers else None
    threads = trace.symbol("threads", block.threads, "threads per block", "128 sums per thread, as in CUTLASS")
    sram = trace.define("SRAM of slices", "B per block", slices_bytes(tile, result.workload.dtype.bytes), SOURCE)
    sm = multiprocessor(device, trace)
    filled = occupancy(ThreadBlock(threads, registers, sram), sm)
    slots = trace.define("slots", "blocks that run at once", sm.count * filled.blocks)
    mark(trace, OCCUPANCY_SOURCE)
    return slots
