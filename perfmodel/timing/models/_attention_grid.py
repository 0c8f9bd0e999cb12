"""Time models of fused attention kernels: blocks, tiles and bytes are counted from a library's launch, the same way for every library.

A library's file gives the launch rule (``AttentionLaunch``) and further terms of its kernel (``Stage``); ``page``, at the end, makes the
model of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import islice, repeat
from math import hypot, inf
from typing import Any, NamedTuple

from perfmodel.core import architectures
from perfmodel.core.architectures import traits_of
from perfmodel.core.arith import ceil_div, clipped_floor_sum
from perfmodel.core.cache import scan_limits
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.kernels.attention.walk import key_tiles, row_tiles, visited_tiles
from perfmodel.timing.base import ALONE, CLEAN, WARM, Case, Model, lost_share, plain_attention
from perfmodel.timing.engine import ALONE as ALONE_CYCLES
from perfmodel.timing.engine import HARDEST, ROUNDS, TileBlocks, TileRates, beside_dram, joined, rates_of

_HEAD_DIMS = (32, 64, 96, 128, 192, 256)  # known
WIDEST = max(_HEAD_DIMS)  # known
MMA_ROWS, WGMMA, TCGEN05 = 16, 64, 128  # known
"""Rows of the left operand that one read of the right operand from shared memory serves: in mma.sync of a warp, wgmma, and tcgen05."""
IN_TURN, ASYNCHRONOUS, PING_PONG = 1.0, 2.0, 3.0  # tuned
"""Norm in which a tile's matmuls and its other work add up. Warps wait for mma.sync. wgmma runs beside a warpgroup's other work, which
needs its results. A block for tcgen05 has two tiles, one of which is multiplied while the other is worked on."""
FED = 3.0  # tuned
"""Norm in which mma.sync and the warps' reads of operands from shared memory add up; newer instructions read operands themselves."""
MMA_SYNC_FLOP = 0.629 * 4096  # known
"""FLOP per cycle and multiprocessor that mma.sync reaches in two-byte formats on devices whose newer instructions reach more.

It is 62.9 % of Hopper's peak (arXiv:2402.13499), and assumed not to grow later. Ampere's peak is lower, and mma.sync reaches it."""
FP32 = 4  # known
"""Bytes of an element of partial results and of dQ while it is added up."""
FOUR_WARPS = 128  # known
"""Threads of the blocks for which the parameter ``alone`` is fitted; more threads hide more of their own latencies."""
COPY_THREADS = 512  # known
"""Most threads of a block that copies one token of K and V: vllm csrc/cache_kernels.cu, reshape_and_cache_flash."""


class AttentionLaunch(NamedTuple):
    """Launch of a library's main kernel.

    - ``br`` x ``bc``: tile of query rows by keys. ``threads``: threads of a block. ``resident``: blocks per multiprocessor.
    - ``rows``: rows that one read from shared memory serves, see MMA_ROWS. ``overlap``: norm in which matmuls and other work add up.
    - ``width``: head dim that the kernel is compiled for; 0: the next larger one of ``_HEAD_DIMS``.
    - ``splits``: blocks that share the key tiles of a row tile; with ``fixed_splits`` all keys are cut evenly, visible or not.
    - ``packed``: the query heads of a KV head share their blocks. ``by_head``: one block does all tiles of a head.
    - ``paired``: the number of key tiles of a head is rounded up to a multiple of this.
    - Order of the blocks: heads come in groups of ``group``, which are cut into sections of ``section`` heads that advance together.
      ``longest_first``: each head begins with its last row tile.
    - ``side_kernels``: number of kernels beside the main one. ``writes_cache``: the call first copies K and V into a paged cache.
    - ``rounded``: dQ is added up in whole row tiles of the kernel's head dim, and PyTorch sums dK and dV over query heads.
    """

    br: int
    bc: int
    rows: float = MMA_ROWS
    overlap: float = IN_TURN
    resident: int = 1
    threads: int = 128
    width: int = 0
    splits: int = 1
    fixed_splits: bool = False
    packed: bool = False
    group: int = 1
    section: int = 1
    longest_first: bool = False
    paired: int = 1
    by_head: bool = False
    side_kernels: int = 0
    writes_cache: bool = False
    rounded: bool = False

    def widths(self, w: Attention) -> tuple[int, int]:
        """Head dims of K and V that the kernel computes."""
        return self.width or padded(w.d), self.width or padded(w.dv)


LaunchRule = Callable[[Case, Device], AttentionLaunch]


def padded(d: int) -> int:
    """The head dim for which a kernel is compiled."""
    return next((dim for dim in _HEAD_DIMS if dim >= d), d)


def matrix_rows(device: Device) -> float:
    """MMA_ROWS, WGMMA or TCGEN05, for the fastest matrix instruction of ``device``."""
    return {architectures.WGMMA: WGMMA, architectures.TCGEN05: TCGEN05}.get(traits_of(device).matrix, MMA_ROWS)


def blackwell_launch(case: Case) -> AttentionLaunch:
    """Launch of TensorRT-LLM's context kernels, and presumably cuDNN's: two tiles of 128 queries up to head dim 128 (kernelMetaInfo.h)."""
    return AttentionLaunch(256 if padded(case.workload.d) <= 128 else 128, 128, TCGEN05, PING_PONG)


def multiprocessors_of(device: Device) -> int:
    """Multiprocessors of ``device``, 1 if its profile does not say."""
    return int(device.multiprocessors.number) if device.multiprocessors else 1


def resident_blocks(device: Device, br: int, bc: int, threads: int, w: Attention, shared_bytes: int | None = None) -> int:
    """Blocks that fit a multiprocessor, by registers (255 a thread) and by SRAM for Q, K and V tiles or the given ``shared_bytes``."""
    sram, registers = device.level("sram"), device.limits.registers_per_multiprocessor
    if shared_bytes is None:
        shared_bytes = w.dtype.size * (br * padded(w.d) + bc * (padded(w.d) + padded(w.dv)))
    by_sram = int(sram.capacity.number) // (shared_bytes + 1024) if sram and sram.capacity else 1
    by_registers = int(registers.number) // (256 * threads) if registers else 1
    return max(1, min(by_sram, by_registers))


# Blocks and their tiles


@dataclass(frozen=True, slots=True)
class Walk:
    """Blocks of one head, or of the query heads that share them, at ``count`` places: one row tile, or one block over key tiles, each.

    ``tiles(i)``: number of tiles of each block at place i, as a place has a block per split. ``total``: tiles of all blocks.
    """

    count: int
    total: int
    tiles: Callable[[int], tuple[int, ...]]


@lru_cache(maxsize=4096)
def grid_of(w: Attention, launch: AttentionLaunch, direction: str, sms: int) -> TileBlocks:
    """The blocks of the main kernel for a device with ``sms`` multiprocessors."""
    w = replace(w, packed=launch.packed)
    walk = rows_walk(w, launch) if direction == FORWARD else keys_walk(w, launch)
    if launch.by_head:
        total = walk.total
        walk = Walk(1, total, lambda _: (total,))
    return grid_of_walk(walk, int(w.row_heads), launch, sms)


def grid_of_walk(walk: Walk, walks: int, launch: AttentionLaunch, sms: int) -> TileBlocks:
    """The blocks of ``walks`` equal walks."""
    count, total = walks * walk.count * launch.splits, walks * walk.total
    listed = min(count, ROUNDS * sms * launch.resident)
    last = tuple(islice(_last_first(walk, walks, launch), listed))[::-1]
    return TileBlocks(last, count - len(last), total - sum(last), sms, launch.resident)


def _last_first(walk: Walk, walks: int, launch: AttentionLaunch) -> Iterator[int]:
    """Yields the tiles of every block, the last block to start first."""
    group, tiles = min(launch.group, walks), cache(walk.tiles)
    last_section = group % launch.section or launch.section
    places = range(walk.count) if launch.longest_first else range(walk.count - 1, -1, -1)
    for _ in range(walks // group):
        for section in range((group - 1) // launch.section + 1):  # from the last one
            heads = launch.section if section else last_section
            for place in places:
                for block_tiles in tiles(place):
                    yield from repeat(block_tiles, heads)


def rows_walk(w: Attention, launch: AttentionLaunch) -> Walk:
    """Walk over row tiles; each split of a row tile is a block."""
    count, keys, splits = int(row_tiles(w, launch.br)), key_tiles(w, launch.bc), launch.splits

    def tiles(place: int) -> tuple[int, ...]:
        visits = row_tile_visits(w, launch, place)
        most = -(-(keys if launch.fixed_splits else visits) // splits)
        return tuple(int(min(most, max(0, visits - split * most))) for split in range(splits))

    return Walk(count, int(visited_tiles(w, launch.br, launch.bc)), tiles)


def row_tile_visits(w: Attention, launch: AttentionLaunch, i: int) -> int:
    """Number of key tiles that row tile ``i`` visits."""
    if not w.causal:
        return int(key_tiles(w, launch.bc))
    shift, g = w.kv_len - w.n, w.row_group
    last_row = min((i + 1) * launch.br, g * w.n) - 1
    end = -(-(last_row // g + 1 + shift) // launch.bc)
    start = 0 if w.window is None else max(0, i * launch.br // g + shift + 1 - w.window) // launch.bc
    return int(max(0, min(end, key_tiles(w, launch.bc)) - start))


def keys_walk(w: Attention, launch: AttentionLaunch, parts: int = 0) -> Walk:
    """Walk over key tiles, one per block; with ``parts`` they are dealt out in turn to that many blocks.

    Key tiles past the end, which ``paired`` adds, visit row tiles too.
    """
    keys, total = int(key_tiles(w, launch.bc)), int(visited_tiles(w, launch.br, launch.bc))
    count = parts or int(ceil_div(keys, launch.paired)) * launch.paired

    def tiles(place: int) -> tuple[int, ...]:
        visits = key_tiles_visits(w, launch, place, count) if place < keys else _visits_past_the_end(w, launch, place)
        return (visits,)

    return Walk(count, total + sum(_visits_past_the_end(w, launch, place) for place in range(keys, count)), tiles)


def key_tiles_visits(w: Attention, launch: AttentionLaunch, first: int, step: int) -> int:
    """Number of row tiles that key tiles ``first``, ``first + step``, ... visit, while K and V of each stay in SRAM."""
    count, tiles, g = max(0, ceil_div(key_tiles(w, launch.bc) - first, step)), row_tiles(w, launch.br), w.row_group
    if not w.causal:
        return int(count * tiles)
    pitch, row = g * step * launch.bc, g * (first * launch.bc - w.kv_len + w.n)
    ends = count * tiles
    if w.window is not None:
        ends = clipped_floor_sum(count, pitch, row + g * (launch.bc + w.window - 1) + launch.br - 1, launch.br, 0, tiles)
    starts = clipped_floor_sum(count, pitch, row, launch.br, 0, tiles)
    return int(ends - starts)


def _visits_past_the_end(w: Attention, launch: AttentionLaunch, tile: int) -> int:
    """Number of row tiles that the key tile ``tile`` past the end visits."""
    start = max(0, w.row_group * (tile * launch.bc - w.kv_len + w.n)) // launch.br if w.causal else 0
    return int(max(0, row_tiles(w, launch.br) - start))


# Bytes


def tensor_bytes(w: Attention) -> tuple[int, int]:
    """Bytes of Q and O together, of K and V together."""
    return w.query_heads * w.n * (w.d + w.dv) * w.dtype.size, w.stored_kv_heads * w.kv_len * (w.d + w.dv) * w.dtype.size


def main_bytes(w: Attention, direction: str) -> int:
    """DRAM bytes of the main kernel, each tensor once. Backward: Q, dO, K, V; dQ read and written in fp32; dK and dV per query head."""
    row_bytes, key_bytes = tensor_bytes(w)
    if direction == FORWARD:
        return row_bytes + key_bytes
    key_gradients = w.query_heads * w.kv_len * (w.d + w.dv) * w.dtype.size
    query_gradients = 2 * w.query_heads * w.n * w.d * FP32
    return int(row_bytes + key_bytes + key_gradients + query_gradients)


def side_bytes(w: Attention, launch: AttentionLaunch, direction: str) -> int:
    """DRAM bytes of the kernels beside the main one.

    Forward they copy K and V into a cache, and combine splits. Backward they sum O dO over rows and zero dQ, convert dQ from fp32, and sum
    dK and dV of query heads.
    """
    _, key_bytes = tensor_bytes(w)
    if direction == FORWARD:
        combined = 2 * launch.splits * FP32 * w.query_heads * w.n * w.dv if launch.splits > 1 else 0
        return int(2 * key_bytes * launch.writes_cache + combined)
    in_elements = w.query_heads * w.n * (2 * w.dv + w.d) * w.dtype.size
    n, d = (ceil_div(w.n, launch.br) * launch.br, padded(w.d)) if launch.rounded else (w.n, w.d)
    group_sums = key_bytes * (w.group + 1) if w.group > 1 else 0
    return int(in_elements + 2 * w.query_heads * n * d * FP32 + group_sums)


# A case before any parameter


@dataclass(frozen=True, slots=True)
class Stage:
    """Terms that a library's kernel has beyond the counts.

    ``matmul`` (of a tile), ``other`` (work of a tile) and ``block`` (cycles of a block beyond its tiles) are multiplied by 1 + the sum of
    these terms: parameter, by name, times the number given here. ``done``: share of the matmuls of a tile that is computed.
    """

    matmul: Mapping[str, float] = field(default_factory=dict)
    other: Mapping[str, float] = field(default_factory=dict)
    block: Mapping[str, float] = field(default_factory=dict)
    done: float = 1.0


def _term_factor(p: Mapping[str, float], terms: Mapping[str, float]) -> float:
    return 1 + sum(p[name] * share for name, share in terms.items())


class AttentionWork(NamedTuple):
    """What a case does on a device, before any parameter.

    - Of a tile: cycles of ``matmul`` (the longer of instructions and reads of operands from shared memory), number of ``exps``, and all
      ``other`` work, counted in exponentials: one per score, backward two (P, then dS).
    - ``moved``: bytes of the main kernel. ``side_bytes``: bytes of the kernels beside it. ``side_waves``: rounds of their blocks, one after
      another.
    - ``lost``: share of bytes that the L2 does not hold. ``cold``: whether the main kernel starts on cold caches.
    """

    rates: TileRates
    launch: AttentionLaunch
    grid: TileBlocks
    matmul: float
    exps: float
    other: float
    moved: int
    side_bytes: int
    side_waves: float
    lost: float
    cold: bool

    def cycles(self, p: Mapping[str, float], stage: Stage) -> float:
        """Cycles of the main kernel without its bytes, with the terms of ``stage``."""
        matmul = p["matmul"] * (stage.done * _term_factor(p, stage.matmul)) * self.matmul
        other = self.rates.exp_cycles(p["softmax"] * _term_factor(p, stage.other) * self.other, self.exps)
        block = p["block_cycles"] * _term_factor(p, stage.block)
        alone = p["alone"] * FOUR_WARPS / self.launch.threads if "alone" in p else ALONE_CYCLES
        return self.grid.cycles(joined(self.launch.overlap, matmul, other), block, alone)

    def seconds(self, p: Mapping[str, float], stage: Stage) -> float:
        """Seconds of the call: launch, kernels beside the main one, and the main one, whose cycles overlap with its bytes."""
        byte_s, clock = self.rates.byte_s(p["dram"], self.lost), self.rates.clock_hz
        side_s = self.side_waves * p["side_block_cycles"] / clock if self.side_waves else 0.0
        main_s = beside_dram(self.cycles(p, stage) / clock, self.moved * byte_s, self.cold)
        return p["launch_us"] * 1e-6 + side_s + self.side_bytes * byte_s + main_s


@cached_by_identity
def work_of(case: Case, device: Device, launch_of: LaunchRule) -> AttentionWork:
    """``case`` on ``device`` with the launch of ``launch_of``; UnavailableError if a kernel or a number of the profile is missing."""
    w: Attention = case.workload
    rates, launch = rates_of(device, w.dtype.name), with_tile(case, device, launch_of)
    (d, dv), scores = launch.widths(w), launch.br * launch.bc
    flop = 2 * scores * (d + dv if case.direction == FORWARD else 3 * d + 2 * dv)
    read_cycles = flop * w.dtype.size / (2 * launch.rows) / rates.sram
    if launch.rows < WGMMA:
        slowdown = max(1.0, rates.matmul * w.dtype.size / 2 / MMA_SYNC_FLOP)  # of mma.sync, against the peak
        matmul = joined(FED, slowdown * flop / rates.matmul, read_cycles)
    else:
        matmul = joined(HARDEST, flop / rates.matmul, read_cycles)
    moved, side = main_bytes(w, case.direction), side_bytes(w, launch, case.direction)
    working_set = (moved + side / 2) / device.cache_bytes if device.cache_bytes else inf  # over the L2
    copy_waves = w.batch * w.kv_len * min(w.kv_heads * w.d, COPY_THREADS) / (rates.threads * rates.sms)
    return AttentionWork(
        rates=rates,
        launch=launch,
        grid=grid_of(w, launch, case.direction, rates.sms),
        matmul=matmul,
        exps=scores,
        other=scores * (1 if case.direction == FORWARD else 2),
        moved=moved,
        side_bytes=side,
        side_waves=launch.side_kernels + launch.writes_cache * copy_waves,
        lost=1.0 if case.flushed else lost_share(working_set, *scan_limits(device, alone=True)),
        cold=case.flushed and not launch.writes_cache,
    )


def with_tile(case: Case, device: Device, launch_of: LaunchRule) -> AttentionLaunch:
    """The launch of ``case``, with the tile that the case names if it names one.

    UnavailableError for devices of other makers: all of these are CUDA kernels.
    """
    if device.vendor != "NVIDIA":
        raise UnavailableError(f"{case.implementation} is a CUDA kernel: what stands for it on {device.id} is not known")
    launch = launch_of(case, device)
    if not {"br", "bc"} & set(case.launch):
        return launch
    return launch._replace(br=case.launch.get("br", launch.br), bc=case.launch.get("bc", launch.bc))


def dense(case: Case, direction: str) -> bool:
    """Whether ``case`` is one ``direction`` of dense attention with d = d_v of at most ``WIDEST``."""
    w = case.workload
    return plain_attention(case, "sparsity", "dropout", "mask") and case.direction == direction and w.d == w.dv <= WIDEST


def covers_backward(case: Case) -> bool:
    """Backward, dense, with d = d_v of at most 256."""
    return dense(case, BACKWARD)


@cached_by_identity
def timed_again(case: Case, device: Device) -> Case:
    """``case`` as published benchmarks time it: the same buffers again and again, which come from DRAM if the L2 does not hold them."""
    moved = sum(tensor_bytes(case.workload))
    return replace(case, cache=CLEAN if case.flushed or moved > (device.cache_bytes or 0) else WARM)


# A kernel's page

ASSUMES = f"{ALONE}; Q, K and V stored as [batch, length, heads, d]"
ASSUMES_AGAIN = "the same buffers again and again, beyond the caches from DRAM each time; Q, K and V stored as [batch, length, heads, d]"


def plain(case: Case, work: AttentionWork) -> Stage:
    """The stage of a kernel without terms of its own."""
    return Stage()


def fitted(case: Case, p: Mapping[str, float]) -> Mapping[str, float]:
    """The parameters of a kernel whose parameters are all fitted."""
    return p


def page(
    name: str,
    launch: LaunchRule,
    covers: Callable[[Case], bool],
    source: str,
    implementations: tuple[str, ...],
    stage: Callable[[Case, AttentionWork], Stage] = plain,
    known: Callable[[Case, Mapping[str, float]], Mapping[str, float]] = fitted,
    again: bool = False,
    **fields: Any,
) -> Model:
    """The time model of a library's kernel, by its ``launch`` and the terms of its ``stage``.

    ``known(case, parameters)``: all parameters of a kernel of which only a few are fitted. ``again``: it was timed on the same buffers,
    call after call. ``fields``: further fields of the model. With a parameter ``host_us``, calls were timed from the host and wait for it,
    unless the case names a state of the L2.
    """
    stage_of = cached_by_identity(stage)

    def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
        """Seconds of one call with all its kernels; UnavailableError if there is no such kernel or the profile lacks a number."""
        work = work_of(timed_again(case, device) if again else case, device, launch)
        kernels_s = work.seconds(known(case, p), stage_of(case, work))
        return hypot(p["host_us"] * 1e-6, kernels_s) if "host_us" in p and not case.cache else kernels_s

    fields = {"assumes": ASSUMES_AGAIN if again else ASSUMES, "from_tables": again, **fields}
    return Model(name, "attention", covers, seconds, source, implementations=implementations, launch=launch, **fields)
