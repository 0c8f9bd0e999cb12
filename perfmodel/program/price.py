"""Operators with what they compute, move and take: counts, bound and predicted time of each shape on a device."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate, total
from perfmodel.program.calls import Call, UnknownError
from perfmodel.program.operators import counted
from perfmodel.program.profile import Operator, ProgramProfile
from perfmodel.timing.base import chosen
from perfmodel.timing.predict import Prediction, added
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.transformer.op import ATTENTION, Op
from perfmodel.transformer.op_time import op_estimate, predict_op


@dataclass(slots=True)
class OperatorGroup:
    """Calls of one operator on like shapes: how often a step makes them, and the seconds that their kernels took, all together."""

    call: Call
    count: float
    measured_s: float
    kernels: tuple[str, ...] = ()
    ops: tuple[Op, ...] = ()
    unknown: str = ""

    @property
    def flops(self) -> float:
        """FLOP of all calls: of products and attention, else of the vector unit."""
        return self.count * sum(float(op.kernel.flops or op.kernel.work.vector) for op in self.ops)

    @property
    def bytes(self) -> float:
        """Bytes that all calls move where each element crosses once."""
        accesses = [access for op in self.ops for access in op.kernel.accesses]
        return self.count * sum(float(access.compulsory if access.reread else access.elements) * access.element_size for access in accesses)


HOST_COPY = re.compile("Memcpy (HtoD|DtoH)")
"""Kernels that pass over the bus."""


def grouped(profile: ProgramProfile) -> list[OperatorGroup]:
    """The operators of one step, the longest first."""
    found: dict[object, list[Operator]] = defaultdict(list)
    for one in profile.operators:
        key = (one.call.name, one.call.arguments) if one.call.name else one.kernels[0].name
        found[key].append(one)
    groups = []
    for calls in found.values():
        seconds = sum(kernel.seconds for one in calls for kernel in one.kernels)
        names = tuple(dict.fromkeys(kernel.name for one in calls for kernel in one.kernels))
        group = OperatorGroup(calls[0].call, len(calls) / profile.steps, seconds / profile.steps, names)
        try:
            group.ops = () if any(HOST_COPY.search(name) for name in names) else counted(group.call)
            group.unknown = "" if group.ops else "copies between host and device are not predicted"
        except UnknownError as error:
            group.unknown = str(error)
        groups.append(group)
    return sorted(groups, key=lambda one: -one.measured_s)


@dataclass(frozen=True, slots=True)
class Priced:
    """A group on a device: ``cost`` of one call, ``prediction`` of one call or why there is none."""

    group: OperatorGroup
    cost: Estimate
    prediction: Prediction | None
    obstacle: str = ""

    @property
    def predicted_s(self) -> float:
        """Predicted seconds of all calls; 0 without a prediction."""
        return self.group.count * self.prediction.seconds if self.prediction else 0.0

    @property
    def lower_s(self) -> float:
        """Seconds below which no schedule of the calls gets, their operands in the L2 where it holds them."""
        return self.group.count * float(self.cost.lower_warm_s)


def priced(groups: Iterable[OperatorGroup], device: Device, fallbacks: FallbackDevices) -> list[Priced]:
    """Groups whose work is known, priced on ``device``."""
    return [_priced(one, device, fallbacks) for one in groups if one.ops]


def _priced(group: OperatorGroup, device: Device, fallbacks: FallbackDevices) -> Priced:
    costs = []
    try:
        costs = [op_estimate(op, device) for op in group.ops]
        parts = [operator_prediction(op, cost, device, fallbacks) for op, cost in zip(group.ops, costs, strict=True)]
    except PerfmodelError as error:
        return Priced(group, total(costs), None, error.message)
    return Priced(group, total(costs), parts[0] if len(parts) == 1 else added(parts))


def operator_prediction(op: Op, cost: Estimate, device: Device, fallbacks: FallbackDevices) -> Prediction:
    """The time of one run of ``op``, which costs ``cost``, as a profile would have it; UnavailableError says why there is none."""
    return _in_profile(op, predict_op(op, device, float(cost.lower_warm_s), fallbacks), cost)


def _in_profile(op: Op, alone: Prediction, cost: Estimate) -> Prediction:
    """``alone`` without the gap between two kernels, which a profile does not count in."""
    if op.group == ATTENTION and any(access.tensor == "mask" for access in op.kernel.accesses):
        alone = _slower(alone, chosen("masked_attention"))
    gap = 1e-6 * chosen("profile_gap_us").get(alone.calibration.workload, 0.0)
    if not gap:
        return alone
    seconds, low, high = (max(end - min(gap, end / 2), float(cost.lower_warm_s)) for end in (alone.seconds, alone.low, alone.high))
    return replace(alone, seconds=seconds, low=low, high=high)


def _slower(one: Prediction, factor: float) -> Prediction:
    return replace(one, seconds=one.seconds * factor, low=one.low * factor, high=one.high * factor)
