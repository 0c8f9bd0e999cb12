"""The roofline of energy: FLOP per joule at best, by arithmetic intensity, and where predicted kernels are."""

from __future__ import annotations

from collections.abc import Iterable

from perfmodel.core.dtypes import Dtype
from perfmodel.core.hardware import Device
from perfmodel.core.power import flops_per_joule
from perfmodel.core.roofline import Estimate
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.schema import Chart, LineChart, Mark, Series
from perfmodel.timing.power import energy_name
from perfmodel.timing.predict import Prediction

PER_DECADE, LEAST, MOST = 8, -1, 4
"""Points of the line, between these powers of ten of FLOP per byte."""


PRODUCTS = "tensor."
"""Start of the names of operations of matrix products."""


def energy_roofline(device: Device, dtype: Dtype, predicted: Iterable[tuple[str, Estimate, Prediction | None]]) -> list[Chart]:
    """FLOP per joule of ``dtype`` with operands from DRAM, and of kernels, by name, that run for seconds.

    None without a power model, or where its fit gives products of any format no energy: records did not tell them from busy power.
    """
    fit, peak = device.power, device.peaks_of("tensor").get(dtype.name)
    bandwidth, name = device.dram.bandwidth_bytes_per_s, energy_name(dtype.name)
    if fit is None or peak is None or not bandwidth or name not in fit.picojoules:
        return []
    if not all(energy for operation, energy in fit.picojoules.items() if operation.startswith(PRODUCTS)):
        return []
    rate = float(peak.number)
    steps = range(LEAST * PER_DECADE, MOST * PER_DECADE + 1)
    intensities = [10 ** (step / PER_DECADE) for step in steps]
    line = [(one, float(flops_per_joule(fit, name, rate, bandwidth, one))) for one in intensities]
    marks = []
    for label, cost, known in predicted:
        if known is not None and known.power is not None and cost.dram.total:
            each = float(cost.flops) / known.power.joules
            marks.append(Mark(float(cost.flops) / float(cost.dram.total), f"{label}: {text(each, 'FLOP/J')}", each))
    words = f"At best: static power, {dtype.name} operations and bytes from DRAM alone; L2 and busy multiprocessors take more."
    title, group = "Roofline of energy", f"{dtype.name}, at best"
    return [
        LineChart(title, "arithmetic intensity", "FLOP per joule", [Series(group, line)], "FLOP/B", "FLOP/J", marks=marks, caption=words)
    ]
