"""Attention in fp32 with K and V outermost: numba-flash1, forward.

One block per head visits every pair of a key tile and a query tile that sees it. A pair costs what it costs numba-flash, with
Q copied in place of K and V, and each time anew what numba-flash waits once per block to load Q and store O; beside that O
comes from L2 and goes back. O, l and m are filled by three kernels before.
Source: the kernel's own loops; Dao et al. 2022, arXiv 2205.14135, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from perfmodel.core.arith import ceil_div
from perfmodel.core.hardware import Device
from perfmodel.core.occupancy import ThreadBlock
from perfmodel.core.workload import Attention
from perfmodel.timing.base import Case, Model, Parameter, dram_bandwidth
from perfmodel.timing.models import register_tiles
from perfmodel.timing.models.register_tiles import (
    FLOAT_BYTES,
    UNKNOWN_REGISTERS,
    Instructions,
    grid_seconds,
    instruction_costs,
    instructions,
    launched_shape,
    launches_seconds,
    tile_cycles,
)

PARAMETERS = (Parameter("l2_bytes_per_clock", "of O, to and from one multiprocessor", 20.0),)


def visits(w: Attention, br: int, bc: int) -> int:
    """Pairs of a key tile and a query tile that sees it, for one head.

    >>> visits(Attention(n=300, kv_len=300, d=64, dv=64, causal=True), 128, 128)
    6
    """
    rows = int(ceil_div(w.n, br))
    if not w.causal:
        return rows * int(ceil_div(w.kv_len, bc))
    hidden = w.kv_len - w.n
    return sum(rows - max(0, begin - hidden) // br for begin in range(0, int(w.kv_len), bc))


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds; UnavailableError without a calibration of numba-flash, or a number that it needs."""
    w: Attention = case.workload
    costs = instruction_costs(device)
    shape = launched_shape(case)
    block = ThreadBlock(shape.threads, case.launch.get("registers", UNKNOWN_REGISTERS), shape.shared_bytes + 2 * shape.br * FLOAT_BYTES)
    visit = replace(instructions(shape), copies=shape.br * shape.d / 4 / shape.threads)
    key_tile = Instructions(0, 0, 0, 0, 2 * shape.bc * shape.d / 4 / shape.threads)
    waits = costs["block_cycles"] + 2 * shape.br * shape.d * FLOAT_BYTES / p["l2_bytes_per_clock"]
    pairs, key_tiles = visits(w, shape.br, shape.bc), ceil_div(w.kv_len, shape.bc)

    def cycles(_: int, warps: float) -> float:
        return float(pairs * (tile_cycles(visit, warps, costs) + waits) + key_tiles * tile_cycles(key_tile, warps, costs))

    filled = w.query_heads * w.n * (w.d + 2) * FLOAT_BYTES / dram_bandwidth(device)
    return float(launches_seconds(4, device, costs) + filled + grid_seconds(cycles, int(w.query_heads), block, device))


MODEL = Model(
    "numba-flash1",
    PARAMETERS,
    register_tiles.covers,
    seconds,
    "instructions of the kernel's loops",
    implementations=("numba-flash1",),
    composite=True,
)
