"""TensorRT-LLM's generation kernels: decode attention of vLLM on Blackwell, and of TensorRT-LLM over a cache of 8 bits.

A block has 16 query heads of a KV group for its rows and walks its part of the keys in steps of 256. As many parts as fill the device
once, of 512 keys or more; the blocks of a head sum up their parts among themselves, the last one to end. Loads run far ahead of the work,
which hides behind them. On Hopper it is XQA, whose blocks have a KV head each and walk tiles of 64 keys: as many parts of 128 or more as
make eight blocks per multiprocessor.
Source: flashinfer-ai/flashinfer @fb28d724 include/flashinfer/trtllm/fmha/fmhaKernels.cuh (computeCtaAndClusterConfig); NVIDIA TensorRT-LLM,
cpp/tensorrt_llm/kernels/decoderMaskedMultiheadAttention (decoderXQAConstants.h); how blocks stream:
``timing/streaming.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.architectures import TCGEN05, WGMMA, traits_of
from perfmodel.core.arith import ceil_div
from perfmodel.core.hardware import Device
from perfmodel.core.workload import Attention
from perfmodel.timing import streaming
from perfmodel.timing.base import Case, Model, Parameter, numbers_of, once_per_case
from perfmodel.timing.models.decode_fa3 import APPENDED
from perfmodel.timing.streaming import CACHE, ENGINE, Stream, check_kernel, decodes, in_cache_format, runs_on

STEP_KEYS, STEPS_PER_SPLIT, GROUP_ROWS = 256, 2, 16  # known
XQA_KEYS, XQA_KEYS_PER_SPLIT, XQA_WAVES = 64, 128, 8  # known
"""Keys of a tile, fewest of a part, and most blocks per multiprocessor of XQA (kMinHistoryTokensPerBlock, kTargetWaveFactor)."""
MATRICES = {**dict.fromkeys(("vllm-flash-attn", "vllm-flash-attn-fp8-cache"), (TCGEN05,)), "trtllm-attention-fp8-cache": (WGMMA, TCGEN05)}

PARAMETERS = (*ENGINE, Parameter("split_waits", "waits of the sum of splits, for each of them"))


def launch(w: Attention, multiprocessors: int) -> Stream:
    """The launch on Blackwell."""
    steps = int(ceil_div(w.kv_len + APPENDED, STEP_KEYS))
    blocks = int(w.stored_kv_heads * ceil_div(w.n * w.group, GROUP_ROWS))
    splits = w.splits or min(int(ceil_div(steps, STEPS_PER_SPLIT)), max(1, multiprocessors // blocks))
    return _stream(w, blocks, splits, steps, STEP_KEYS)


def xqa(w: Attention, multiprocessors: int) -> Stream:
    """The launch on Hopper."""
    keys, blocks = int(w.kv_len + APPENDED), int(w.stored_kv_heads)
    splits = w.splits or max(1, min(keys // XQA_KEYS_PER_SPLIT, XQA_WAVES * multiprocessors // blocks))
    return _stream(w, blocks, splits, int(ceil_div(keys, XQA_KEYS)), XQA_KEYS)


def _stream(w: Attention, blocks: int, splits: int, tiles: int, keys: int) -> Stream:
    return Stream(blocks * splits, splits, int(ceil_div(tiles, splits)), tile_bytes=keys * (w.d + w.dv) * w.dtype.size)


@once_per_case
def launched(case: Case, device: Device) -> Stream:
    """The launch on all multiprocessors of ``device``."""
    rule = xqa if traits_of(device).matrix == WGMMA else launch
    return rule(in_cache_format(case.workload), int(numbers_of(device, "multiprocessors")[0]))


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call, with the append of the new token to its cache; UnavailableError without kernel or number."""
    check_kernel(case.implementation, device, MATRICES)
    stream = launched(case, device)
    return streaming.seconds(case, device, stream, p, later_waits=stream.splits * p["split_waits"] if stream.splits > 1 else 0.0)


MODEL = Model(
    "decode-trtllm",
    PARAMETERS,
    decodes,
    seconds,
    "NVIDIA TensorRT-LLM's generation kernels, as in FlashInfer",
    assumes=CACHE,
    implementations=tuple(MATRICES),
    runs_on=runs_on(MATRICES),
)
