"""The report of a matmul: counts, tile, waves, side of the ridge point, and distance from the IO lower bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfmodel.core.arith import ceil_div
from perfmodel.core.cost import memory_bytes
from perfmodel.core.occupancy import LIMIT_WORDS
from perfmodel.core.roofline import rates_of
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
    tiled_loads,
    wave_count,
    wave_quantization,
)
from perfmodel.kernels.matmul_explain import explain
from perfmodel.kernels.tile import SLICE_DEPTH
from perfmodel.report.answer import WASTEFUL, few_blocks, fit_phrase, headline, slow_launches, slow_start
from perfmodel.report.charts.format_number import digits
from perfmodel.report.document import Report, Table
from perfmodel.report.kernel_time import KernelTime
from perfmodel.report.metrics import NO_EXPONENTIALS, Metric, as_json, as_table, bound_by, of_cost
from perfmodel.report.op_common import head, prediction_keys, unknown_rates, with_steps
from perfmodel.report.speedup import side_clause
from perfmodel.timing.explain import explain_power, explain_time
from perfmodel.timing.launched import product_tile
from perfmodel.timing.predict import Prediction

if TYPE_CHECKING:
    from perfmodel.report.charts.schema import Chart

BRIEF = (
    *("time_s.predicted", "rate", "of_peak", "time_s.sustained", "sustained.energy_j", "time_s.roofline", "bound"),
    *("traffic.dram.bytes", "arithmetic_intensity.dram", "tile", "waves.waves", "memory_bytes"),
)


def report(
    result: MatmulResult,
    *,
    prediction: Prediction | None = None,
    unpredicted: str = "",
    explained: bool = False,
    pictures: bool = False,
    measured_s: float | None = None,
) -> Report:
    """``result`` as a Report with data of schema perfmodel.matmul/1. ``unpredicted``: why there is no ``prediction``."""
    w, time = result.workload, _time(result, prediction)
    words = [f"m {w.m}", f"n {w.n}", f"k {w.k}"]
    if w.batch > 1:
        words.append(f"batch {w.batch}")
    if w.split_k > 1:
        words.append(f"split-k {w.split_k}")
    rows = [Metric("", f"{result.tile.br} x {result.tile.bc} x {SLICE_DEPTH}", "tile", "text"), *_metrics(result, time), *time.rates]
    notes = _notes(result)
    if prediction is None and unpredicted:
        notes.append(unpredicted)
    plain = Report(
        f"Matmul: {', '.join([*words, w.dtype.name])} on {result.device.name}",
        _headline(result, time),
        _tables(result, rows),
        notes,
        data(result, time),
        charts=_charts(result, time) if pictures else [],
        brief=[as_table("", {"total": [*rows, *_fill(result)]}, labels=BRIEF, without=time.rows_left_out)],
        reasons=[f"{side_clause(time.side('The matmul'))}. {_bound(result)}"],
    )
    plain = time.added_to(plain, "The matmul", measured_s)
    if not explained:
        return plain
    steps = [*explain(result), *explain_time(prediction), *explain_power(prediction)]
    return with_steps(plain, [("every number", {"algorithm": "tiled"}, steps)])


def data(result: MatmulResult, time: KernelTime) -> dict[str, Any]:
    """The object of schema perfmodel.matmul/1."""
    w = result.workload
    inputs = {name: getattr(w, name) for name in ("m", "n", "k", "batch", "split_k")} | {"dtype": w.dtype.name}
    inputs |= {"tile_m": result.tile_asked[0], "tile_n": result.tile_asked[1], "sram_bytes": result.chip.sram}
    filled = as_json(_fill(result))
    entry = {
        "algorithm": "tiled",
        "pass": "forward",
        **prediction_keys(time.prediction),
        **as_json([*_metrics(result, time), *_traffic(result)]),
        **filled,
        "kernels": [
            {"name": kernel.name, **as_json(of_cost(cost)), "tile": filled["tile"] if kernel.launch else None}
            for kernel, cost in result.kernels
        ],
    }
    return {**head("matmul", inputs, result.device), "results": [entry], "io_lower_bound": as_json(_io_lower_bound(result))}


def _metrics(result: MatmulResult, time: KernelTime) -> list[Metric]:
    w = result.workload
    minimum = Metric("arithmetic_intensity.minimum", minimum_intensity(w))
    return [*time.metrics(), minimum, Metric("extra_memory_bytes", extra_memory_bytes(w))]


def _traffic(result: MatmulResult) -> list[Metric]:
    """Metrics of the fewest elements that a matmul moves, and of those that these tiles move."""
    minimum, tiled = minimum_elements(result.workload), _tiled_elements(result)
    return [
        Metric("minimum_traffic.elements", minimum),
        Metric("minimum_traffic.bytes", in_bytes(result.workload, minimum)),
        Metric("tiled_traffic.elements", tiled),
        Metric("tiled_traffic.bytes", in_bytes(result.workload, tiled)),
    ]


def _io_lower_bound(result: MatmulResult) -> list[Metric]:
    """Metrics of the IO lower bound with SRAM and registers, and with the SRAM alone."""
    w, chip, tiled = result.workload, result.chip, _tiled_elements(result)
    bound = io_lower_bound(w, chip.total / w.dtype.bytes)
    in_sram = io_lower_bound(w, chip.sram / w.dtype.bytes)
    return [
        Metric("m_bytes", chip.total),
        Metric("sram_bytes", chip.sram),
        Metric("register_bytes", chip.registers),
        Metric("elements", bound, source=BOUND_SOURCE),
        Metric("bytes", bound * w.dtype.bytes),
        Metric("minimum_over_bound", minimum_elements(w) / bound, unit="ratio"),
        Metric("tiled_over_bound", tiled / bound, unit="ratio"),
        Metric("sram_only.elements", in_sram),
        Metric("sram_only.tiled_over_bound", tiled / in_sram, unit="ratio"),
    ]


def _fill(result: MatmulResult) -> list[Metric]:
    """Metrics of the tile and of the waves; no waves if the profile has no limits."""
    w, tile, filled, slots = result.workload, result.tile, result.occupancy, result.slots
    metrics = [
        Metric("tile.br", tile.br),
        Metric("tile.bc", tile.bc),
        Metric("tile.depth", SLICE_DEPTH),
        Metric("tile.threads", tile.threads),
        Metric("tile.origin", tile.origin),
        Metric("tile.reuse", tile_reuse(w, tile), "tile reuse", after="x fewer loads"),
        Metric("tile.quantization", tile_quantization(w, tile), "tile quantization", "share"),
    ]
    if slots is None or filled is None:
        return [*metrics, Metric("waves", None), Metric("occupancy", None)]
    limits = f", limited by {' and '.join(LIMIT_WORDS[name] for name in filled.limited_by)}"
    waves, idle = wave_count(result.blocks, slots), wave_quantization(result.blocks, slots)
    return [
        *metrics,
        Metric("waves.blocks", result.blocks, "blocks"),
        Metric("waves.slots", slots),
        Metric("occupancy.blocks_per_multiprocessor", filled.blocks, "blocks per multiprocessor", after=limits),
        Metric("occupancy.limits", filled.limits),
        Metric("occupancy.limited_by", filled.limited_by),
        Metric("waves.waves", waves, "waves", after=f" of {format_count(slots)} blocks"),
        Metric("waves.quantization", idle, "wave quantization", "share"),
    ]


def _tiled_elements(result: MatmulResult) -> int:
    """Elements of A, B and C that the tiles move, without partial sums of split-k."""
    return int(tiled_loads(result.workload, result.tile) + result.workload.outputs)


def _tables(result: MatmulResult, rows: list[Metric]) -> list[Table]:
    w, bound = result.workload, as_json(_io_lower_bound(result))["elements"]
    counts = {"IO lower bound": bound, "minimum traffic": minimum_elements(w), "tiled traffic": _tiled_elements(result)}
    io = [[label, _elements(count), f"{count / bound:.3g}x"] for label, count in counts.items()]
    io.append(["loads without tiles", _elements(2 * w.batch * w.m * w.n * w.k), "-"])
    return [
        as_table("", {"total": rows}, without=NO_EXPONENTIALS),
        Table("traffic between L2 and one multiprocessor at a time", ["", "elements", "over the bound"], io),
        as_table("how the tiles fill the device", {"value": _fill(result)}),
    ]


def _elements(count: float) -> str:
    return format_count(count) if isinstance(count, int) else f"{count:,.0f}"


def _headline(result: MatmulResult, time: KernelTime) -> list[str]:
    """The headline: whether it fits, its side of the ridge point, time and rate, and what limits it."""
    rates = rates_of(result.device, result.workload.dtype)
    ridge = float(rates.matmul / rates.dram)
    intensity = float(minimum_intensity(result.workload))
    side = "memory bound" if intensity < ridge else "compute bound"
    first = f"{side} if operands move once: {digits(intensity, 4)} FLOP/B, ridge point {ridge:.4g}"
    fits = fit_phrase(time.memory, result.device).partition(":")[0]
    return headline(f"{fits}; {first}" if fits else first, time.rate, time.limit)


def _bound(result: MatmulResult) -> str:
    """Phrase on what bounds the tiles."""
    return f"With {result.tile.br} x {result.tile.bc} tiles it is bound by {bound_by(result.total)}."


def _time(result: MatmulResult, prediction: Prediction | None) -> KernelTime:
    """The time of ``result`` with causes outside the roof: the launch, too few blocks, a half-empty last wave."""
    if prediction:
        causes = [*slow_start(prediction), *_few_blocks(result, prediction)]
    else:
        launched = slow_launches(len(result.kernels), float(result.total.roofline_s), result.device)
        causes = [*launched, *few_blocks(result.blocks, result.device)] if launched else []
    memory = memory_bytes([kernel for kernel, _ in result.kernels])
    return KernelTime(result.total, result.device, result.workload.dtype, memory, prediction, causes=causes)


def _few_blocks(result: MatmulResult, prediction: Prediction) -> list[str]:
    """Causes: the blocks that the time model chose do not fill the device once, or leave the last wave half empty."""
    tile = product_tile(prediction)
    if tile is None or result.device.multiprocessors is None:
        return []
    w, slots = result.workload, result.device.multiprocessors.number
    blocks = int(w.batch * ceil_div(w.m, tile.br) * ceil_div(w.n, tile.bc) * tile.splits)
    causes = few_blocks(blocks, result.device)
    if not causes and wave_quantization(blocks, slots) < WASTEFUL:
        causes = [f"{ceil_div(blocks, slots):.0f} waves of {blocks:,} blocks"]
    if blocks == result.blocks:
        return causes
    return [f"{words} ({tile.br} x {tile.bc} tiles)" for words in causes]


def _charts(result: MatmulResult, time: KernelTime) -> list[Chart]:
    """Charts of the rooflines of time and energy, of the time beside its roof, and of bytes beside the fewest possible."""
    from perfmodel.report.charts.schema import Bar, BarChart, time_bar
    from perfmodel.report.roofline_chart import energy_roofline, point, roofline

    w, device, cost = result.workload, result.device, result.total
    name = f"{w.m} x {w.n} x {w.k}"
    dot = point(1, name, cost, device, w.dtype.name, w.dtype.matmul_unit, time.prediction)
    minimum, moved = in_bytes(w, minimum_elements(w)), in_bytes(w, _tiled_elements(result))
    sizes = {"least: each operand once": minimum, "through the L2, tiles re-reading": cost.sram.total, "over DRAM": cost.dram.total}
    taken = time_bar(name, float(cost.roofline_s), time.predicted)
    bars = [Bar(label, [("bytes", value)]) for label, value in sizes.items()]
    again = f"Tiles of {result.tile.br} x {result.tile.bc} move {moved / minimum:.3g}x the least through the L2."
    return [
        roofline(device, [dot], caption=_bound(result)),
        BarChart("Predicted time, and how much of it is the roof", "s", [taken], caption=f"{time.limit}."),
        BarChart("Bytes that it moves", "B", bars, caption=again),
        *energy_roofline(device, w.dtype, [(name, cost, time.prediction)]),
    ]


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
