"""TensorRT-LLM's generation kernels: decode attention of vLLM on Blackwell, and of TensorRT-LLM over a cache of 8 bits.

A block has 16 query heads of a KV group as its rows and walks its part of the keys in steps of 256. There are as many parts, of 512 keys or
more, as fill the device once; the last block of a head to end sums up its parts. Loads run far ahead of the work, which hides behind them.
On Hopper the kernel is XQA: a block has one KV head and walks tiles of 64 keys, and there are as many parts, of 128 keys or more, as make
eight blocks per multiprocessor. Sources: flashinfer-ai/flashinfer @fb28d724 include/flashinfer/trtllm/fmha/fmhaKernels.cuh
(computeCtaAndClusterConfig); NVIDIA TensorRT-LLM, cpp/tensorrt_llm/kernels/decoderMaskedMultiheadAttention (decoderXQAConstants.h); how
blocks stream: ``timing/streaming.py``.
"""

from __future__ import annotations

from perfmodel.core.architectures import TCGEN05, WGMMA
from perfmodel.core.arith import ceil_div
from perfmodel.core.hardware import Device
from perfmodel.core.workload import Attention
from perfmodel.timing.models.decode_fa3 import APPENDED
from perfmodel.timing.streaming import StreamLaunch, page

STEP_KEYS, STEPS_PER_SPLIT, GROUP_ROWS = 256, 2, 16  # known
XQA_KEYS, XQA_KEYS_PER_SPLIT, XQA_WAVES = 64, 128, 8  # known
"""XQA's keys per tile, fewest keys per part, and most blocks per multiprocessor (kMinHistoryTokensPerBlock, kTargetWaveFactor)."""


def launch(w: Attention, device: Device, multiprocessors: int) -> StreamLaunch:
    """Blackwell's launch: as many splits as fill the device once."""
    steps = int(ceil_div(w.kv_len + APPENDED, STEP_KEYS))
    blocks = int(w.stored_kv_heads * ceil_div(w.n * w.group, GROUP_ROWS))
    splits = w.splits or min(int(ceil_div(steps, STEPS_PER_SPLIT)), max(1, multiprocessors // blocks))
    return _stream(w, blocks, int(splits), steps, STEP_KEYS)


def xqa(w: Attention, device: Device, multiprocessors: int) -> StreamLaunch:
    """Hopper's launch: as many splits as make eight waves."""
    keys, blocks = int(w.kv_len + APPENDED), int(w.stored_kv_heads)
    splits = w.splits or max(1, min(keys // XQA_KEYS_PER_SPLIT, XQA_WAVES * multiprocessors // blocks))
    return _stream(w, blocks, int(splits), int(ceil_div(keys, XQA_KEYS)), XQA_KEYS)


def _stream(w: Attention, blocks: int, splits: int, tiles: int, keys: int) -> StreamLaunch:
    return StreamLaunch(blocks * splits, splits, int(ceil_div(tiles, splits)), keys * (w.d + w.dv) * w.dtype.size)


MODEL = page(
    "decode-trtllm",
    {
        **{key: {TCGEN05: launch} for key in ("vllm-flash-attn", "vllm-flash-attn-fp8-cache")},
        "trtllm-attention-fp8-cache": {TCGEN05: launch, WGMMA: xqa},
    },
    "NVIDIA TensorRT-LLM's generation kernels, as in FlashInfer",
)
