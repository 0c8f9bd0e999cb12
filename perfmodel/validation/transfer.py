"""How far parameters are off on an architecture that they were not fitted to: the interval of a borrowed prediction.

Each architecture's parameters predict the fitted records of every other one. Of |log(measured / predicted)| the 90 % quantile
is taken per family of kernels and lender and widened by sqrt(1 + 1/k), as k architectures are few to judge a further one by. An
implementation takes the widest of its own families; one that is known on a single architecture takes that of the implementation known
on most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from perfmodel.core.hardware import Calibration
from perfmodel.timing.base import find_model
from perfmodel.timing.predict import FallbackDevices
from perfmodel.validation.calibrate import Family, Key, Point, family_of, with_lent
from perfmodel.validation.split import held_out
from perfmodel.validation.statistics import quantile

QUANTILE = 0.9

SAME_PARTS = {"torch-eager": "torch-standard"}
"""Sequences known on one architecture, and those of the same kernels that are known on more."""
HalfWidths = dict[str, float]
"""Half the width of a borrowed interval, in logarithms, by implementation and by "implementation of lender"; under "" all others'."""


def half_widths(
    grouped: Mapping[Key, list[Point]], calibrated: Mapping[str, list[Calibration]], fallback_devices: FallbackDevices = tuple
) -> HalfWidths:
    """Of every implementation known on two architectures or more; empty where there is none. ``fallback_devices``: for parts."""
    current = {q.device.id: replace(q.device, calibration=calibrated.get(q.device.id, [])) for own in grouped.values() for q in own}
    grouped = {key: with_lent(own, key[3], lambda: [*current.values(), *fallback_devices()]) for key, own in grouped.items()}
    found: HalfWidths = {}
    best = (0, 0.0)
    for family in sorted({key[:4] for key in grouped}):
        members = {key[4]: own for key, own in grouped.items() if key[:4] == family}
        by_lender = {
            lender: [r for borrower, own in members.items() if lender != borrower for r in _off(lender, own, family, calibrated, members)]
            for lender in members
        }
        residuals = [r for listed in by_lender.values() for r in listed]
        if not residuals:
            continue
        best = max(best, (len(members), _half(residuals, len(members))))
        names = {family[1]: residuals, **{_of(family[1], q): by_lender[lender] for lender, own in members.items() for q in own}}
        for name, listed in names.items():
            if listed:
                found[name] = max(found.get(name, 0.0), _half(listed, len(members)))
    alike = {name: found[other] for name, other in SAME_PARTS.items() if other in found}
    return {**alike, **found, "": best[1]} if found else {}


def _half(residuals: list[float], architectures: int) -> float:
    return quantile(residuals, QUANTILE) * math.sqrt(1 + 1 / architectures)


def _of(implementation: str, point: Point) -> str:
    """The key of an implementation's parameters as the device of ``point`` lends them."""
    return f"{implementation} of {point.device.id}"


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


def with_borrowed(calibrated: Mapping[str, list[Calibration]], halves: HalfWidths) -> dict[str, list[Calibration]]:
    """``calibrated`` with the interval of borrowed predictions in every block; as it is where nothing is known of one."""

    def widened(block: Calibration, lender: str) -> Calibration:
        half = halves.get(f"{block.implementation} of {lender}", halves.get(block.implementation, halves[""]))
        return replace(block, borrowed_low=round(math.exp(-half), 4), borrowed_high=round(math.exp(half), 4))

    return {name: [widened(block, name) if halves else block for block in blocks] for name, blocks in calibrated.items()}
