"""Time of fused attention on AMD's CDNA GPUs: blocks of several waves of 64 that multiply by MFMA instructions, one block a CU.

Forward, a block keeps rows of Q and visits tiles of K and V; backward, it keeps keys and visits tiles of Q and dO. Waves do not hide
each other's exponentials behind matmuls: a tile's parts add up. Both models take cycles and shares of peaks from the profile.

mfma-attention, forward, has three parameters. Q, K, V and O pass DRAM while blocks compute.

mfma-gradients, backward, has one: three shapes of each kernel were published, which do not tell more. What it leaves open is that of the
forward pass, or chosen on those rows. All blocks of a round load and store their keys at once, so what passes DRAM adds to the time.
Before it runs a kernel for the row sums of O dO, after it one that brings dQ into its order or its format; AITER adds up dK and dV of
grouped heads by a further one.

HipKittens' kernels write dQ by atomics in bf16, and their blocks take all query heads of a KV head. AITER's are assembly, with dQ
in fp32. Its d = 64 forward kernel is CK's. Backward over grouped heads, the version published beside HipKittens' best kernels takes
twice the time of the one published beside the others: it is supposed to have fallen back to CK, whose steps of 16 queries are each a
chain of five dependent matmuls that four waves cannot hide. Masks slow both kernels of CK alike.

Source: HazyResearch/HipKittens @f09e968 analysis/attn (sizes, grids, how it was timed); ROCm/aiter @4f126195 hsa/gfx950/fmha_v3_fwd and
fmha_v3_bwd (ts_qo, ts_kv, grids), aiter/ops/mha.py; ROCm/composable_kernel example/ck_tile/01_fmha/codegen/ops (tile sizes). Chosen on
one MI355X.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import hypot

from perfmodel.core.dtypes import ACTIVATION_SIZE
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.kernels.attention.walk import key_tiles, row_tiles
from perfmodel.timing.base import Case, Model, Parameter, once_per_case, plain_attention
from perfmodel.timing.models._flash_blocks import (
    ROUNDS,
    FlashPlan,
    TileBlocks,
    equal_cycles,
    key_tile_visits,
    listed_cycles,
    row_tile_visits,
)
from perfmodel.timing.models.flash_prefill import FlashRates, rates_of

PARAMETERS = (
    Parameter("block_cycles", "cycles of a block besides its tiles"),
    Parameter("matmul", "cycles of a tile's matmuls over those that MFMA needs, operands coming from LDS"),
    Parameter("softmax", "cycles of a tile's other work over those of its exponentials"),
)

BACKWARD_BLOCK_CYCLES, BACKWARD_SOFTMAX = 16000.0, 6.0  # tuned
"""What the backward shapes leave open: a block besides its tiles, as forward; other work of a tile (P, dP, dS), by its exponentials."""
DRAM = 1.3  # tuned
"""Time of bytes that pass the memory pins over that at the nominal bandwidth."""
MASKED = 1.12  # tuned
"""Backward: a tile under a causal mask over one without, whose blocks meet the same rows at the same time."""
CK, CK_MASKED, CK_STEP_CYCLES = 1.12, 1.45, 2700.0  # tuned
"""CK: a forward tile over AITER's own; any tile under a causal mask; cycles of a backward step besides its work."""
START_US = {"hipkittens": 10.0, "aiter": 25.0}  # tuned
"""From the event before a call to the first kernel: a function of C++, or a layer of Python over it."""
BACKWARD_START_US = {"hipkittens": 15.0, "aiter": 60.0}  # tuned
"""The same backward: two more kernels of HipKittens, PyTorch's autograd over AITER's."""
HEAD_DIMS = {FORWARD: (64, 128), BACKWARD: (128,)}  # known
SUMS_SIZE = {"hipkittens": 2, "aiter": 4}  # known
"""Bytes of an element of dQ while it is added up."""
KEEPS_ASSEMBLY = ("aiter-4warps", "aiter-8warps")
"""AITER as timed beside HipKittens' kernels of four and of eight waves: with assembly for grouped heads, too."""


@dataclass(frozen=True, slots=True)
class _Launch:
    """A kernel's launch: its ``plan``; ``together``: heads of which the blocks are launched one of each in turn; ``pairs`` of a long and a
    short tile row under a causal mask, a block each. ``slower``: a tile over that of the parameters; ``step_cycles`` more.
    """

    plan: FlashPlan
    together: int = 1
    pairs: bool = False
    slower: float = 1.0
    step_cycles: float = 0.0


def library(implementation: str) -> str:
    """``hipkittens`` or ``aiter``."""
    return implementation.partition("-")[0]


def launch_of(case: Case, device: Device) -> _Launch:
    """HipKittens' backward blocks begin with the longest of all batches while K and V fit the last cache, else batch after batch."""
    w: Attention = case.workload
    own = library(case.implementation) == "hipkittens"
    kept = w.stored_kv_heads * w.kv_len * (w.d + w.dv) * w.dtype.size <= (device.cache_bytes or 0)
    if case.direction == FORWARD:
        if own or w.d > 64:
            return _Launch(FlashPlan(256, 64, fragment=32), together=w.heads if own else 1, pairs=w.causal and not own)
        return _Launch(FlashPlan(128, 64, fragment=32), together=w.heads, slower=CK * (CK_MASKED if w.causal else 1))
    masked = MASKED if w.causal else 1.0
    if own:
        together = int(w.stored_kv_heads if kept else w.kv_heads)
        return _Launch(FlashPlan(64, 256, fragment=64, packed=True), together=together, slower=masked)
    if w.group > 1 and case.implementation not in KEEPS_ASSEMBLY:
        return _Launch(FlashPlan(16, 128, fragment=64), slower=CK_MASKED if w.causal else 1.0, step_cycles=CK_STEP_CYCLES)
    return _Launch(FlashPlan(16, 256, fragment=64), pairs=w.causal, slower=masked)


def _visits(w: Attention, launch: _Launch, direction: str) -> list[int]:
    """Tiles of each block of one head, in the order of their launch."""
    plan = launch.plan
    if direction == FORWARD:
        found = [row_tile_visits(w, plan, i) for i in range(int(row_tiles(w, plan.br)))]
    else:
        found = [key_tile_visits(w, plan, j) for j in range(int(key_tiles(w, plan.bc)))]
    if not launch.pairs:
        return found
    half = len(found) // 2
    return [*map(sum, zip(found[:half], found[: -half - 1 : -1], strict=True)), *found[half : len(found) - half]]


def blocks_of(w: Attention, launch: _Launch, direction: str, cus: int) -> TileBlocks:
    """The blocks of the main kernel, one on each of ``cus``."""
    walk = replace(w, packed=launch.plan.packed)
    visits, heads = _visits(walk, launch, direction), int(w.stored_kv_heads if launch.plan.packed else w.query_heads)
    period = [each for each in visits for _ in range(launch.together)]
    count = heads * len(visits)
    last = tuple(period[i % len(period)] for i in range(max(0, count - ROUNDS * cus), count))
    return TileBlocks(last, count - len(last), heads * sum(visits) - sum(last), cus, 1)


@dataclass(frozen=True, slots=True)
class _MfmaWork:
    """A case on a device before any parameter. ``moved``: bytes of the main kernel, ``beside`` of the others."""

    rates: FlashRates
    launch: _Launch
    blocks: TileBlocks
    moved: float
    beside: float


@once_per_case
def _work(case: Case, device: Device) -> _MfmaWork:
    w: Attention = case.workload
    if device.vendor != "AMD":
        raise UnavailableError(f"{case.implementation} is a kernel for AMD GPUs: what stands for it on {device.id} is not known")
    rates, launch = rates_of(device, w.dtype.name), launch_of(case, device)
    moved, beside = _bytes(w, case)
    return _MfmaWork(rates, launch, blocks_of(w, launch, case.direction, rates.sms), moved, beside)


def _bytes(w: Attention, case: Case) -> tuple[float, float]:
    """Of the main kernel and of those beside it."""
    rows, keys, size = w.query_heads * w.n * w.d, w.stored_kv_heads * w.kv_len * w.d, w.dtype.size
    if case.direction == FORWARD:
        return 2 * (rows + keys) * size, 0
    own = library(case.implementation) == "hipkittens"
    gradients = keys if own else keys * w.group
    sums = rows * SUMS_SIZE[library(case.implementation)]
    zeroed = 0 if own else sums
    added = 0 if own or w.group == 1 else 2 * (gradients + keys) * size
    return 2 * (rows + keys + gradients) * size + 2 * sums, 3 * rows * size + sums + zeroed + added


def _tile_cycles(case: Case, work: _MfmaWork, matmul: float, softmax: float) -> float:
    """Cycles of a tile on its CU, in the mean."""
    plan, rates, w = work.launch.plan, work.rates, case.workload
    scores = plan.br * plan.bc
    flop = 2 * scores * (5 if case.direction == BACKWARD else 2) * w.d
    fed = flop * w.dtype.size / (2 * plan.fragment * rates.sram)
    cycles = matmul * hypot(flop / rates.matmul, fed) + softmax * scores / rates.exp + work.launch.step_cycles
    return float(cycles * work.launch.slower)


def _main_s(case: Case, work: _MfmaWork, tile: float, block: float) -> float:
    """Seconds of the main kernel's blocks."""
    uneven = case.workload.causal and not work.launch.pairs
    return (listed_cycles if uneven else equal_cycles)(work.blocks, tile, block, 1.0) / work.rates.clock_hz


def forward_s(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call; UnavailableError if the profile lacks a number, or it is no AMD device."""
    work = _work(case, device)
    computing = _main_s(case, work, _tile_cycles(case, work, p["matmul"], p["softmax"]), p["block_cycles"])
    return START_US[library(case.implementation)] * 1e-6 + hypot(computing, DRAM * work.moved / work.rates.bandwidth)


def backward_s(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call with all its kernels; UnavailableError as forward."""
    work = _work(case, device)
    computing = _main_s(case, work, _tile_cycles(case, work, p["matmul"], BACKWARD_SOFTMAX), BACKWARD_BLOCK_CYCLES)
    moving = DRAM * (work.moved + work.beside) / work.rates.bandwidth
    return BACKWARD_START_US[library(case.implementation)] * 1e-6 + computing + moving


def _covers(case: Case, direction: str) -> bool:
    """Self-attention in 16 bits over a head dim that the kernels have: 64 or 128 forward, 128 backward."""
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
_LISTED = (
    Model(
        "mfma-attention",
        PARAMETERS,
        covers_forward,
        forward_s,
        _SOURCE,
        _ASSUMES,
        ("aiter", "hipkittens"),
        knows_warm=False,
        from_tables=True,
    ),
    Model(
        "mfma-gradients",
        tuple(one for one in PARAMETERS if one.name == "matmul"),
        covers_backward,
        backward_s,
        _SOURCE,
        _ASSUMES,
        ("aiter", "hipkittens", *_VARIANTS),
        knows_warm=False,
        from_tables=True,
    ),
)
MODELS = {model.name: model for model in _LISTED}
