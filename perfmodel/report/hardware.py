"""Reports on device profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from perfmodel.core.custom_device import USER
from perfmodel.core.device_scaling import REFERENCE
from perfmodel.core.hardware import Device, Microbenchmark, PowerFit, named_quantities, whole
from perfmodel.core.trace import FormulaStep, Trace, Traced
from perfmodel.core.units import Quantity, format_binary
from perfmodel.report.charts.schema import Chart
from perfmodel.report.document import Figure, Report, Table
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.op_common import head, with_steps
from perfmodel.validation.profile_text import profile_text

FIGURES = "DRAM", "bandwidth", "L2", "SRAM per block", "fp16 tensor"
BRIEF = (
    *("memory.dram.capacity", "memory.dram.bandwidth", "memory.l2.capacity", "memory.sram.per_block"),
    *("peaks.tensor.fp16", "peaks.tensor.bf16", "peaks.tensor.fp8", "peaks.vector.fp32", "peaks.exp"),
    *("multiprocessors", "clocks.max", "launch_overhead.stream"),
)
PROBES = ["what", "bytes", "value", "noise", "runs", "date", "source"]
CALIBRATIONS = ["time model of", "model", "points", "80 % interval", "held out", "median error", "p90", "date", "source"]


def list_report(devices: list[Device]) -> Report:
    """A report with a row per device: memory, bandwidth, SRAM per block, dense peaks."""
    lines = [_line(device) for device in devices]
    groups: dict[str, list[str]] = {}  # by maker, of NVIDIA's by generation
    for device in devices:
        group = f"{device.vendor} {device.architecture.split()[0]}" if device.vendor == "NVIDIA" else device.vendor
        name = device.id.removeprefix(f"{device.vendor.lower()}-").removeprefix("rtx-")
        groups.setdefault(group, []).append(f"{name}{'*' * bool(device.calibration)}")
    count = sum(bool(device.calibration) for device in devices)
    return Report(
        f"{len(devices)} device profiles",
        [f"{count} are calibrated on their own measurements (*).", "The others borrow times of a calibrated device, or of all together."],
        [as_rows("", lines)],
        ["Dense peaks in FLOP/s, an FMA counts 2; '-' is unknown or absent."],
        {**head("hardware"), "devices": list(map(as_json, lines))},
        brief=[Table("", [""], [[f"{group}: {', '.join(names)}"] for group, names in sorted(groups.items())], "l")],
    )


def _line(device: Device) -> list[Metric]:
    """Metrics of one device as in its profile; bandwidths have one unit."""
    l2, sram, tensor, bandwidth = device.level("l2"), device.level("sram"), device.peaks.tensor, device.dram.bandwidth_bytes_per_s
    written = _rate(device.dram.bandwidth or device.dram.measured_bandwidth)
    values = {
        "L2": _size(l2.capacity if l2 else None),
        "SRAM per block": _size(sram.per_block if sram else None),
        "fp32": _rate(device.peaks.vector.get("fp32")),
        "fp16 tensor": _rate(tensor.get("fp16") or tensor.get("bf16")),
        "fp8 tensor": _rate(tensor.get("fp8")),
    }
    return [
        Metric("id", device.id, "device"),
        Metric("name", device.name),
        Metric("DRAM", _size(device.dram.capacity), "DRAM"),
        Metric("bandwidth", written, "" if bandwidth else "bandwidth"),
        Metric("", f"{(bandwidth or 0) / 1e12:.4g} TB/s", "bandwidth" if bandwidth else "", "text"),
        *(Metric(key, value, key) for key, value in values.items()),
    ]


def _size(quantity: Quantity | None) -> str:
    return "-" if quantity is None else format_binary(int(quantity.number))


def _rate(quantity: Quantity | None) -> str:
    return "-" if quantity is None else str(quantity.value)


def show_report(device: Device, explained: bool = False, pictures: bool = False) -> Report:
    """A report with every quantity of ``device``, its kind, source and note, and with the ridge points.

    ``explained`` adds formulas of the ridge points, ``pictures`` the roofline.
    """
    ridges, quantities, line = _ridge_points(device), named_quantities(device), _line(device)
    by_field = dict(quantities)
    brief = [[name, str(by_field[name].value), _kind(by_field[name])] for name in BRIEF if name in by_field]
    report = Report(
        f"{device.name} ({device.id}), {device.architecture}",
        [_memory_bound(ridges), *_sizes(line), _errors(device)],
        [
            Table("", ["field", "value", "kind", "source", "note"], [_quantity(*row) for row in quantities], "lrlll"),
            Table(
                "ridge points at the DRAM bandwidth", ["peak", "ridge point"], [[n, f"{at:.1f} FLOP/B"] for n, (_, at) in ridges.items()]
            ),
            *([Table("what probes reached", PROBES, probe_rows(device.microbenchmarks), "lrrrrll")] if device.microbenchmarks else []),
            *([_power(device.power)] if device.power is not None else []),
            *([_calibrations(device)] if device.calibration else []),
        ],
        [f"{key}: {source}" for key, source in device.sources.items()] + device.notes,
        {
            **head("device"),
            "device": asdict(whole(device), dict_factory=lambda items: {key: value for key, value in items if value is not None}),
            "ridge_points": {name: {"value": value, "unit": "FLOP/B", "level": "dram"} for name, (_, value) in ridges.items()},
        },
        charts=[_chart(device, ridges)] if pictures else [],
        figures=[Figure(metric.label, str(metric.value)) for metric in line if metric.label in FIGURES and metric.value != "-"],
        brief=[Table("", ["field", "value", "kind"], brief, "lrl")],
    )
    return with_steps(report, [("ridge points", {}, _ridge_steps(device))]) if explained else report


def added_report(device: Device, reference: Device, files: Sequence[str]) -> Report:
    """A report on ``device``, made from given values and ``reference``, with the profile to write to ``files``."""
    report, quantities = show_report(device), named_quantities(device)
    given_values = [f"{place} {quantity.value}" for place, quantity in quantities if quantity.source == USER]
    copied = sum(quantity.source == REFERENCE for _, quantity in quantities)
    values = "1 value given" if len(given_values) == 1 else f"{len(given_values)} values given"
    if given_values:
        values += f" ({', '.join(given_values)})"
    verdict = [f"{values}, {copied} copied from {reference.id}.", report.verdict[0]]
    profiles = [name for name in files if name.endswith(".yaml")]
    if profiles:
        verdict.append(f"Use it: perfmodel attention --n 4096 --d 64 --hardware {profiles[0]}")
    return replace(report, verdict=verdict, profile=profile_text(device))


def _kind(quantity: Quantity) -> str:
    """Kind of a quantity, and the device that it was measured on if that is another one."""
    return quantity.kind + (f" on {quantity.measured_on}" if quantity.measured_on else "")


def _memory_bound(ridges: dict[str, tuple[Quantity, float]]) -> str:
    """Sentence on the FLOP/B below which a kernel is memory bound."""
    for name in ("tensor fp16", "tensor bf16", "vector fp32"):
        if name in ridges:
            peak, ridge = ridges[name]
            return f"Peak {name} {peak.value}: memory bound below {ridge:.1f} FLOP per DRAM byte."
    return "No peak or no DRAM bandwidth is known: no ridge point."


def _sizes(line: Sequence[Metric]) -> list[str]:
    """Phrase on the sizes of the memories, from DRAM inwards."""
    values = {metric.label: metric.value for metric in line}
    parts = [f"{values[name]} of {name}" for name in ("DRAM", "L2", "SRAM per block") if values[name] != "-"]
    return [f"Memory: {', '.join(parts)}."] * bool(parts)


def _errors(device: Device) -> str:
    """Sentence on the errors of predictions on records that no fit saw."""
    medians = [block.held_out_median_error for block in device.calibration if block.held_out_median_error is not None]
    date = max((block.date for block in device.calibration), default="")
    if not date:
        return "Not calibrated: times are borrowed from its vendor's devices, else pooled over all, or not predicted."
    errors = f", held-out median errors {min(medians):.1%} to {max(medians):.1%}" if medians else ""
    return f"Calibrated {date}: {len(device.calibration)} fitted kernels{errors}."


def _chart(device: Device, ridges: dict[str, tuple[Quantity, float]]) -> Chart:
    from perfmodel.report.roofline_chart import roofline

    return replace(roofline(device, [], caption=_memory_bound(ridges)), dtypes=["fp8", "fp16", "fp32"])


def _quantity(place: str, quantity: Quantity) -> list[str]:
    notes = [quantity.note] if quantity.note else []
    if quantity.measured_on:
        notes.insert(0, f"same chip: measured on {quantity.measured_on}")
    return [place, str(quantity.value), quantity.kind, quantity.source, "; ".join(notes)]


def _power(fit: PowerFit) -> Table:
    """Table of the fitted parameters of the power model."""
    rows = [["static", f"{fit.static_w:g} W"]]
    rows += [[f"{name}, {'byte' if name in ('l2', 'dram') else 'operation'}", f"{value:g} pJ"] for name, value in fit.picojoules.items()]
    rows += [[f"multiprocessors at work, {name}", f"{value:g} W"] for name, value in fit.busy_w.items()]
    rows += [["joules of an operation, by the clock to the power", f"{fit.clock_exponent:g}"]]
    rows += [["draw of a moment, over the limit", f"{fit.burst_over_limit:g}x"]]
    title = f"power, fitted to {fit.records}, {fit.date}: watts off by {fit.median_error:.1%} in the median, {fit.p90_error:.1%} at 90 %"
    return Table(title, ["what", "at the highest clock"], rows, "lr")


def probe_rows(probes: Sequence[Microbenchmark]) -> list[list[str]]:
    """A row per microbenchmark, in the columns ``PROBES``; a single run has no noise."""
    rows = []
    for probe in probes:
        name = probe.name
        if probe.shape is not None:
            name += f", {' x '.join(str(probe.shape[side]) for side in 'mnk')}"
        size = "" if probe.size is None else f"{probe.size:,}"
        noise = "-" if probe.runs == 1 else f"{probe.spread:.1%}"
        rows.append([name, size, probe.value, noise, str(probe.runs), probe.date, probe.source])
    return rows


def _calibrations(device: Device) -> Table:
    rows = []
    for block in device.calibration:
        median = block.held_out_median_error if block.held_out else block.median_error
        errors = ["-" if error is None else f"{error:.1%}" for error in (median, block.held_out_p90_error)]
        interval = f"{block.low:.3f} to {block.high:.3f}"
        name = f"{block.workload}/{block.implementation}/{block.direction}"
        rows.append([name, block.model, str(block.points), interval, str(block.held_out), *errors, block.date, block.source])
    return Table("calibrations: measured / predicted, and errors on records that no fit saw", CALIBRATIONS, rows, "llrrrrrll")


# Ridge points


def _ridge_points(device: Device) -> dict[str, tuple[Quantity, float]]:
    """Peaks by unit and dtype, each with the FLOP/B at which it meets the DRAM bandwidth."""
    bandwidth = device.dram.bandwidth_bytes_per_s
    if bandwidth is None:
        return {}
    units = (("tensor", device.peaks.tensor), ("vector", device.peaks.vector))
    return {f"{unit} {dtype}": (peak, peak.number / bandwidth) for unit, peaks in units for dtype, peak in peaks.items()}


def _ridge_steps(device: Device) -> list[FormulaStep]:
    """Formula steps of the ridge points: peak over bandwidth, both from the profile."""
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
