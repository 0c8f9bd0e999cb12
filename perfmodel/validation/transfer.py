"""How far parameters are off on an architecture that they were not fitted to: the interval of a borrowed prediction.

Each architecture's parameters predict the fitted records of every other one. Of |log(measured / predicted)| the 90 % quantile
is taken per family of kernels and widened by sqrt(1 + 1/k), as k architectures are few to judge a further one by. The widest
family counts for all: how well parameters travel is a question of devices more than of kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from perfmodel.hardware import Calibration, Device
from perfmodel.timing.base import find_model
from perfmodel.timing.predict import Prediction, predict
from perfmodel.validation.calibrate import Family, Key, Point, calibrate, family_of, points
from perfmodel.validation.records import Record
from perfmodel.validation.split import held_out
from perfmodel.validation.statistics import quantile

QUANTILE = 0.9


def half_width(grouped: Mapping[Key, list[Point]], calibrated: Mapping[str, list[Calibration]]) -> float | None:
    """Half the width of a borrowed interval, in logarithms; None where no family is known on two architectures."""
    widths = []
    for family in {key[:4] for key in grouped}:
        members = {key[4]: own for key, own in grouped.items() if key[:4] == family}
        residuals = [
            r
            for lender in members
            for borrower, own in members.items()
            if lender != borrower
            for r in _off(lender, own, family, calibrated, members)
        ]
        if residuals:
            widths.append(quantile(residuals, QUANTILE) * math.sqrt(1 + 1 / len(members)))
    return max(widths, default=None)


def _off(
    lender: str, own: list[Point], family: Family, calibrated: Mapping[str, list[Calibration]], members: Mapping[str, list[Point]]
) -> list[float]:
    """|log residual| of the fitted points ``own`` by the parameters of the architecture ``lender``."""
    device = members[lender][0].device.id
    block = next((one for one in calibrated.get(device, []) if family_of(one) == family), None)
    if block is None:
        return []
    model = find_model(block.model)
    return [abs(point.residual(model, block.parameters)) for point in own if not held_out(point.record)]


def with_borrowed(calibrated: Mapping[str, list[Calibration]], half: float | None) -> dict[str, list[Calibration]]:
    """``calibrated`` with the interval of borrowed predictions in every block."""
    if half is None:
        return {name: list(blocks) for name, blocks in calibrated.items()}
    low, high = round(math.exp(-half), 4), round(math.exp(half), 4)
    return {name: [replace(block, borrowed_low=low, borrowed_high=high) for block in blocks] for name, blocks in calibrated.items()}


def leave_out(
    name: str, records: Iterable[Record], devices: Mapping[str, Device], progress: Callable[[str], None] = lambda text: None
) -> list[tuple[Record, Prediction]]:
    """Held-out records of device ``name``, predicted by calibrations that saw none of its records."""
    listed = list(records)
    bare = {key: replace(device, calibration=[]) for key, device in devices.items()}
    others = [record for record in listed if record.hardware != name]
    fits = calibrate(others, bare, "", lambda _: "", progress)
    half = half_width(points(others, bare), fits)
    lenders = [replace(bare[key], calibration=blocks) for key, blocks in with_borrowed(fits, half).items()]
    found = []
    for own in points([r for r in listed if r.hardware == name], bare).values():
        for point in own:
            if held_out(point.record):
                made = predict(point.case, point.record.workload, point.record.dtype, bare[name], point.lower_s, lambda: lenders)
                found.append((point.record, made))
    return found
