"""Bound, roof and predicted time of one row."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.arith import Number
from perfmodel.core.cost import Kernel, Work
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate, Traffic, estimate
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.collectives import Collective, collective_estimate
from perfmodel.timing.base import algorithm_of
from perfmodel.timing.predict import FallbackDevices, Prediction
from perfmodel.timing.select_kernel import select_kernel
from perfmodel.transformer.op import Op

FUSED_ATTENTION = "flash2"


def op_estimate(op: Op, device: Device) -> Estimate:
    """Bound and roof of one run."""
    if op.timed is not None and isinstance(op.timed.workload, Collective):
        return collective_estimate(op.timed.workload, device)
    return estimate(as_multiplied(op, device), device)


def as_multiplied(op: Op, device: Device) -> Kernel:
    """The kernel of ``op`` in the narrower format that it may multiply in, where ``device`` has a peak for that."""
    if op.multiplied is None or op.multiplied.name not in device.peaks_of(op.multiplied.matmul_unit):
        return op.kernel
    return replace(op.kernel, dtype=op.multiplied)


def predict_op(op: Op, device: Device, lower_s: float, fallback_devices: FallbackDevices, attention: str | None = None) -> Prediction:
    """The prediction of one run alone, calibrated here or else borrowed; UnavailableError says why there is none.

    ``attention``: the implementation of fused attention, by default the fastest.
    """
    timed = op.timed
    if timed is None or timed.obstacle:
        raise UnavailableError(timed.obstacle if timed else f"no time model of {op.name}")
    if timed.implementations is None:
        return select_kernel(
            timed.kind, op.kernel.dtype.name, timed.workload, FORWARD, device, lower_s, attention, _is_fused, fallback_devices
        )
    asked, reason = [timed] if timed.preferred is None else [timed.preferred, timed], ""
    for source in (tuple, fallback_devices):
        for one in asked:
            for name in one.implementations or ():
                try:
                    return select_kernel(
                        one.kind, one.workload.dtype.name, one.workload, FORWARD, device, lower_s, name, lambda known: True, source
                    )
                except UnavailableError as error:
                    reason = reason or _own_reason(error, device)
    first = asked[0]
    assert first.implementations is not None
    what = f"{first.kind}/{first.implementations[0]} in {first.workload.dtype.name}"
    raise UnavailableError(reason or f"no calibration of {what}, here or to borrow")


def _own_reason(error: UnavailableError, device: Device) -> str:
    """What ``device`` lacks, rather than which calibrations there are none of."""
    return error.message if error.message.startswith(f"{device.id} ") else ""


def _is_fused(implementation: str) -> bool:
    return algorithm_of(implementation) == FUSED_ATTENTION


def busy_s(cost: Estimate, device: Device) -> float:
    """Seconds that the busiest of DRAM, tensor and vector units works, at the datasheet's rates.

    Kernels of a step follow each other without a pause to cool down: none is taken to beat those rates. Where the size of the L2 is
    unknown so is what passes through DRAM, and it counts nothing.
    """
    units = ("tensor", "vector") if device.cache_bytes is None else ("dram", "tensor", "vector")
    return max(float(cost.terms.get(unit, 0.0)) for unit in units)


def in_time(found: Prediction, cost: Estimate, device: Device) -> Prediction:
    """``found``, no shorter than anything that it uses is busy."""
    least = busy_s(cost, device)
    if found.low >= least:
        return found
    return replace(found, seconds=max(found.seconds, least), low=least, high=max(found.high, least))


def scaled(cost: Estimate, count: Number) -> Estimate:
    """``cost`` of ``count`` runs one after the other."""

    def moved(traffic: Traffic) -> Traffic:
        return Traffic(count * traffic.read, count * traffic.write)

    work = cost.work
    plain = ("flops", "executed_flops", "reads", "writes", "zero_fill", "zero_fill_bytes", "group_sum", "access_bytes")
    times = ("roofline_s", "no_overlap_s")
    return Estimate(
        **{name: count * getattr(cost, name) for name in (*plain, *times)},
        work=Work(count * work.tensor, count * work.vector, count * work.sfu),
        sram=moved(cost.sram),
        dram=moved(cost.dram),
        terms={name: count * term for name, term in cost.terms.items()},
        unknown=cost.unknown,
        needs=cost.needs.times(count),
    )
