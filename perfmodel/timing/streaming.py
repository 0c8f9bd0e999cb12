"""Time of decode attention, as blocks that stream the KV cache tile by tile: the engine of all decode models.

Blocks run in waves, as many at once as multiprocessors hold. A block waits once for its first loads, ``latency_us``, then works on a tile
while it loads the next. So the first wave takes the longer of its streaming and its work, a little more if both are near each other (a norm
with the exponent ``overlap``), and one tile of the shorter, as work begins with the first tile. Blocks of later waves start while others
stream.

The memory system streams the bytes of all blocks of a wave at a share of the bandwidth of DRAM, or from L2 if the KV cache fits it and the
run before left it there. The work on a tile is what the units of a multiprocessor need for it, one block there after the other, and the
wait for the tile, in units of the same latency. Other kernels come on top: launches inside a CUDA graph, what they move, and, if keys were
split, the sum over splits. Source: bandwidth under latency, Little 1961; split keys, Dao et al. 2023, Flash-Decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from perfmodel.core.architectures import BY_THREAD, Traits, traits_of
from perfmodel.core.arith import ceil_div
from perfmodel.core.cache import scan_limits
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.units import Quantity
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.attention.algorithms.split_kv import PARTIAL_SIZE
from perfmodel.kernels.latent_decode import NarrowCacheAttention
from perfmodel.timing.base import ALONE, WARM_LATENCY_S, Case, Model, lost_share, numbers_of, plain_attention
from perfmodel.timing.engine import L2_PORT, joined

GRAPH_GAP_S = 1.4e-6  # known
"""Start of a dependent kernel inside a CUDA graph where the profile has none: 1.3 to 1.4 us on A100, H100 and H200 (gpu-benches)."""
MOST_FLOP = 4096  # known
"""FLOP per clock of a multiprocessor by ``mma.sync``, which was made no faster after Hopper."""
WAIT_BYTES = 64 * 1024  # known
"""Unit of ``tile_waits``: a tile waits for its latency once, and once more for this many bytes."""
MOST_QUERIES, MOST_DRAFTED, WIDEST_HEAD = 16, 8, 256  # known
"""Most queries of a sequence in the rows of one tile; most tokens, drafted ones included, over an 8-bit cache; widest head dim."""


@dataclass(frozen=True, slots=True)
class StreamLaunch:
    """One launch of ``blocks``, ``resident`` per multiprocessor, each with ``tiles`` tiles; keys are in ``splits`` parts.

    - ``tile_bytes``: bytes of a tile's keys and values. ``tile_cycles``: clocks that its work occupies the units of its multiprocessor.
    - ``rereads``: how often the blocks read the KV cache together.
    - ``gaps``: launches of other kernels of the call; ``moved_bytes`` and ``later_waits``: what these move and how often they wait.
    - ``block_terms``: parameters that are waits before a block's first tile, with the number of each. ``wait_factors``: parameters that
      multiply the wait for a tile. ``work_factors``: parameters that multiply its work.
    """

    blocks: int
    splits: int
    tiles: int
    tile_bytes: float
    resident: int = 1
    tile_cycles: float = 0.0
    rereads: int = 1
    gaps: int = 0
    moved_bytes: float = 0.0
    later_waits: float = 0.0
    block_terms: Mapping[str, float] = field(default_factory=dict)
    wait_factors: tuple[str, ...] = ()
    work_factors: tuple[str, ...] = ()


LaunchRule = Callable[[Attention, Device, int], StreamLaunch]
"""The launch of a workload, in the format of its cache, on a device with that number of multiprocessors."""


def page(name: str, launches: Mapping[str, Mapping[str, LaunchRule]], source: str, covers: Callable[[Case], bool] | None = None) -> Model:
    """The time model ``name`` of a library's kernels: the engine below, with the parameters of ``parameters/streaming.yaml``.

    ``launches``: launch rules by implementation and by matrix instruction of the devices that run this kernel. ``covers``: the decoding
    cases that it covers, by default all.
    """

    def runs_on(implementation: str, traits: Traits) -> bool:
        return traits.copies != BY_THREAD and traits.matrix in launches.get(implementation, {})

    @cached_by_identity
    def launched(case: Case, device: Device) -> StreamLaunch:
        if not runs_on(case.implementation, traits_of(device)):
            problem = f"{device.id}: no decode kernel of {case.implementation} is known for its architecture, {device.architecture}"
            instructions = " or ".join(launches[case.implementation])
            raise UnavailableError(problem, f"known: from compute capability 8.0 on, where the peak is that of {instructions}")
        rule = launches[case.implementation][traits_of(device).matrix]
        return rule(in_cache_format(case.workload), device, int(numbers_of(device, "multiprocessors")[0]))

    def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
        """Seconds of one call, for vLLM with the append of the new token; UnavailableError if a kernel or a number is missing."""
        return streamed_seconds(case, device, launched(case, device), p)

    def decoding(case: Case) -> bool:
        """Forward, few queries per sequence, head dims up to 256; no mask, window, dropout or blocks."""
        return case.implementation in launches and decodes(case) and (covers is None or covers(case))

    assumes = f"{ALONE}; a cache stored as [batch, KV heads, length, d], vLLM's in pages and in a CUDA graph"
    return Model(name, "streaming", decoding, seconds, source, assumes, tuple(launches), runs_on=runs_on, regime="decode")


def streamed_seconds(case: Case, device: Device, stream: StreamLaunch, p: Mapping[str, float]) -> float:
    """Seconds of a call that streams the KV cache of ``case``; UnavailableError if the profile lacks a number."""
    w = in_cache_format(case.workload)
    sms, clock, bandwidth, l2_bytes = numbers_of(device, "multiprocessors", "highest clock", "DRAM bandwidth", "L2 capacity")
    dram, l2 = bandwidth * p["dram_share"], min(p["l2_bytes_per_clock"], L2_PORT) * sms * clock
    size, latency_s = float(w.stored_kv_heads * w.kv_len * (w.d + w.dv) * w.dtype.size), p["latency_us"] * 1e-6
    lost = lost_share(size / l2_bytes, *scan_limits(device, alone=True))
    misses = {1.0, lost} if case.flushed else {lost}  # a cold run takes no less than a warm one
    shares = [miss / stream.rereads for miss in misses]
    block_s = size * stream.rereads / stream.blocks * max(miss / dram + (1 - miss) / l2 for miss in shares)
    start_s = (1 + sum(p[name] * count for name, count in stream.block_terms.items())) * latency_s
    start_s -= 0.0 if case.flushed else (1 - lost) * min(WARM_LATENCY_S, start_s / 2)
    wait_s, work_s = p["tile_waits"] * (1 + stream.tile_bytes / WAIT_BYTES) * latency_s, stream.tile_cycles / clock
    for name in stream.wait_factors:
        wait_s *= p[name]
    for name in stream.work_factors:
        work_s *= p[name]

    def wave_work_s(blocks: int) -> float:
        return stream.tiles * (int(ceil_div(blocks, int(sms))) * work_s + wait_s)

    slots = stream.resident * int(sms)
    first_blocks = min(stream.blocks, slots)
    full_waves, last_blocks = divmod(stream.blocks - first_blocks, slots)
    first_work_s, first_stream_s = wave_work_s(first_blocks), first_blocks * block_s
    waves_s = start_s + joined(p["overlap"], first_work_s, first_stream_s) + min(first_work_s, first_stream_s) / stream.tiles
    if full_waves:
        waves_s += full_waves * joined(p["overlap"], start_s + wave_work_s(slots), slots * block_s)
    if last_blocks:
        waves_s += joined(p["overlap"], start_s + wave_work_s(last_blocks), last_blocks * block_s)
    waits = stream.later_waits
    if stream.splits > 1:
        waits = waits + p.get("split_waits", 0.0) * stream.splits + p["combine_waits"]
    later_s = waits * latency_s + stream.gaps * graph_gap_s(device) + stream.moved_bytes / dram
    return float(p["launch_us"] * 1e-6 + waves_s + later_s)


def graph_gap_s(device: Device) -> float:
    """Seconds between two kernels of a CUDA graph."""
    gap = device.launch_overhead.graph if device.launch_overhead else None
    return GRAPH_GAP_S if gap is None else float(gap.number)


def in_cache_format(w: Attention) -> Attention:
    """``w`` in the format of its cache, which kernels multiply in."""
    if not isinstance(w, NarrowCacheAttention):
        return w
    return Attention(w.n, w.kv_len, w.d, w.dv, w.batch, w.heads, w.kv_heads, DTYPES["fp8"], packed=True)


def decodes(case: Case) -> bool:
    """Whether the case is forward attention of few queries over a cache of 16 or 8 bits, head dims up to 256; no mask, window or blocks."""
    w = case.workload
    if not plain_attention(case, "mask", "dropout", "sparsity", "window") or case.direction != FORWARD or max(w.d, w.dv) > WIDEST_HEAD:
        return False
    if isinstance(w, NarrowCacheAttention):
        return bool(w.n <= MOST_DRAFTED and w.kv_bits == 8 and w.dtype.size == 2)
    return bool(w.n <= min(MOST_QUERIES, w.kv_len) and w.dtype.size == 2)


def resident(sram_bytes: int, device: Device, most: int) -> int:
    """Resident blocks per multiprocessor, each with ``sram_bytes``; registers allow ``most``."""
    sram = device.level("sram")
    if sram is None or sram.capacity is None:
        raise UnavailableError(f"{device.id} has no SRAM capacity in its profile", "the model needs it for the blocks that run at once")
    return max(1, min(most, int(sram.capacity.number // sram_bytes)))


def partial_bytes(w: Attention, splits: int, columns: int) -> float:
    """Bytes of the outputs of all splits, ``columns`` wide, which the kernel that sums them up reads; 0 if keys are not split."""
    return float(splits * w.query_heads * w.n * columns * PARTIAL_SIZE) if splits > 1 else 0.0


def tile_cycles(scores: int, flops: float, w: Attention, device: Device) -> float:
    """Clocks of a tile of ``scores``: ``flops`` per score and then an exponential, as few warps hide neither."""
    unit = device.matmul_unit(w.dtype.name, "tensor")
    flop_rate = _per_clk(device, device.peaks_of(unit)[w.dtype.name], device.stated_clock(w.dtype.name, unit))
    exp_rate = _per_clk(device, device.peaks.exp, device.clocks.vector)
    if flop_rate is None or exp_rate is None:
        raise UnavailableError(
            f"{device.id} lacks FLOP or exponentials per clock in its profile", "add per_clk to its tensor and exp peaks"
        )
    return float(scores * (flops / min(flop_rate, MOST_FLOP) + 1 / exp_rate))


def _per_clk(device: Device, peak: Quantity | None, clock: Quantity | None) -> float | None:
    """Operations of a multiprocessor per clock at ``peak``; None if the profile does not say."""
    if peak is None:
        return None
    if peak.per_clk is not None:
        return peak.per_clk
    if clock is None or device.multiprocessors is None:
        return None
    return peak.number / (clock.number * device.multiprocessors.number)
