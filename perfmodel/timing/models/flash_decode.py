"""Decode attention: one or a few queries against a long KV cache, bound by how fast the cache can be streamed.

Blocks run in waves. A wave streams its share of the cache at the bandwidth of DRAM, or of L2 as far as the run before left
the cache there, while each block waits for its own loads: the wave takes the root of the squares of both times, since a
memory system near its bandwidth answers later. The first block of a slot waits before any other streams. Kernels that multiply
by mma.sync also keep the units busy: there a wave takes little more than the longer of streaming and work, and one tile of the
shorter. Launches, the combine kernel and copies of Q and O come on top. One latency prices every dependent wait; how many there
are is known per kernel.

Over a cache of 8 bits: the same plan, half the bytes, and work on every tile. FlashAttention-3 multiplies in fp8 and has to transpose V
in SRAM first, which the matrix instruction takes only one way round in 8 bits: a tile's work shows beside its streaming.
Source: Shah et al. 2024, FlashAttention-3, section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil, hypot

from perfmodel.core.architectures import BY_THREAD, MMA_SYNC, TCGEN05, WGMMA, traits_of
from perfmodel.core.arith import ceil_div
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.latent_decode import NarrowCacheAttention
from perfmodel.timing.base import ALONE, WARM_LATENCY_S, Case, Model, Parameter, lost_share, numbers_of, once_per_case, plain_attention
from perfmodel.timing.engine import L2_PORT
from perfmodel.timing.implementations import kernel_name
from perfmodel.timing.models._decode_kernels import Decode, cudnn, fa2, fa3, flash, trtllm

Plan = Callable[[Attention, Device, int], Decode]
KERNELS: dict[str, dict[str, Plan]] = {
    "vllm-flash-attn": {MMA_SYNC: fa2, WGMMA: fa3, TCGEN05: trtllm},
    **dict.fromkeys(("torch-sdpa-flash", "fa2"), dict.fromkeys((MMA_SYNC, WGMMA, TCGEN05), flash)),
    "torch-sdpa-cudnn": {WGMMA: cudnn},
}
"""By implementation and matrix instruction of the device; all need asynchronous copies."""
MOST_QUERIES = {"vllm-flash-attn": 16, "torch-sdpa-flash": 16, "fa2": 16, "torch-sdpa-cudnn": 1}  # known
"""cuDNN takes its prefill kernel from two queries on."""
FLUSHED = ("torch-sdpa-flash", "torch-sdpa-cudnn", "fa2")
"""Implementations that were timed after flushes, too: their parameters know how late first loads are."""
RUN_SURVIVES, RUN_IS_LOST = 2 / 3, 1.0  # tuned
"""Cache size over L2 up to which a run finds all that the run before read, and from which it finds nothing. Cross-validated."""
OVERLAP = 6.0  # tuned
"""Exponent of the norm that adds streaming and work of pipelined tiles: 1 is their sum, infinity the longer of the two. Cross-validated."""
GRAPH_GAP_S = 1.4e-6  # known
"""Start of a dependent kernel inside a CUDA graph where the profile has none: 1.3 to 1.4 us on A100, H100 and H200 (gpu-benches)."""

ANY_MAJOR = 10.0  # known
"""Compute capability whose matrix instruction takes V as it lies in 8 bits, too. Source: PTX ISA, tcgen05.mma, transposed operands."""

PARAMETERS = (
    Parameter("launch_us", "time before the first and after the last block, kernels that append to the cache included"),
    Parameter("latency_us", "one dependent wait: page table, load, reduction, store of a block"),
    Parameter("dram_share", "share of the DRAM bandwidth that streaming reaches"),
    Parameter("l2_bytes_per_clock", "bytes per clock and multiprocessor from L2"),
)
NOT_MODELLED = ("mask", "dropout", "sparsity", "window")


def covers(case: Case) -> bool:
    """Forward, few queries per sequence, a 16-bit cache, head dims up to 256; no mask, window, dropout or blocks."""
    w = case.workload
    if not plain_attention(case, *NOT_MODELLED) or case.direction != FORWARD or case.implementation not in KERNELS:
        return False
    if w.n > 1 and kernel_name(case.implementation) == "torch-sdpa-flash" and _one_tile(w):
        return False
    return bool(w.n <= min(MOST_QUERIES[case.implementation], w.kv_len) and w.dtype.size == 2 and max(w.d, w.dv) <= 256)


def _one_tile(w: Attention) -> bool:
    """Whether FlashAttention-2 has nothing to split (csrc/flash_attn flash_api.cpp, set_params_splitkv): its main kernel runs."""
    return bool(w.kv_len <= (256 if w.d <= 64 else 128 if w.d <= 128 else 64))


def seconds(case: Case, device: Device, parameters: Mapping[str, float]) -> float:
    """Seconds of one call, of vLLM with the append of the new token to its cache; UnavailableError without kernel or number."""
    w = case.workload
    sms, clock, bandwidth, l2_bytes = numbers_of(device, "multiprocessors", "highest clock", "DRAM bandwidth", "L2 capacity")
    plan, latency_s = planned(case, device), parameters["latency_us"] * 1e-6
    cache = w.stored_kv_heads * w.kv_len * (w.d + w.dv) * w.dtype.size
    dram = bandwidth * parameters["dram_share"]
    l2 = min(parameters["l2_bytes_per_clock"], L2_PORT) * sms * clock
    lost = lost_share(cache / l2_bytes, RUN_SURVIVES, RUN_IS_LOST)
    late_s = (1 - lost) * WARM_LATENCY_S if case.flushed and case.implementation not in FLUSHED else 0.0
    shares = [one / plan.rereads for one in ({1.0, lost} if case.flushed else {lost})]  # a cold run takes no less than a warm one
    block_s = cache * plan.rereads / plan.blocks * max(one / dram + (1 - one) / l2 for one in shares)
    after_s = plan.combine_steps * latency_s + plan.copies * w.query_heads * w.n * w.d * w.dtype.size / dram
    graph = device.launch_overhead.graph if device.launch_overhead else None
    gaps_s = plan.gaps * (GRAPH_GAP_S if graph is None else float(graph.number))
    after_s += gaps_s + plan.partial_bytes / dram + (plan.splits * plan.partial_cycles / clock if plan.splits > 1 else 0)
    if plan.pipelined:
        blocks_s = pipelined_s(plan, int(sms), latency_s, block_s, plan.tile_cycles / clock)
    else:
        blocks_s = streaming_s(plan, plan.resident * int(sms), latency_s, block_s)
    return float(parameters["launch_us"] * 1e-6 + late_s + blocks_s + after_s)


@once_per_case
def planned(case: Case, device: Device) -> Decode:
    """The launch of its implementation on all multiprocessors of ``device``."""
    return kernel_of(case.implementation, device)(case.workload, device, int(numbers_of(device, "multiprocessors")[0]))


def kernel_of(implementation: str, device: Device) -> Plan:
    """The kernel for ``device``; UnavailableError where it has no asynchronous copies or another maker."""
    plans, traits = KERNELS[implementation], traits_of(device)
    if traits.copies == BY_THREAD or traits.matrix not in plans:
        found = f"{device.id}: no decode kernel of {implementation} is known for its architecture, {device.architecture}"
        raise UnavailableError(found, f"known: from compute capability 8.0 on, where the peak is that of {' or '.join(plans)}")
    return plans[traits.matrix]


def streaming_s(plan: Decode, slots: int, latency_s: float, block_s: float) -> float:
    """When the last block ends. ``block_s``: time in which the whole device streams the bytes of one block."""
    start, tiles = plan.block_steps * latency_s, plan.tiles * plan.tile_steps * latency_s
    full, rest = divmod(plan.blocks, slots)
    first = start + hypot(tiles, min(plan.blocks, slots) * block_s)
    later = max(full - 1, 0) * hypot(start + tiles, slots * block_s)
    last = hypot(start + tiles, rest * block_s) if full and rest else 0.0
    return first + later + last


def pipelined_s(plan: Decode, multiprocessors: int, latency_s: float, block_s: float, tile_s: float) -> float:
    """When the last block ends if blocks work on one tile while they load the next. ``tile_s``: of a tile's work on the units.

    The first tile must be there before work begins. The blocks of a wave spread evenly, and those of one multiprocessor share its units.
    """
    full, rest = divmod(plan.blocks, plan.resident * multiprocessors)

    def wave_s(blocks: int) -> float:
        beside, streamed = int(ceil_div(blocks, multiprocessors)), blocks * block_s
        worked = plan.tiles * (beside * tile_s + plan.tile_steps * latency_s)
        longest: float = (worked**OVERLAP + streamed**OVERLAP) ** (1 / OVERLAP)
        return plan.block_steps * latency_s + longest + min(worked, streamed) / plan.tiles

    return full * wave_s(plan.resident * multiprocessors) + (wave_s(rest) if rest else 0.0)


# A cache of 8 bits

MOST_DRAFTED = 8  # known
"""Tokens of a sequence whose heads are rows of the same tiles: one, and those that were drafted. It was timed with one."""
LIKE = "vllm-flash-attn"
"""Implementation whose blocks and splits the kernel shares."""


@once_per_case
def _narrow_work(case: Case, device: Device) -> tuple[Case, float]:
    """The call over a cache in the kernel's own format, and the elements of it that one multiprocessor streams block by block."""
    w = case.workload
    plain = Attention(w.n, w.kv_len, w.d, w.dv, w.batch, w.heads, w.kv_heads, DTYPES["fp8"], packed=True)
    like = replace(case, workload=plain, implementation=LIKE)
    plan, [sms] = planned(like, device), numbers_of(device, "multiprocessors")
    elements = plain.stored_kv_heads * w.kv_len * (w.d + w.dv) / plan.blocks * ceil(plan.blocks / (int(sms) * plan.resident))
    return like, elements


def narrow_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call, with the append of the new token to the cache; UnavailableError as in ``seconds``."""
    plain, elements = _narrow_work(case, device)
    [clock] = numbers_of(device, "highest clock")
    cycles = p["element_cycles"] if device.capability < ANY_MAJOR else 0.0
    return float(seconds(plain, device, p) + elements * 1e-3 * cycles / clock)


def covers_narrow(case: Case) -> bool:
    """Forward, 16-bit Q of a token, or of a few with drafted ones, over an 8-bit cache, head dims up to 256; no mask, window or blocks."""
    w = case.workload
    if not isinstance(w, NarrowCacheAttention) or not plain_attention(case, *NOT_MODELLED) or case.direction != FORWARD:
        return False
    return bool(w.n <= MOST_DRAFTED and w.kv_bits == 8 and w.dtype.size == 2 and max(w.d, w.dv) <= 256)


_SIXTEEN_BITS = Model(
    name="flash-decode",
    parameters=PARAMETERS,
    covers=covers,
    seconds=seconds,
    source="Dao et al. 2023, Flash-Decoding; kernels as in _decode_kernels and _decode_torch; bandwidth under latency: Little 1961",
    assumes=f"{ALONE}; a cache stored as [batch, KV heads, length, d], vLLM's in pages and in a CUDA graph",
    implementations=("vllm-flash-attn", "torch-sdpa-flash", "torch-sdpa-cudnn", "torch-sdpa-efficient", "fa2", "xformers"),
)
_EIGHT_BITS = replace(
    _SIXTEEN_BITS,
    name="flash-decode-narrow",
    parameters=(*PARAMETERS, Parameter("element_cycles", "work on a thousand elements of the cache that one block streams")),
    covers=covers_narrow,
    seconds=narrow_seconds,
    implementations=("vllm-flash-attn-fp8-cache", "trtllm-attention-fp8-cache"),
)
MODELS = {model.name: model for model in (_SIXTEEN_BITS, _EIGHT_BITS)}
