"""Reports beside those of schedules: the cheapest schedule of a graph within a memory budget, and what autograd keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfmodel.core.arith import Number
from perfmodel.remat.autograd import Picture, TapeRecord, eager_bytes, lazy_bytes
from perfmodel.remat.checkmate import GraphAnswer
from perfmodel.remat.graph import GraphRun
from perfmodel.remat.source import Source
from perfmodel.report.document import Figure, Meter, Report, Table
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.op_common import WIDTH, columns, head, memory_chart, sparkline
from perfmodel.report.remat import SPARK, Units, bars, moments_of, timeline

SOURCE = "Jain et al. 2020, Checkmate, arXiv 1910.02653; solved by HiGHS through scipy.optimize.milp"
NARROW = 44
"""Columns of a line of bars beside two others."""
SHOWN = 12
"""Layers whose operations are listed; of more, the first and the last ones."""


def graph_report(found: GraphAnswer, pictures: bool = False) -> Report:
    """``found`` as a Report; its data follows the schema perfmodel.remat_graph/1. ``pictures``: with memory over time."""
    units, best = Units(found.timed, found.sized), found.best
    runs = [("keep-all", found.kept), *([("exact", best)] if best is not None else [])]
    (name, last), whole = runs[-1], found.memory if found.memory is not None else found.kept.peak
    lines = [[name, sparkline(bars(run, SPARK), run.peak)] for name, run in runs]
    schedules = as_rows("", [_schedule(name, run, units) for name, run in runs])
    again = [] if best is None else [pair for pair in zip(best.graph.nodes, best.made, strict=True) if pair[1] > 1]
    rebuilt = [[node.name, units.size(node.size), units.cost(node.cost), str(count)] for node, count in again]
    more = [Table("made more than once", ["value", "size", "cost", "times"], rebuilt)] if rebuilt else []
    title = "memory over time, each over its own time and up to its own peak"
    drawn = [(name, moments_of(run)) for name, run in reversed(runs)]
    return Report(
        f"Rematerialization: {found.title}",
        _graph_headline(found, units),
        [schedules, Table(title, ["schedule", "first to last step"], lines, "ll", drawn=True), _over_time(name, last, units), *more],
        [
            "The gradient of a value is made of the gradients of its consumers and of all that they were made of.",
            *[f"exact: {SOURCE}."] * (best is not None and best is not found.kept),
        ],
        graph_data(found, units),
        charts=[timeline(drawn, "time" if found.timed else "cost", units, found.memory)] if pictures else [],
        meters=[Meter(name, float(run.peak / whole), units.held(run.peak)) for name, run in reversed(runs)] if whole else [],
        metered="budget" if found.memory is not None else "memory with everything kept",
        figures=[Figure("cost", units.cost(last.cost)), Figure("peak", units.held(last.peak))],
        brief=[schedules, *more],
    )


def graph_data(found: GraphAnswer, units: Units) -> dict[str, Any]:
    """The object of schema perfmodel.remat_graph/1."""
    best, nodes = found.best, found.graph.nodes
    exact = None
    if best is not None:
        made = {node.name: count for node, count in zip(nodes, best.made, strict=True)}
        order = [nodes[moment.step.node].name for moment in best.moments]
        exact = {**as_json(_schedule("exact", best, units)), "made": made, "order": order}
        exact |= {"proved": found.proved, "lower_bound": found.bound}
    return {
        **head("remat_graph", {"nodes": len(found.graph), "memory": found.memory, "always_in_memory": found.graph.base}),
        "units": {"cost": "s" if found.timed else "as given", "size": "B" if found.sized else "values"},
        "keep_all": as_json(_schedule("keep-all", found.kept, units)),
        "exact": exact,
        "least_memory": found.least,
    }


def _schedule(name: str, run: GraphRun, units: Units) -> list[Metric]:
    return [
        Metric("", name, "schedule", "text"),
        Metric("cost", run.cost, "cost", units.cost_unit),
        Metric("", sum(run.made), "values made"),
        Metric("peak", run.peak, "peak", units.size_unit),
    ]


def _over_time(name: str, run: GraphRun, units: Units) -> Table:
    heights = bars(run, WIDTH, whole_steps=True)
    made = run.graph.nodes[max(run.moments, key=lambda moment: moment.during).step.node].name
    title = f"{name}: memory over time, at most {units.size(run.peak)} while {made} is made"
    return memory_chart(title, heights, run.peak, [(len(heights), "time")], units.size, units.rows(run.peak))


def _graph_headline(found: GraphAnswer, units: Units) -> list[str]:
    kept = f"Everything kept: cost {units.cost(found.kept.cost)}, {units.held(found.kept.peak)} at the peak."
    if found.memory is None:
        return [kept, "Give --budget for the cheapest schedule within it."]
    budget = units.held(found.memory)
    if found.best is None:
        least = "" if found.least is None else f"; the least is {units.held(round(found.least, 6))}"
        return [f"Does not fit: no schedule takes {budget} or less{least}.", kept]
    more = float(found.best.cost / found.kept.cost - 1)
    proof = "nothing is cheaper" if found.proved else f"not proved: none costs less than {units.cost(found.bound or 0)}"
    fits = f"Fits: {units.held(found.best.peak)} of {budget}"
    return [f"{fits}.", f"Cost {units.cost(found.best.cost)}, {more:.1%} more than with everything kept; {proof}.", kept]


# What autograd keeps


def autograd_report(picture: Picture, source: Source, pictures: bool = False) -> Report:
    """``picture`` as a Report; its data follows the schema perfmodel.autograd/1. ``pictures``: with memory over time."""
    units, found = Units(source.timed, source.sized), autograd_data(picture, source)
    early, late = found["forward"].values()
    ways = [("gradients in backward", picture.lazy, picture.lazy_peak), ("gradients with values", picture.eager, picture.eager_peak)]
    top = max(picture.eager_peak, picture.lazy_peak)
    lines = [[name, units.size(peak), sparkline(columns(moments, NARROW), top)] for name, moments, peak in reversed(ways)]
    grown = [[str(layer), *map(units.size, sizes)] for layer, sizes in enumerate(zip(early, late, strict=True))]
    heads = ["layer", "gradients with values", "gradients in backward"]
    tables = [
        _ends(as_rows("on the tape, in order", [_record(record, units) for record in picture.records])),
        _ends(Table("forward, after each layer, its input not counted", heads, grown)),
        Table("memory over forward and backward, all of it", ["", "peak", "time"], lines, "lrl", drawn=True),
    ]
    over = [(name, list(moments)) for name, moments, _ in ways]
    return Report(
        f"What autograd keeps: {source.title}",
        _autograd_headline(picture, early[-1], late[-1], found["kept"], units),
        tables,
        _notes(picture, source),
        found,
        charts=[timeline(over, "time" if source.timed else "steps", units)] if pictures else [],
        meters=[Meter(name, float(peak / top), units.held(peak)) for name, _, peak in ways] if top else [],
        metered="larger peak",
        figures=[Figure(f"peak, {name}", units.held(peak)) for name, _, peak in ways],
    )


def autograd_data(picture: Picture, source: Source) -> dict[str, Any]:
    """The object of schema perfmodel.autograd/1."""
    chain, layers, units = picture.chain, range(1, len(picture.chain) + 1), Units(source.timed, source.sized)
    return {
        **head("autograd", {"layers": len(chain)}),
        "units": {"size": "B" if source.sized else "values"},
        "operations": [as_json(_record(record, units)) for record in picture.records],
        "forward": {
            "gradients_with_values": [eager_bytes(chain, layer) for layer in layers],
            "gradients_in_backward": [lazy_bytes(chain, layer) for layer in layers],
        },
        "peak": {"gradients_with_values": picture.eager_peak, "gradients_in_backward": picture.lazy_peak},
        "kept": sum(record.size for record in picture.records),
    }


def _record(record: TapeRecord, units: Units) -> list[Metric]:
    return [
        Metric("operation", record.operation, "operation", "text"),
        Metric("keeps", record.keeps, "keeps", "text"),
        Metric("size", record.size),
        Metric("", units.size(record.size) if record.size else "kept already", "takes"),
        Metric("purpose", record.purpose, "for", "text"),
        Metric("freed_by", record.freed_by, "goes after backward of", "text"),
    ]


def _ends(table: Table) -> Table:
    """``table`` with its first and last rows, if it has many."""
    if len(table.rows) <= SHOWN:
        return table
    return replace(table, rows=[*table.rows[: SHOWN // 2], ["...", *[""] * (len(table.columns) - 1)], *table.rows[-SHOWN // 2 :]])


def _autograd_headline(picture: Picture, eager: Number, lazy: Number, kept: Number, units: Units) -> list[str]:
    each, held = {layer.output for layer in picture.chain.layers}, units.held
    found = [f"Forward grows to {held(lazy)} beside its input, {held(eager)} with all gradients."]
    if len(each) == 1:
        [one] = each
        found.append(f"Each layer leaves {held(one)}, {held(2 * one)} with the gradient of its output.")
    return [*found, f"Backward needs {held(kept)} of it and of the input; a tensor goes with its reader."]


def _notes(picture: Picture, source: Source) -> list[str]:
    notes = ["Layers count from 0; layer i makes x_(i+1) of x_i. W_i is kept by nobody: it is there anyway, and dx_i needs it."]
    if any("ReLU" in record.operation for record in picture.records):
        sign = "The sign of a ReLU's result is one bit per element"
        notes.append(f"z_i goes at once. {sign}; it takes none where the next layer keeps the result.")
    notes.append("With values: gradients stay to the end. In backward: a gradient comes when backward reaches it and goes with its value.")
    weights = any(layer.weights for layer in picture.chain.layers)
    return [*notes, *["Peaks include weights and their gradients."] * weights, *source.basis]
