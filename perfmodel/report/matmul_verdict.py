"""What a matmul report says in words and pictures: its side of the ridge point, its time and rate, what limits it."""

from __future__ import annotations

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.cost import memory_bytes
from perfmodel.core.roofline import rates_of
from perfmodel.kernels.matmul import MatmulResult, in_bytes, minimum_elements, minimum_intensity, tiled_loads, wave_quantization
from perfmodel.report.against import Side, alone, launching
from perfmodel.report.answer import WASTEFUL, fit, limits, meters_of, rate_of, sentence, starting, time_bar, too_few, unmarked
from perfmodel.report.charts.schema import Bar, BarChart, Chart
from perfmodel.report.document import Meter
from perfmodel.report.metrics import bound_by, seconds
from perfmodel.report.power import drawn, with_power
from perfmodel.report.roofline_chart import point, roofline
from perfmodel.timing.launched import product_tile
from perfmodel.timing.predict import Prediction

TIMES = "Predicted time, and how much of it is the roof"


def verdict(result: MatmulResult, prediction: Prediction | None) -> list[str]:
    """Whether it fits, and which side of the ridge point it is on; time and rate; what limits it."""
    memory, (side, best, ridge) = memory_of(result), _best(result)
    fitting = fit(memory, result.device)
    fits = f"{fitting.partition(':')[0]}; " if fitting else ""
    rate = rate_of(result.total, seconds(prediction), result.device, result.workload.dtype, memory)
    first = f"{fits}{side} if operands move once: {intensity(best)} FLOP/B, ridge point {ridge:.4g}"
    return [sentence(first), f"{rate}.", f"{_limit(result, prediction)}."]


def intensity(value: float) -> str:
    """
    >>> intensity(124.121), intensity(21845.33)
    ('124.1', '21,845')
    """
    return f"{value:,.0f}" if value >= 1e4 else f"{value:,.4g}"


def _limit(result: MatmulResult, prediction: Prediction | None) -> str:
    known = seconds(prediction)
    causes = [*starting(prediction), *_few_blocks(result, prediction)] if prediction else _unpredicted(result)
    return limits(meters_of(result.total, known), causes, known is None, result.total.unknown)


def meters(result: MatmulResult, prediction: Prediction | None) -> list[Meter]:
    """How busy each resource is."""
    found = unmarked(meters_of(result.total, seconds(prediction)), [] if prediction else _unpredicted(result))
    return with_power(found, drawn(prediction))


def _unpredicted(result: MatmulResult) -> list[str]:
    """What the roof leaves out although it dominates."""
    launched = launching(len(result.kernels), float(result.total.roofline_s), result.device)
    return [*launched, *too_few(result.blocks, result.device)] if launched else []


def _few_blocks(result: MatmulResult, prediction: Prediction) -> list[str]:
    """That the blocks that the time model chose do not fill the device once, or leave a last wave half empty."""
    tile = product_tile(prediction)
    if tile is None or result.device.multiprocessors is None:
        return []
    w, slots = result.workload, result.device.multiprocessors.number
    blocks = int(w.batch * ceil_div(w.m, tile.br) * ceil_div(w.n, tile.bc) * tile.splits)
    half = wave_quantization(blocks, slots) < WASTEFUL
    found = too_few(blocks, result.device) or [f"{ceil_div(blocks, slots):.0f} waves of {blocks:,} blocks"] * half
    return [words if blocks == result.blocks else f"{words} ({tile.br} x {tile.bc} tiles)" for words in found]


def _best(result: MatmulResult) -> tuple[str, float, float]:
    """What bounds it at minimum traffic, its FLOP/B there, and the ridge point."""
    rates = rates_of(result.device, result.workload.dtype)
    best, ridge = float(minimum_intensity(result.workload)), float(rates.matmul / rates.dram)
    return "memory bound" if best < ridge else "compute bound", best, ridge


def reasons(result: MatmulResult, prediction: Prediction | None) -> str:
    """How long it takes beside its roof, and what bounds this tiling."""
    tiled = f"With {result.tile.br} x {result.tile.bc} tiles it is bound by {bound_by(result.total)}"
    by = "" if prediction is None else prediction.calibration.implementation
    took = alone(Side("The matmul", float(result.total.roofline_s), seconds(prediction), by=by))
    side, best, ridge = _best(result)
    reason = f"{best:,.2f} FLOP/B at minimum traffic against a ridge point of {ridge:.1f}"
    return f"{took}. At best it is {side}: {reason}. {tiled}."


def pictures_of(result: MatmulResult, prediction: Prediction | None) -> list[Chart]:
    """Its time and its roof, its rooflines of time and energy, and the bytes that it moves beside the least that it must."""
    from perfmodel.report.energy_chart import energy_roofline

    w, device, cost, known = result.workload, result.device, result.total, seconds(prediction)
    name = f"{w.m} x {w.n} x {w.k}"
    dot = point(1, name, cost, device, w.dtype.name, w.dtype.matmul_unit, prediction)
    least, moved = in_bytes(w, minimum_elements(w)), in_bytes(w, tiled_elements(result))
    bars = {"least: each operand once": least, "through the L2, tiles re-reading": cost.sram.total, "over DRAM": cost.dram.total}
    again = f"Tiles of {result.tile.br} x {result.tile.bc} move {moved / least:.3g}x the least through the L2."
    return [
        roofline(device, [dot], caption=_placed(result)),
        BarChart(TIMES, "s", [time_bar(name, float(cost.roofline_s), known)], caption=f"{_limit(result, prediction)}."),
        BarChart("Bytes that it moves", "B", [Bar(label, [("bytes", value)]) for label, value in bars.items()], caption=again),
        *energy_roofline(device, w.dtype, [(name, cost, prediction)]),
    ]


def _placed(result: MatmulResult) -> str:
    """What bounds it on its roofline."""
    return f"Its tiles are bound by {bound_by(result.total)}."


def memory_of(result: MatmulResult) -> Number:
    """Bytes of every tensor at once."""
    return memory_bytes([kernel for kernel, _ in result.kernels])


def tiled_elements(result: MatmulResult) -> int:
    """Elements of A, B and C that the tiles move, without the partial sums of split-k."""
    return int(tiled_loads(result.workload, result.tile) + result.workload.outputs)
