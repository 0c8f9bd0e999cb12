"""What the forward kernels of fused attention do besides whole tiles: masks, code that is fetched, values that are left out.

FlashAttention-2 (csrc/flash_attn at @0251105a, flash_fwd_kernel.h) unrolls the tiles that masks reach: under a causal mask br / bc of
them, and one more where tiles do not divide the lengths. A block that comes past its first tile runs code that a block of one tile
never fetches. The variants for lengths or head dims that do not fit are so long that this costs more than their arithmetic, most
where blocks of several rounds are at different places of the code. Flushing an L2 by reads drives the code out of it, too.

PyTorch's memory-efficient kernels multiply P by the values of keys that exist alone (mem_eff_attention/kernel_forward.h, the problem
size of their second product), and keep O in memory over head dim 128, which a block of one tile never reads back.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.workload import Attention
from perfmodel.kernels.attention.walk import row_tiles, visited_tiles
from perfmodel.timing.base import CLEAN, Case
from perfmodel.timing.models._flash_blocks import FlashPlan, TileBlocks, padded

CAUSAL = 0.5  # tuned
"""FlashAttention-2, in block latencies: masks of causal blocks of several tiles."""
CROWDED = {32: 1.2, 64: 1.5, 96: 0.2, 128: 0.8}  # tuned
"""FlashAttention-2, in block latencies, by the head dim of the kernel: more in its causal variant for lengths that tiles do not divide."""
NARROW = 0.5  # tuned
"""FlashAttention-2: of ``CROWDED``, where heads are narrower than the kernel, whose first tiles are long anyhow."""
CODE_US, CODE_PLAIN, CODE_WIDE = 2.1, 0.6, 0.5  # tuned
"""FlashAttention-2 after a flush by reads: microseconds in which its causal variant for odd lengths is fetched; part of that without
causal masks at head dim 64, and beyond head dim 128 where heads are narrower than the kernel."""
LATE_CODE_US, LATE = {64: 5.0, 128: 5.0}, 3  # tuned
"""FlashAttention-2 after a flush by reads: microseconds more by the head dim of the kernel, from as many tiles of a block."""
VALUES = 32  # known
"""Keys of one step of the memory-efficient kernels' second product (ThreadblockShape::kK)."""


def ragged(w: Attention, plan: FlashPlan) -> bool:
    """Whether tiles do not divide the lengths."""
    return bool(w.n % plan.br or w.kv_len % plan.bc)


def masked(w: Attention, plan: FlashPlan) -> FlashPlan:
    """FlashAttention-2's main kernel with the costs of its masks; the variant by flash_fwd_launch_template.h: even lengths and head dim."""
    width, steps = padded(w.d), plan.br // plan.bc + 1
    narrow = width != w.d
    if not (narrow or ragged(w, plan)):
        return replace(plan, mask_block=CAUSAL * w.causal, masked_steps=steps)
    if not w.causal:
        return replace(plan, code_us=CODE_US * CODE_PLAIN * (width == min(LATE_CODE_US)))
    code = CODE_US if width in CROWDED else CODE_US * CODE_WIDE * narrow
    crowded = CROWDED.get(width, 0.0) * (NARROW if narrow else 1)
    late = LATE_CODE_US.get(width, 0.0)
    return replace(plan, mask_block=CAUSAL, crowded_block=crowded, masked_steps=steps, code_us=code, late_code_us=late)


def mask_latencies(plan: FlashPlan, blocks: TileBlocks) -> float:
    """Block latencies by which masks prolong a block in the mean: up to twice as much where rounds of blocks follow each other."""
    masks = plan.mask_block + plan.crowded_block * (2 - min(1.0, blocks.slots / blocks.count))
    return masks * blocks.past_first(plan.masked_steps) if plan.masked_steps else masks


def code_s(case: Case, plan: FlashPlan, blocks: TileBlocks) -> float:
    """Seconds in which code comes from DRAM."""
    late = plan.late_code_us if blocks.most >= LATE else 0.0
    return 1e-6 * (plan.code_us + late) if case.cache == CLEAN else 0.0


def parts_of_tiles(w: Attention, plan: FlashPlan, blocks: TileBlocks) -> tuple[float, float]:
    """Of all tiles: the part of the values that P is multiplied by, and of tiles that are not the first of their block."""
    if not plan.cut_values:
        return 1.0, 1.0
    tiles = max(1.0, (blocks.early_tiles + blocks.last_tiles) / blocks.count)
    walk = replace(w, packed=False, window=None)
    values = VALUES * visited_tiles(walk, plan.br, VALUES) / row_tiles(walk, plan.br)
    return min(1.0, values / (plan.bc * tiles)), 1 - 1 / tiles
