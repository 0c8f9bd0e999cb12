"""Power that kernels draw: joules from their counts, watts from their busy multiprocessors (``Activity``).

``core/power.py`` makes clock, time and watts of it, under a power limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from perfmodel.core.arith import Number
from perfmodel.core.cache import scan_limits
from perfmodel.core.cost import Kernel
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device, PowerFit
from perfmodel.core.power import BURST, Demand, PowerOptions, PowerState, joules_of
from perfmodel.core.roofline import Estimate, estimate, total
from perfmodel.core.workload import BACKWARD
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import Case, chosen, lost_share
from perfmodel.timing.cache_state import LARGEST_SAVING
from perfmodel.timing.case_bounds import kernels_of
from perfmodel.timing.implementations import algorithm_of, find
from perfmodel.timing.models.gemm import WIDE_COPY, copy_bytes
from perfmodel.timing.models.softmax import TWO_ROWS_COLUMNS, WARP, softmax_kernel
from perfmodel.timing.predict import Prediction

if TYPE_CHECKING:
    from perfmodel.kernels.attention.request import Comparison
    from perfmodel.kernels.matmul import MatmulResult
    from perfmodel.timing.select_kernel import Predictions

SAME_ENERGY = {"fp16": "bf16"}  # known
"""Formats of one unit and one rate, whose watts no measurement distinguishes; fitted together."""
IDLE, MATMUL, DECODE, EAGER, ELEMENTWISE, EXPERTS = "idle", "matmul", "decode", "eager attention", "elementwise", "experts"
KINDS = (
    *(MATMUL, "matmul narrow", "matmul vector", "attention", "attention backward", DECODE, EAGER),
    *("softmax", "norm", "layer norm", ELEMENTWISE, "activation"),
)
"""Kinds of kernels; a busy multiprocessor draws about the same in all kernels of a kind."""
SIMILAR = {EXPERTS: MATMUL}
"""Kinds that a fit may lack, and the kinds that replace them."""
KIND_OF_IMPLEMENTATION = {"torch-silu-mul": "activation", "torch-layer-norm": "layer norm"}  # known
KIND_OF_WORKLOAD = {  # known
    "latent-attention": DECODE,
    "collective": IDLE,
    "softmax": "softmax",
    "norm": "norm",
    "moe": EXPERTS,
    "mlp": MATMUL,
}
"""Kinds of other kernels than attention and matmuls. Collectives leave the multiprocessors all but idle. A layer norm, with a mean and a
variance, takes more instructions per byte than a sum of squares."""


def kind_of(workload_kind: str, workload: Any, implementation: str, direction: str = "") -> str:
    """The kind of a kernel: one of ``KINDS``, IDLE or EXPERTS. ``workload_kind``: name of its workload in records."""
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
        return MATMUL if copy_bytes(int(w.n), int(w.k), w.dtype.size) == WIDE_COPY else "matmul narrow"
    return KIND_OF_IMPLEMENTATION.get(implementation) or KIND_OF_WORKLOAD.get(workload_kind, ELEMENTWISE)


class Activity(NamedTuple):
    """What kernels do in ``seconds``: ``counts`` of operations and bytes, by their names in the ``picojoules`` of a power model.

    ``busy``: share of multiprocessors and time at which blocks are at work. ``memory_s``: seconds that DRAM alone would take.
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
        memory = [(name, count) for name, count in self.counts if name == "dram"]
        on_chip = [(name, count) for name, count in self.counts if name != "dram"]
        busy_w = self.busy * fit.busy_w.get(kind, 0.0)
        return Demand(self.seconds, self.memory_s, joules_of(fit, on_chip), joules_of(fit, memory), busy_w)


def energy_name(dtype: str) -> str:
    """The name in ``picojoules`` of a tensor operation in ``dtype``."""
    return f"tensor.{SAME_ENERGY.get(dtype, dtype)}"


def activity(
    cost: Estimate,
    seconds: float,
    kind: str,
    dtype: str,
    device: Device,
    *,
    blocks: float | None = None,
    runs: int = 1,
    missed: float = 1.0,
) -> Activity:
    """The activity of ``runs`` kernels of ``blocks`` each, which together have the ``cost`` and take ``seconds``.

    ``blocks``: None if they fill the device. ``missed``: share of the DRAM bytes that no cache holds. A byte from DRAM also passes the L2.
    In decode K and V pass the L2 once per KV head.
    """
    dram = cost.dram.total * missed
    l2 = cost.dram.total if kind == DECODE else cost.sram.total
    tensor, vector = switched_operations(cost)
    counts = ((energy_name(dtype), tensor), ("vector", vector), ("sfu", cost.work.sfu), ("l2", l2), ("dram", dram))
    multiprocessors = device.multiprocessors
    space_share = 1.0 if blocks is None or multiprocessors is None else min(1.0, float(blocks) / float(multiprocessors.number))
    time_share = max(0.0, 1 - runs * chosen("kernel_gap_us") * 1e-6 / seconds)
    bandwidth = device.dram.bandwidth_bytes_per_s
    return Activity(counts, kind, space_share * time_share, seconds, float(dram) / bandwidth if bandwidth else 0.0)


def switched_operations(cost: Estimate) -> tuple[Number, Number]:
    """Operations on (tensor, vector) units; operations on the zeros that pad tiles count by their share of the energy."""
    work, saved = cost.work, (1 - chosen("padding_energy")) * max(cost.executed_flops - cost.flops, 0)
    return (work.tensor - saved, work.vector) if work.tensor else (0, max(work.vector - saved, 0))


WARPS_PER_BLOCK, ELEMENTS_PER_BLOCK = 4, 2048  # known
"""Warps per block of PyTorch's softmax if a warp has one row or two short ones; elements per block of element-wise kernels, 128 threads of
16 elements. Source: PyTorch, aten/src/ATen/native/cuda/PersistentSoftmax.cuh, thread_constants.h."""


def blocks_of(kernels: Iterable[Kernel], kind: str, workload: Any) -> float | None:
    """Blocks of the largest of ``kernels``; None if all multiprocessors are busy whatever the blocks.

    Matrix libraries split k until they are; decode splits keys likewise.
    """
    if kind == EAGER:
        tiles = -(-int(workload.n) // 128) * -(-int(workload.kv_len) // 128)
        return float(workload.batch * workload.heads * tiles)
    if kind in ("softmax", "norm", "layer norm"):
        rows_per_block = 1
        if kind == "softmax" and softmax_kernel(workload) == WARP:
            rows_per_block = WARPS_PER_BLOCK * (2 if workload.cols <= TWO_ROWS_COLUMNS else 1)
        return float(workload.rows) / rows_per_block
    if kind in (ELEMENTWISE, "activation"):
        rows, cols = getattr(workload, "rows", None), getattr(workload, "cols", None)
        return None if rows is None or cols is None else float(rows * cols) / ELEMENTS_PER_BLOCK
    if kind.startswith("attention"):
        return max((float(kernel.launch.blocks) for kernel in kernels if kernel.launch), default=None)
    return None


def launches(kind: str, implementation: str, direction: str) -> int:
    """Number of kernels of one call: three backward; two in decode, where a second one joins the parts of the keys."""
    if direction == BACKWARD:
        return 3
    return 2 if kind == DECODE else find(implementation).launches


def case_activity(case: Case, workload_kind: str, dtype: str, device: Device, seconds: float) -> Activity:
    """The activity of one call of ``seconds`` in the cache state of ``case``; UnavailableError for a case estimated as a whole."""
    kernels = kernels_of(case, device)
    cost = total(estimate(kernel, device) for kernel in kernels)
    missed = 1.0 if case.flushed else missed_share(kernels, device)
    kind = kind_of(workload_kind, case.workload, case.implementation, case.direction)
    blocks, runs = blocks_of(kernels, kind, case.workload), launches(kind, case.implementation, case.direction)
    return activity(cost, seconds, kind, dtype, device, blocks=blocks, runs=runs, missed=missed)


def behind_itself(case: Case, workload_kind: str, seconds: float) -> float:
    """Seconds of each of many calls in a row, of which one alone takes ``seconds``."""
    kind = kind_of(workload_kind, case.workload, case.implementation, case.direction)
    return behind_another(seconds, launches(kind, case.implementation, case.direction))


def missed_share(kernels: Iterable[Kernel], device: Device) -> float:
    """Share of the DRAM bytes that caches have lost since the same call before."""
    if not device.cache_bytes:
        return 1.0
    sizes: dict[str, float] = {}
    for kernel in kernels:
        for access in kernel.accesses:
            sizes[access.tensor] = max(sizes.get(access.tensor, 0.0), float(access.footprint * access.element_size))
    return lost_share(sum(sizes.values()) / device.cache_bytes, *scan_limits(device, alone=True))


def behind_another(seconds: float, kernels: int = 1) -> float:
    """Seconds of a call of ``kernels`` that takes ``seconds`` alone, if the same call runs before it."""
    hidden_us = chosen("hidden_us")
    hidden = (hidden_us["first"] + (kernels - 1) * hidden_us["next"]) * 1e-6 if kernels else 0.0
    return max(seconds - hidden, seconds * (1 - LARGEST_SAVING))


def state_of(
    activities: Sequence[Activity], device: Device, options: PowerOptions, default_clock: str, host_s: float = 0.0
) -> PowerState | None:
    """Power and clock of ``activities`` that run in turn, in no less than ``host_s``; None if the device has no power model for them.

    If ``options`` ask for power, that is an UnavailableError, so that no limit is ignored.
    """
    try:
        power = options.on(device, host_s)
        return power.state([kernel.demand(power.fit) for kernel in activities], options.clock or default_clock)
    except UnavailableError:
        if options.given:
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
    return activity(cost, prediction.seconds, kind, dtype, device, blocks=blocks, runs=runs)


def as_shown(prediction: Prediction, state: PowerState | None) -> Prediction:
    """``prediction`` at the clock of the headline, under its limit."""
    return prediction if state is None else scaled(prediction, state.shown.seconds / state.alone_s)._replace(power=state)


def options_of(device: Device, limit: str | None, clock: str | None, predicted: bool) -> PowerOptions:
    """The options ``limit`` and ``clock``, checked: UsageError for a wrong one.

    UnavailableError if one is given and the device has no power model, or nothing is ``predicted``.
    """
    options = PowerOptions(limit, clock).check(device)
    if options.given and not predicted:
        raise UnavailableError("there is no power without a predicted time", "leave out --power-limit and --clock")
    return options


def product_with_power(result: MatmulResult, prediction: Prediction | None, limit: str | None, clock: str | None) -> Prediction | None:
    """The prediction of a product at the clock of its headline (by default of a run alone), with its power; errors as in ``options_of``."""
    options = options_of(result.device, limit, clock, prediction is not None)
    if prediction is None:
        return None
    w, device = result.workload, result.device
    call = predicted_activity(prediction, result.total, w, w.dtype.name, device, [kernel for kernel, _ in result.kernels])
    return as_shown(prediction, state_of([call], device, options, BURST))


def attention_with_power(comparison: Comparison, predictions: Predictions, limit: str | None, clock: str | None) -> Predictions:
    """Predictions of attention at the clock of their headline (by default of a run alone), with their power if it is known.

    Errors as in ``options_of``; also UnavailableError if power is asked for and no kernel has a power model.
    """
    with_power, device, w = dict(predictions), comparison.device, comparison.workload
    options = options_of(device, limit, clock, bool(predictions))
    errors: list[UnavailableError] = []
    for result in comparison.results:
        name = result.algorithm.name
        prediction = predictions.get((name, result.direction))
        parts = [(part, predictions.get((name, part.direction))) for part in result.parts]
        if prediction is None or any(of_part is None for _, of_part in parts):
            continue
        activities = [
            predicted_activity(of_part, part.total, w, w.dtype.name, device, [kernel for kernel, _ in part.kernels])
            for part, of_part in parts
            if of_part is not None
        ]
        try:
            with_power[name, result.direction] = as_shown(prediction, state_of(activities, device, options, BURST))
        except UnavailableError as error:
            errors.append(error)
    if errors and not any(prediction.power for prediction in with_power.values()):
        raise errors[0]
    return with_power
