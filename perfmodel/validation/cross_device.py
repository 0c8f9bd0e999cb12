"""Prediction interval of a device without its own calibration, which borrows the parameters of another (the reference).

Every device with records is predicted as if it had no calibration, by its nearest reference of another architecture, and the residuals of
its fit records are gathered by kind of kernel: how well a kernel carries over depends more on what it does than on who wrote it. The half
width of a kind is a quantile of |log(measured / predicted)| with equal weight for every device. With k devices it is the quantile at 80 % x
(1 + 1/k), which holds 80 % of the kernels of one more device. Source: Dunn, Wasserman and Ramdas 2023, Distribution-free prediction sets
for two-layer hierarchical models, pooled distribution functions. A kind that was measured on a single architecture gets the widest
interval.

Two widths are kept: from the profile alone, and with microbenchmarks, for a device that has one of the three of ``timing.transfer``.
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
from perfmodel.validation.calibrate import Family, family_of, with_other_parts
from perfmodel.validation.fit_points import FitPoint, Key
from perfmodel.validation.records import held_out
from perfmodel.validation.statistics import PROMISED

Widths = dict[tuple[str, bool], float]
"""Half widths of intervals in log(time), by kind of kernel and whether microbenchmarks are known; kind "" is for all other kernels."""
Residuals = dict[tuple[str, bool], dict[str, list[float]]]
"""|log(measured / predicted)| by kind, whether microbenchmarks are known, and device."""


def kind_of(family: Family) -> str:
    """Kind of the kernels of ``family``: prefill, decode, backward, standard attention, or the workload.

    >>> kind_of(("attention", "fa2", "forward", "fa2-forward")), kind_of(("norm", "torch-rms-norm", "backward", "norm"))
    ('prefill', 'norm')
    """
    workload, _, direction, model = family
    if workload != "attention":
        return workload
    if find_model(model).part_workloads:
        return "standard"
    return "backward" if direction == "backward" else "decode" if "decode" in model else "prefill"


def residuals(grouped: Mapping[Key, list[FitPoint]], calibrated: Mapping[str, list[Calibration]], fallbacks: FallbackDevices) -> Residuals:
    """Errors of all points in ``grouped``, by family and architecture, each predicted by ``calibrated`` blocks of other architectures.

    ``fallbacks``: devices whose calibrations may time the parts of a composite kernel.
    """
    devices = {point.device.id: point.device for group in grouped.values() for point in group}
    current = {name: replace(device, calibration=calibrated.get(name, [])) for name, device in devices.items()}
    boards = [*current.values(), *fallbacks()]
    errors: Residuals = defaultdict(lambda: defaultdict(list))
    for key, group in grouped.items():
        family, references = key[:4], _references(key, current.values())
        comparable = [point for point in group if nearest(point.device, references) is not None and not held_out(point.record)]
        for point in with_other_parts(comparable, key[3], lambda: boards):
            for probed in (False, True):
                errors[kind_of(family), probed][point.device.id].append(_residual(point, family, references, probed, boards))
    return errors


def _references(key: Key, devices: Iterable[Device]) -> list[Device]:
    others = (device for device in devices if device.architecture != key[4])
    return [device for device in others if any(family_of(block) == key[:4] for block in device.calibration)]


def _residual(point: FitPoint, family: Family, references: list[Device], probed: bool, boards: list[Device]) -> float:
    device = point.device if probed else without_probes(point.device)
    blocks = {other.id: next(block for block in other.calibration if family_of(block) == family) for other in references}
    reference = nearest_reference(device, [(other, blocks[other.id]) for other in references])
    assert reference is not None
    block, model = blocks[reference.id], find_model(blocks[reference.id].model)
    scaled, share = carried_over(device, reference, block), held_clock_ratio(device, reference, block, boards)
    held = at_held_clock(scaled.device, share) if share < 1 else None
    seconds = timed(lambda on: replace(point, device=on).predicted(model, scaled.parameters), scaled.device, held)
    return abs(math.log(point.record.time_s.median / seconds))


@cached_by_identity
def without_probes(device: Device) -> Device:
    """``device`` from its profile alone, before anything was measured on it; the same object each time."""
    return replace(device, microbenchmarks=[])


def widths(errors: Residuals) -> Widths:
    """Half widths of intervals from the ``errors`` that ``residuals`` returns; empty if there are none."""
    halves = {key: pooled_quantile(list(by_device.values())) for key, by_device in errors.items()}
    widest: Widths = {}
    for (_, probed), width in halves.items():
        widest["", probed] = max(width, widest.get(("", probed), 0.0))
    return {**halves, **widest}


def pooled_quantile(samples: Sequence[Sequence[float]]) -> float:
    """The quantile of all ``samples``, with equal weights, below which 80 % of a further sample lie.

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


def with_borrowed(calibrated: Mapping[str, list[Calibration]], halves: Widths) -> dict[str, list[Calibration]]:
    """``calibrated`` with intervals for other devices in every block, as factors of time; unchanged if ``halves`` is empty."""

    def end(block: Calibration, probed: bool, sign: int) -> float | None:
        half = halves.get((kind_of(family_of(block)), probed), halves.get(("", probed)))
        return None if half is None else round(math.exp(sign * half), 4)

    def widened(block: Calibration) -> Calibration:
        (low, high), (near, far) = (tuple(end(block, probed, sign) for sign in (-1, 1)) for probed in (False, True))
        return replace(block, borrowed_low=low, borrowed_high=high, probed_low=near, probed_high=far)

    return {name: [widened(block) if halves else block for block in blocks] for name, blocks in calibrated.items()}
