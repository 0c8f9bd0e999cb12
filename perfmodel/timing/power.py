"""Power that a kernel draws: joules from its counts, watts from its busy multiprocessors. ``core/power.py`` does the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from perfmodel.core.architectures import wide_matrix
from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.cache import scan_limits
from perfmodel.core.cost import Kernel
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device, PowerFit
from perfmodel.core.power import BURST, Demand, PowerOptions, PowerState, joules_of
from perfmodel.core.roofline import Estimate, estimate, total
from perfmodel.core.workload import BACKWARD, Attention, Stream
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import Case, chosen, lost_share
from perfmodel.timing.cache_state import LARGEST_SAVING
from perfmodel.timing.case_bounds import kernels_of
from perfmodel.timing.implementations import algorithm_of, find, kernel_name
from perfmodel.timing.models.gemm import WIDE_COPY, copy_bytes
from perfmodel.timing.models.softmax import TWO_ROWS_COLUMNS, WARP, softmax_kernel
from perfmodel.timing.predict import Prediction

if TYPE_CHECKING:
    from perfmodel.kernels.attention.request import Comparison
    from perfmodel.kernels.matmul import MatmulResult
    from perfmodel.timing.select_kernel import Predictions

IDLE, MATMUL, NARROW, DECODE, EAGER, ELEMENTWISE = "idle", "matmul", "matmul narrow", "decode", "eager attention", "elementwise"
KINDS = (
    *(MATMUL, NARROW, "matmul vector", "attention", "attention backward", DECODE, EAGER),
    *("softmax", "norm", "layer norm", ELEMENTWISE, "activation"),
)
"""Kinds of kernels; operations beside those of the algorithm are alike in all kernels of a kind."""
EXPERTS = "experts"
"""Kind of fused experts, written in Triton."""
UNCOUNTED = ("attention", "attention backward", EAGER, EXPERTS)
"""Kinds whose kernels issue more instructions than are counted: a busy multiprocessor draws more there than in all other kernels."""

SIMILAR = {EXPERTS: MATMUL, "attention": "attention backward", "attention backward": "attention", EAGER: "attention backward"}
"""Kinds that a fit may lack, and the kinds that replace them."""
NAMED = {"torch-silu-mul": "activation", "torch-layer-norm": "layer norm"}  # known
"""Kinds with one implementation each: a mean and a variance take more instructions per byte than a sum of squares."""


def kind_of(workload_kind: str, workload: Any, implementation: str, direction: str = "") -> str:
    """The one of ``KINDS`` that a kernel belongs to; collectives leave the multiprocessors all but idle."""
    if workload_kind == "attention":
        if algorithm_of(implementation) == "standard":
            return EAGER
        if getattr(workload, "n", 0) == 1:
            return DECODE
        return "attention backward" if direction == BACKWARD else "attention"
    if workload_kind == "matmul" and isinstance(workload, Matmul):
        w = workload
        if w.dtype.matmul_unit == "vector":
            return "matmul vector"
        return MATMUL if copy_bytes(int(w.n), int(w.k), w.dtype.size) == WIDE_COPY else NARROW
    other = {"latent-attention": DECODE, "collective": IDLE, "softmax": "softmax", "norm": "norm", "moe": EXPERTS, "mlp": MATMUL}
    return NAMED.get(implementation) or other.get(workload_kind, ELEMENTWISE)


class Activity(NamedTuple):
    """Work of one kernel, or of several alike, in ``seconds``: ``counts`` by the names of ``picojoules``, DRAM bytes among them.

    ``busy``: share of the time, over all multiprocessors, that blocks are at work. ``memory_s``: seconds that DRAM alone would take.
    """

    counts: tuple[tuple[str, Number], ...]
    kind: str
    busy: float
    seconds: float
    memory_s: float

    def demand(self, fit: PowerFit) -> Demand:
        """Joules and watts of the activity by ``fit``; UnavailableError for a kind without a fit."""
        kind = self.kind if self.kind in fit.busy_w else SIMILAR.get(self.kind, self.kind)
        if kind != IDLE and kind not in fit.busy_w:
            raise UnavailableError(f"no power model of {kind}", f"there is one of {', '.join(fit.busy_w)}")
        memory = [pair for pair in self.counts if pair[0] == "dram"]
        switched = [pair for pair in self.counts if pair[0] != "dram" and (pair[0] != REGISTERS or REGISTERS in fit.picojoules)]
        busy_w = self.busy * fit.busy_w.get(kind, 0.0)
        return Demand(self.seconds, self.memory_s, joules_of(fit, switched), joules_of(fit, memory), busy_w)


TENSOR_OPERATION = "tensor."
"""How names of tensor operations in ``picojoules`` begin; the format follows."""


def energy_name(dtype: str) -> str:
    """The name in ``picojoules`` of a tensor operation in ``dtype``."""
    return f"{TENSOR_OPERATION}{dtype}"


REGISTERS = "mma.sync"
"""Name in ``picojoules`` of what a tensor operation costs more where its operands come from registers."""
REGISTER_KERNELS = ("torch-sdpa-flash", "torch-sdpa-efficient")  # known
"""Kernels written for ``mma.sync``, whatever the device. Source: PyTorch 2.11, third_party/flash-attention (sm80), CUTLASS's FMHA."""
PASSES_BETWEEN = {"torch-silu-mul": 2, "torch-rope": 5}  # known
"""Passes over all elements by which several kernels in turn move more than one kernel that fuses them."""
TILE_ROWS, HEAD_STEP = 64, 32  # known
"""Least rows of a matrix instruction's tile of a block, and multiple to which heads are padded: kernels of one query compute so many."""


def activity(
    cost: Estimate,
    seconds: float,
    kind: str,
    dtype: str,
    device: Device,
    case: tuple[Any, str] = (None, ""),
    *,
    blocks: float | None = None,
    runs: int = 1,
    calls: int = 1,
    missed: float = 1.0,
) -> Activity:
    """The activity of ``runs`` kernels of ``blocks`` each, which together have that ``cost``: ``calls`` calls of ``case``, a workload and
    the name of its implementation.

    ``missed``: share of the DRAM bytes that no cache holds yet. A byte from DRAM also pays for its way through the L2. In decode K and V
    pass the L2 once per KV head.
    """
    workload, implementation = case
    between = calls * bytes_between(kind, workload, implementation)
    dram = (cost.dram.total + between) * missed
    l2 = between + (cost.dram.total if kind == DECODE else cost.sram.total) + spilled_bytes(cost, kind, workload, implementation)
    tensor, vector = switched_operations(cost, kind, workload, implementation, calls)
    registers = tensor if wide_matrix(device) and (kind == NARROW or kernel_name(implementation) in REGISTER_KERNELS) else 0
    counts = ((energy_name(dtype), tensor), (REGISTERS, registers), ("vector", vector), ("l2", l2), ("dram", dram))
    multiprocessors = device.multiprocessors
    share = 1.0 if blocks is None or multiprocessors is None else min(1.0, float(blocks) / float(multiprocessors.number))
    awake = max(0.0, 1 - runs * chosen("kernel_gap_us") * 1e-6 / seconds)
    bandwidth = device.dram.bandwidth_bytes_per_s
    return Activity(counts, kind, share * awake, seconds, float(dram) / bandwidth if bandwidth else 0.0)


def bytes_between(kind: str, workload: Any, implementation: str) -> Number:
    """Bytes that the kernels of a call pass to one another through memory, beyond those of its algorithm: eager attention scales apart."""
    if kind == EAGER:
        return 2 * scores_of(workload) * workload.dtype.size
    passes = PASSES_BETWEEN.get(implementation, 0) if isinstance(workload, Stream) else 0
    return passes * workload.rows * workload.cols * workload.dtype.size if passes else 0


def spilled_bytes(cost: Estimate, kind: str, workload: Any, implementation: str) -> Number:
    """Bytes per call by which memory-efficient attention passes the L2 more often than with tiles of 128 rows and sums in registers.

    Forward it has 64 rows, 32 over head dim 128, where O passes through memory for each tile; backward dK and dV do there.
    """
    if kernel_name(implementation) != "torch-sdpa-efficient" or kind not in UNCOUNTED:
        return 0
    w, wide = workload, max(workload.d, workload.dv) > SPILLING_HEAD
    sums = cost.work.sfu * 2 * FP32_BYTES * w.d / USUAL_ROWS if wide else 0
    if kind != "attention":
        return 2 * sums
    return sums + cost.work.sfu * 2 * w.dtype.size * w.d * (1 / (32 if wide else 64) - 1 / USUAL_ROWS)


SPILLING_HEAD, USUAL_ROWS, FP32_BYTES = 128, 128, 4  # known
"""Widest head whose sums stay in registers, keys (forward) or rows (backward) per tile. Source: PyTorch 2.11, mem_eff_attention/kernels."""


def scores_of(w: Any) -> Number:
    """Scores of an attention ``w``, those that a mask hides among them."""
    return w.batch * w.heads * w.n * w.kv_len


def switched_operations(cost: Estimate, kind: str, workload: Any, implementation: str, calls: int = 1) -> tuple[Number, Number]:
    """Operations on (tensor, vector) units; operations on the zeros that pad tiles count by their share of the energy.

    Vector operations beside products are those that a kernel of its kind issues, two for a thread's instruction, as an FMA has two.
    """
    work, share = cost.work, chosen("padding_energy")
    if kind == DECODE and isinstance(workload, Attention) and work.tensor:
        return live_in_decode(cost, workload, implementation, share["decode"])
    zeros = (1 - share["products"]) * max(cost.executed_flops - cost.flops, 0)
    beside = operations_beside(cost, kind, workload, implementation, calls)
    if work.tensor:
        return max(work.tensor - zeros, 0), work.vector if beside is None else beside
    if isinstance(workload, Stream) and beside is not None:
        return 0, beside
    return 0, max(work.vector - zeros, 0) + (beside or 0)


def live_in_decode(cost: Estimate, w: Attention, implementation: str, zeros_share: float) -> tuple[Number, Number]:
    """Operations as in ``switched_operations`` of attention that fills tiles with the queries of a KV head.

    ``zeros_share``: energy on a row of zeros.

    Kernels for ``mma.sync`` take the softmax of all rows of a tile.
    """
    rows = w.n * w.heads // w.kv_heads
    tile, width = TILE_ROWS * ceil_div(rows, TILE_ROWS), HEAD_STEP * ceil_div(w.d, HEAD_STEP)
    executed = cost.flops * tile * width / (rows * w.d)
    scores = executed / (4 * width) * (1 if kernel_name(implementation) in REGISTER_KERNELS else rows / tile)
    return cost.flops + zeros_share * (executed - cost.flops), 2 * chosen("lane_operations")[DECODE] * scores


def operations_beside(cost: Estimate, kind: str, workload: Any, implementation: str, calls: int) -> Number | None:
    """Vector operations beside products, two for an instruction of a thread; None of kinds whose algorithms count them."""
    lanes, own = chosen("lane_operations"), f"{kind} {kernel_name(implementation)}"
    each = lanes.get(own, lanes.get(kind))
    if each is None:
        return None
    if isinstance(workload, Stream):
        return 0 if workload.op == "copy" else 2 * each * calls * workload.rows * workload.cols
    if kind == EAGER:
        return 2 * each * calls * scores_of(workload)
    return 2 * each * cost.work.sfu if isinstance(workload, Attention) else None


def blocks_of(kernels: Iterable[Kernel], kind: str, workload: Any) -> float | None:
    """Blocks of the largest of ``kernels``; None if all multiprocessors are busy whatever the blocks.

    Matrix libraries split k until they are; decode splits keys likewise.
    """
    if kind == EAGER:
        tiles = -(-int(workload.n) // 128) * -(-int(workload.kv_len) // 128)
        return float(workload.batch * workload.heads * tiles)
    if kind in ("softmax", "norm", "layer norm"):
        by_warps = kind == "softmax" and softmax_kernel(workload) == WARP
        return float(workload.rows) / (WARPS_PER_BLOCK * (1 + (workload.cols <= TWO_ROWS_COLUMNS)) if by_warps else 1)
    if kind in (ELEMENTWISE, "activation"):
        rows, cols = getattr(workload, "rows", None), getattr(workload, "cols", None)
        return None if rows is None or cols is None else float(rows * cols) / ELEMENTS_PER_BLOCK
    if kind.startswith("attention"):
        return max((float(kernel.launch.blocks) for kernel in kernels if kernel.launch), default=None)
    return None


WARPS_PER_BLOCK, ELEMENTS_PER_BLOCK = 4, 2048  # known
"""Warps per block of PyTorch's softmax where a warp has one row or two short ones; elements per block of element-wise kernels, 128 threads
of 16 elements. Source: PyTorch, aten/src/ATen/native/cuda/PersistentSoftmax.cuh, thread_constants.h."""


def launches(kind: str, implementation: str, direction: str) -> int:
    """Number of kernels of one call: three backward; two in decode, where a second one joins the parts of the keys."""
    if direction == BACKWARD:
        return 3
    return 2 if kind == DECODE else find(implementation).launches


def case_activity(case: Case, kind: str, dtype: str, device: Device, seconds: float) -> Activity:
    """The activity of one call of ``seconds`` in the cache state of ``case``; UnavailableError for a case estimated as a whole."""
    kernels = kernels_of(case, device)
    cost = total(estimate(kernel, device) for kernel in kernels)
    missed = 1.0 if case.flushed else missed_share(kernels, device)
    kernel_kind = kind_of(kind, case.workload, case.implementation, case.direction)
    blocks, runs = blocks_of(kernels, kernel_kind, case.workload), launches(kernel_kind, case.implementation, case.direction)
    own = case.workload, case.implementation
    return activity(cost, seconds, kernel_kind, dtype, device, own, blocks=blocks, runs=runs, missed=missed)


def behind_itself(case: Case, kind: str, seconds: float) -> float:
    """Seconds of each of many calls in a row, of which one alone takes ``seconds``; ``kind``: workload, as records call it."""
    kernel_kind = kind_of(kind, case.workload, case.implementation, case.direction)
    return behind_another(seconds, launches(kernel_kind, case.implementation, case.direction))


def missed_share(kernels: Iterable[Kernel], device: Device) -> float:
    """Share of the DRAM bytes that caches have lost since the same call before."""
    sizes: dict[str, float] = {}
    for access in (access for kernel in kernels for access in kernel.accesses):
        sizes[access.tensor] = max(sizes.get(access.tensor, 0.0), float(access.footprint * access.element_size))
    return lost_share(sum(sizes.values()) / device.cache_bytes, *scan_limits(device, alone=True)) if device.cache_bytes else 1.0


def behind_another(seconds: float, kernels: int = 1) -> float:
    """Seconds of a call of ``kernels`` that takes ``seconds`` alone, if the same call runs before it."""
    hidden_us = chosen("hidden_us")
    hidden = (hidden_us["first"] + (kernels - 1) * hidden_us["next"]) * 1e-6 if kernels else 0.0
    return max(seconds - hidden, seconds * (1 - LARGEST_SAVING))


def state_of(activities: Sequence[Activity], device: Device, asked: PowerOptions, usual: str, host_s: float = 0.0) -> PowerState | None:
    """Power and clock of ``activities`` that run in turn, in no less than ``host_s``; None if the device has no power model for them.

    If power is asked for, that is an UnavailableError, so that no limit is ignored.
    """
    try:
        power = asked.on(device, host_s)
        return power.state([each.demand(power.fit) for each in activities], asked.clock or usual)
    except UnavailableError:
        if asked.given:
            raise
        return None


def scaled(prediction: Prediction, factor: float) -> Prediction:
    """``prediction`` with its interval, times ``factor``."""
    return prediction._replace(seconds=prediction.seconds * factor, low=prediction.low * factor, high=prediction.high * factor)


def predicted_activity(
    prediction: Prediction, cost: Estimate, workload: Any, dtype: str, device: Device, kernels: Iterable[Kernel]
) -> Activity:
    """The activity of one predicted call, from cold caches, with ``kernels`` of that ``cost``."""
    block = prediction.calibration
    kind = kind_of(block.workload, workload, block.implementation, block.direction)
    blocks, runs = blocks_of(kernels, kind, workload), launches(kind, block.implementation, block.direction)
    return activity(cost, prediction.seconds, kind, dtype, device, (workload, block.implementation), blocks=blocks, runs=runs)


def as_shown(prediction: Prediction, state: PowerState | None) -> Prediction:
    """``prediction`` at the clock of the headline, under its limit."""
    return prediction if state is None else scaled(prediction, state.shown.seconds / state.alone_s)._replace(power=state)


def options_of(device: Device, limit: str | None, clock: str | None, predicted: bool) -> PowerOptions:
    """The options ``limit`` and ``clock``, checked: UsageError for a wrong one.

    UnavailableError if one is given and the device has no power model, or nothing is ``predicted``.
    """
    asked = PowerOptions(limit, clock).check(device)
    if asked.given and not predicted:
        raise UnavailableError("there is no power without a predicted time", "leave out --power-limit and --clock")
    return asked


def product_with_power(result: MatmulResult, prediction: Prediction | None, limit: str | None, clock: str | None) -> Prediction | None:
    """The prediction of a product, by default run alone, at the clock of its headline and with its power; errors as in ``options_of``."""
    asked = options_of(result.device, limit, clock, prediction is not None)
    if prediction is None:
        return None
    w, device = result.workload, result.device
    drawn = predicted_activity(prediction, result.total, w, w.dtype.name, device, [kernel for kernel, _ in result.kernels])
    return as_shown(prediction, state_of([drawn], device, asked, BURST))


def attention_with_power(comparison: Comparison, predictions: Predictions, limit: str | None, clock: str | None) -> Predictions:
    """Predictions of attention at the clock of their headline (run alone unless asked otherwise), with their power where it is known.

    Errors as in ``options_of``; also UnavailableError if power is asked for and no kernel has a power model.
    """
    shown, device = dict(predictions), comparison.device
    asked = options_of(device, limit, clock, bool(predictions))
    refused: list[UnavailableError] = []
    for result in comparison.results:
        name, w = result.algorithm.name, comparison.workload
        whole = predictions.get((name, result.direction))
        parts = [predictions.get((name, part.direction)) for part in result.parts]
        if whole is None or None in parts:
            continue
        activities = [
            predicted_activity(prediction, part.total, w, w.dtype.name, device, [kernel for kernel, _ in part.kernels])
            for prediction, part in zip(parts, result.parts, strict=True)
            if prediction is not None
        ]
        try:
            shown[name, result.direction] = as_shown(whole, state_of(activities, device, asked, BURST))
        except UnavailableError as error:
            refused.append(error)
    if refused and not any(prediction.power for prediction in shown.values() if prediction is not None):
        raise refused[0]
    return shown
