"""Bound, roof and predicted time of one row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from perfmodel.core.architectures import same_board
from perfmodel.core.arith import Number
from perfmodel.core.cost import Kernel, Work
from perfmodel.core.errors import PerfmodelError, UnavailableError, UsageError
from perfmodel.core.hardware import Calibration, Device
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.roofline import Estimate, Traffic, estimate
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
    """The kernel of ``op`` in the narrower format that it may multiply in, if ``device`` has a peak for that."""
    if op.compute_dtype is None or op.compute_dtype.name not in device.products_of(op.compute_dtype.matmul_unit):
        return op.kernel
    return op.kernel._replace(dtype=op.compute_dtype)


def predict_op(op: Op, device: Device, lower_s: float, fallbacks: FallbackDevices, attention: str | None = None) -> Prediction:
    """The prediction of one run alone, calibrated here or else borrowed; UnavailableError says why there is none.

    An operation without named kernels runs ``attention`` if given, else the fastest fused attention. Any other takes the first named kernel
    with a calibration; else an exchange over several hosts is predicted by its links; else a substitute is taken.
    """
    timed = op.timed
    if timed is None or timed.obstacle:
        raise UnavailableError(timed.obstacle if timed else f"no time model of {op.name}")
    if timed.implementations is None:
        wanted = timed.preferred or timed
        return _by_fastest(wanted, _request(wanted, attention or "", op.kernel.dtype.name, device, lower_s, fallbacks))
    alternatives = _alternatives(timed, device)
    prediction, lacking = _by_name(alternatives, device, lower_s, fallbacks)
    if prediction is not None:
        return prediction
    if timed.kind == COLLECTIVE and timed.workload.world > MOST_OF_A_HOST:
        from perfmodel.timing.across_hosts import predict_across

        return predict_across(timed.workload, timed.implementations, device, lower_s, fallbacks)
    if not lacking and timed.kind != COLLECTIVE:
        with suppress(UnavailableError):
            return _by_substitute(alternatives[-1], device, lower_s, fallbacks)
    if lacking:
        raise UnavailableError(lacking)
    best = alternatives[0]
    implementation = (best.implementations or ("",))[0]
    raise UnavailableError(f"no calibration of {best.kind}/{implementation} in {best.workload.dtype.name}, here or to borrow")


def check_named(attention: str | None, ops: Iterable[Op]) -> None:
    """UsageError if an implementation of fused attention is named and none of ``ops`` runs it."""
    if attention is not None and not any(op.timed is not None and op.timed.implementations is None for op in ops):
        words = f"--implementation {attention} names fused attention over K and V of heads, and no kernel here runs it"
        raise UsageError(words, "leave it out")


def _request(timed: Timed, name: str, dtype: str, device: Device, lower_s: float, fallbacks: FallbackDevices) -> TimeRequest:
    """The request for ``timed`` by the implementation ``name``; an empty name leaves the choice open."""
    return TimeRequest(Case(timed.workload, name, timed.direction), timed.kind, dtype, device, lower_s, fallbacks)


def _by_fastest(timed: Timed, request: TimeRequest) -> Prediction:
    """The prediction by the implementation that ``request`` names, else by the fastest fused one, candidates of ``timed`` first."""
    calibrated = {block.implementation for block in request.device.calibration}
    if not request.case.implementation and not calibrated.isdisjoint(timed.candidates):
        with suppress(UnavailableError):
            return as_similar(select_kernel(request, timed.candidates.__contains__, guesses=False), timed)
    return as_similar(select_kernel(request, is_fused), timed)


def _by_name(alternatives: list[Timed], device: Device, lower_s: float, fallbacks: FallbackDevices) -> tuple[Prediction | None, str]:
    """The first prediction by a kernel that ``alternatives`` name (None if there is none), and a phrase on what the device lacks."""
    lacking = ""
    for source in _rounds(alternatives[0], device, fallbacks):
        for alternative in alternatives:
            for name in _names_to_try(alternative, source, fallbacks):
                format_name = alternative.calibrated or alternative.workload.dtype.name
                request = _request(alternative, name, format_name, device, lower_s, source)
                try:
                    if name:
                        prediction = predict(request)
                    else:
                        prediction = select_kernel(request, (alternative.implementations or ()).__contains__, guesses=False)
                    return as_similar(prediction, alternative), ""
                except UnavailableError as error:
                    if not lacking and error.message.startswith(f"{device.id} "):  # it says what the device lacks
                        lacking = error.message
    return None, lacking


def _by_substitute(timed: Timed, device: Device, lower_s: float, fallbacks: FallbackDevices) -> Prediction:
    """The prediction by the best-known kernel on ``device`` in place of the named ones, else the pooled prediction."""
    request = _request(timed, "", timed.workload.dtype.name, device, lower_s, fallbacks)
    prediction = select_kernel(request, is_fused if timed.kind == ATTENTION else lambda name: True)
    named = next(iter(timed.implementations or ()), "")
    words = f"{prediction.calibration.implementation} in place of {named}, of which no kin has a record"
    return prediction if prediction.guess else as_similar(prediction, timed._replace(similar=words))


def _alternatives(timed: Timed | None, device: Device) -> list[Timed]:
    """Requests to try, best first: the chain of ``preferred`` ones, then ``timed``, each as on ``device``; empty for None."""
    if timed is None:
        return []
    runs = _on_device(timed, device)
    return [*_alternatives(runs.preferred or timed.preferred, device), runs]


def _on_device(timed: Timed, device: Device) -> Timed:
    """``timed``, or its fallback if ``device`` does not multiply in its format."""
    dtype = timed.workload.dtype
    return timed if timed.fallback is None or dtype.name in device.peaks_of(dtype.matmul_unit) else timed.fallback


LIKENESS = 1.25  # tuned
"""Factor by which the interval of a similar kernel (``Timed.similar``) is widened at each end."""


def as_similar(prediction: Prediction, timed: Timed) -> Prediction:
    """``prediction``, made for a similar kernel, with a wider interval for ``timed``; unchanged if ``timed`` names no similar kernel.

    ``timed.slower`` multiplies the time beyond the start of a kernel. Only attention has this factor, so the start is attention's.
    """
    if not timed.similar:
        return prediction
    start_s = 1e-6 * float(chosen("attention_extras")["start_us"])

    def slowed(seconds: float) -> float:
        return seconds + (timed.slower - 1) * max(0.0, seconds - start_s)

    return prediction._replace(
        seconds=slowed(prediction.seconds),
        low=slowed(prediction.low / LIKENESS),
        high=slowed(prediction.high * LIKENESS),
        kind=BORROWED,
        provenance=f"{prediction.provenance}; as {timed.similar}",
    )


def _rounds(timed: Timed, device: Device, fallbacks: FallbackDevices) -> Iterator[FallbackDevices]:
    """Rounds of devices whose calibrations are tried in order: none but the own ones, then the same board if any, then all devices.

    Exchanges, and products in 8 bits or fewer, depend more on the library than on the device: one round of all devices, so that the first
    name wins.
    """
    narrow = timed.kind == "matmul" and timed.workload.dtype.size == 1
    if timed.kind == "collective" or narrow:
        yield fallbacks
        return
    yield tuple
    if boards := _same_boards(device, fallbacks()):
        yield lambda: boards
    yield fallbacks


@cached_by_identity
def _same_boards(device: Device, others: Iterable[Device]) -> list[Device]:
    """Devices among ``others`` that are the board of ``device`` under another name."""
    return [other for other in others if other.id != device.id and same_board(device, other)]


def _names_to_try(timed: Timed, source: FallbackDevices, fallbacks: FallbackDevices) -> tuple[str, ...]:
    """Implementations of ``timed`` to try in the round ``source``, in order.

    For a product in 16 bits or more that is borrowed from any board it is one empty name, which means the best known one, as in ``matmul``.
    """
    borrowed = timed.kind == "matmul" and timed.workload.dtype.size > 1 and source is fallbacks
    return ("",) if borrowed else timed.implementations or ()


def busy_s(cost: Estimate, device: Device) -> float:
    """Seconds of work of the busiest unit (DRAM, tensor, vector) at the datasheet's rates.

    It is a lower bound in a step: kernels follow each other without a pause to cool down, so none beats those rates. DRAM is left out if
    the size of the L2 is unknown, as DRAM traffic then is unknown too.
    """
    units = ("tensor", "vector") if device.cache_bytes is None else ("dram", "tensor", "vector")
    return max(float(cost.terms.get(unit, 0.0)) for unit in units)


def at_least_busy(prediction: Prediction, cost: Estimate, device: Device) -> Prediction:
    """``prediction``, no shorter than any unit that it uses is busy."""
    seconds, low, high = _no_shorter((prediction.seconds, prediction.low, prediction.high), busy_s(cost, device))
    return prediction if low == prediction.low else prediction._replace(seconds=seconds, low=low, high=high)


def _no_shorter(ends: tuple[float, float, float], least: float) -> tuple[float, float, float]:
    """Seconds and the ends of their interval, none below ``least``."""
    seconds, low, high = ends
    return ends if low >= least else (max(seconds, least), least, max(high, least))


def scaled(cost: Estimate, count: Number) -> Estimate:
    """``cost`` of ``count`` runs one after the other."""
    others = ("work", "sram", "dram", "terms", "unknown", "needs")
    numbers = {name: count * getattr(cost, name) for name in cost.__slots__ if name not in others}
    return replace(
        cost,
        **numbers,
        work=Work(*(count * amount for amount in cost.work)),
        sram=Traffic(count * cost.sram.read, count * cost.sram.write),
        dram=Traffic(count * cost.dram.read, count * cost.dram.write),
        terms={name: count * term for name, term in cost.terms.items()},
        needs=cost.needs.times(count),
    )


LAUNCH_MODEL = "torch-step"
"""Time model whose calibrations hold the parameters of ``LaunchCorrection``."""

LARGEST_SAVING = 0.5  # tuned
"""Largest saving as a share of the kernel's time alone; a tiny kernel, mostly launch, still takes half."""

MEASURED_SPLITS = (Split(), Split(tp=2))
"""Tensor-parallel layouts for which steps were measured."""

TIMED_IN_GRAPHS = ("experts", "experts-narrow", "latent-attention")
"""Models of kernels whose measurements were graphs of many runs: there is no launch to take off."""


class LaunchCorrection(NamedTuple):
    """Parameters that turn the time of a kernel alone into its time in a step, on one device.

    ``block``: their calibration; None if they are the profile's launch overheads. ``own``: whether it is the device's own.
    ``handoff_share``: time of the bytes that the kernel before has left in the L2 (``handed_bytes``), over their time from DRAM.
    """

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
            if op.timed is not None and op.timed.strided:
                in_step_s += (p["strided_factor"] - 1) * float(op.activation_bytes) / bandwidth
            in_step_s -= handed_bytes(op, device) / bandwidth * (1 - min(p["handoff_share"], 1.0))
        return max(in_step_s - min(self.saving_s(graph), in_step_s * LARGEST_SAVING), lower_s)

    def ends(self, alone: Prediction, op: Op, device: Device, graph: bool, lower_s: float) -> tuple[float, float, float]:
        """Seconds of the kernel in a step with the ends of their interval, from ``alone``, its prediction alone."""
        ends = (alone.seconds, alone.low, alone.high)
        if alone.calibration.model in TIMED_IN_GRAPHS:
            return ends
        seconds, low, high = (self.seconds(end, op, device, graph, lower_s) for end in ends)
        return seconds, low, high


class OpTime(NamedTuple):
    """One run of ``op``: its bound and roof, and its ``prediction``. Without one, ``missing`` says why.

    ``of_steps``: whether it predicts a run among others in a step, not a run alone.
    """

    op: Op
    cost: Estimate
    prediction: Prediction | None
    missing: str = ""
    of_steps: bool = False

    def in_step(self, device: Device, graph: bool, within: LaunchCorrection) -> tuple[float, float, float]:
        """Seconds of all runs in a step, with the ends of their interval; the roof for all three without a prediction."""
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


def time_of_run(op: Op, device: Device, fallbacks: FallbackDevices, priced: Pricing | None = None, attention: str | None = None) -> OpTime:
    """The time of one run of ``op``: alone, by its time model, fused attention by ``attention``; or in a step, if ``priced`` gives it."""
    cost = op_estimate(op, device)
    try:
        if priced is not None:
            return OpTime(op, cost, priced(op, cost), of_steps=True)
        return OpTime(op, cost, predict_op(op, device, float(cost.lower_s), fallbacks, attention))
    except PerfmodelError as error:
        return OpTime(op, cost, None, error.message)


def handed_bytes(op: Op, device: Device) -> float:
    """Bytes of activations that an element-wise kernel finds in the L2: about half of its bytes are inputs, and half of the L2 is kept."""
    return min(float(op.activation_bytes), float(device.cache_bytes or 0)) / 2


def launch_correction(device: Device, fallbacks: FallbackDevices = tuple) -> LaunchCorrection:
    """The calibration of ``device``, or else of the nearest architecture, or else the launch overheads of its profile."""
    block, own = model_calibration(LAUNCH_MODEL, device, fallbacks)
    if block is not None:
        return LaunchCorrection(block.parameters, block, own)
    saving_us = 1e6 * (launch_saving_s(device) or 0.0)
    return LaunchCorrection({"stream_saving_us": 0.0, "graph_saving_us": saving_us, "handoff_share": 1.0, "strided_factor": 1.0})


def launch_saving_s(device: Device) -> float | None:
    """Launch overhead of a stream minus that of a graph, in seconds; None if the profile does not say."""
    overhead = device.launch_overhead
    if overhead is None or overhead.graph is None:
        return None
    return max(float(overhead.stream.number - overhead.graph.number), 0.0)


def calibrated_for(model: ModelSpec, step: ModelPass) -> bool:
    """Whether calibrated steps are like this one: dense layers in plain PyTorch, separate element-wise kernels, one GPU or two."""
    dense = not model.is_moe and all(isinstance(layer.attention, GroupedAttention) for layer, _ in model.layer_kinds)
    return dense and not step.fused and step.cached and step.split in MEASURED_SPLITS
