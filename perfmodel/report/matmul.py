"""The report of a matmul: counts, tile, waves, and the distance from the IO lower bound."""

from __future__ import annotations

from typing import Any

from perfmodel.core.cost import Kernel, memory_bytes
from perfmodel.core.occupancy import LIMIT_WORDS
from perfmodel.core.roofline import Estimate, rates_of
from perfmodel.core.units import format_binary, format_count
from perfmodel.kernels.matmul import (
    BOUND_SOURCE,
    Result,
    extra_memory_bytes,
    io_lower_bound,
    minimum_elements,
    minimum_intensity,
    tile_quantization,
    tile_reuse,
    tiled_loads,
    wave_count,
    wave_quantization,
)
from perfmodel.kernels.matmul_explain import explain
from perfmodel.kernels.tile import SLICE_DEPTH
from perfmodel.report.against import Side, alone
from perfmodel.report.charts.soft_roofs import WHY
from perfmodel.report.document import Report, Table
from perfmodel.report.metrics import NO_EXPONENTIALS, Metric, as_json, as_table, bound_by, of_cost, of_memory, seconds
from perfmodel.report.op_common import head, note, unknown_rates, whose, with_steps
from perfmodel.report.roofline_chart import multicasts
from perfmodel.timing.predict import Prediction


def report(result: Result, *, prediction: Prediction | None = None, unpredicted: str = "", explained: bool = False) -> Report:
    """``result`` as a Report; its data follows the schema perfmodel.matmul/1.

    ``prediction``: a time to show beside bound and roof, ``unpredicted`` why there is none. ``explained``: with every formula.
    """
    notes = _notes(result)
    if prediction is not None:
        notes.append(note("The matmul", prediction))
    elif unpredicted:
        notes.append(unpredicted)
    plain = Report(_title(result), [_verdict(result, prediction)], _tables(result, prediction), notes, data(result, prediction))
    return with_steps(plain, [("every number", {"algorithm": "tiled"}, explain(result))]) if explained else plain


# The JSON object


def data(result: Result, prediction: Prediction | None = None) -> dict[str, Any]:
    """The object of schema perfmodel.matmul/1."""
    w = result.workload
    inputs = {name: getattr(w, name) for name in ("m", "n", "k", "batch", "split_k")} | {"dtype": w.dtype.name}
    inputs |= {"tile_m": result.tile_asked[0], "tile_n": result.tile_asked[1], "sram_bytes": result.chip.sram}
    return {**head("matmul", inputs, result.device), "results": [_entry(result, prediction)], "io_lower_bound": _io_lower_bound(result)}


def _metrics(result: Result, prediction: Prediction | None) -> list[Metric]:
    w, size = result.workload, memory_bytes([kernel for kernel, _ in result.kernels])
    return [
        *of_cost(result.total, None if prediction is None else seconds(prediction)),
        Metric("arithmetic_intensity.minimum", minimum_intensity(w)),
        *of_memory(size, result.device),
        Metric("extra_memory_bytes", extra_memory_bytes(w)),
    ]


def _entry(result: Result, prediction: Prediction | None) -> dict[str, Any]:
    w = result.workload
    return {
        "algorithm": "tiled",
        "pass": "forward",
        **whose(prediction),
        **as_json(_metrics(result, prediction)),
        "minimum_traffic": {"elements": minimum_elements(w), "bytes": minimum_elements(w) * w.dtype.size},
        "tiled_traffic": {"elements": tiled_elements(result), "bytes": tiled_elements(result) * w.dtype.size},
        "tile": _tile(result),
        "waves": _waves(result),
        "occupancy": _occupancy(result),
        "kernels": [_kernel(result, kernel, cost) for kernel, cost in result.kernels],
    }


def _kernel(result: Result, kernel: Kernel, cost: Estimate) -> dict[str, Any]:
    return {"name": kernel.name, **as_json(of_cost(cost)), "tile": _tile(result) if kernel.launch else None}


def tiled_elements(result: Result) -> int:
    """Elements of A, B and C that the tiles move, without the partial sums of split-k."""
    return int(tiled_loads(result.workload, result.tile) + result.workload.outputs)


def _tile(result: Result) -> dict[str, Any]:
    w, tile = result.workload, result.tile
    return {
        "br": tile.br,
        "bc": tile.bc,
        "depth": SLICE_DEPTH,
        "threads": tile.threads,
        "origin": tile.origin,
        "reuse": tile_reuse(w, tile),
        "quantization": tile_quantization(w, tile),
    }


def _waves(result: Result) -> dict[str, Any] | None:
    if result.slots is None:
        return None
    found = {"blocks": result.blocks, "slots": result.slots, "waves": wave_count(result.blocks, result.slots)}
    return {**found, "quantization": wave_quantization(result.blocks, result.slots)}


def _occupancy(result: Result) -> dict[str, Any] | None:
    filled = result.occupancy
    if filled is None:
        return None
    return {"blocks_per_multiprocessor": filled.blocks, "limits": filled.limits, "limited_by": filled.limited_by}


def _io_lower_bound(result: Result) -> dict[str, Any]:
    w, chip = result.workload, result.chip
    bound, in_sram = (io_lower_bound(w, size / w.dtype.size) for size in (chip.total, chip.sram))
    return {
        "m_bytes": chip.total,
        "sram_bytes": chip.sram,
        "register_bytes": chip.registers,
        "elements": bound,
        "bytes": bound * w.dtype.size,
        "minimum_over_bound": minimum_elements(w) / bound,
        "tiled_over_bound": tiled_elements(result) / bound,
        "sram_only": {"elements": in_sram, "tiled_over_bound": tiled_elements(result) / in_sram},
        "source": BOUND_SOURCE,
    }


# Words


def _title(result: Result) -> str:
    w = result.workload
    options = [f"batch {w.batch}"] * (w.batch > 1) + [f"split-k {w.split_k}"] * (w.split_k > 1)
    return f"Matmul: {', '.join([f'm {w.m}', f'n {w.n}', f'k {w.k}', *options, w.dtype.name])} on {result.device.name}"


def _verdict(result: Result, prediction: Prediction | None) -> str:
    """How long it takes, as far as that is predicted, which side of the ridge point it is on, and what bounds this tiling."""
    w, rates = result.workload, rates_of(result.device, result.workload.dtype)
    best, ridge = minimum_intensity(w), rates.matmul / rates.dram
    side = "memory bound" if best < ridge else "compute bound"
    reason = f"{best:,.2f} FLOP/B at minimum traffic against a ridge point of {ridge:.1f}"
    tiled = f"With {result.tile.br} x {result.tile.bc} tiles it is bound by {bound_by(result.total)}"
    soft = f"; that roof is soft: {WHY}" if result.total.bound == "l2" and _on_tensor(result) and multicasts(result.device) else ""
    known = None if prediction is None else seconds(prediction)
    by = "" if prediction is None else prediction.calibration.implementation
    took = alone(Side("The matmul", float(result.total.roofline_s), known, by=by))
    return f"{took}. At best it is {side}: {reason}. {tiled}{soft}."


def _on_tensor(result: Result) -> bool:
    dtype = result.workload.dtype
    return result.device.matmul_unit(dtype.name, dtype.matmul_unit) == "tensor"


def _tables(result: Result, prediction: Prediction | None) -> list[Table]:
    w, tile, bound = result.workload, result.tile, _io_lower_bound(result)
    waves, filled = _waves(result), result.occupancy
    edges = Metric("", f"{tile.br} x {tile.bc} x {SLICE_DEPTH}", "tile", "text")
    io = [
        ["IO lower bound", _elements(bound["elements"]), "1x"],
        ["minimum traffic", _elements(minimum_elements(w)), f"{bound['minimum_over_bound']:.3g}x"],
        ["tiled traffic", _elements(tiled_elements(result)), f"{bound['tiled_over_bound']:.3g}x"],
        ["loads without tiles", _elements(2 * w.batch * w.m * w.n * w.k), "-"],
    ]
    fill = [["tile reuse", f"{tile_reuse(w, tile):.4g}x fewer loads"], ["tile quantization", f"{tile_quantization(w, tile):.1%}"]]
    if waves is not None and filled is not None:
        fill += [
            ["blocks", format_count(waves["blocks"])],
            ["blocks per multiprocessor", f"{filled.blocks}, limited by {' and '.join(LIMIT_WORDS[name] for name in filled.limited_by)}"],
            ["waves", f"{waves['waves']:.4g} of {format_count(waves['slots'])} blocks"],
            ["wave quantization", f"{waves['quantization']:.1%}"],
        ]
    return [
        as_table("", {"total": [edges, *_metrics(result, prediction)]}, without=NO_EXPONENTIALS),
        Table("traffic across the SRAM boundary of one multiprocessor at a time", ["", "elements", "over the bound"], io),
        Table("how the tiles fill the device", ["", "value"], fill),
    ]


def _elements(count: float) -> str:
    return format_count(count) if isinstance(count, int) else f"{count:,.0f}"


def _notes(result: Result) -> list[str]:
    chip, tile = result.chip, result.tile
    registers = f" and {format_binary(chip.registers)} of registers" if chip.registers else ""
    notes = [
        f"Tile: {tile.origin}. C in registers, slices of A and B {SLICE_DEPTH} deep in SRAM, {tile.threads} threads.",
        f"IO lower bound for M = {format_binary(chip.sram)} of SRAM per block{registers}, which hold C: {BOUND_SOURCE}.",
    ]
    if chip.registers:
        only = _io_lower_bound(result)["sram_only"]
        notes.append(f"For the SRAM alone the bound is {_elements(only['elements'])} elements; sums in registers may go below that.")
    if result.occupancy is not None:
        notes.append("Occupancy with the most registers a thread can have; a smaller kernel may place more blocks.")
    else:
        notes.append(f"The profile of {result.device.id} has no multiprocessor limits: no waves.")
    notes.append("The roof counts padding but not idle slots: a compute-bound kernel reaches about the wave quantization of it.")
    return [*notes, *unknown_rates([result.total], result.device)]
