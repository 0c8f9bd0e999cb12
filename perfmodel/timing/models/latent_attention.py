"""Decode over a compressed cache by TensorRT-LLM: FlashMLA on Hopper, its own generation kernels elsewhere.

A block takes up to 64 query heads of one sequence and walks the keys in tiles of 64. On Hopper and B200 the tiles of all sequences are
dealt out to as many blocks as there are multiprocessors, so a sequence is cut where a block's share ends. Each sequence that a block starts
costs it the time of some tiles, and a second kernel joins the parts. On older devices a block walks its whole sequence alone. The heads of
a tile are padded to 64, so few heads cost as much arithmetic as 64. Arithmetic and streaming overlap. A kernel before rotates Q, quantizes
it if the cache has 8 bits, and appends to the cache. Source: deepseek-ai/FlashMLA, csrc/smxx/get_mla_metadata.cu (payload, fixed overhead
of 5 blocks) and docs of its Hopper kernel; NVIDIA TensorRT-LLM, cpp/tensorrt_llm/common/attentionOp.cpp (mlaGeneration).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from perfmodel.core.architectures import TCGEN05, tensor_share, traits_of, wide_matrix
from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.latent_decode import LatentDecode
from perfmodel.timing.base import ALONE, Case, Model, numbers_of
from perfmodel.timing.engine import joined
from perfmodel.timing.streaming import graph_gap_s

KEYS = 64  # known
"""Keys of a tile."""
HEADS, WIDE_HEADS = 64, 128  # known
"""Heads per tile: rows of a wgmma, and of a tcgen05.mma (PTX ISA)."""
MOST_QUERIES = 8  # known
"""Most tokens of a sequence whose heads share tiles: one, and drafted ones. Source: deepseek-ai/FlashMLA, README (``s_q`` above 1, for
drafted tokens); it was timed with one token; more tokens are more rows.
"""


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one layer's call; UnavailableError if the device does not multiply in 8 bits, or its profile lacks a number."""
    w: LatentDecode = case.workload
    if w.kv_bits == 8 and "fp8" not in device.peaks.tensor:
        raise UnavailableError(f"{device.id} does not multiply in 8 bits: no kernel for its 8-bit cache is calibrated")
    sms, clock, bandwidth, l2_bytes = numbers_of(device, "multiprocessors", "highest clock", "DRAM bandwidth", "L2 capacity")
    tile_s = p["tile_cycles"] * (p["narrow_factor"] if w.kv_bits == 8 else 1.0) / clock + slower_multiplication_s(w, device)
    slots, tiles, wide = int(sms), int(ceil_div(w.kv_len, KEYS)), traits_of(device).matrix == TCGEN05
    blocks = int(w.batch * ceil_div(w.n * w.heads, WIDE_HEADS if wide else HEADS))
    shares = min(slots, blocks * tiles) if wide_matrix(device) else blocks  # tiles dealt out, or a sequence to each block
    parts = max(shares // blocks, 1)
    walked = ceil(blocks * tiles / shares) + ceil(blocks / shares) * p["sequence_tiles"]
    worked = walked * tile_s * (1 if wide_matrix(device) else ceil(blocks / slots))
    streamed = w.cache_bytes / (bandwidth * p["dram_share"]) if case.flushed or w.cache_bytes > l2_bytes else 0.0
    joining = parts * p["join_cycles"] / clock if parts > 1 else 0.0
    launch, queries = p["launch_us"] * 1e-6, 2 * w.query_bytes / (bandwidth * p["query_share"])
    if not w.appends:
        launch, queries = max(launch - graph_gap_s(device), 0.0), queries / 2
    return float(launch + joined(p["overlap"], worked, streamed) + joining + queries)


def slower_multiplication_s(w: LatentDecode, device: Device) -> float:
    """Seconds per tile by which products take longer than on whole multiprocessors, where the tensor rate was cut; softmax does not."""
    share = tensor_share(device)
    if share == 1 or device.multiprocessors is None:
        return 0.0
    flops = 2 * HEADS * KEYS * (2 * w.kv_lora_rank + w.rope) * device.multiprocessors.number
    return float(flops / device.peaks.tensor["fp8" if w.kv_bits == 8 else "fp16"].number * (1 - share))


def covers(case: Case) -> bool:
    """Forward decoding with 16-bit queries, drafted ones included, over a latent cache of 16 or 8 bits."""
    w = case.workload
    return isinstance(w, LatentDecode) and case.direction == FORWARD and w.n <= MOST_QUERIES and w.kv_bits in (8, 16) and w.dtype.size == 2


MODEL = Model(
    "latent-attention",
    "latent-attention",
    covers,
    seconds,
    "tiles dealt out to the multiprocessors, as FlashMLA does",
    assumes=f"{ALONE}; a paged cache, in a CUDA graph",
    implementations=("trtllm-mla",),
)
