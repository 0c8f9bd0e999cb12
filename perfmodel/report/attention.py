"""The report of an attention comparison: sentences, one table per pass, and the JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfmodel import __version__
from perfmodel.core.cost import Kernel
from perfmodel.core.roofline import Estimate
from perfmodel.core.units import format_binary, format_si
from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.kernels.attention.evaluate import BOTH, Result
from perfmodel.kernels.attention.evaluate import memory as memory_of
from perfmodel.kernels.attention.io_bounds import COMPULSORY_SOURCE, THETA_SOURCE, compulsory_elements, theta
from perfmodel.kernels.attention.request import Comparison
from perfmodel.report.against import ends, ratio_notes, times
from perfmodel.report.attention_verdict import ratio_of, verdict
from perfmodel.report.charts.schema import Interval
from perfmodel.report.document import Report, Table
from perfmodel.report.metrics import BOUND_WORDS, Metric, as_json, as_table, note, of_cost, of_memory, seconds, whose
from perfmodel.timing.predict import Prediction
from perfmodel.timing.select_kernel import Predictions


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
    notes = [*_notes(comparison), *(note(f"{name} {direction}", known[name, direction]) for name, direction in known), *unpredicted]
    said = verdict(comparison, known)
    notes += ratio_notes(said)
    found = Report(_title(comparison), said, _tables(comparison, known), notes, data(comparison, known))
    if comparison.sram_sizes or explained or crossover or pictures:
        from perfmodel.report import attention_extra as extra

        found = extra.with_sram_sweep(found, comparison) if comparison.sram_sizes else found
        found = extra.with_crossovers(found, comparison) if crossover else found
        found = extra.with_formulas(found, comparison) if explained else found
        found = extra.with_pictures(found, comparison, known) if pictures else found
    return found


# The JSON object


def data(comparison: Comparison, predictions: Predictions) -> dict[str, Any]:
    """The object of schema perfmodel.attention/1."""
    w, device = comparison.workload, comparison.device
    sizes = {name: getattr(w, name) for name in ("batch", "heads", "kv_heads", "n", "kv_len", "d", "dv")}
    pattern = None if w.sparsity is None else w.sparsity.name
    flags = ("causal", "window", "splits", "mask", "masked_fill", "dropout", "unfused_scale", "printed_backward", "packed")
    options = {name: getattr(w, name) for name in flags} | {"sparsity": pattern}
    options |= {"block_q": comparison.block_q, "block_kv": comparison.block_kv}
    asked = {"pass": comparison.direction, "algorithms": list(dict.fromkeys(result.algorithm.name for result in comparison.results))}
    inputs = {**sizes, "dtype": w.dtype.name, **options, **asked, "sram_bytes": comparison.sram_bytes, "cache": "cold"}
    return {
        "schema": "perfmodel.attention/1",
        "version": __version__,
        "inputs": inputs,
        "hardware": {"id": device.id, "name": device.name},
        "results": [_result(result, comparison, predictions) for result in comparison.results],
        "io_lower_bound": _io_lower_bound(comparison),
        "ratios": _ratios(comparison, predictions),
    }


def _result(result: Result, comparison: Comparison, predictions: Predictions) -> dict[str, Any]:
    prediction = predictions.get((result.algorithm.name, result.direction))
    kernels = [_kernel(part, kernel, cost, comparison) for part in result.parts for kernel, cost in part.kernels]
    return {
        "algorithm": result.algorithm.name,
        "pass": result.direction,
        **whose(prediction, result.implementation),
        "traffic_of": result.implementation or result.algorithm.name,
        **as_json(_metrics(result, comparison, prediction)),
        "tile": _tile(result),
        "kernels": kernels,
    }


def _metrics(result: Result, comparison: Comparison, prediction: Prediction | None) -> list[Metric]:
    memory = of_memory(result.memory_bytes, comparison.device, result.extra_memory_bytes)
    known = None if prediction is None else seconds(prediction)
    return [*of_cost(result.total, known, ATTENTION_LABELS), *memory]


def _kernel(result: Result, kernel: Kernel, cost: Estimate, comparison: Comparison) -> dict[str, Any]:
    head = {"name": kernel.name, "algorithm": result.algorithm.name, "pass": result.direction, "implementation": result.implementation}
    size, extra = memory_of([kernel], comparison.workload)
    return {
        **head,
        **as_json([*of_cost(cost), *of_memory(size, comparison.device, extra)]),
        "tile": _tile(result) if kernel.launch else None,
    }


def _tile(result: Result) -> dict[str, Any] | None:
    return None if result.tile is None else {"br": result.tile.br, "bc": result.tile.bc, "origin": result.tile.origin}


def _io_lower_bound(comparison: Comparison) -> dict[str, Any]:
    w = comparison.workload
    compulsory = sum(compulsory_elements(w, direction) for direction in comparison.passes())
    found = None
    if comparison.sram_bytes is not None and FORWARD in comparison.passes():
        found = theta(w, comparison.sram_bytes // w.dtype.size)
    bound = None
    if found is not None:
        bound = {"class": found.io_class, "regime": found.regime, "value_without_constant": found.value_without_constant, "pass": FORWARD}
    source = f"compulsory: {COMPULSORY_SOURCE}; theta: {THETA_SOURCE}"
    distances = {result.algorithm.name: _distance(result, compulsory, bound) for result in comparison.shown()}
    bytes_moved = compulsory * w.dtype.size
    return {"compulsory": compulsory, "compulsory_bytes": bytes_moved, "theta": bound, "distance": distances, "source": source}


def _distance(result: Result, compulsory: int, bound: dict[str, Any] | None) -> dict[str, float | None]:
    """Accesses over the bounds: 1 is the compulsory traffic; over theta (forward alone) the constant that the class hides."""
    moved = result.total.reads + result.total.writes
    if result.algorithm.name == "block-sparse":  # it computes something else than what the bounds are about
        return {"compulsory": None, "theta": None}
    forward = bound is not None and result.direction == FORWARD
    return {"compulsory": moved / compulsory, "theta": moved / bound["value_without_constant"] if bound and forward else None}


def _predicted_ratio(result: Result, comparison: Comparison, predictions: Predictions) -> Interval | None:
    """Predicted time of standard attention over its own; None for standard itself and where one of the two is not predicted."""
    name = result.algorithm.name
    return None if name == "standard" else ratio_of(predictions, name, result.direction)


def _ratios(comparison: Comparison, predictions: Predictions) -> dict[str, Any]:
    """Standard over each other algorithm, per pass: above 1 the other one moves or takes less."""
    ratios: dict[str, Any] = {}
    for result in comparison.results:
        reference = comparison.standard(result.direction)
        if reference is not None and reference is not result:
            known = _predicted_ratio(result, comparison, predictions)
            ratios.setdefault(result.algorithm.name, {})[result.direction] = {
                "accesses": (reference.total.reads + reference.total.writes) / (result.total.reads + result.total.writes),
                "sram_bytes": reference.total.sram.total / result.total.sram.total,
                "dram_bytes": reference.total.dram.total / result.total.dram.total,
                "executed_flops": reference.total.executed_flops / result.total.executed_flops,
                "lower": reference.total.lower_s / result.total.lower_s,
                "roofline": reference.total.roofline_s / result.total.roofline_s,
                "predicted": None if known is None else {"value": known.value, "low": known.low, "high": known.high},
            }
    return ratios


# Words


def _title(comparison: Comparison) -> str:
    w = comparison.workload
    shape = [f"n {w.n}"] + [f"kv-len {w.kv_len}"] * (w.kv_len != w.n) + [f"d {w.d}"] + [f"dv {w.dv}"] * (w.dv != w.d)
    heads = [f"batch {w.batch}", f"heads {w.heads}"] + [f"kv-heads {w.kv_heads}"] * (w.kv_heads != w.heads)
    said = {
        "causal": w.causal,
        f"window {w.window}": w.window is not None,
        f"blocks {w.sparsity.name if w.sparsity else ''}": w.sparsity is not None,
        f"splits {w.splits}": w.splits is not None,
        "packed": w.packed,
        "additive mask": w.mask,
        "masked_fill": w.masked_fill,
        f"dropout {w.dropout:g}": w.dropout > 0,
    }
    options = [text for text, holds in said.items() if holds]
    return f"Attention {comparison.direction}: {', '.join([*heads, *shape, w.dtype.name, *options])} on {comparison.device.name}"


ATTENTION_LABELS = {"flops": "FLOP, visible scores", "accesses.total": "HBM accesses, two-level model"}


def _shown(result: Result, comparison: Comparison, predictions: Predictions) -> list[Metric]:
    """The rows of ``result`` in its table."""
    tile, reference = result.tile, comparison.standard(result.direction)
    gain = None if reference is None else reference.total.roofline_s / result.total.roofline_s
    known = _predicted_ratio(result, comparison, predictions)
    return [
        Metric("", None if tile is None else f"{tile.br} x {tile.bc}", "tile B_r x B_c", "text"),
        *_metrics(result, comparison, predictions.get((result.algorithm.name, result.direction))),
        Metric("ratios.roofline", gain, "ratio of roofs, standard / this", "ratio"),
        Metric("ratios.predicted", known and f"{times(known.value)}{ends(known)}", "predicted, standard / this", "text"),
    ]


def _tables(comparison: Comparison, predictions: Predictions) -> list[Table]:
    shown = [*comparison.passes(), BOTH] if comparison.direction == BOTH else [comparison.direction]
    tables = []
    for direction in shown:
        title = {BOTH: "forward + backward"}.get(direction, direction) if len(shown) > 1 else ""
        results = [result for result in comparison.results if result.direction == direction]
        columns = {result.algorithm.name: _shown(result, comparison, predictions) for result in results}
        tables.append(as_table(title, columns, "" if title else direction))
    return tables


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
    io_bound = _io_lower_bound(comparison)
    far = ", ".join(f"{name} {distance['compulsory']:.3g}x" for name, distance in io_bound["distance"].items() if distance["compulsory"])
    least = format_si(io_bound["compulsory_bytes"], "B")
    given = " with O given" if BACKWARD in comparison.passes() else ""
    notes.append(f"No exact algorithm{given} moves less than {least} ({COMPULSORY_SOURCE}); accesses are {far} of it.")
    if device.cache_bytes is None:
        notes.append(
            f"The profile of {device.id} has no L2 size: DRAM traffic is counted as if nothing were cached, bounds as if all were."
        )
    if io_bound["theta"]:
        constants = ", ".join(f"{n} {d['theta']:.3g}" for n, d in io_bound["distance"].items() if d["theta"] is not None)
        known = f"; here {constants} times it" if constants else ""
        notes.append(f"Lower bound of the forward pass: Theta({io_bound['theta']['class']}), {io_bound['theta']['regime']}{known}.")
    if any(result.total.group_sum for result in results):
        notes.append("Unpacked: each query head stores its own dK, dV; adding them up over a group is not counted.")
    for result in results:
        blocks = max((int(kernel.launch.blocks) for kernel, _ in result.kernels if kernel.launch), default=0)
        if result.direction != BOTH and device.multiprocessors is not None and 0 < blocks < device.multiprocessors.number:
            idle = f"{blocks:,} block{'s' * (blocks > 1)} for {device.multiprocessors.number} multiprocessors"
            notes.append(f"{result.algorithm.name} {result.direction} has {idle}; the roof does not count the idle ones.")
    for name in sorted(frozenset().union(*(result.total.unknown for result in results))):
        notes.append(f"The profile of {device.id} has no rate for {BOUND_WORDS[name]}: that term is left out of the roof.")
    return notes
