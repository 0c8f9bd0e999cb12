"""Bound, roof and predicted time of one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.core.architectures import same_board
from perfmodel.core.arith import Number
from perfmodel.core.cost import Kernel
from perfmodel.core.errors import PerfmodelError, UnavailableError
from perfmodel.core.hardware import Calibration, Device
from perfmodel.core.roofline import Estimate, estimate
from perfmodel.kernels.collectives import MOST_OF_A_HOST
from perfmodel.timing.base import Case, chosen
from perfmodel.timing.implementations import is_fused
from perfmodel.timing.predict import BORROWED, Prediction, TimeRequest, predict
from perfmodel.timing.reference_devices import FallbackDevices, model_calibration
from perfmodel.timing.select_kernel import select_kernel
from perfmodel.transformer.op import ATTENTION, COLLECTIVE, ELEMENTWISE, Op, Timed
from perfmodel.transformer.spec import GroupedAttention, ModelSpec
from perfmodel.transformer.step import ModelPass, Split


def op_estimate(op: Op, device: Device) -> Estimate:
    """Bound and roof of one run."""
    return estimate(in_compute_dtype(op, device), device) if op.exchange is None else op.exchange.estimate(device)


def in_compute_dtype(op: Op, device: Device) -> Kernel:
    """The kernel of ``op`` in the narrower format that it may multiply in, where ``device`` has a peak for that."""
    if op.compute_dtype is None or op.compute_dtype.name not in device.products_of(op.compute_dtype.matmul_unit):
        return op.kernel
    return replace(op.kernel, dtype=op.compute_dtype)


def predict_op(op: Op, device: Device, lower_s: float, fallbacks: FallbackDevices, attention: str | None = None) -> Prediction:
    """The prediction of one run alone, calibrated here or else borrowed; UnavailableError says why there is none.

    ``attention``: the implementation of fused attention, by default the fastest.
    """
    timed = op.timed
    if timed is None or timed.obstacle:
        raise UnavailableError(timed.obstacle if timed else f"no time model of {op.name}")
    if timed.implementations is None:
        timed = timed.preferred or timed
        case = Case(timed.workload, attention or "", timed.direction)
        request = TimeRequest(case, timed.kind, op.kernel.dtype.name, device, lower_s, fallbacks)
        if attention is None and not {block.implementation for block in device.calibration}.isdisjoint(timed.candidates):
            with suppress(UnavailableError):
                return as_similar(select_kernel(request, timed.candidates.__contains__, guesses=False), timed)
        return as_similar(select_kernel(request, is_fused), timed)
    alternatives, reason = _alternatives(timed, device), ""
    for source in _sources(alternatives[0], device, fallbacks):
        for each in alternatives:
            for name in _names(each, source, fallbacks):
                try:
                    case, form = Case(each.workload, name, each.direction), each.calibrated or each.workload.dtype.name
                    request = TimeRequest(case, each.kind, form, device, lower_s, source)
                    names = (each.implementations or ()).__contains__
                    return as_similar(predict(request) if name else select_kernel(request, names, guesses=False), each)
                except UnavailableError as error:
                    if error.message.startswith(f"{device.id} "):  # what the device lacks, not which calibrations there are none of
                        reason = reason or error.message
    if timed.kind == COLLECTIVE and timed.workload.world > MOST_OF_A_HOST:
        from perfmodel.timing.across_hosts import predict_across

        return predict_across(timed.workload, timed.implementations, device, lower_s, fallbacks)
    if not reason and timed.kind != COLLECTIVE:
        with suppress(UnavailableError):
            return _in_place(alternatives[-1], device, lower_s, fallbacks)
    what = f"{alternatives[0].kind}/{(alternatives[0].implementations or ('',))[0]} in {alternatives[0].workload.dtype.name}"
    raise UnavailableError(reason or f"no calibration of {what}, here or to borrow")


def _in_place(timed: Timed, device: Device, lower_s: float, fallbacks: FallbackDevices) -> Prediction:
    """The prediction by the best-known kernel that runs on ``device``, or pooled, where nothing like it has a record of those named."""
    case, dtype = Case(timed.workload, "", timed.direction), timed.workload.dtype.name
    request = TimeRequest(case, timed.kind, dtype, device, lower_s, fallbacks)
    prediction = select_kernel(request, is_fused if timed.kind == ATTENTION else lambda name: True)
    named = next(iter(timed.implementations or ()), "")
    words = f"{prediction.calibration.implementation} in place of {named}, of which no kin has a record"
    return prediction if prediction.guess else as_similar(prediction, replace(timed, similar=words))


def _alternatives(timed: Timed | None, device: Device) -> list[Timed]:
    """Candidates in order: all that is preferred to ``timed``, then ``timed`` as it runs on ``device``."""
    if timed is None:
        return []
    runs = _runs(timed, device)
    return [*_alternatives(runs.preferred or timed.preferred, device), runs]


def _runs(timed: Timed, device: Device) -> Timed:
    """``timed``, or its fallback where ``device`` does not multiply in its format."""
    dtype = timed.workload.dtype
    return timed if timed.fallback is None or dtype.name in device.peaks_of(dtype.matmul_unit) else timed.fallback


LIKENESS = 1.25  # tuned
"""Factor by which the interval of a kernel is wider that is timed as one of another format."""


def as_similar(prediction: Prediction, timed: Timed) -> Prediction:
    """``prediction``, made for a similar kernel, as that of ``timed``: with a wider interval; unchanged where it is no stand-in."""
    if not timed.similar:
        return prediction
    words = f"{prediction.provenance}; as {timed.similar}"
    start_s = 1e-6 * chosen("attention_extras")["start_us"]
    seconds, low, high = (
        end + (timed.slower - 1) * max(0.0, end - start_s)
        for end in (prediction.seconds, prediction.low / LIKENESS, prediction.high * LIKENESS)
    )
    return replace(prediction, seconds=seconds, low=low, high=high, kind=BORROWED, provenance=words)


def _sources(timed: Timed, device: Device, fallbacks: FallbackDevices) -> tuple[FallbackDevices, ...]:
    """Devices whose calibrations count, in order: its own first, then those of the same board.

    Of exchanges and of products in 8 bits or fewer the library that runs says more than the device: its own kernels first.
    """
    narrow = timed.kind == "matmul" and timed.workload.dtype.size == 1
    if timed.kind == "collective" or narrow:
        return (fallbacks,)
    return tuple, lambda: [other for other in fallbacks() if same_board(device, other)], fallbacks


def _names(timed: Timed, source: FallbackDevices, fallbacks: FallbackDevices) -> tuple[str, ...]:
    """Implementations to try in order; '' for the best known of a product that another board calibrates, as where it is asked for alone."""
    borrowed = timed.kind == "matmul" and timed.workload.dtype.size > 1 and source is fallbacks
    return ("",) if borrowed else timed.implementations or ()


def busy_s(cost: Estimate, device: Device) -> float:
    """Seconds that the busiest of DRAM, tensor and vector units works, at the datasheet's rates.

    Kernels of a step follow each other without a pause to cool down: none is taken to beat those rates. Where the size of the L2 is
    unknown so is what passes through DRAM, and it counts nothing.
    """
    units = ("tensor", "vector") if device.cache_bytes is None else ("dram", "tensor", "vector")
    return max(float(cost.terms.get(unit, 0.0)) for unit in units)


def in_time(prediction: Prediction, cost: Estimate, device: Device) -> Prediction:
    """``prediction``, no shorter than the time for which any unit that it uses is busy."""
    seconds, low, high = _no_shorter((prediction.seconds, prediction.low, prediction.high), busy_s(cost, device))
    return prediction if low == prediction.low else replace(prediction, seconds=seconds, low=low, high=high)


def _no_shorter(ends: tuple[float, float, float], least: float) -> tuple[float, float, float]:
    """Seconds and the ends of their interval, none below ``least``."""
    seconds, low, high = ends
    return ends if low >= least else (max(seconds, least), least, max(high, least))


def scaled(cost: Estimate, count: Number) -> Estimate:
    """``cost`` of ``count`` runs one after the other."""
    parts = {name: getattr(cost, name) for name in ("work", "sram", "dram")}
    counts = {name: replace(part, **_times(part, count)) for name, part in parts.items()}
    terms = {name: count * term for name, term in cost.terms.items()}
    apart = (*parts, "terms", "unknown", "needs")
    return replace(cost, **_times(cost, count, apart), **counts, terms=terms, needs=cost.needs.times(count))


def _times(record: Any, count: Number, apart: tuple[str, ...] = ()) -> dict[str, Number]:
    return {name: count * getattr(record, name) for name in record.__slots__ if name not in apart}


MODEL = "torch-step"
"""Time model of the calibrations that hold these parameters."""

LARGEST_SAVING = 0.5  # tuned
"""Largest saving as a share of the kernel's time alone; a tiny kernel, mostly launch, still takes half."""

MEASURED_SPLITS = (Split(), Split(tp=2))
"""Tensor-parallel layouts for which steps were measured."""

TIMED_IN_GRAPHS = ("experts", "experts-narrow", "latent-attention")
"""Models of kernels whose measurements were graphs of many runs: there is no launch to take off."""


@dataclass(frozen=True, slots=True)
class LaunchCorrection:
    """The parameters that hold on a device. ``block``: where they are from; None: the profile's launch overheads. ``own``: its own."""

    parameters: Mapping[str, float]
    block: Calibration | None = None
    own: bool = False

    def saving_s(self, graph: bool) -> float:
        """Seconds that a kernel in a step takes less than alone. ``graph``: in a CUDA graph."""
        return self.parameters["graph_saving_us" if graph else "stream_saving_us"] * 1e-6

    def seconds(self, alone_s: float, op: Op, device: Device, graph: bool, lower_s: float) -> float:
        """Seconds of a kernel run in a step; never below ``lower_s``."""
        if op.group == COLLECTIVE:  # those were timed one behind the other
            return max(alone_s, lower_s)
        p, in_step_s = self.parameters, alone_s
        bandwidth = device.dram.bandwidth_bytes_per_s
        if op.group == ELEMENTWISE and bandwidth:
            slower = p["strided_factor"] - 1 if op.timed is not None and op.timed.strided else 0.0
            in_step_s += slower * float(op.activation_bytes) / bandwidth
            in_step_s -= handed_bytes(op, device) / bandwidth * (1 - min(p["handoff_share"], 1.0))
        return max(in_step_s - min(self.saving_s(graph), in_step_s * LARGEST_SAVING), lower_s)

    def ends(self, alone: Prediction, op: Op, device: Device, graph: bool, lower_s: float) -> tuple[float, float, float]:
        """Seconds, and the ends of their interval, of the kernel in a step, as ``alone`` has them of it alone."""
        ends = (alone.seconds, alone.low, alone.high)
        if alone.calibration.model in TIMED_IN_GRAPHS:
            return ends
        seconds, low, high = (self.seconds(end, op, device, graph, lower_s) for end in ends)
        return seconds, low, high


@dataclass(frozen=True, slots=True)
class OpTime:
    """One run of ``op`` alone: its bound and roof, and its ``prediction``. Without one, ``missing`` says why.

    ``of_steps``: the prediction is of a kernel among others, and not of one alone.
    """

    op: Op
    cost: Estimate
    prediction: Prediction | None
    missing: str = ""
    of_steps: bool = False

    def in_step(self, device: Device, graph: bool, within: LaunchCorrection) -> tuple[float, float, float]:
        """Seconds of all runs in a step, with the ends of their interval; the roof for all three where nothing predicts them."""
        count = self.op.count
        if self.prediction is None:
            roof = float(count * self.cost.roofline_s)
            return roof, roof, roof
        if self.of_steps:
            return self.prediction.seconds * count, self.prediction.low * count, self.prediction.high * count
        ends = within.ends(self.prediction, self.op, device, graph, float(self.cost.lower_s))
        seconds, low, high = _no_shorter(ends, busy_s(self.cost, device))
        return seconds * count, low * count, high * count


Pricing = Callable[[Op, Estimate], Prediction]
"""The time of one run of a kernel in a step, given its bound and roof."""


def time_alone(op: Op, device: Device, fallbacks: FallbackDevices, priced: Pricing | None = None) -> OpTime:
    """The time of one run of ``op`` alone; ``priced``: what gives it in place of its time model."""
    cost = op_estimate(op, device)
    try:
        if priced is not None:
            return OpTime(op, cost, priced(op, cost), of_steps=True)
        return OpTime(op, cost, predict_op(op, device, float(cost.lower_s), fallbacks))
    except PerfmodelError as error:
        return OpTime(op, cost, None, error.message)


def handed_bytes(op: Op, device: Device) -> float:
    """Activations that an element-wise kernel finds in L2: about half of what it moves are inputs, and half of L2 is kept."""
    return min(float(op.activation_bytes), float(device.cache_bytes or 0)) / 2


def launch_correction(device: Device, fallbacks: FallbackDevices = tuple) -> LaunchCorrection:
    """The calibration of ``device``, or else of the nearest architecture, or else the launch overheads of its profile."""
    block, own = model_calibration(MODEL, device, fallbacks)
    if block is not None:
        return LaunchCorrection(block.parameters, block, own)
    saving_us = 1e6 * (launch_saving_s(device) or 0.0)
    return LaunchCorrection({"stream_saving_us": 0.0, "graph_saving_us": saving_us, "handoff_share": 1.0, "strided_factor": 1.0})


def launch_saving_s(device: Device) -> float | None:
    """Seconds between the launch overheads of a stream and of a graph; None where the profile does not say."""
    overhead = device.launch_overhead
    if overhead is None or overhead.graph is None:
        return None
    return max(float(overhead.stream.number - overhead.graph.number), 0.0)


def calibrated_for(model: ModelSpec, step: ModelPass) -> bool:
    """Whether calibrated steps are like this one: dense layers in plain PyTorch, element-wise kernels apart, on one GPU or two."""
    dense = not model.is_moe and all(isinstance(layer.attention, GroupedAttention) for layer, _ in model.layer_kinds)
    return dense and not step.fused and step.cached and step.split in MEASURED_SPLITS
