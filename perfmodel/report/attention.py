"""The report of an attention comparison: which algorithm is faster and why, one table per pass, and what was asked for besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perfmodel.core.cost import Kernel
from perfmodel.core.roofline import Estimate
from perfmodel.core.units import format_binary, format_si
from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.kernels.attention.evaluate import BOTH, COMPULSORY_SOURCE, THETA_SOURCE, AttentionResult, compulsory_elements, theta
from perfmodel.kernels.attention.evaluate import memory as memory_of
from perfmodel.kernels.attention.request import Comparison
from perfmodel.report.against import ends, ratio_notes, times
from perfmodel.report.answer import below_roof, figures, metered, meters_of, rates, unmarked
from perfmodel.report.attention_verdict import blocks_of, causes, least_of_few, main_result, predicted_ratio, reasons, verdict
from perfmodel.report.charts.schema import Chart
from perfmodel.report.document import Figure, Report, Table
from perfmodel.report.metrics import Labels, Metric, as_json, as_table, of_cost, of_memory, seconds, words_for
from perfmodel.report.op_common import guessed, head, note, unknown_rates, whose, with_steps
from perfmodel.report.power import drawn, of_power, power_note, with_power
from perfmodel.timing.select_kernel import Predictions

LABELS = {"flops": "FLOP, visible scores", "accesses.total": "accesses without a cache"}


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
    formula. ``crossover``: with the sizes at which tiling pays. ``pictures``: with its roofline and its bytes.
    """
    known = predictions or {}
    summary = reasons(comparison, known)
    notes = [*_notes(comparison), *(note(" ".join(what), one) for what, one in known.items()), *unpredicted, *ratio_notes(summary)]
    for result in comparison.results:
        key = result.algorithm.name, result.direction
        notes += below_roof(" ".join(key), result.total, seconds(known.get(key)))
    notes += guessed(known.values())
    notes += power_note(next((one.power for one in known.values() if one.power is not None), None))
    found = Report(_title(comparison), verdict(comparison, known), _tables(comparison, known), notes, data(comparison, known))
    found = replace(_answered(found, comparison, known), reasons=summary)
    if comparison.sram_sizes or crossover:
        from perfmodel.report.attention_besides import with_crossovers, with_sram_sweep

        found = with_sram_sweep(found, comparison) if comparison.sram_sizes else found
        found = with_crossovers(found, comparison) if crossover else found
    found = _with_formulas(found, comparison, known) if explained else found
    return replace(found, charts=_pictures(comparison, known)) if pictures else found


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
    passes = " + ".join(comparison.passes())
    return f"Attention {passes}: {', '.join([*heads, *shape, w.dtype.name, *options])} on {comparison.device.name}"


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
            known, old, new = predicted_ratio(result, predictions), reference.total, result.total
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


def _metrics(result: AttentionResult, comparison: Comparison, predictions: Predictions) -> list[Metric]:
    known = predictions.get((result.algorithm.name, result.direction))
    return [
        *of_cost(result.total, seconds(known), LABELS | words_for(comparison.device)),
        *of_power(drawn(known)),
        *of_memory(result.memory_bytes, comparison.device, result.extra_memory_bytes),
    ]


def _io_lower_bound(comparison: Comparison) -> list[Metric]:
    w, passes = comparison.workload, comparison.passes()
    least = sum(compulsory_elements(w, direction) for direction in passes)
    known = comparison.sram_bytes is not None and FORWARD in passes
    bound = theta(w, (comparison.sram_bytes or 0) // w.dtype.size) if known else None
    source = f"compulsory: {COMPULSORY_SOURCE}; theta: {THETA_SOURCE}"
    found = [
        Metric("compulsory", least, unit="elements", source=source),
        Metric("compulsory_bytes", least * w.dtype.size),
        Metric("theta", None),
    ]
    if bound is not None:
        value = Metric("theta.value_without_constant", bound.value_without_constant, unit="elements", formula=bound.io_class)
        found[-1:] = [Metric("theta.class", value.formula), Metric("theta.regime", bound.regime), value, Metric("theta.pass", FORWARD)]
    for result in comparison.shown():
        # block-sparse computes something else than what the bounds are about
        moved = None if result.algorithm.name == "block-sparse" else result.total.reads + result.total.writes
        constant = moved is not None and bound is not None and result.direction == FORWARD
        key = f"distance.{result.algorithm.name}"
        found.append(Metric(f"{key}.compulsory", moved and moved / least, unit="ratio"))
        distance = moved / bound.value_without_constant if constant and moved and bound else None
        found.append(Metric(f"{key}.theta", distance, unit="ratio"))
    return found


BRIEF = {
    "time_s.predicted": "predicted",
    "speedup, predicted": "speedup",
    "rate": "rate, predicted",
    "of_peak": "  of the peak",
    "time_s.sustained": "run for seconds",
    "sustained.energy_j": "energy",
    "time_s.roofline": "roofline",
    "bound": "bound by",
    "traffic.dram.bytes": "DRAM traffic",
    "memory_bytes": "memory footprint",
}
"""Rows that a screen shows, under names that leave room for two algorithms in 80 columns."""
POWERED = {key: label for key, label in BRIEF.items() if key not in ("bound", "memory_bytes")}
"""The same where power is known: the verdict has what limits and whether it fits, a meter the watts, and the screen no room for both."""


def _answered(found: Report, comparison: Comparison, predictions: Predictions) -> Report:
    """``found`` with the meters, figures and first tables of its main result."""
    main, reference = main_result(comparison, predictions), comparison.standard(comparison.direction)
    key = (main.algorithm.name, main.direction)
    prediction, gain = predictions.get(key), predicted_ratio(main, predictions)
    known = seconds(prediction)
    least = least_of_few(main, comparison.device) if known is None else None
    deciding = figures(main.total, known, comparison.device, comparison.workload.dtype, main.memory_bytes, least)
    if reference is not None and gain is not None:
        deciding.insert(2, Figure("speedup over standard", f"{times(gain.value)}{ends(gain)}"))
    meters = unmarked(meters_of(main.total, known or least), causes(main, comparison, predictions) if known is None else [])
    meters = with_power(meters, drawn(prediction))
    name = metered(known, main.total, main.algorithm.name, flop="visible FLOP")
    name = name.replace("roof", "least time", 1) if least else name
    shown = BRIEF if drawn(prediction) is None else POWERED
    return replace(found, meters=meters, metered=name, figures=deciding, brief=_tables(comparison, predictions, shown)[-1:])


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
    tile, reference, known = result.tile, comparison.standard(result.direction), predicted_ratio(result, predictions)
    gain = None if reference is None else reference.total.roofline_s / result.total.roofline_s
    return [
        Metric("", None if tile is None else f"{tile.br} x {tile.bc}", "tile B_r x B_c", "text"),
        *_metrics(result, comparison, predictions),
        *_rates(result, comparison, predictions),
        Metric("", gain, "speedup, by the ratio of roofs", "ratio"),
        Metric("", known and f"{times(known.value)}{ends(known)}", "speedup, predicted", "text"),
    ]


def _rates(result: AttentionResult, comparison: Comparison, predictions: Predictions) -> list[Metric]:
    """What a predicted time means as a rate, and as a share of the peak."""
    known = predictions.get((result.algorithm.name, result.direction))
    dtype = comparison.workload.dtype
    return rates(result.total, seconds(known), comparison.device, dtype)


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
        count = blocks_of(result)
        if result.direction != BOTH and device.multiprocessors is not None and 0 < count < device.multiprocessors.number:
            idle = f"{count:,} block{'s' * (count > 1)} for {device.multiprocessors.number} multiprocessors"
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


def _pictures(comparison: Comparison, predictions: Predictions) -> list[Chart]:
    from perfmodel.report.attention_pictures import pictures

    return pictures(comparison, predictions)


def _with_formulas(plain: Report, comparison: Comparison, predictions: Predictions) -> Report:
    """``plain`` and every number of every pass as its formula, with its source."""
    from perfmodel.kernels.attention.evaluate import explain
    from perfmodel.timing.explain import explain_power, explain_time

    parts, algorithms = [], {result.algorithm.name: result.algorithm for result in comparison.results}
    for result in comparison.results:
        if result.direction != BOTH:  # the sum of two passes needs no formula of its own
            one, direction = result.algorithm, result.direction
            title = f"{one.name} {direction}: {one.title}; accesses grow as Theta({one.io_class})"
            steps = explain(result, comparison.workload, comparison.device, comparison.sram_bytes)
            known = predictions.get((one.name, direction))
            steps += [*explain_time(known), *explain_power(known)]
            parts.append((title, {"algorithm": one.name, "pass": direction}, steps))
    summed = ["Forward + backward: each number is the sum of the two passes."] * (comparison.direction == BOTH)
    vector = [f"{one.name}, vector operations: {one.vector_work}." for one in algorithms.values()]
    return with_steps(replace(plain, notes=[*plain.notes, *summed, *vector]), parts)
