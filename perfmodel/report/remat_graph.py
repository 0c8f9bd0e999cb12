"""The report of the cheapest schedule of a graph within a memory budget."""

from __future__ import annotations

from typing import Any

from perfmodel import __version__
from perfmodel.core.arith import Number
from perfmodel.core.units import format_si, format_time
from perfmodel.remat.checkmate import GraphAnswer
from perfmodel.remat.graph import GraphRun
from perfmodel.remat.simulate import columns
from perfmodel.report.document import Report, Table
from perfmodel.report.timeline import axis, chart, sparkline

SPARK, WIDTH, HEIGHT, MOST_ROWS = 54, 60, 8, 12
SOURCE = "Jain et al. 2020, Checkmate, arXiv 1910.02653; solved by HiGHS through scipy.optimize.milp"


def report(found: GraphAnswer) -> Report:
    """``found`` as a Report; its data follows the schema perfmodel.remat_graph/1."""
    runs = [("keep-all", found.kept), *([("exact", found.best)] if found.best is not None else [])]
    rows = [[name, f"{_cost(run.cost, found)}", f"{sum(run.made):,}", _size(run.peak, found)] for name, run in runs]
    lines = [[name, sparkline(_columns(run, SPARK), run.peak)] for name, run in runs]
    tables = [
        Table("", ["schedule", "cost", "values made", "peak"], rows),
        Table("memory over time, each over its own time and up to its own peak", ["schedule", "first to last step"], lines, "ll"),
        _chart(found, *runs[-1]),
        *_nodes(found),
    ]
    return Report(f"Rematerialization: {found.title}", [_verdict(found)], tables, _notes(found), data(found))


def data(found: GraphAnswer) -> dict[str, Any]:
    """The object of schema perfmodel.remat_graph/1."""
    graph = found.graph
    return {
        "schema": "perfmodel.remat_graph/1",
        "version": __version__,
        "inputs": {"nodes": len(graph), "memory": found.memory, "always_in_memory": graph.base},
        "units": {"cost": "s" if found.timed else "as given", "size": "B" if found.sized else "values"},
        "keep_all": {"cost": found.kept.cost, "peak": found.kept.peak},
        "exact": None if found.best is None else {**_entry(found.best), "proved": found.proved, "lower_bound": found.bound},
        "least_memory": found.least,
    }


def _entry(run: GraphRun) -> dict[str, Any]:
    nodes = run.graph.nodes
    return {
        "cost": run.cost,
        "peak": run.peak,
        "made": {node.name: count for node, count in zip(nodes, run.made, strict=True)},
        "order": [nodes[moment.step.node].name for moment in run.moments],
    }


def _size(size: Number, found: GraphAnswer) -> str:
    return format_si(size, "B") if found.sized else f"{size:,}" if isinstance(size, int) else f"{size:,.4g}"


def _amount(size: Number, found: GraphAnswer) -> str:
    return _size(size, found) + ("" if found.sized else " values")


def _cost(cost: Number, found: GraphAnswer) -> str:
    return format_time(float(cost)) if found.timed else f"{cost:,}" if isinstance(cost, int) else f"{cost:,.4g}"


def _verdict(found: GraphAnswer) -> str:
    kept = f"With everything kept: cost {_cost(found.kept.cost, found)}, {_size(found.kept.peak, found)} at the peak."
    if found.memory is None:
        return f"{kept} Give --memory for the cheapest schedule within it."
    if found.best is None:
        least = "" if found.least is None else f"; the least that any needs is {_amount(round(found.least, 6), found)}"
        return f"{kept} No schedule fits {_amount(found.memory, found)}{least}."
    more = float(found.best.cost / found.kept.cost - 1)
    proof = "nothing is cheaper" if found.proved else f"not proved: none costs less than {_cost(found.bound or 0, found)}"
    return (
        f"Within {_amount(found.memory, found)}: cost {_cost(found.best.cost, found)}, {more:.1%} more than with everything kept; {proof}."
    )


def _columns(run: GraphRun, width: int, *, whole_steps: bool = False) -> list[Number]:
    return columns([(moment.end, moment.during) for moment in run.moments], width, whole_steps=whole_steps)


def _chart(found: GraphAnswer, name: str, run: GraphRun) -> Table:
    bars = _columns(run, WIDTH, whole_steps=True)
    worst = max(run.moments, key=lambda moment: moment.during)
    few = isinstance(run.peak, int) and not found.sized and run.peak <= MOST_ROWS
    lines = chart(bars, run.peak, run.peak if few else HEIGHT, lambda size: _size(size, found))
    lines += [["", line] for line in axis([(len(bars), "time")])]
    made = run.graph.nodes[worst.step.node].name
    return Table(f"{name}: memory over time, at most {_size(run.peak, found)} while {made} is made", ["memory", ""], lines, "rl")


def _nodes(found: GraphAnswer) -> list[Table]:
    best = found.best
    if best is None:
        return []
    again = [(node, count) for node, count in zip(found.graph.nodes, best.made, strict=True) if count > 1]
    rows = [[node.name, _size(node.size, found), f"{_cost(node.cost, found)}", str(count)] for node, count in again]
    return [Table("made more than once", ["value", "size", "cost", "times"], rows)] if rows else []


def _notes(found: GraphAnswer) -> list[str]:
    notes = ["The gradient of a value is made of the gradients of its consumers and of all that they were made of."]
    return [*notes, *([f"exact: {SOURCE}."] if found.best is not None and found.best is not found.kept else [])]
