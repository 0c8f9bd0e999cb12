"""The launch of a fused attention kernel: which blocks it starts and how many tiles each visits, in the order in which they start.

Only the blocks that start last decide how evenly the slots end; for the blocks before them sums are enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain, islice, repeat
from math import sqrt

from perfmodel.core import architectures
from perfmodel.core.architectures import traits_of
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.attention.walk import key_tiles, row_tiles, visited_tiles
from perfmodel.timing.schedule import ByRatio, SlotWork, last_slot

_HEAD_DIMS = (32, 64, 96, 128, 192, 256)  # known
MMA_ROWS, WGMMA, TCGEN05 = 16, 64, 128  # known
"""Rows of the other operand that one read from shared memory serves, of a warp's, of Hopper's and of Blackwell's instruction."""
MMA_SYNC_FLOP = 0.629 * 4096  # known
"""Per cycle and multiprocessor, two-byte elements: what mma.sync reaches where newer instructions reach more.

On Hopper 62.9 % of the peak (arXiv:2402.13499); supposed to be as much later. Ampere's peak is lower, and mma.sync reaches it."""
L2_PORT = 64.0  # known
"""Bytes per clock that a multiprocessor takes from the L2 at most. Source: NVIDIA A100 whitepaper, L2 read bandwidth of 5,120 B/clk."""
OVERLAP = 3.0  # tuned
"""Exponent of the norm that adds a tile's matmuls and exponentials, for implementations without a fitted one."""
ROUNDS = 3  # known
"""Last rounds over all slots that are simulated block by block."""


@dataclass(frozen=True, slots=True)
class FlashPlan:
    """Launch of the main kernel. ``resident``: blocks per multiprocessor.

    A walk is one head's row of blocks. Walks come in groups of ``group``, cut into sections of ``section``; within a section all
    walks advance together. ``longest_first``: a walk begins with its last row tile. ``splits``: parts of a block's key tiles that
    run as blocks of their own. ``packed``: the query heads of a KV head share a walk. ``writes_cache``: the call first copies
    K and V into a paged cache. ``fragment``: rows that one read of the other operand from shared memory serves: 16 for each
    mma.sync of a warp, 64 for wgmma, 128 for tcgen05.mma. ``feeding``: part of those reads that matmuls do not hide.
    ``overlap``: how a tile's matmuls and exponentials add up: 1 is one after the other, infinity the longer of the two.
    ``interleaved``: a block's latency is hidden by the tiles of its neighbours on the multiprocessor.
    ``side_kernels``: kernels beside the main one. ``width``: head dim for which the kernel is compiled. ``fixed_splits``: splits
    are cut from all keys, seen or not. ``mask_tile``: work for masks in each tile, in exponentials' time. ``mask_block``: for
    each block, in ``block_cycles``; ``crowded_block``: more where code does not fit; both in full from ``masked_steps`` tiles of a
    block, if given. ``code_us``: microseconds in which its code is fetched, ``late_code_us`` that of later tiles. ``cut_values``: P is
    multiplied by the values that exist alone, and the first tile of a block does without ``mask_tile`` and ``uneven``. ``threads``: of
    a block.
    ``uneven``: part by which matmuls of a tile take longer where heads are narrower than the kernel.
    ``adding``: backward, share of a tile's additions to dQ that its warps do between matmuls. ``paired``: key tiles of a head are
    launched in multiples of it. ``rounded``: dQ is added up in whole row tiles of the kernel's head dim, and dK and dV over query
    heads by PyTorch's sums.
    ``by_head``: one block does all tiles of a head. ``softmax_share``: where measured shapes cannot tell a tile's two parts apart,
    ``softmax`` over ``matmul``.
    """

    br: int
    bc: int
    fragment: float = 16
    resident: int = 1
    packed: bool = False
    longest_first: bool = False
    group: int = 1
    section: int = 1
    splits: int = 1
    writes_cache: bool = False
    feeding: float = 1.0
    overlap: float = OVERLAP
    interleaved: bool = False
    side_kernels: int = 0
    width: int = 0
    fixed_splits: bool = False
    mask_tile: float = 0.0
    mask_block: float = 0.0
    crowded_block: float = 0.0
    masked_steps: int = 0
    code_us: float = 0.0
    late_code_us: float = 0.0
    cut_values: bool = False
    threads: int = 128
    softmax_share: float = 0.0
    by_head: bool = False
    uneven: float = 0.0
    adding: float = 1.0
    paired: int = 1
    rounded: bool = False


def slowdown(plan: FlashPlan, peak: float, element_size: int) -> float:
    """Peak FLOP per cycle over what the plan's matrix instruction reaches, of a tensor unit with that ``peak``."""
    if plan.fragment in (WGMMA, TCGEN05):
        return 1.0
    return max(1.0, peak * element_size / 2 / MMA_SYNC_FLOP)


def padded(d: int) -> int:
    """The head dim for which a kernel is compiled."""
    return next((dim for dim in _HEAD_DIMS if dim >= d), d)


def resident_blocks(device: Device, br: int, bc: int, threads: int, w: Attention, shared_bytes: int | None = None) -> int:
    """Blocks per multiprocessor: registers, 255 a thread, and SRAM for Q, K and V tiles, or the ``shared_bytes`` of the launch."""
    sram, registers = device.level("sram"), device.limits.registers_per_multiprocessor
    needed = w.dtype.size * (br * padded(w.d) + bc * (padded(w.d) + padded(w.dv))) if shared_bytes is None else shared_bytes
    by_sram = int(sram.capacity.number) // (needed + 1024) if sram and sram.capacity else 1
    by_registers = int(registers.number) // (256 * threads) if registers else 1
    return max(1, min(by_sram, by_registers))


def fragment_of(device: Device) -> float:
    """Rows of the other operand that one read from shared memory serves: of a block that multiplies as fast as ``device`` can."""
    return {architectures.WGMMA: WGMMA, architectures.TCGEN05: TCGEN05}.get(traits_of(device).matrix, MMA_ROWS)


def multiprocessors_of(device: Device) -> int:
    return int(device.multiprocessors.number) if device.multiprocessors else 1


@dataclass(frozen=True)
class TileBlocks:
    """Blocks for ``sms`` multiprocessors, ``resident`` on each.

    ``last``: tiles of each of the last blocks, in order; ``early`` and ``early_tiles``: blocks before them and their tiles.
    """

    last: tuple[int, ...]
    early: int
    early_tiles: int
    sms: int
    resident: int

    @property
    def count(self) -> int:
        """All blocks."""
        return self.early + len(self.last)

    @property
    def slots(self) -> int:
        """Blocks that run at once on the device."""
        return self.sms * self.resident

    def past_first(self, steps: int) -> float:
        """Of the tiles of a block after the first, up to ``steps`` of them: the part that the last blocks take in the mean."""
        return sum(min(tiles, steps) - 1 for tiles in self.last if tiles > 1) / (max(1, steps - 1) * len(self.last))

    @cached_property
    def last_tiles(self) -> int:
        """Tiles of the last blocks."""
        return sum(self.last)

    @cached_property
    def most(self) -> int:
        """Tiles of the longest of the last blocks."""
        return max(self.last)

    @cached_property
    def last_slot(self) -> ByRatio[SlotWork]:
        """Blocks and tiles of the slot that ends last, as a function of block latency over tile time; only last blocks."""
        return last_slot(self.last, self.slots)

    @cached_property
    def together(self) -> set[tuple[int, ...]]:
        """Tiles of the blocks that share a multiprocessor, shortest first. Where a second round goes is not known: the longest meet."""
        order = sorted(self.last[: self.sms], reverse=True) + sorted(self.last[self.sms :], reverse=True)
        return {tuple(sorted(order[i :: self.sms])) for i in range(min(self.sms, len(order)))}


@lru_cache(maxsize=4096)
def blocks_of(w: Attention, plan: FlashPlan, direction: str, sms: int) -> TileBlocks:
    """The blocks of one kernel for a device with ``sms`` multiprocessors."""
    walk = replace(w, packed=plan.packed)
    if plan.by_head:
        return head_blocks(w, plan, sms)
    per_walk = int(row_tiles(walk, plan.br) if direction == FORWARD else key_tiles(walk, plan.bc))
    total = int(walk.row_heads * visited_tiles(walk, plan.br, plan.bc))
    count = int(walk.row_heads) * per_walk * plan.splits
    backwards = _backwards(walk, plan, direction, per_walk)
    last = tuple(islice(backwards, min(count, ROUNDS * sms * plan.resident)))[::-1]
    return TileBlocks(last, count - len(last), max(0, total - sum(last)) if count > len(last) else 0, sms, plan.resident)


def head_blocks(w: Attention, plan: FlashPlan, sms: int) -> TileBlocks:
    """One block per head, which visits all its pairs of tiles."""
    heads, tiles = int(w.query_heads), int(visited_tiles(replace(w, packed=False), plan.br, plan.bc))
    listed = min(heads, ROUNDS * sms * plan.resident)
    return TileBlocks((tiles,) * listed, heads - listed, (heads - listed) * tiles, sms, plan.resident)


def _backwards(walk: Attention, plan: FlashPlan, direction: str, per_walk: int) -> Iterator[int]:
    """Tiles of every block, the last block to start first."""
    group = min(plan.group, int(walk.row_heads))
    partial = group % plan.section or plan.section
    order = range(per_walk) if plan.longest_first else range(per_walk - 1, -1, -1)
    tiles = row_tile_visits if direction == FORWARD else key_tile_visits
    known = dict[int, tuple[int, ...]]()
    for _ in range(int(walk.row_heads) // group):
        for width in chain([partial], (plan.section for _ in range((group - 1) // plan.section))):
            for i in order:
                if i not in known:
                    visits = tiles(walk, plan, i)
                    each = -(-(key_tiles(walk, plan.bc) if plan.fixed_splits else visits) // plan.splits)
                    known[i] = tuple(int(min(each, max(0, visits - part * each))) for part in range(plan.splits))
                for part in known[i]:
                    yield from repeat(part, width)


def row_tile_visits(walk: Attention, plan: FlashPlan, i: int) -> int:
    """Key tiles that row tile ``i`` visits."""
    if not walk.causal:
        return int(key_tiles(walk, plan.bc))
    shift, g = walk.kv_len - walk.n, walk.row_group
    last = min((i + 1) * plan.br, g * walk.n) - 1
    end = -(-(last // g + 1 + shift) // plan.bc)
    start = 0 if walk.window is None else max(0, i * plan.br // g + shift + 1 - walk.window) // plan.bc
    return int(max(0, min(end, key_tiles(walk, plan.bc)) - start))


def key_tile_visits(walk: Attention, plan: FlashPlan, j: int) -> int:
    """Row tiles that key tile ``j`` visits while its K and V stay in SRAM."""
    tiles = row_tiles(walk, plan.br)
    if not walk.causal:
        return int(tiles)
    shift, g = walk.kv_len - walk.n, walk.row_group
    start = max(0, g * (j * plan.bc - shift)) // plan.br
    if walk.window is None:
        return int(max(0, tiles - start))
    last_query = min((j + 1) * plan.bc, walk.kv_len) - 1 - shift + walk.window - 1
    return int(max(0, min(tiles, -(-g * (last_query + 1) // plan.br)) - start))


TAIL = 0.3  # tuned
"""Fraction of the tail that the last blocks recover once the blocks beside them have ended.

Chosen on measured shapes that fits may see, as are the constants of ``_flash_plans``."""
IN_STEP = 2  # tuned
"""First rounds of blocks that wait for their loads at the same time, so that none hides another's."""


def listed_cycles(blocks: TileBlocks, tile: float, block: float, alone: float) -> float:
    """Cycles of blocks that follow each other in the slots.

    Blocks that share a multiprocessor slow each other down. Once slots stay empty at the end, a remaining tile takes ``alone`` times
    its share of a full multiprocessor, which recovers part of the tail.
    """
    resident = blocks.resident
    end, balanced = _ends(blocks, tile * resident, block)
    if resident == 1:
        return end
    gained = (end - balanced) * (resident - min(alone, resident)) / (resident - 1)
    return max(end - gained, block + blocks.most * tile * min(alone, resident))


def _ends(blocks: TileBlocks, tile: float, block: float) -> tuple[float, float]:
    """Cycles until the last slot ends, and until all end if perfectly balanced. The early blocks are spread evenly."""
    early, slots = blocks.early * block + blocks.early_tiles * tile, blocks.slots
    count, tiles = blocks.last_slot.at(block / tile)
    balanced = (early + len(blocks.last) * block + blocks.last_tiles * tile) / slots
    return early / slots + (count * block + tiles * tile), balanced


def equal_cycles(blocks: TileBlocks, tile: float, block: float, alone: float) -> float:
    """Cycles of blocks of equal length, in rounds: the multiprocessor with the most of them ends last."""
    resident = blocks.resident
    most, tiles = -(-blocks.count // blocks.sms), blocks.last[0] * tile
    alone = min(max(alone, 1.0), resident)
    if most <= resident:
        return float(block + tiles * _beside(most, resident, alone))
    rounds, rest = divmod(most, resident)
    in_step = min(rounds, IN_STEP)
    before = in_step * (block + resident * tiles) + (rounds - in_step) * _steady(block, tiles, resident, alone)
    return float(before + (block + tiles * _beside(rest, resident, alone) if rest else 0.0))


def interleaved_cycles(blocks: TileBlocks, tile: float, block: float, alone: float) -> float:
    """Cycles of blocks of unequal length; while one waits for its first loads, its neighbours on the multiprocessor run faster.

    ``alone``: time of a tile alone on a multiprocessor, over its share of the time there among ``resident`` blocks.
    """
    resident = blocks.resident
    alone = min(max(alone, 1.0), resident)
    if blocks.count <= blocks.slots:
        return block + max(_together(tiles, tile, resident, alone) for tiles in blocks.together)
    mean = (blocks.early_tiles + blocks.last_tiles) * tile / blocks.count
    waiting = block / _steady(block, mean, resident, alone) if mean else 1.0
    waiting *= max(0.0, 1 - IN_STEP * blocks.slots / blocks.count)
    slowed = tile * (resident - (resident - alone) * waiting)
    end, balanced = _ends(blocks, slowed, block)
    return end - TAIL * (end - balanced) * (resident - alone) / max(1, resident - 1)


def _beside(blocks: int, resident: int, alone: float) -> float:
    """Time of a tile in each of ``blocks`` on a multiprocessor, over its share of a full one: ``alone`` for one, ``resident`` for all."""
    return alone + (resident - alone) * (blocks - 1) / max(1, resident - 1)


def _together(tiles: Sequence[int], tile: float, resident: int, alone: float) -> float:
    """Cycles of blocks that start together, shortest first."""
    cycles, before = 0.0, 0
    for left, each in zip(range(len(tiles), 0, -1), tiles, strict=True):
        cycles += (each - before) * tile * _beside(left, resident, alone)
        before = each
    return cycles


def _steady(block: float, tiles: float, resident: int, alone: float) -> float:
    """Cycles T of a block with ``tiles`` cycles of work among R = ``resident`` blocks, each of which waits ``block`` of its T cycles.

    T = block + tiles (R - (R - alone) block / T): the share of a neighbour that waits goes to those that run.
    """
    full = block + resident * tiles
    return (full + sqrt(max(0.0, full * full - 4 * (resident - alone) * tiles * block))) / 2
