"""Operators of a profile grouped by shape, with counts, bound and predicted time on a device."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from perfmodel.core.errors import PerfmodelError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate, total
from perfmodel.program.calls import Call, UnknownError
from perfmodel.program.operators import counted
from perfmodel.program.operators.moved import host_copy
from perfmodel.program.profile import Operator, ProgramProfile
from perfmodel.timing.base import chosen
from perfmodel.timing.predict import Prediction, added
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.transformer.op import Op
from perfmodel.transformer.op_time import op_estimate, predict_op


@dataclass(slots=True)
class OperatorGroup:
    """Calls of one operator on equal shapes: their ``count`` in a step, and the measured seconds of all their kernels in a step."""

    call: Call
    count: float
    measured_s: float
    kernels: tuple[str, ...] = ()
    ops: tuple[Op, ...] = ()
    unknown: str = ""

    @property
    def flops(self) -> float:
        """FLOP of all calls: those of products and attention, else of the vector unit."""
        return self.count * sum(float(op.kernel.flops or op.kernel.work.vector) for op in self.ops)

    @property
    def bytes(self) -> float:
        """Bytes that all calls move if each element crosses once."""
        accesses = [access for op in self.ops for access in op.kernel.accesses]
        return self.count * sum(float(access.compulsory if access.reread else access.elements) * access.element_size for access in accesses)


HOST_COPY = re.compile("Memcpy (HtoD|DtoH)")
"""Names of copies between host and device."""


def grouped(profile: ProgramProfile) -> list[OperatorGroup]:
    """The operators of one step, the longest first."""
    by_shape: dict[object, list[Operator]] = defaultdict(list)
    for operator in profile.operators:
        key = operator.call if operator.call.name else operator.kernels[0].name
        by_shape[key].append(operator)
    groups = []
    for calls in by_shape.values():
        seconds = sum(kernel.seconds for call in calls for kernel in call.kernels)
        names = tuple(dict.fromkeys(kernel.name for call in calls for kernel in call.kernels))
        group = OperatorGroup(calls[0].call, len(calls) / profile.steps, seconds / profile.steps, names)
        try:
            group.ops = (host_copy(group.call),) if any(HOST_COPY.search(name) for name in names) else counted(group.call)
        except UnknownError as error:
            group.unknown = str(error)
        groups.append(group)
    return sorted(groups, key=lambda group: -group.measured_s)


@dataclass(frozen=True, slots=True)
class Priced:
    """A group priced on a device: ``cost`` and ``prediction`` of one call, or the ``obstacle`` to a prediction."""

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
        """Lower bound in seconds of all calls, with operands in the L2 if it holds them."""
        return self.group.count * float(self.cost.lower_warm_s)


def priced(groups: Iterable[OperatorGroup], device: Device, fallbacks: FallbackDevices) -> list[Priced]:
    """The groups with known work, priced on ``device``."""
    return [_priced(group, device, fallbacks) for group in groups if group.ops]


def _priced(group: OperatorGroup, device: Device, fallbacks: FallbackDevices) -> Priced:
    costs = []
    try:
        costs = [op_estimate(op, device) for op in group.ops]
        parts = [operator_prediction(op, cost, device, fallbacks) for op, cost in zip(group.ops, costs, strict=True)]
    except PerfmodelError as error:
        return Priced(group, total(costs), None, error.message)
    return Priced(group, total(costs), parts[0] if len(parts) == 1 else added(parts))


def operator_prediction(op: Op, cost: Estimate, device: Device, fallbacks: FallbackDevices) -> Prediction:
    """The time of one run of ``op`` as a profile would show it; UnavailableError says why there is none."""
    return _in_profile(predict_op(op, device, float(cost.lower_warm_s), fallbacks), cost)


def _in_profile(alone: Prediction, cost: Estimate) -> Prediction:
    """``alone`` without the gap to the next kernel, which a profile does not count."""
    gap = 1e-6 * chosen("profile_gap_us").get(alone.calibration.workload, 0.0)
    if not gap:
        return alone
    seconds, low, high = (max(end - min(gap, end / 2), float(cost.lower_warm_s)) for end in (alone.seconds, alone.low, alone.high))
    return alone._replace(seconds=seconds, low=low, high=high)
