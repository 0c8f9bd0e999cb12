"""Reports about device profiles."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from perfmodel import __version__
from perfmodel.core.hardware import Device, Quantity, quantities
from perfmodel.core.trace import Step, Trace, Traced
from perfmodel.core.units import format_binary
from perfmodel.report.document import Report, Table
from perfmodel.report.op_common import with_steps


def list_report(devices: list[Device]) -> Report:
    """One line per device: memory, bandwidth, SRAM per block, dense peaks."""
    columns = ["device", "DRAM", "bandwidth", "L2", "SRAM per block", "fp32", "fp16 tensor", "fp8 tensor"]
    rows = [[device.id, *_line(device)] for device in devices]
    data = {
        "schema": "perfmodel.hardware/1",
        "version": __version__,
        "devices": [{"id": device.id, "name": device.name, **dict(zip(columns[1:], _line(device), strict=True))} for device in devices],
    }
    notes = ["Dense peaks in FLOP/s, an FMA counts 2; '-' is unknown or absent."]
    return Report(f"{len(devices)} device profiles", [], [Table("", columns, rows)], notes, data)


def _line(device: Device) -> list[str]:
    l2, sram = device.level("l2"), device.level("sram")
    return [
        _size(device.dram.capacity),
        _rate(device.dram.bandwidth or device.dram.measured_bandwidth),
        _size(l2.capacity if l2 else None),
        _size(sram.per_block if sram else None),
        _rate(device.peaks.vector.get("fp32")),
        _rate(device.peaks.tensor.get("fp16") or device.peaks.tensor.get("bf16")),
        _rate(device.peaks.tensor.get("fp8")),
    ]


def _size(quantity: Quantity | None) -> str:
    return "-" if quantity is None else format_binary(int(quantity.number))


def _rate(quantity: Quantity | None) -> str:
    return "-" if quantity is None else str(quantity.value)


def _known(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """Without what is unknown."""
    return {key: value for key, value in items if value is not None}


def _ridge_points(device: Device) -> dict[str, tuple[Quantity, float]]:
    """Each peak, by unit and dtype, and the FLOP/B at which it meets the DRAM bandwidth."""
    bandwidth = device.dram.bandwidth_bytes_per_s
    if bandwidth is None:
        return {}
    units = (("tensor", device.peaks.tensor), ("vector", device.peaks.vector))
    return {f"{unit} {dtype}": (peak, peak.number / bandwidth) for unit, peaks in units for dtype, peak in peaks.items()}


def show_report(device: Device, explained: bool = False) -> Report:
    """Every quantity of ``device`` with kind, source and note; then its ridge points, with formulas if ``explained``."""
    rows = [[place, str(q.value), q.kind, q.source, _note(q)] for place, q in _named(device)]
    values = Table("", ["field", "value", "kind", "source", "note"], rows, "lrlll")
    ridges = _ridge_points(device)
    ridge_rows = [[name, f"{value:.1f} FLOP/B"] for name, (_, value) in ridges.items()]
    tables = [values, Table("ridge points at the DRAM bandwidth", ["peak", "ridge point"], ridge_rows)]
    tables += [table for table in (_probes(device), _calibrations(device)) if table.rows]
    notes = [f"{key}: {text}" for key, text in device.sources.items()] + device.notes
    data = {
        "schema": "perfmodel.device/1",
        "version": __version__,
        "device": asdict(device, dict_factory=_known),
        "ridge_points": {name: {"value": value, "unit": "FLOP/B", "level": "dram"} for name, (_, value) in ridges.items()},
    }
    title = f"{device.name} ({device.id}), {device.architecture}"
    shown = Report(title, [_summary(device)], tables, notes, data)
    return with_steps(shown, [("ridge points", {}, _ridge_steps(device))]) if explained else shown


def _note(quantity: Quantity) -> str:
    lent = f"same chip: measured on {quantity.measured_on}" if quantity.measured_on else ""
    return "; ".join(filter(None, (lent, quantity.note)))


def _probes(device: Device) -> Table:
    columns = ["what", "bytes", "value", "noise", "runs", "date", "source"]
    rows = [
        [p.name, "" if p.size is None else f"{p.size:,}", p.value, f"{p.spread:.1%}", str(p.runs), p.date, p.source]
        for p in device.microbenchmarks
    ]
    return Table("what probes reached", columns, rows, "lrrrrll")


def _calibrations(device: Device) -> Table:
    columns = ["time model of", "model", "points", "80 % interval", "held out", "median error", "p90", "date", "source"]
    rows = [
        [
            f"{block.workload}/{block.implementation}/{block.direction}",
            block.model,
            str(block.points),
            f"{block.low:.3f} to {block.high:.3f}",
            str(block.held_out),
            "-" if block.held_out_median_error is None else f"{block.held_out_median_error:.1%}",
            "-" if block.held_out_p90_error is None else f"{block.held_out_p90_error:.1%}",
            block.date,
            block.source,
        ]
        for block in device.calibration
    ]
    return Table("calibrations: measured / predicted, and errors on records that no fit saw", columns, rows, "llrrrrrll")


def _ridge_steps(device: Device) -> list[Step]:
    """Each ridge point as peak over bandwidth; both from the profile."""
    trace, bandwidth = Trace(), device.dram.bandwidth or device.dram.measured_bandwidth
    if bandwidth is None:
        return []

    def symbol(name: str, quantity: Quantity, meaning: str) -> Traced:
        return trace.symbol(name, quantity.number, meaning, f"{quantity.kind}: {device.sources[quantity.source]}")

    bytes_per_s = symbol("BW_dram", bandwidth, "B/s")
    for name, (peak, _) in _ridge_points(device).items():
        ridge = symbol(f"P_{name.replace(' ', '_')}", peak, "FLOP/s, dense") / bytes_per_s
        trace.define(f"ridge point, {name}", "FLOP/B", ridge, "roofline model, Williams, Waterman & Patterson 2009")
    return list(trace.steps.values())


def _named(device: Device) -> list[tuple[str, Quantity]]:
    """Quantities by path, a memory level by its name instead of its number."""
    names = {f"memory.{index}": f"memory.{level.level}" for index, level in enumerate(device.memory)}
    return [
        (next((place.replace(old, new, 1) for old, new in names.items() if place.startswith(old + ".")), place), q)
        for place, q in quantities(device)
    ]


def _summary(device: Device) -> str:
    """One sentence: the ratio that decides what is memory bound."""
    ridges = _ridge_points(device)
    name = next((name for name in ("tensor fp16", "tensor bf16", "vector fp32") if name in ridges), None)
    if name is None:
        return "No peak or no DRAM bandwidth is known: no ridge point."
    peak, ridge = ridges[name]
    return f"Peak {name} {peak.value}: below {ridge:.1f} FLOP per DRAM byte a kernel is memory bound."
