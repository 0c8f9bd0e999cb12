"""Prediction intervals of devices without their own calibration, which use the scaled parameters of another device (the reference).

Every device with records is predicted as if it had no calibration, by its nearest reference of another architecture. The residuals of the
records that fits may see are gathered by kind of kernel: how well parameters carry over depends more on what a kernel does than on who
wrote it. The half width of a kind is a quantile of |log(measured / predicted)| with equal weight for every device. With k devices it is the
quantile at 80 % x (1 + 1/k), which holds 80 % of the kernels of one more device. Source: Dunn, Wasserman and Ramdas 2023, Distribution-free
prediction sets for two-layer hierarchical models, pooled distribution functions. A kind that was measured on a single architecture gets
the widest interval.

Each kind has two half widths: for a device known by its profile alone, and for one with microbenchmarks (``timing.transfer`` uses three).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from perfmodel.core.hardware import Calibration, Device
from perfmodel.core.kept import cached_by_identity
from perfmodel.timing.base import find_model
from perfmodel.timing.reference_devices import FallbackDevices, nearest, nearest_reference
from perfmodel.timing.transfer import at_held_clock, carried_over, held_clock_ratio, timed
from perfmodel.validation.calibrate import family_of, with_other_parts
from perfmodel.validation.fit_points import FitKey, FitPoint, KernelFamily
from perfmodel.validation.records import held_out
from perfmodel.validation.statistics import PROMISED

Widths = dict[tuple[str, bool], float]
"""Half widths of intervals in log(time), by kind of kernel and whether microbenchmarks are known; kind "" is for all other kernels."""
Residuals = dict[tuple[str, bool], dict[str, list[float]]]
"""|log(measured / predicted)| by kind, whether microbenchmarks are known, and device."""


def kind_of(family: KernelFamily) -> str:
    """Kind of the kernels of ``family``: prefill, decode, backward, standard attention, or the workload.

    >>> kind_of(KernelFamily("attention", "fa2", "forward", "fa2-forward"))
    'prefill'
    >>> kind_of(KernelFamily("norm", "torch-rms-norm", "backward", "norm"))
    'norm'
    """
    if family.workload != "attention":
        return family.workload
    if find_model(family.model).part_workloads:
        return "standard"
    if family.direction == "backward":
        return "backward"
    return "decode" if "decode" in family.model else "prefill"


def residuals(
    grouped: Mapping[FitKey, list[FitPoint]], calibrated: Mapping[str, list[Calibration]], fallbacks: FallbackDevices
) -> Residuals:
    """Residuals of the points in ``grouped`` that fits may see, each predicted by ``calibrated`` blocks of other architectures.

    ``fallbacks``: devices whose calibrations may time the parts of a composite kernel.
    """
    devices = {point.device.id: point.device for group in grouped.values() for point in group}
    current = {name: replace(device, calibration=calibrated.get(name, [])) for name, device in devices.items()}
    all_devices = [*current.values(), *fallbacks()]
    errors: Residuals = defaultdict(lambda: defaultdict(list))
    for key, group in grouped.items():
        references = _references(key, current.values())
        others = [device for device, _ in references]
        comparable = [point for point in group if nearest(point.device, others) is not None and not held_out(point.record)]
        for point in with_other_parts(comparable, key.model, lambda: all_devices):
            for probed in (False, True):
                errors[kind_of(key.family), probed][point.device.id].append(_residual(point, references, probed, all_devices))
    return errors


def _references(key: FitKey, devices: Iterable[Device]) -> list[tuple[Device, Calibration]]:
    """Devices of other architectures, each with its calibration of the family of ``key``."""
    others = (device for device in devices if device.architecture != key.architecture)
    return [(device, block) for device in others for block in device.calibration if family_of(block) == key.family]


def _residual(point: FitPoint, references: list[tuple[Device, Calibration]], probed: bool, all_devices: list[Device]) -> float:
    """|log(measured / predicted)| of ``point``, predicted with the scaled parameters of its nearest reference.

    ``probed``: its device keeps its microbenchmarks. ``all_devices`` show the clock that a board holds under its power limit.
    """
    device = point.device if probed else without_probes(point.device)
    reference = nearest_reference(device, references)
    assert reference is not None
    block = next(block for other, block in references if other.id == reference.id)
    model = find_model(block.model)
    scaled, clock_ratio = carried_over(device, reference, block), held_clock_ratio(device, reference, block, all_devices)
    held = at_held_clock(scaled.device, clock_ratio) if clock_ratio < 1 else None
    seconds = timed(lambda on: replace(point, device=on).predicted(model, scaled.parameters), scaled.device, held)
    return abs(math.log(point.record.time_s.median / seconds))


@cached_by_identity
def without_probes(device: Device) -> Device:
    """``device`` from its profile alone, before anything was measured on it; the same object each time."""
    return replace(device, microbenchmarks=[])


def widths(errors: Residuals) -> Widths:
    """Half widths of intervals from the ``errors`` that ``residuals`` returns; empty if there are none."""
    half_widths = {key: pooled_quantile(list(by_device.values())) for key, by_device in errors.items()}
    widest: Widths = {}
    for (_, probed), half_width in half_widths.items():
        widest["", probed] = max(half_width, widest.get(("", probed), 0.0))
    return {**half_widths, **widest}


def pooled_quantile(samples: Sequence[Sequence[float]]) -> float:
    """The quantile of the values of all ``samples``, each sample with equal weight, below which 80 % of a further sample lie.

    >>> pooled_quantile([[1.0] * 100, [2.0]])
    2.0
    """
    share = min(PROMISED * (1 + 1 / len(samples)), 1.0)
    ranked = sorted((value, 1 / len(values) / len(samples)) for values in samples for value in values)
    below = 0.0
    for value, weight in ranked:
        below += weight
        if below >= share - 1e-9:
            return value
    return ranked[-1][0]


def with_borrowed(calibrated: Mapping[str, list[Calibration]], half_widths: Widths) -> dict[str, list[Calibration]]:
    """``calibrated`` with intervals for other devices in every block, as factors of time; unchanged if ``half_widths`` is empty."""

    def ends(block: Calibration, probed: bool) -> tuple[float | None, float | None]:
        half_width = half_widths.get((kind_of(family_of(block)), probed), half_widths.get(("", probed)))
        if half_width is None:
            return None, None
        return round(math.exp(-half_width), 4), round(math.exp(half_width), 4)

    def with_ends(block: Calibration) -> Calibration:
        low, high = ends(block, probed=False)
        probed_low, probed_high = ends(block, probed=True)
        return replace(block, borrowed_low=low, borrowed_high=high, probed_low=probed_low, probed_high=probed_high)

    return {name: [with_ends(block) if half_widths else block for block in blocks] for name, blocks in calibrated.items()}
