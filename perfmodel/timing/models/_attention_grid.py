"""Blocks, tiles and bytes of a fused attention kernel, counted from its launch, the same way for every library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from functools import cache, lru_cache
from itertools import chain, islice, repeat
from math import hypot, inf
from typing import Any, NamedTuple

from perfmodel.core import architectures
from perfmodel.core.architectures import tensor_share, traits_of
from perfmodel.core.arith import ceil_div, clipped_floor_sum
from perfmodel.core.cache import scan_limits
from perfmodel.core.errors import UnavailableError
from perfmodel.core.frozen import dataclass
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
"""Rows of the other operand that one read from shared memory serves: by mma.sync of a warp, by wgmma, and by tcgen05."""
IN_TURN, ASYNCHRONOUS, PING_PONG = 1.0, 2.0, 3.0  # tuned
"""Norm in which a tile's matmuls and its other work add up: warps wait for mma.sync; wgmma runs beside a warpgroup's other work, which
needs its results; a block for tcgen05 has two tiles, of which one multiplies while the other is worked on."""
FED = 3.0  # tuned
"""Norm in which warps' reads of operands from shared memory and mma.sync add up; newer instructions read operands themselves."""
MMA_SYNC_FLOP = 0.629 * 4096  # known
"""FLOP per cycle and multiprocessor that mma.sync reaches in two-byte formats, where newer instructions reach more.

It is 62.9 % of Hopper's peak (arXiv:2402.13499), and assumed not to grow later. Ampere's peak is lower, and mma.sync reaches it."""
FP32 = 4  # known
"""Bytes of an element of partial results and of dQ while it is added up."""
FOUR_WARPS = 128  # known
"""Threads per block for which the parameter ``alone`` holds; more threads hide more of their own latencies."""
COPY_THREADS = 512  # known
"""Most threads of a block that copies one token of K and V: vllm csrc/cache_kernels.cu, reshape_and_cache_flash."""


class AttentionLaunch(NamedTuple):
    """Launch of a library's main kernel: ``br`` x ``bc`` tiles, ``threads`` of a block, ``resident`` blocks per multiprocessor.

    ``rows``: rows of the other operand that one read from shared memory serves; ``overlap``: norm that joins matmuls and other work.
    ``width``: head dim that the kernel is compiled for, 0 for the next of ``_HEAD_DIMS``. ``splits``: parts of a block's key tiles that run
    as separate blocks; with ``fixed_splits`` they are cut from all keys, visible or not. A walk is the row of blocks of one head;
    ``packed``: the query heads of a KV head share one. Walks come in groups of ``group``, cut into sections of ``section`` that advance
    together. ``longest_first``: a walk begins with its last row tile. ``paired``: the number of key tiles per head is rounded up to a
    multiple of this. ``by_head``: one block does all tiles of a head. ``side_kernels``: number of kernels beside the main one.
    ``writes_cache``: the call first copies K and V into a paged cache. ``rounded``: dQ is added up in whole row tiles of the kernel's head
    dim, and PyTorch sums dK and dV over query heads. ``mask_block``: queries, and keys, of a block that a mask keeps or drops as a whole;
    0 if each tile is. ``dq_apart``: backward, dQ has blocks of its own, after those of keys of the same KV head, and is not added up in
    memory. ``fill``: tiles in whose time the loads of a further loop arrive; tiles that a mask cuts and others take a loop each.
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
    mask_block: int = 0
    dq_apart: bool = False
    fill: int = 0

    def widths(self, w: Attention) -> tuple[int, int]:
        """Head dims of K and V that the kernel computes."""
        return self.width or padded(w.d), self.width or padded(w.dv)


LaunchRule = Callable[[Case, Device], AttentionLaunch]


def slowdown(launch: AttentionLaunch, peak: float, element_size: int) -> float:
    """``peak`` FLOP per cycle over what the kernel's matrix instruction reaches."""
    return max(1.0, peak * element_size / 2 / MMA_SYNC_FLOP) if launch.rows < WGMMA else 1.0


def padded(d: int) -> int:
    """The head dim for which a kernel is compiled."""
    return next((dim for dim in _HEAD_DIMS if dim >= d), d)


def matrix_rows(device: Device) -> float:
    """Rows of the other operand that one read from shared memory serves, with the fastest matrix instruction of ``device``."""
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
    needed = w.dtype.size * (br * padded(w.d) + bc * (padded(w.d) + padded(w.dv))) if shared_bytes is None else shared_bytes
    by_sram = int(sram.capacity.number) // (needed + 1024) if sram and sram.capacity else 1
    by_registers = int(registers.number) // (256 * threads) if registers else 1
    return max(1, min(by_sram, by_registers))


# Blocks and their tiles


@dataclass(frozen=True, slots=True)
class Walk:
    """Blocks of one head. ``count``: places of blocks; ``tiles(i)``: tiles of each block at place i; ``total``: tiles of all blocks."""

    count: int
    total: int
    tiles: Callable[[int], tuple[int, ...]]


def row_tile_visits(walk: Attention, launch: AttentionLaunch, i: int, keys: int) -> int:
    """Key tiles, of ``keys`` altogether, that row tile ``i`` visits."""
    if not walk.causal:
        return keys
    shift, g = walk.kv_len - walk.n, walk.row_group
    mask_rows, mask_keys = max(launch.br, launch.mask_block), max(launch.bc, launch.mask_block)
    first = i * launch.br // mask_rows * mask_rows
    last = min(first + mask_rows, g * walk.n) - 1
    end = -(-(last // g + 1 + shift) // mask_keys) * (mask_keys // launch.bc)
    start = 0 if walk.window is None else max(0, first // g + shift + 1 - walk.window) // mask_keys * (mask_keys // launch.bc)
    visits = int(max(0, min(end, keys) - start))
    return visits + launch.fill * (visits > mask_keys // launch.bc)


def key_tiles_visits(walk: Attention, launch: AttentionLaunch, first: int, step: int) -> int:
    """Row tiles that key tiles ``first``, ``first + step``, ... visit together, while K and V of each stay in SRAM."""
    count, tiles, g = max(0, ceil_div(key_tiles(walk, launch.bc) - first, step)), row_tiles(walk, launch.br), walk.row_group
    if not walk.causal:
        return int(count * tiles)
    pitch, row = g * step * launch.bc, g * (first * launch.bc - walk.kv_len + walk.n)
    ends = count * tiles
    if walk.window is not None:
        ends = clipped_floor_sum(count, pitch, row + g * (launch.bc + walk.window - 1) + launch.br - 1, launch.br, 0, tiles)
    starts = clipped_floor_sum(count, pitch, row, launch.br, 0, tiles)
    return int(ends - starts)


MOST_SUMMED = 4096  # known
"""Most row tiles that are added up one by one; of more, blocks that a mask cuts hardly count."""


def rows_walk(walk: Attention, launch: AttentionLaunch) -> Walk:
    """Walk over row tiles; each split of a row tile is a block."""
    count, keys, splits = int(row_tiles(walk, launch.br)), int(key_tiles(walk, launch.bc)), launch.splits

    def tiles(i: int) -> tuple[int, ...]:
        visits = row_tile_visits(walk, launch, i, keys)
        if splits == 1:
            return (visits,)
        each = -(-(keys if launch.fixed_splits else visits) // splits)
        return tuple(int(min(each, max(0, visits - part * each))) for part in range(splits))

    if launch.mask_block and count <= MOST_SUMMED:
        return Walk(count, sum(sum(tiles(i)) for i in range(count)), tiles)
    return Walk(count, int(visited_tiles(walk, launch.br, launch.bc)), tiles)


def keys_walk(walk: Attention, launch: AttentionLaunch, parts: int = 0) -> Walk:
    """Walk over key tiles, one per block, or dealt out in turn to ``parts`` blocks if given.

    Key tiles past the end, which ``paired`` adds, visit row tiles too.
    """
    keys, total = int(key_tiles(walk, launch.bc)), int(visited_tiles(walk, launch.br, launch.bc))
    count = parts or int(ceil_div(keys, launch.paired)) * launch.paired

    def tiles(first: int) -> tuple[int, ...]:
        if first < keys:
            return (key_tiles_visits(walk, launch, first, count),)
        return (_visits_past_the_end(walk, launch, first),)

    return Walk(count, total + sum(_visits_past_the_end(walk, launch, j) for j in range(keys, count)), tiles)


def keys_and_rows_walk(w: Attention, launch: AttentionLaunch) -> Walk:
    """Walk of a KV head: a block per key tile, for all query heads of the group, then one per row tile of each query head.

    Row tiles are ``br`` x ``bc``, key tiles ``bc`` rows by ``br`` keys.
    """
    group, turned = int(w.group), launch._replace(br=launch.bc, bc=launch.br)
    rows, keys = rows_walk(w, launch), keys_walk(w, turned)

    filled = launch.fill * (group * (1 + w.causal) - 1)

    def tiles(i: int) -> tuple[int, ...]:
        return (group * keys.tiles(i)[0] + filled,) if i < keys.count else rows.tiles((i - keys.count) % rows.count)

    return Walk(keys.count + group * rows.count, group * (keys.total + rows.total) + keys.count * filled, tiles)


def _visits_past_the_end(walk: Attention, launch: AttentionLaunch, j: int) -> int:
    """Row tiles that the key tile ``j`` past the end visits."""
    start = max(0, walk.row_group * (j * launch.bc - walk.kv_len + walk.n)) // launch.br if walk.causal else 0
    return int(max(0, row_tiles(walk, launch.br) - start))


@lru_cache(maxsize=4096)
def grid_of(w: Attention, launch: AttentionLaunch, direction: str, sms: int) -> TileBlocks:
    """The blocks of the main kernel for a device with ``sms`` multiprocessors."""
    walk = replace(w, packed=launch.packed)
    if launch.dq_apart:
        return grid_of_walk(keys_and_rows_walk(walk, launch), int(w.stored_kv_heads), launch, sms)
    blocks = rows_walk(walk, launch) if direction == FORWARD else keys_walk(walk, launch)
    if launch.by_head:
        total = blocks.total
        blocks = Walk(1, total, lambda _: (total,))
    return grid_of_walk(blocks, int(walk.row_heads), launch, sms)


def grid_of_walk(walk: Walk, walks: int, launch: AttentionLaunch, sms: int) -> TileBlocks:
    """The blocks of ``walks`` equal walks."""
    count, total = walks * walk.count * launch.splits, walks * walk.total
    last = tuple(islice(_backwards(walk, walks, launch), min(count, ROUNDS * sms * launch.resident)))[::-1]
    return TileBlocks(last, count - len(last), total - sum(last), sms, launch.resident)


def _backwards(walk: Walk, walks: int, launch: AttentionLaunch) -> Iterator[int]:
    """Tiles of every block, the last block to start first."""
    group, tiles = min(launch.group, walks), cache(walk.tiles)
    partial = group % launch.section or launch.section
    order = range(walk.count) if launch.longest_first else range(walk.count - 1, -1, -1)
    for _ in range(walks // group):
        for width in chain([partial], (launch.section for _ in range((group - 1) // launch.section))):
            for i in order:
                for each in tiles(i):
                    yield from repeat(each, width)


# Bytes


def tensor_bytes(w: Attention) -> tuple[int, int]:
    """Bytes of Q and O together, of K and V together."""
    return w.query_heads * w.n * (w.d + w.dv) * w.dtype.size, w.stored_kv_heads * w.kv_len * (w.d + w.dv) * w.dtype.size


def main_bytes(w: Attention, launch: AttentionLaunch, direction: str) -> int:
    """DRAM bytes of the main kernel, each tensor once. Backward: Q, dO, K, V; dQ read and written in fp32; dK and dV per query head."""
    rows, keys = tensor_bytes(w)
    if direction == FORWARD or launch.dq_apart:
        return (rows + keys) * (1 if direction == FORWARD else 2)
    return int(rows + keys + w.query_heads * w.kv_len * (w.d + w.dv) * w.dtype.size + 2 * w.query_heads * w.n * w.d * FP32)


def side_bytes(w: Attention, launch: AttentionLaunch, direction: str) -> int:
    """DRAM bytes of the kernels beside the main one. Forward: K and V copied, splits combined.

    Backward: O dO -> row sums, dQ zeroed; dQ in fp32 -> dQ; dK, dV of query heads -> of KV heads.
    """
    if direction == FORWARD:
        combined = 2 * launch.splits * FP32 * w.query_heads * w.n * w.dv if launch.splits > 1 else 0
        return int(2 * tensor_bytes(w)[1] * launch.writes_cache + combined)
    per_row = w.query_heads * w.n * (2 * w.dv + w.d) * w.dtype.size
    if launch.dq_apart:
        return int(2 * w.query_heads * w.n * w.dv * w.dtype.size)
    n, d = (ceil_div(w.n, launch.br) * launch.br, padded(w.d)) if launch.rounded else (w.n, w.d)
    sums = tensor_bytes(w)[1] * (w.group + 1) if w.group > 1 else 0
    return int(per_row + 2 * w.query_heads * n * d * FP32 + sums)


# A case before any parameter


@dataclass(frozen=True, slots=True)
class Stage:
    """Terms of a kernel beyond the counts.

    By name of a parameter: how often it is added to a tile's matmuls, to its ``other`` work, or to the cycles of a ``block`` beyond its
    tiles, each relative to these. ``done``: share of the matmuls that is computed.
    """

    matmul: Mapping[str, float] = field(default_factory=dict)
    other: Mapping[str, float] = field(default_factory=dict)
    block: Mapping[str, float] = field(default_factory=dict)
    done: float = 1.0


def _term_factor(p: Mapping[str, float], terms: Mapping[str, float]) -> float:
    return 1 + sum(p[name] * share for name, share in terms.items())


class AttentionWork(NamedTuple):
    """A case on a device before any parameter. Per tile: cycles of ``matmul``, number of ``exps``, ``other`` work in exponentials.

    Matmuls take the longer of their instructions and their reads of operands from shared memory. ``other`` counts each score once, backward
    twice (P, then dS). ``moved``: bytes of the main kernel. ``side_bytes``: bytes of the kernels beside it; ``side_waves``: their blocks in
    turn. ``lost``: share of bytes that the L2 does not hold. ``cold``: whether the main kernel starts on cold caches. ``cut``: cycles by
    which ``wgmma`` takes longer where the tensor rate was cut, which nothing delays further.
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
    cut: float = 0.0

    def cycles(self, p: Mapping[str, float], stage: Stage) -> float:
        """Cycles of the main kernel without its bytes, with the terms of ``stage``."""
        matmul = p["matmul"] * (stage.done * _term_factor(p, stage.matmul)) * self.matmul + stage.done * self.cut
        exps = self.rates.exp_cycles(p["softmax"] * _term_factor(p, stage.other) * self.other, self.exps)
        alone = p["alone"] * FOUR_WARPS / self.launch.threads if "alone" in p else ALONE_CYCLES
        return self.grid.cycles(joined(self.launch.overlap, matmul, exps), p["block_cycles"] * _term_factor(p, stage.block), alone)

    def seconds(self, p: Mapping[str, float], stage: Stage) -> float:
        """Seconds of the call: launch, kernels beside the main one, and the main one, whose cycles overlap with its bytes."""
        byte_s, clock = self.rates.byte_s(p["dram"], self.lost), self.rates.clock_hz
        side = self.side_waves * p["side_block_cycles"] / clock if self.side_waves else 0.0
        main = beside_dram(self.cycles(p, stage) / clock, self.moved * byte_s, self.cold)
        return p["launch_us"] * 1e-6 + side + self.side_bytes * byte_s + main


@cached_by_identity
def work_of(case: Case, device: Device, launch_of: LaunchRule) -> AttentionWork:
    """``case`` on ``device`` with the launch of ``launch_of``; UnavailableError if a kernel or a number of the profile is missing."""
    w: Attention = case.workload
    rates, launch = rates_of(device, w.dtype.name), with_tile(case, device, launch_of)
    (d, dv), scores = launch.widths(w), launch.br * launch.bc
    flop = 2 * scores * (d + dv if case.direction == FORWARD else 3 * d + 2 * dv)
    moved, side = main_bytes(w, launch, case.direction), side_bytes(w, launch, case.direction)
    held = (moved + side / 2) / device.cache_bytes if device.cache_bytes else inf
    copied = w.batch * w.kv_len * min(w.kv_heads * w.d, COPY_THREADS) / (rates.threads * rates.sms)
    share = tensor_share(device) if launch.rows >= WGMMA else 1.0
    return AttentionWork(
        rates=rates,
        launch=launch,
        grid=grid_of(w, launch, case.direction, rates.sms),
        matmul=joined(
            FED if launch.rows < WGMMA else HARDEST,
            slowdown(launch, rates.matmul, w.dtype.size) * flop / rates.matmul * share,
            flop * w.dtype.size / (2 * launch.rows) / rates.sram,
        ),
        exps=scores,
        other=scores * (1 if case.direction == FORWARD else 2),
        moved=moved,
        side_bytes=side,
        side_waves=launch.side_kernels + launch.writes_cache * copied,
        lost=1.0 if case.flushed else lost_share(held, *scan_limits(device, alone=True)),
        cut=flop / rates.matmul * (1 - share),
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
    """The time model of a library's kernel: its launch, and the terms of its ``stage``. ``fields``: further fields of the model.

    ``known(case, parameters)``: all parameters of a kernel of which only a few are fitted. ``again``: it was timed on the same buffers,
    call after call. A parameter ``host_us`` means that calls were timed from the host and wait for it, unless the case names a state of the
    L2.
    """
    staged = cached_by_identity(stage)

    def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
        """Seconds of one call with all its kernels; UnavailableError if there is no such kernel or the profile lacks a number."""
        work, every = work_of(timed_again(case, device) if again else case, device, launch), known(case, p)
        kernel = work.seconds(every, staged(case, work))
        return hypot(p["host_us"] * 1e-6, kernel) if "host_us" in p and not case.cache else kernel

    fields = {"assumes": ASSUMES_AGAIN if again else ASSUMES, "from_tables": again, **fields}
    return Model(name, "attention", covers, seconds, source, implementations=implementations, launch=launch, **fields)
