"""Prediction interval of a device without a calibration of its own, which borrows the parameters of another (the lender).

The parameters fitted on each architecture predict the fit records of every other architecture. The half width of the interval is the
90 % quantile of |log(measured / predicted)| per kernel family and lender, times sqrt(1 + 1/k): k architectures are a small sample to
judge one more by. An implementation gets the widest interval of its families. One that was measured on a single architecture gets the
interval of the implementation that was measured on most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from perfmodel.core.hardware import Calibration, Device
from perfmodel.timing.base import find_model
from perfmodel.timing.predict import FallbackDevices
from perfmodel.validation.calibrate import Family, family_of, with_lent
from perfmodel.validation.fit_points import FitPoint, Key
from perfmodel.validation.records import held_out
from perfmodel.validation.statistics import quantile

QUANTILE = 0.9

SAME_PARTS = {
    "torch-eager": "torch-standard",
    **dict.fromkeys(("cudnn-attention-deterministic", "cudnn-attention-mxfp8", "cudnn-attention-mxfp8-deterministic"), "cudnn-attention"),
}
"""An implementation measured on one architecture -> one made of the same kernels that was measured on several: it takes its interval."""
HalfWidths = dict[str, float]
"""Half width of the interval in log(time). Key: "implementation of lender", or "implementation"; "" serves every other one."""


def half_widths(
    grouped: Mapping[Key, list[FitPoint]], calibrated: Mapping[str, list[Calibration]], fallbacks: FallbackDevices = tuple
) -> HalfWidths:
    """Half widths of the implementations measured on two architectures or more; empty if there is none.

    ``grouped``: fit points by family and architecture. ``calibrated``: fitted blocks by device id. ``fallbacks``: devices whose
    calibrations may time the parts of a composite kernel.
    """
    current = {
        point.device.id: replace(point.device, calibration=calibrated.get(point.device.id, [])) for own in grouped.values() for point in own
    }
    families: dict[Family, dict[str, list[FitPoint]]] = {}
    for key, own in grouped.items():
        families.setdefault(key[:4], {})[key[4]] = with_lent(own, key[3], lambda: [*current.values(), *fallbacks()])
    found: HalfWidths = {}
    best = (0, 0.0)
    for family, members in sorted(families.items()):
        by_lender = {
            lender: [
                residual
                for borrower, own in members.items()
                if lender != borrower
                for residual in _residuals(own, family, current[lent[0].device.id])
            ]
            for lender, lent in members.items()
        }
        residuals = [residual for listed in by_lender.values() for residual in listed]
        if not residuals:
            continue
        factor = math.sqrt(1 + 1 / len(members))
        best = max(best, (len(members), quantile(residuals, QUANTILE) * factor))
        by_device = {f"{family[1]} of {point.device.id}": by_lender[lender] for lender, own in members.items() for point in own}
        for name, listed in {family[1]: residuals, **by_device}.items():
            if listed:
                found[name] = max(found.get(name, 0.0), quantile(listed, QUANTILE) * factor)
    by_parts = {name: found[other] for name, other in SAME_PARTS.items() if other in found}
    return {**by_parts, **found, "": best[1]} if found else {}


def _residuals(own: list[FitPoint], family: Family, lender: Device) -> list[float]:
    """|log(measured / predicted)| of the fit points in ``own``, predicted with the parameters of ``lender``."""
    block = next((one for one in lender.calibration if family_of(one) == family), None)
    if block is None:
        return []
    model = find_model(block.model)
    return [abs(point.residual(model, block.parameters)) for point in own if not held_out(point.record)]


def with_borrowed(calibrated: Mapping[str, list[Calibration]], halves: HalfWidths) -> dict[str, list[Calibration]]:
    """``calibrated`` with ``borrowed_low`` and ``borrowed_high`` in every block, as factors of time; unchanged if ``halves`` is empty."""

    def widened(block: Calibration, lender: str) -> Calibration:
        half = halves.get(f"{block.implementation} of {lender}", halves.get(block.implementation, halves[""]))
        return replace(block, borrowed_low=round(math.exp(-half), 4), borrowed_high=round(math.exp(half), 4))

    return {name: [widened(block, name) if halves else block for block in blocks] for name, blocks in calibrated.items()}
