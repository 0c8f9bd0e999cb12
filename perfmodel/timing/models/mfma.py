"""Fused attention on AMD's CDNA GPUs: blocks of several waves of 64 that multiply by MFMA instructions, one block a CU.

Forward, a block keeps rows of Q and visits tiles of K and V; backward, it keeps keys and visits tiles of Q and dO. Waves do not hide each
other's exponentials behind matmuls: a tile's parts add up. Q, K, V and O pass DRAM while blocks compute. Backward, all blocks of a round
load and store their keys at once, so DRAM adds to the time. A kernel before the backward one sums O dO, and one after it reorders or
converts dQ; AITER has another one that sums dK and dV of grouped heads.

HipKittens starts one block of each head in turn; backward a block takes all query heads of a KV head and writes dQ by atomics in bf16.
AITER's kernels are assembly, with dQ in fp32; under a causal mask a block has a long and a short tile row. Its d = 64 forward kernel is
CK's, and so, presumably, is its backward one over grouped heads. There each step of 16 queries is a chain of five dependent matmuls that
four waves cannot hide. Masks slow both.

Source: HazyResearch/HipKittens @f09e968 analysis/attn (sizes, grids, how it was timed); ROCm/aiter @4f126195 hsa/gfx950/fmha_v3_fwd and
fmha_v3_bwd (ts_qo, ts_kv, grids), aiter/ops/mha.py; ROCm/composable_kernel example/ck_tile/01_fmha/codegen/ops (tile sizes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from perfmodel.core.dtypes import ACTIVATION_SIZE
from perfmodel.core.errors import UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.timing.base import Case, Model, never, plain_attention
from perfmodel.timing.engine import TileBlocks, TileRates, beside_dram, rates_of
from perfmodel.timing.models._attention_grid import AttentionLaunch, Walk, grid_of_walk, keys_walk, rows_walk

SUMS_SIZE = {"hipkittens": 2, "aiter": 4}  # known
"""Bytes of an element of dQ while it is added up."""
KEEPS_ASSEMBLY = ("aiter-4warps", "aiter-8warps")
"""Names of AITER as timed beside HipKittens' kernels of four and of eight waves, with assembly for grouped heads too."""
HEAD_DIMS = {FORWARD: (64, 128), BACKWARD: (128,)}  # known


def library(implementation: str) -> str:
    """``hipkittens`` or ``aiter``."""
    return implementation.partition("-")[0]


def is_ck(case: Case) -> bool:
    """Whether the kernel is CK's."""
    w = case.workload
    grouped = w.group > 1 and case.implementation not in KEEPS_ASSEMBLY
    return library(case.implementation) == "aiter" and (grouped if case.direction == BACKWARD else w.d <= 64)


def launch_of(case: Case, device: Device) -> AttentionLaunch:
    """The launch. The ``section`` heads of a launch start one block each in turn.

    HipKittens' backward blocks begin with the longest over all batches if K and V fit the last cache, else batch after batch.
    """
    w: Attention = case.workload
    ck, hipkittens = is_ck(case), library(case.implementation) == "hipkittens"
    if case.direction == FORWARD:
        section = w.heads if hipkittens or ck else 1
        return AttentionLaunch(128 if ck else 256, 64, 32, group=section, section=section)
    if hipkittens:
        kept = w.stored_kv_heads * w.kv_len * (w.d + w.dv) * w.dtype.size <= (device.cache_bytes or 0)
        section = int(w.stored_kv_heads if kept else w.kv_heads)
        return AttentionLaunch(64, 256, 64, packed=True, group=section, section=section)
    return AttentionLaunch(16, 128 if ck else 256, 64)


def has_tile_pairs(case: Case) -> bool:
    """Whether a block has a long and a short tile row: in AITER's assembly under a causal mask."""
    return bool(case.workload.causal) and library(case.implementation) == "aiter" and not is_ck(case)


def in_pairs(walk: Walk) -> Walk:
    """``walk`` with blocks joined in pairs: the first with the last, the second with the last but one, and so on; a middle one is alone."""
    last = walk.count - 1
    return Walk(walk.count - walk.count // 2, walk.total, lambda i: (sum(sum(walk.tiles(j)) for j in {i, last - i}),))


@dataclass(frozen=True, slots=True)
class _Work:
    """A case on a device before any parameter: of a tile, cycles of its matmuls and exponentials; bytes of main kernel and side kernels."""

    rates: TileRates
    grid: TileBlocks
    matmul_cycles: float
    exp_cycles: float
    main_bytes: float
    side_bytes: float


@cached_by_identity
def _work(case: Case, device: Device) -> _Work:
    w: Attention = case.workload
    if device.vendor != "AMD":
        raise UnavailableError(f"{case.implementation} is a kernel for AMD GPUs: what stands for it on {device.id} is not known")
    rates, launch = rates_of(device, w.dtype.name), launch_of(case, device)
    packed = replace(w, packed=launch.packed)
    walk = (rows_walk if case.direction == FORWARD else keys_walk)(packed, launch)
    walk = in_pairs(walk) if has_tile_pairs(case) else walk
    matmuls = 5 if case.direction == BACKWARD else 2
    tile_flop = 2 * launch.br * launch.bc * matmuls * w.d
    loaded_bytes = tile_flop * w.dtype.size / (2 * launch.rows)
    main_bytes, side_bytes = _moved_bytes(w, case)
    return _Work(
        rates,
        grid_of_walk(walk, int(packed.row_heads), launch, rates.sms),
        matmul_cycles=max(tile_flop / rates.matmul, loaded_bytes / rates.sram),
        exp_cycles=launch.br * launch.bc / rates.exp,
        main_bytes=main_bytes,
        side_bytes=side_bytes,
    )


def _moved_bytes(w: Attention, case: Case) -> tuple[float, float]:
    """(bytes of the main kernel, bytes of the kernels beside it)."""
    rows, keys, size = w.query_heads * w.n * w.d, w.stored_kv_heads * w.kv_len * w.d, w.dtype.size
    if case.direction == FORWARD:
        return 2 * (rows + keys) * size, 0
    hipkittens = library(case.implementation) == "hipkittens"
    gradients = keys if hipkittens else keys * w.group
    sum_bytes = rows * SUMS_SIZE[library(case.implementation)]
    zeroed_bytes = 0 if hipkittens else sum_bytes
    head_sum_bytes = 0 if hipkittens or w.group == 1 else 2 * (gradients + keys) * size
    main_bytes = 2 * (rows + keys + gradients) * size + 2 * sum_bytes
    side_bytes = 3 * rows * size + sum_bytes + zeroed_bytes + head_sum_bytes
    return main_bytes, side_bytes


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call with all its kernels; UnavailableError if the profile lacks a number, or it is no AMD device."""
    work, ck = _work(case, device), is_ck(case)
    backward = case.direction == BACKWARD
    softmax_cycles = p["softmax"] * work.exp_cycles * (2 if backward else 1)
    tile_cycles = p["matmul"] * work.matmul_cycles + softmax_cycles + (p["ck_step_cycles"] if ck and backward else 0.0)
    tile_cycles *= 1 + p["masked"] * (case.workload.causal and (ck or backward))
    compute_s = work.grid.cycles(tile_cycles, p["block_cycles"]) / work.rates.clock_hz
    dram_s, side_s = work.main_bytes * work.rates.byte_s(p["dram"]), work.side_bytes * work.rates.byte_s(p["dram"])
    main_s = compute_s + dram_s if backward else beside_dram(compute_s, dram_s, cold=True)
    return p["launch_us"] * 1e-6 + side_s + main_s


def _covers(case: Case, direction: str) -> bool:
    w = case.workload
    if not plain_attention(case, "sparsity", "dropout", "mask", "window") or case.direction != direction:
        return False
    return bool(w.dtype.size == ACTIVATION_SIZE and w.n == w.kv_len > 1 and w.d == w.dv and w.d in HEAD_DIMS[direction])


def covers_forward(case: Case) -> bool:
    """Self-attention in 16 bits, forward, of head dim 64 or 128."""
    return _covers(case, FORWARD)


def covers_backward(case: Case) -> bool:
    """Self-attention in 16 bits, backward, of head dim 128."""
    return _covers(case, BACKWARD)


_VARIANTS = ("hipkittens-4warps", "hipkittens-8warps", *KEEPS_ASSEMBLY)
_SOURCE = "HazyResearch/HipKittens @f09e968 analysis/attn; ROCm/aiter; ROCm/composable_kernel; list scheduling, Graham 1966"
_ASSUMES = "inputs not in the caches; the host's start of a call counts, as where it is timed by events around one call"
MODELS = {
    name: Model(
        name,
        "attention",
        covered,
        seconds,
        _SOURCE,
        assumes=_ASSUMES,
        implementations=("aiter", "hipkittens", *variants),
        knows_warm=never,
        from_tables=True,
    )
    for name, covered, variants in (("mfma-forward", covers_forward, ()), ("mfma-backward", covers_backward, _VARIANTS))
}
