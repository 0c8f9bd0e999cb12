"""Routed experts: tokens sorted by expert, gate and up for every touched expert in one grouped matmul, down in another, the sum.

A grouped matmul walks the tiles of all experts; an expert's rows are padded to its tiles, whose height depends on the number of rows.
Weights come from DRAM once, the faster the more multiprocessors have a tile, while others multiply. Each tile has a start and an end, which
dominate with many narrow experts, as under tensor parallelism. Activations pass through memory between the kernels. Source:
vllm-project/vllm, fused_moe.py (block sizes by tokens and experts, kernels of a layer); flashinfer-ai/flashinfer, trtllm_fused_moe.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.arith import ceil_div
from perfmodel.core.dtypes import ACTIVATION_SIZE
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.roofline import rates_of
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.experts import ACTIVATE, DOWN, SUM, UP, Experts, rows_per_expert, tiles
from perfmodel.timing.base import ALONE, Case, Model, numbers_of

LEAST_ROWS, MOST_ROWS, COLUMNS = 8, 128, 128  # known
"""Height and width of a tile."""
OVERLAP = 2.0  # tuned
"""Norm that joins multiplication and weights: 1 would add them, infinity take the longer one. Cross-validated."""


def tile_rows(rows: float) -> int:
    """Height of a tile for an expert with that many rows.

    >>> tile_rows(1), tile_rows(24), tile_rows(1000)
    (8, 32, 128)
    """
    return min(max(1 << (max(int(rows), 1) - 1).bit_length(), LEAST_ROWS), MOST_ROWS)


@dataclass(frozen=True, slots=True)
class _ExpertPart:
    """A part of a case on a device before any parameter: the bytes of activations that it moves and its grouped matmul, if it has one."""

    activation_bytes: float
    executed_flop: float = 0.0
    idle_factor: float = 1.0
    """By which multiprocessors without a tile lengthen the matmul."""
    weight_bytes: float = 0.0
    busy_share: float = 0.0
    """Multiprocessors with a tile over all."""
    waves: float = 0.0


@cached_by_identity
def _work(case: Case, device: Device) -> tuple[float, float, list[_ExpertPart]]:
    """DRAM bandwidth in B/s, FLOP/s, and the parts."""
    w: Experts = case.workload
    bandwidth, slots = numbers_of(device, "DRAM bandwidth", "multiprocessors")
    tokens, rows, hidden, width, size = float(w.tokens), float(w.rows), float(w.hidden), float(w.width), w.dtype.size
    moved = {
        UP: tokens * hidden * ACTIVATION_SIZE + rows * (hidden * size + 2 * width * ACTIVATION_SIZE),
        ACTIVATE: 3 * rows * width * ACTIVATION_SIZE,
        DOWN: rows * (width * size + hidden * ACTIVATION_SIZE),
        SUM: (rows + tokens) * hidden * ACTIVATION_SIZE,
    }
    sizes = {UP: (2 * width, hidden), DOWN: (hidden, width)}
    parts = [_matmul(w, moved[part], *sizes[part], slots) if part in sizes else _ExpertPart(moved[part]) for part in w.parts]
    return bandwidth, float(rates_of(device, w.dtype).matmul), parts


def _matmul(w: Experts, moved: float, columns: float, depth: float, slots: float) -> _ExpertPart:
    """A part with the grouped matmul of ``columns`` over ``depth`` on ``slots`` multiprocessors."""
    rows, touched = rows_per_expert(w), float(w.touched)
    height = tile_rows(rows)
    filled = float(tiles(w, height))
    blocks = filled * ceil_div(columns, COLUMNS)
    return _ExpertPart(
        moved,
        executed_flop=2 * filled * height * columns * depth,
        idle_factor=max(1.0, slots / blocks),
        weight_bytes=touched * columns * depth * w.element_bytes,
        busy_share=min(blocks / slots, 1.0),
        waves=max(blocks / slots, 1.0),
    )


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of the kernels of ``case.workload`` over all tokens; UnavailableError without DRAM bandwidth, multiprocessors or a peak."""
    bandwidth, peak, parts = _work(case, device)
    half, launch_s, tile_s = p["half_bandwidth_share"], p["launch_us"] * 1e-6, p["tile_us"] * 1e-6

    def matmul_s(part: _ExpertPart) -> float:
        multiply_s = part.executed_flop / (peak * p["compute_share"]) * part.idle_factor
        weights_s = part.weight_bytes / (bandwidth * p["dram_share"]) * (part.busy_share + half) / (part.busy_share * (1 + half))
        total: float = (multiply_s**OVERLAP + weights_s**OVERLAP) ** (1 / OVERLAP) + part.waves * tile_s
        return total

    activation_rate = bandwidth * p["activation_share"]
    return sum(launch_s + part.activation_bytes / activation_rate + (matmul_s(part) if part.busy_share else 0.0) for part in parts)


def covers(case: Case) -> bool:
    """Routed, gated experts with products in fp16 or bf16, forward."""
    return isinstance(case.workload, Experts) and case.direction == FORWARD and case.workload.dtype.name in ("fp16", "bf16")


def covers_narrow(case: Case) -> bool:
    """Routed, gated experts with products in fp8 or fp4, forward."""
    return isinstance(case.workload, Experts) and case.direction == FORWARD and case.workload.dtype.name in ("fp8", "fp4")


IMPLEMENTATIONS = (
    *("triton-moe", "trtllm-moe", "cutlass-moe", "sglang-triton-moe", "vllm-fused-moe"),
    *("marlin-moe", "triton-mxfp4-moe", "trtllm-mxfp4-moe", "trtllm-fp4-moe"),
)
"""Implementations, with the format of the weights if they are made for one."""
MODELS = {
    name: Model(
        name,
        "experts",
        covered,
        seconds,
        "grouped matmuls: padded tiles over streamed weights",
        assumes=f"{ALONE}; tokens already sorted to experts as the shape says",
        implementations=IMPLEMENTATIONS,
    )
    for name, covered in (("experts", covers), ("experts-narrow", covers_narrow))
}
