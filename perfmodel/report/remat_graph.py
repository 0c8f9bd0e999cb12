"""Reports beside those of schedules: the cheapest schedule of a graph within a memory budget, and what autograd keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfmodel.core.arith import Number
from perfmodel.remat.autograd import Picture, TapeRecord, eager_bytes, lazy_bytes
from perfmodel.remat.checkmate import GraphAnswer
from perfmodel.remat.graph import GraphRun
from perfmodel.remat.source import Source
from perfmodel.report.document import Report, Table
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.op_common import WIDTH, columns, head, memory_chart, sparkline
from perfmodel.report.remat import SPARK, Units, bars

SOURCE = "Jain et al. 2020, Checkmate, arXiv 1910.02653; solved by HiGHS through scipy.optimize.milp"
NARROW = 44
"""Columns of a line of bars beside two others."""
SHOWN = 12
"""Layers whose operations are listed; of more, the first and the last ones."""


def graph_report(found: GraphAnswer) -> Report:
    """``found`` as a Report; its data follows the schema perfmodel.remat_graph/1."""
    units = Units(found.timed, found.sized)
    runs = [("keep-all", found.kept), *([("exact", found.best)] if found.best is not None else [])]
    lines = [[name, sparkline(bars(run, SPARK), run.peak)] for name, run in runs]
    tables = [
        as_rows("", [_schedule(name, run, units) for name, run in runs]),
        Table("memory over time, each over its own time and up to its own peak", ["schedule", "first to last step"], lines, "ll"),
        _chart(*runs[-1], units),
        *([_made_again(found.best, units)] if found.best is not None and max(found.best.made) > 1 else []),
    ]
    notes = ["The gradient of a value is made of the gradients of its consumers and of all that they were made of."]
    notes += [f"exact: {SOURCE}."] * (found.best is not None and found.best is not found.kept)
    return Report(f"Rematerialization: {found.title}", [_graph_summary(found, units)], tables, notes, graph_data(found, units))


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


def _chart(name: str, run: GraphRun, units: Units) -> Table:
    heights = bars(run, WIDTH, whole_steps=True)
    made = run.graph.nodes[max(run.moments, key=lambda moment: moment.during).step.node].name
    title = f"{name}: memory over time, at most {units.size(run.peak)} while {made} is made"
    return memory_chart(title, heights, run.peak, [(len(heights), "time")], units.size, units.rows(run.peak))


def _made_again(best: GraphRun, units: Units) -> Table:
    again = [(node, count) for node, count in zip(best.graph.nodes, best.made, strict=True) if count > 1]
    rows = [[node.name, units.size(node.size), units.cost(node.cost), str(count)] for node, count in again]
    return Table("made more than once", ["value", "size", "cost", "times"], rows)


def _graph_summary(found: GraphAnswer, units: Units) -> str:
    kept = f"With everything kept: cost {units.cost(found.kept.cost)}, {units.size(found.kept.peak)} at the peak."
    if found.memory is None:
        return f"{kept} Give --budget for the cheapest schedule within it."
    if found.best is None:
        least = "" if found.least is None else f"; the least that any needs is {units.amount(round(found.least, 6))}"
        return f"{kept} No schedule fits {units.amount(found.memory)}{least}."
    more = float(found.best.cost / found.kept.cost - 1)
    proof = "nothing is cheaper" if found.proved else f"not proved: none costs less than {units.cost(found.bound or 0)}"
    within = f"Within {units.amount(found.memory)}: cost {units.cost(found.best.cost)}"
    return f"{within}, {more:.1%} more than with everything kept; {proof}."


# What autograd keeps


def autograd_report(picture: Picture, source: Source) -> Report:
    """``picture`` as a Report; its data follows the schema perfmodel.autograd/1."""
    units, found = Units(source.timed, source.sized), autograd_data(picture, source)
    early, late = found["forward"].values()
    top = max(picture.eager_peak, picture.lazy_peak)
    lines = [
        ["gradients with values", units.size(picture.eager_peak), sparkline(columns(picture.eager, NARROW), top)],
        ["gradients in backward", units.size(picture.lazy_peak), sparkline(columns(picture.lazy, NARROW), top)],
    ]
    grown = [[str(layer), *map(units.size, sizes)] for layer, sizes in enumerate(zip(early, late, strict=True))]
    heads = ["layer", "gradients with values", "gradients in backward"]
    tables = [
        _ends(as_rows("on the tape, in order", [_record(record, units) for record in picture.records])),
        _ends(Table("forward, after each layer, its input not counted", heads, grown)),
        Table("memory over forward and backward, all of it", ["", "peak", "time"], lines, "lrl"),
    ]
    summary = _autograd_summary(picture, early[-1], late[-1], found["kept"], units)
    return Report(f"What autograd keeps: {source.title}", summary, tables, _notes(picture, source), found)


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


def _autograd_summary(picture: Picture, eager: Number, lazy: Number, kept: Number, units: Units) -> list[str]:
    each = {layer.output for layer in picture.chain.layers}
    per_layer = ""
    if len(each) == 1:
        [size] = each
        per_layer = f"Each layer leaves {units.size(size)}, or {units.size(2 * size)} if the gradient of its output is allocated with it. "
    grows = f"Forward grows to {units.size(lazy)} beside its input; {units.size(eager)} with every gradient allocated at once."
    goes = "each tensor can go with the backward step of the layer that reads it"
    return [f"{per_layer}{grows}", f"Backward needs {units.size(kept)} of it and of the input; {goes}."]


def _notes(picture: Picture, source: Source) -> list[str]:
    notes = ["Layers count from 0; layer i makes x_(i+1) of x_i. W_i is kept by nobody: it is there anyway, and dx_i needs it."]
    if any("ReLU" in record.operation for record in picture.records):
        sign = "The sign of a ReLU's result is one bit per element"
        notes.append(f"z_i goes at once. {sign}; it takes none where the next layer keeps the result.")
    notes.append("With values: gradients stay to the end. In backward: a gradient comes when backward reaches it and goes with its value.")
    weights = any(layer.weights for layer in picture.chain.layers)
    return [*notes, *["Peaks include weights and their gradients."] * weights, *source.basis]
