"""The report of a matmul: counts, tile, waves, and the distance from the IO lower bound."""

from __future__ import annotations

from typing import Any

from perfmodel.core.occupancy import LIMIT_WORDS
from perfmodel.core.units import format_binary, format_count
from perfmodel.kernels.matmul import (
    BOUND_SOURCE,
    MatmulResult,
    extra_memory_bytes,
    in_bytes,
    io_lower_bound,
    minimum_elements,
    minimum_intensity,
    tile_quantization,
    tile_reuse,
    wave_count,
    wave_quantization,
)
from perfmodel.kernels.matmul_explain import explain
from perfmodel.kernels.tile import SLICE_DEPTH
from perfmodel.report.answer import below_roof, figures, metered, rates
from perfmodel.report.document import Report, Table
from perfmodel.report.matmul_verdict import memory_of, meters, pictures_of, reasons, tiled_elements, verdict
from perfmodel.report.metrics import NO_EXPONENTIALS, Metric, as_json, as_table, of_cost, of_memory, seconds
from perfmodel.report.op_common import guessed, head, note, unknown_rates, whose, with_steps
from perfmodel.report.power import drawn, of_power, power_note
from perfmodel.timing.explain import explain_power, explain_time
from perfmodel.timing.predict import Prediction


def report(
    result: MatmulResult, *, prediction: Prediction | None = None, unpredicted: str = "", explained: bool = False, pictures: bool = False
) -> Report:
    """``result`` as a Report; its data follows the schema perfmodel.matmul/1.

    ``prediction``: a time to show beside bound and roof, ``unpredicted`` why there is none. ``explained``: with every formula.
    ``pictures``: with its time, its roofline and its bytes.
    """
    w = result.workload
    options = [f"batch {w.batch}"] * (w.batch > 1) + [f"split-k {w.split_k}"] * (w.split_k > 1)
    title = f"Matmul: {', '.join([f'm {w.m}', f'n {w.n}', f'k {w.k}', *options, w.dtype.name])} on {result.device.name}"
    notes = [*_notes(result), *([unpredicted] if prediction is None and unpredicted else [])]
    notes += [] if prediction is None else [note("The matmul", prediction), *guessed([prediction]), *power_note(prediction.power)]
    known = seconds(prediction)
    notes += below_roof("The matmul", result.total, known)
    shown = meters(result, prediction)
    plain = Report(
        title,
        verdict(result, prediction),
        _tables(result, prediction),
        notes,
        data(result, prediction),
        charts=pictures_of(result, prediction) if pictures else [],
        meters=shown,
        metered=metered(known, result.total),
        figures=figures(result.total, known, result.device, w.dtype, memory_of(result)),
        brief=[as_table("", {"total": _rows(result, prediction)}, labels=BRIEF if drawn(prediction) is None else POWERED)],
        reasons=[reasons(result, prediction)],
    )
    if not explained:
        return plain
    steps = [*explain(result), *explain_time(prediction), *explain_power(prediction)]
    return with_steps(plain, [("every number", {"algorithm": "tiled"}, steps)])


def data(result: MatmulResult, prediction: Prediction | None = None) -> dict[str, Any]:
    """The object of schema perfmodel.matmul/1."""
    w = result.workload
    inputs = {name: getattr(w, name) for name in ("m", "n", "k", "batch", "split_k")} | {"dtype": w.dtype.name}
    inputs |= {"tile_m": result.tile_asked[0], "tile_n": result.tile_asked[1], "sram_bytes": result.chip.sram}
    filled = as_json(_fill(result))
    entry = {
        "algorithm": "tiled",
        "pass": "forward",
        **whose(prediction),
        **as_json([*_metrics(result, prediction), *_traffic(result)]),
        **filled,
        "kernels": [
            {"name": kernel.name, **as_json(of_cost(cost)), "tile": filled["tile"] if kernel.launch else None}
            for kernel, cost in result.kernels
        ],
    }
    return {**head("matmul", inputs, result.device), "results": [entry], "io_lower_bound": as_json(_io_lower_bound(result))}


def _metrics(result: MatmulResult, prediction: Prediction | None) -> list[Metric]:
    w = result.workload
    return [
        *of_cost(result.total, seconds(prediction)),
        *of_power(drawn(prediction)),
        Metric("arithmetic_intensity.minimum", minimum_intensity(w)),
        *of_memory(memory_of(result), result.device),
        Metric("extra_memory_bytes", extra_memory_bytes(w)),
    ]


def _rows(result: MatmulResult, prediction: Prediction | None) -> list[Metric]:
    """Of the tables that show counts, times and how the tiles fill the device."""
    edges = Metric("", f"{result.tile.br} x {result.tile.bc} x {SLICE_DEPTH}", "tile", "text")
    reached = rates(result.total, seconds(prediction), result.device, result.workload.dtype)
    return [edges, *_metrics(result, prediction), *reached, *_fill(result)]


BRIEF = (
    *("time_s.predicted", "rate", "of_peak", "time_s.sustained", "sustained.energy_j", "time_s.roofline", "bound"),
    *("traffic.dram.bytes", "arithmetic_intensity.dram", "tile", "waves.waves", "memory_bytes"),
)
"""Keys of the rows that a screen shows."""
POWERED = tuple(key for key in BRIEF if key not in ("bound", "memory_bytes"))
"""The same where power is known: the verdict has what limits and whether it fits, a meter the watts, and the screen no room for both."""


def _traffic(result: MatmulResult) -> list[Metric]:
    w, least, tiled = result.workload, minimum_elements(result.workload), tiled_elements(result)
    return [
        Metric("minimum_traffic.elements", least, "minimum traffic"),
        Metric("minimum_traffic.bytes", in_bytes(w, least)),
        Metric("tiled_traffic.elements", tiled, "tiled traffic"),
        Metric("tiled_traffic.bytes", in_bytes(w, tiled)),
        Metric("", 2 * w.batch * w.m * w.n * w.k, "loads without tiles"),
    ]


def _io_lower_bound(result: MatmulResult) -> list[Metric]:
    w, chip, tiled = result.workload, result.chip, tiled_elements(result)
    bound, in_sram = (io_lower_bound(w, size / w.dtype.bytes) for size in (chip.total, chip.sram))
    return [
        Metric("m_bytes", chip.total),
        Metric("sram_bytes", chip.sram),
        Metric("register_bytes", chip.registers),
        Metric("elements", bound, "IO lower bound", source=BOUND_SOURCE),
        Metric("bytes", bound * w.dtype.bytes),
        Metric("minimum_over_bound", minimum_elements(w) / bound, "minimum traffic", "ratio"),
        Metric("tiled_over_bound", tiled / bound, "tiled traffic", "ratio"),
        Metric("sram_only.elements", in_sram),
        Metric("sram_only.tiled_over_bound", tiled / in_sram, unit="ratio"),
    ]


def _fill(result: MatmulResult) -> list[Metric]:
    """The tile, and how tiles fill the device; without its limits no waves."""
    w, tile, filled, slots = result.workload, result.tile, result.occupancy, result.slots
    found = [
        Metric("tile.br", tile.br),
        Metric("tile.bc", tile.bc),
        Metric("tile.depth", SLICE_DEPTH),
        Metric("tile.threads", tile.threads),
        Metric("tile.origin", tile.origin),
        Metric("tile.reuse", tile_reuse(w, tile), "tile reuse", after="x fewer loads"),
        Metric("tile.quantization", tile_quantization(w, tile), "tile quantization", "share"),
    ]
    if slots is None or filled is None:
        return [*found, Metric("waves", None), Metric("occupancy", None)]
    limits = f", limited by {' and '.join(LIMIT_WORDS[name] for name in filled.limited_by)}"
    waves, idle = wave_count(result.blocks, slots), wave_quantization(result.blocks, slots)
    return [
        *found,
        Metric("waves.blocks", result.blocks, "blocks"),
        Metric("waves.slots", slots),
        Metric("occupancy.blocks_per_multiprocessor", filled.blocks, "blocks per multiprocessor", after=limits),
        Metric("occupancy.limits", filled.limits),
        Metric("occupancy.limited_by", filled.limited_by),
        Metric("waves.waves", waves, "waves", after=f" of {format_count(slots)} blocks"),
        Metric("waves.quantization", idle, "wave quantization", "share"),
    ]


def _tables(result: MatmulResult, prediction: Prediction | None) -> list[Table]:
    tile, bound = result.tile, {one.label: one.value for one in _io_lower_bound(result) if one.label}
    counts = {"IO lower bound": bound["IO lower bound"]} | {one.label: one.value for one in _traffic(result) if one.label}
    over = {label: f"{value:.3g}x" for label, value in bound.items()} | {"IO lower bound": "1x"}
    io = [[label, _elements(count), over.get(label, "-")] for label, count in counts.items()]
    edges = Metric("", f"{tile.br} x {tile.bc} x {SLICE_DEPTH}", "tile", "text")
    rows = [edges, *_metrics(result, prediction), *rates(result.total, seconds(prediction), result.device, result.workload.dtype)]
    return [
        as_table("", {"total": rows}, without=NO_EXPONENTIALS),
        Table("traffic between L2 and one multiprocessor at a time", ["", "elements", "over the bound"], io),
        as_table("how the tiles fill the device", {"value": _fill(result)}),
    ]


def _elements(count: float) -> str:
    return format_count(count) if isinstance(count, int) else f"{count:,.0f}"


def _notes(result: MatmulResult) -> list[str]:
    chip, tile = result.chip, result.tile
    registers = f" and {format_binary(chip.registers)} of registers" if chip.registers else ""
    notes = [
        f"Tile: {tile.origin}. C in registers, slices of A and B {SLICE_DEPTH} deep in SRAM, {tile.threads} threads.",
        f"IO lower bound for M = {format_binary(chip.sram)} of SRAM per block{registers}, which hold C: {BOUND_SOURCE}.",
    ]
    if chip.registers:
        only = as_json(_io_lower_bound(result))["sram_only"]["elements"]
        notes.append(f"For the SRAM alone the bound is {_elements(only)} elements; sums in registers may go below that.")
    if result.occupancy is not None:
        notes.append("Occupancy with the most registers a thread can have; a smaller kernel may place more blocks.")
    else:
        notes.append(f"The profile of {result.device.id} has no multiprocessor limits: no waves.")
    notes.append("The roof counts padding but not idle slots: a compute-bound kernel reaches about the wave quantization of it.")
    return [*notes, *unknown_rates([result.total], result.device)]
