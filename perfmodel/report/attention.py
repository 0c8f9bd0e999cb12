"""The report of an attention comparison: which algorithm is faster and why, one table per pass, and what was asked for besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perfmodel.core.cost import Kernel
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate
from perfmodel.core.units import format_binary, format_si
from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.kernels.attention.evaluate import BOTH, COMPULSORY_SOURCE, THETA_SOURCE, AttentionResult, compulsory_elements, theta
from perfmodel.kernels.attention.evaluate import memory as memory_of
from perfmodel.kernels.attention.request import Comparison
from perfmodel.report.against import ROOFS_EVEN, Side, against, alone, ends, idle_and_launch, ratio, ratio_notes, times
from perfmodel.report.answer import compared, fit, limits, metered, meters_of, rate_of, rates
from perfmodel.report.charts.schema import Interval
from perfmodel.report.document import Report, Table
from perfmodel.report.metrics import BOUND_WORDS, Labels, Metric, as_json, as_rows, as_table, bound_by, of_cost, of_memory, seconds
from perfmodel.report.op_common import head, note, unknown_rates, whose, with_steps
from perfmodel.report.power import drawn, of_power, power_note, with_power
from perfmodel.timing.select_kernel import Predictions

LABELS = {"flops": "FLOP, visible scores", "accesses.total": "HBM accesses, two-level model"}
EAGER = "an eager softmax of standard, which stays far from its roof"


def report(
    comparison: Comparison,
    *,
    predictions: Predictions | None = None,
    unpredicted: Sequence[str] = (),
    explained: bool = False,
    crossover: bool = False,
    pictures: bool = False,
) -> Report:
    """``comparison`` as a Report; its data follows the schema perfmodel.attention/1.

    ``predictions``: times to show beside bound and roof, ``unpredicted`` why others are missing. ``explained``: with every
    formula. ``crossover``: with the sizes at which tiling stops paying. ``pictures``: with its roofline and its bytes.
    """
    known = predictions or {}
    summary = _summary(comparison, known)
    notes = [*_notes(comparison), *(note(" ".join(what), one) for what, one in known.items()), *unpredicted, *ratio_notes(summary)]
    notes += power_note(next((one.power for one in known.values() if one.power is not None), None))
    found = Report(_title(comparison), _verdict(comparison, known), _tables(comparison, known), notes, data(comparison, known))
    found = replace(_metered(found, comparison, known), reasons=summary, brief=_tables(comparison, known, BRIEF)[-1:])
    found = _with_sram_sweep(found, comparison) if comparison.sram_sizes else found
    found = _with_crossovers(found, comparison) if crossover else found
    found = _with_formulas(found, comparison) if explained else found
    return _with_pictures(found, comparison, known) if pictures else found


def _title(comparison: Comparison) -> str:
    w = comparison.workload
    shape = [f"n {w.n}"] + [f"kv-len {w.kv_len}"] * (w.kv_len != w.n) + [f"d {w.d}"] + [f"dv {w.dv}"] * (w.dv != w.d)
    heads = [f"batch {w.batch}", f"heads {w.heads}"] + [f"kv-heads {w.kv_heads}"] * (w.kv_heads != w.heads)
    flags = {
        "causal": w.causal,
        f"window {w.window}": w.window is not None,
        f"blocks {w.sparsity.name if w.sparsity else ''}": w.sparsity is not None,
        f"splits {w.splits}": w.splits is not None,
        "packed": w.packed,
        "additive mask": w.mask,
        "masked_fill": w.masked_fill,
        f"dropout {w.dropout:g}": w.dropout > 0,
    }
    options = [text for text, holds in flags.items() if holds]
    return f"Attention {comparison.direction}: {', '.join([*heads, *shape, w.dtype.name, *options])} on {comparison.device.name}"


def data(comparison: Comparison, predictions: Predictions) -> dict[str, Any]:
    """The object of schema perfmodel.attention/1."""
    w = comparison.workload
    sizes = {name: getattr(w, name) for name in ("batch", "heads", "kv_heads", "n", "kv_len", "d", "dv")}
    flags = ("causal", "window", "splits", "mask", "masked_fill", "dropout", "unfused_scale", "printed_backward", "packed")
    options = {name: getattr(w, name) for name in flags} | {"sparsity": None if w.sparsity is None else w.sparsity.name}
    options |= {"block_q": comparison.block_q, "block_kv": comparison.block_kv}
    asked = {"pass": comparison.direction, "algorithms": list(dict.fromkeys(result.algorithm.name for result in comparison.results))}
    inputs = {**sizes, "dtype": w.dtype.name, **options, **asked, "sram_bytes": comparison.sram_bytes, "cache": "cold"}
    return {
        **head("attention", inputs, comparison.device),
        "results": [_result(result, comparison, predictions) for result in comparison.results],
        "io_lower_bound": as_json(_io_lower_bound(comparison)),
        "ratios": _ratios(comparison, predictions),
    }


def _result(result: AttentionResult, comparison: Comparison, predictions: Predictions) -> dict[str, Any]:
    return {
        "algorithm": result.algorithm.name,
        "pass": result.direction,
        **whose(predictions.get((result.algorithm.name, result.direction)), result.implementation),
        "traffic_of": result.implementation or result.algorithm.name,
        **as_json(_metrics(result, comparison, predictions)),
        "tile": _tile(result),
        "kernels": [_kernel(part, kernel, cost, comparison) for part in result.parts for kernel, cost in part.kernels],
    }


def _kernel(result: AttentionResult, kernel: Kernel, cost: Estimate, comparison: Comparison) -> dict[str, Any]:
    size, extra = memory_of([kernel], comparison.workload)
    return {
        **{"name": kernel.name, "algorithm": result.algorithm.name, "pass": result.direction, "implementation": result.implementation},
        **as_json([*of_cost(cost), *of_memory(size, comparison.device, extra)]),
        "tile": _tile(result) if kernel.launch else None,
    }


def _tile(result: AttentionResult) -> dict[str, Any] | None:
    return None if result.tile is None else {"br": result.tile.br, "bc": result.tile.bc, "origin": result.tile.origin}


def _ratios(comparison: Comparison, predictions: Predictions) -> dict[str, Any]:
    """Standard over each other algorithm, per pass: above 1 the other one moves or takes less."""
    ratios: dict[str, Any] = {}
    for result in comparison.results:
        reference = comparison.standard(result.direction)
        if reference is not None and reference is not result:
            known, old, new = _predicted_ratio(result, predictions), reference.total, result.total
            ratios.setdefault(result.algorithm.name, {})[result.direction] = {
                "accesses": (old.reads + old.writes) / (new.reads + new.writes),
                "sram_bytes": old.sram.total / new.sram.total,
                "dram_bytes": old.dram.total / new.dram.total,
                "executed_flops": old.executed_flops / new.executed_flops,
                "lower": old.lower_s / new.lower_s,
                "roofline": old.roofline_s / new.roofline_s,
                "predicted": None if known is None else {"value": known.value, "low": known.low, "high": known.high},
            }
    return ratios


def _predicted_ratio(result: AttentionResult, predictions: Predictions) -> Interval | None:
    """Predicted time of standard attention over its own; None for standard itself and where one of the two is not predicted."""
    name = result.algorithm.name
    old, new = (seconds(predictions.get((one, result.direction))) for one in ("standard", name))
    return None if name == "standard" or old is None or new is None else ratio(old, new)


def _metrics(result: AttentionResult, comparison: Comparison, predictions: Predictions) -> list[Metric]:
    known = predictions.get((result.algorithm.name, result.direction))
    times = [*of_cost(result.total, seconds(known), LABELS), *of_power(drawn(known))]
    return [*times, *of_memory(result.memory_bytes, comparison.device, result.extra_memory_bytes)]


def _io_lower_bound(comparison: Comparison) -> list[Metric]:
    w, passes = comparison.workload, comparison.passes()
    least = sum(compulsory_elements(w, direction) for direction in passes)
    known = comparison.sram_bytes is not None and FORWARD in passes
    bound = theta(w, (comparison.sram_bytes or 0) // w.dtype.size) if known else None
    source = f"compulsory: {COMPULSORY_SOURCE}; theta: {THETA_SOURCE}"
    found = [Metric("compulsory", least, source=source), Metric("compulsory_bytes", least * w.dtype.size), Metric("theta", None)]
    if bound is not None:
        value = Metric("theta.value_without_constant", bound.value_without_constant, formula=bound.io_class)
        found[-1:] = [Metric("theta.class", value.formula), Metric("theta.regime", bound.regime), value, Metric("theta.pass", FORWARD)]
    for result in comparison.shown():
        # block-sparse computes something else than what the bounds are about
        moved = None if result.algorithm.name == "block-sparse" else result.total.reads + result.total.writes
        constant = moved is not None and bound is not None and result.direction == FORWARD
        key = f"distance.{result.algorithm.name}"
        found.append(Metric(f"{key}.compulsory", moved and moved / least))
        found.append(Metric(f"{key}.theta", moved / bound.value_without_constant if constant and moved and bound else None))
    return found


BRIEF = (
    *("time_s.predicted", "predicted, standard / this", "rate", "of_peak"),
    *("time_s.sustained", "power_w", "energy_j", "time_s.roofline", "time_s.lower", "bound", "traffic.sram.bytes"),
    *("traffic.dram.bytes", "arithmetic_intensity.dram", "accesses.bytes", "memory_bytes"),
)
"""Keys of the rows that a screen shows."""


def _verdict(comparison: Comparison, predictions: Predictions) -> list[str]:
    """Which is faster, at what rate, and what limits it: of the last algorithm, against standard attention."""
    results, reference = comparison.shown(), comparison.standard(comparison.direction)
    sides = [_side(result, comparison, predictions) for result in results]
    found = [f"{compared(sides[results.index(reference)], sides[-1])}."] if reference and reference is not results[-1] else []
    last = results[-1]
    known = seconds(predictions.get((last.algorithm.name, last.direction)))
    rate = rate_of(last.algorithm.name, last.total, known, comparison.device, comparison.workload.dtype)
    fitting = fit(last.memory_bytes, comparison.device)
    return [*found, f"{rate}{'; ' * bool(fitting)}{fitting}.", f"Limited by {limits(meters_of(last.total, known))}."]


def _metered(found: Report, comparison: Comparison, predictions: Predictions) -> Report:
    """``found`` with the meters of its last algorithm."""
    last = comparison.shown()[-1]
    prediction = predictions.get((last.algorithm.name, last.direction))
    known = seconds(prediction)
    meters = with_power(meters_of(last.total, known), drawn(prediction))
    return replace(found, meters=meters, metered=f"{metered(known)} of {last.algorithm.name}")


def _tables(comparison: Comparison, predictions: Predictions, labels: Labels = None) -> list[Table]:
    shown = [*comparison.passes(), BOTH] if comparison.direction == BOTH else [comparison.direction]
    tables = []
    for direction in shown:
        title = {BOTH: "forward + backward"}.get(direction, direction) if len(shown) > 1 else ""
        results = [result for result in comparison.results if result.direction == direction]
        columns = {result.algorithm.name: _column(result, comparison, predictions) for result in results}
        tables.append(as_table(title, columns, "" if title else direction, labels=labels))
    return tables


def _column(result: AttentionResult, comparison: Comparison, predictions: Predictions) -> list[Metric]:
    tile, reference, known = result.tile, comparison.standard(result.direction), _predicted_ratio(result, predictions)
    gain = None if reference is None else reference.total.roofline_s / result.total.roofline_s
    return [
        Metric("", None if tile is None else f"{tile.br} x {tile.bc}", "tile B_r x B_c", "text"),
        *_metrics(result, comparison, predictions),
        *_rates(result, comparison, predictions),
        Metric("", gain, "ratio of roofs, standard / this", "ratio"),
        Metric("", known and f"{times(known.value)}{ends(known)}", "predicted, standard / this", "text"),
    ]


def _rates(result: AttentionResult, comparison: Comparison, predictions: Predictions) -> list[Metric]:
    """What a predicted time means as a rate, and as a share of the peak."""
    known = predictions.get((result.algorithm.name, result.direction))
    dtype = comparison.workload.dtype
    return rates(result.total, seconds(known), comparison.device, dtype)


def _summary(comparison: Comparison, predictions: Predictions) -> list[str]:
    """One sentence per algorithm, against standard attention where it is among them: by predictions, else by roofs."""
    results, reference = comparison.shown(), comparison.standard(comparison.direction)
    sides = [_side(result, comparison, predictions) for result in results]
    if reference is None or len(results) == 1:
        known = [f"{alone(side)}; bound" if side.time else f"{side.name} is bound" for side in sides]
        return [f"{side} by {bound_by(result.total)}." for side, result in zip(known, results, strict=True)]
    fits = comparison.device.fits(reference.memory_bytes)
    small = [f"standard does not fit: it needs {format_si(reference.memory_bytes, 'B')}."] if fits is False else []
    first = sides[results.index(reference)]
    pairs = [(side, result) for side, result in zip(sides, results, strict=True) if result is not reference]
    return small + [f"{against(first, side)}. {_roofs(reference, result)}" for side, result in pairs]


def _side(result: AttentionResult, comparison: Comparison, predictions: Predictions) -> Side:
    known = predictions.get((result.algorithm.name, result.direction))
    by = "" if known is None else known.calibration.implementation
    left = left_out(result, comparison.device)
    return Side(result.algorithm.name, float(result.total.roofline_s), seconds(known), by=by, left_out=left)


def left_out(result: AttentionResult, device: Device) -> tuple[str, ...]:
    """What the roof of ``result`` leaves out although it dominates, in words."""
    name = result.algorithm.name
    found = idle_and_launch(name, len(result.kernels), _blocks(result), float(result.total.roofline_s), device)
    return tuple(found or [EAGER] * (name == "standard"))


def _blocks(result: AttentionResult) -> int:
    return max((int(kernel.launch.blocks) for kernel, _ in result.kernels if kernel.launch), default=0)


def _roofs(reference: AttentionResult, result: AttentionResult) -> str:
    """What bounds the two at their roofs, and why one of these is lower."""
    gain = reference.total.roofline_s / result.total.roofline_s
    if abs(gain - 1) <= ROOFS_EVEN:
        same = reference.total.bound == result.total.bound
        why = "both wait for the same resource" if same else f"{_moved(reference, result)}, which buys no time here"
    else:
        why = _why_faster(reference, result) if gain > 1 else _why_slower(reference, result)
    return f"At their roofs standard is bound by {bound_by(reference.total)}, {result.algorithm.name} by {bound_by(result.total)}: {why}."


def _why_faster(reference: AttentionResult, result: AttentionResult) -> str:
    reasons = []
    if reference.total.bound in ("dram", "l2") and _fewer(reference, result) > 1 + ROOFS_EVEN:
        reasons.append(f"its scores stay on the chip, so it moves {_moved(reference, result)}")
    skipped = reference.total.executed_flops / result.total.executed_flops
    if skipped > 1 + ROOFS_EVEN:
        reasons.append(f"it skips tiles that nobody sees and computes {skipped:.3g}x less")
    return " and ".join(reasons) or f"one fused kernel overlaps what {len(reference.kernels)} kernels do in turn"


def _why_slower(reference: AttentionResult, result: AttentionResult) -> str:
    wasted = result.total.executed_flops / result.total.flops
    if result.total.bound in ("dram", "l2"):
        return f"re-reading tiles, it moves {_moved(reference, result)}"
    extra = f", {wasted:.3g}x the FLOP of the visible scores (padding, masked parts, recomputation)" if wasted > 1 + ROOFS_EVEN else ""
    return f"{_moved(reference, result)}, but it is held back by {BOUND_WORDS.get(result.total.bound or '', 'its work')}{extra}"


def _fewer(reference: AttentionResult, result: AttentionResult) -> float:
    """Bytes of ``reference`` over those of ``result``, at the level that bounds ``reference``, DRAM where none does."""
    if reference.total.bound == "l2":
        return float(reference.total.sram.total / result.total.sram.total)
    return float(reference.total.dram.total / result.total.dram.total)


def _moved(reference: AttentionResult, result: AttentionResult) -> str:
    level, fewer = "through the L2" if reference.total.bound == "l2" else "over DRAM", _fewer(reference, result)
    if abs(fewer - 1) <= ROOFS_EVEN:
        return f"as many bytes {level}"
    return f"{fewer:.3g}x fewer bytes {level}" if fewer > 1 else f"{1 / fewer:.3g}x more bytes {level}"


def _notes(comparison: Comparison) -> list[str]:
    results, device = comparison.results, comparison.device
    notes = ["Totals over batch and heads; a multiply-add counts 2 FLOP."]
    for result in results:
        if result.tile is not None and result.algorithm.tiling is not None:
            held = result.algorithm.tiling.resident[result.direction]
            tile = f"tile {result.tile.br} x {result.tile.bc} ({result.tile.origin})"
            notes.append(f"{result.algorithm.name} {result.direction}: {tile}, {held} in SRAM.")
    if comparison.sram_bytes is not None:
        notes.append(f"M = {format_binary(comparison.sram_bytes)} of SRAM per block.")
    notes += _io_notes(comparison)
    if any(result.total.group_sum for result in results):
        notes.append("Unpacked: each query head stores its own dK, dV; adding them up over a group is not counted.")
    for result in results:
        blocks = _blocks(result)
        if result.direction != BOTH and device.multiprocessors is not None and 0 < blocks < device.multiprocessors.number:
            idle = f"{blocks:,} block{'s' * (blocks > 1)} for {device.multiprocessors.number} multiprocessors"
            notes.append(f"{result.algorithm.name} {result.direction} has {idle}; the roof does not count the idle ones.")
    return [*notes, *unknown_rates([result.total for result in results], device)]


def _io_notes(comparison: Comparison) -> list[str]:
    """How far accesses are from the bounds on them."""
    found, device = as_json(_io_lower_bound(comparison)), comparison.device
    far = ", ".join(f"{name} {distance['compulsory']:.3g}x" for name, distance in found["distance"].items() if distance["compulsory"])
    given = " with O given" if BACKWARD in comparison.passes() else ""
    least = format_si(found["compulsory_bytes"], "B")
    notes = [f"No exact algorithm{given} moves less than {least} ({COMPULSORY_SOURCE}); accesses are {far} of it."]
    if device.cache_bytes is None:
        without = "DRAM traffic is counted as if nothing were cached, bounds as if all were"
        notes.append(f"The profile of {device.id} has no L2 size: {without}.")
    if found["theta"]:
        constants = ", ".join(f"{name} {one['theta']:.3g}" for name, one in found["distance"].items() if one["theta"] is not None)
        known = f"; here {constants} times it" if constants else ""
        notes.append(f"Lower bound of the forward pass: Theta({found['theta']['class']}), {found['theta']['regime']}{known}.")
    return notes


# What was asked for besides


def _with(plain: Report, key: str, title: str, entries: Sequence[Sequence[Metric]]) -> Report:
    """``plain`` with one line per entry, in a table and in the JSON object."""
    return replace(plain, tables=[*plain.tables, as_rows(title, entries)], data={**plain.data, key: list(map(as_json, entries))})


def _with_sram_sweep(plain: Report, comparison: Comparison) -> Report:
    """``plain`` and what each SRAM size buys."""
    from perfmodel.kernels.attention.crossover import sram_sweep

    entries, first = [], dict[str, Estimate | None]()
    for point in sram_sweep(comparison):
        name, tile = point.algorithm.name, point.result and point.result.tile
        reference = first.setdefault(name, None if point.result is None else point.result.total)
        cost = point.result.total if point.result is not None and tile is not None else None
        entries.append(
            [
                Metric("algorithm", name, "algorithm", "text"),
                Metric("sram_bytes", point.sram_bytes),
                Metric("", format_binary(point.sram_bytes), "SRAM M"),
                Metric("tile", tile and {"br": tile.br, "bc": tile.bc}),
                Metric("", f"{tile.br} x {tile.bc}" if tile else "no tile fits", "tile that moves least"),
                Metric("accesses_bytes", cost and cost.access_bytes, "accesses", "B"),
                Metric("", cost and (1 - cost.access_bytes / reference.access_bytes if reference else 0.0), "saved", "error"),
                Metric("roofline_s", cost and cost.roofline_s, "roofline", "s"),
            ]
        )
    return _with(plain, "sram_sweep", "what SRAM buys, forward", entries)


def _with_crossovers(plain: Report, comparison: Comparison) -> Report:
    """``plain`` and the sizes at which tiling stops paying."""
    from perfmodel.kernels.attention.crossover import crossovers

    entries = [
        [
            Metric("algorithm", one.algorithm.name, "algorithm", "text"),
            Metric("measure", one.measure, "by", "text"),
            Metric("wins_here", one.wins_here),
            Metric("", "yes" if one.wins_here else "no", "less here", "text"),
            Metric("first_n", one.first_n, "from N"),
            Metric("last_d", one.last_d, "up to d"),
            Metric("first_sram_bytes", one.first_sram_bytes, "from M", after=" B"),
            Metric("law", one.law),
            Metric("last_d_by_law", one.last_d_by_law),
            Metric("", f"{one.last_d_by_law:.1f}, {one.law}" if one.law and one.last_d_by_law else "", "leading terms: up to d", "text"),
        ]
        for one in crossovers(comparison)
    ]
    return _with(plain, "crossover", "where tiling stops paying, forward, the other sizes held", entries)


def _with_formulas(plain: Report, comparison: Comparison) -> Report:
    """``plain`` and every number of every pass as its formula, with its source."""
    from perfmodel.kernels.attention.evaluate import explain

    parts, algorithms = [], {result.algorithm.name: result.algorithm for result in comparison.results}
    for result in comparison.results:
        if result.direction != BOTH:  # the sum of two passes needs no formula of its own
            one, direction = result.algorithm, result.direction
            title = f"{one.name} {direction}: {one.title}; accesses grow as Theta({one.io_class})"
            steps = explain(result, comparison.workload, comparison.device, comparison.sram_bytes)
            parts.append((title, {"algorithm": one.name, "pass": direction}, steps))
    summed = ["Forward + backward: each number is the sum of the two passes."] * (comparison.direction == BOTH)
    vector = [f"{one.name}, vector operations: {one.vector_work}." for one in algorithms.values()]
    return with_steps(replace(plain, notes=[*plain.notes, *summed, *vector]), parts)


def _with_pictures(plain: Report, comparison: Comparison, predictions: Predictions) -> Report:
    """``plain`` with the roofline of its results and the bytes that each moves, read and written, at both levels."""
    from perfmodel.report.charts.schema import Bar, BarChart
    from perfmodel.report.roofline_chart import point, roofline

    dtype, device = comparison.workload.dtype, comparison.device
    points, bars = [], []
    for number, result in enumerate(comparison.shown(), 1):
        name, cost = result.algorithm.name, result.total
        known = predictions.get((name, result.direction))
        points.append(point(number, name, cost, device, dtype.name, dtype.matmul_unit, known, group=name))
        for level, traffic in (("SRAM", cost.sram), ("DRAM", cost.dram)):
            bars.append(Bar(f"{name}, {level}", [("read", traffic.read), ("written", traffic.write)]))
    return replace(plain, charts=[roofline(device, points), BarChart("Bytes across the SRAM boundary and to DRAM", "B", bars)])
