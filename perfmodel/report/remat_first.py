"""What reports of schedules say first: what the schedule takes against keeping everything, and its memory over time."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.core.arith import Number
from perfmodel.core.units import format_si, format_time
from perfmodel.remat.evaluate import ScheduleRow
from perfmodel.remat.schedule import LOSS
from perfmodel.remat.simulate import Run
from perfmodel.report.charts.format_number import percent, text
from perfmodel.report.charts.schema import Chart, Limit, LineChart, Mark, Series
from perfmodel.report.document import Figure, Meter
from perfmodel.report.op_common import columns

MOST_POINTS = 200
"""Moments of a schedule that a picture shows as they are; of more the most in each of as many equal parts of the time."""
MOST_LINES = 4
"""Schedules whose memory is drawn over time, and that have a meter."""

Moments = Sequence[tuple[Number, Number]]
"""The end of each step of a schedule, and what is in memory during it."""


def moments_of(run: Run) -> Moments:
    """Its moments."""
    return [(moment.end, moment.during) for moment in run.moments]


def steps_of(moments: Moments) -> list[tuple[Number, Number]]:
    """(time, memory) of a line with a step for each of ``moments``.

    >>> steps_of([(1, 5), (3, 7)])
    [(0, 5), (1, 5), (1, 7), (3, 7)]
    """
    if len(moments) > MOST_POINTS:
        bars, end = columns(moments, MOST_POINTS), float(moments[-1][0])
        moments = [(end * place / len(bars), bar) for place, bar in enumerate(bars, 1)]
    found: list[tuple[Number, Number]] = []
    start: Number = 0
    for end, during in moments:
        found += [(start, during), (end, during)]
        start = end
    return found


def timeline(runs: Sequence[tuple[str, Moments]], time: str, timed: bool, sized: bool, budget: Number | None = None) -> LineChart:
    """Memory over time of ``runs``; the peak of the first is marked at its own time."""
    series = [Series(name, [(float(x), float(y)) for x, y in steps_of(moments)]) for name, moments in runs]
    name, first = runs[0]
    peak = max(during for _, during in first)
    at = next(place for place, (_, during) in enumerate(first) if during == peak)
    begin = first[at - 1][0] if at else 0
    marks = [Mark(float(begin + first[at][0]) / 2, f"peak of {name}", float(peak))]
    limits = [] if budget is None else [Limit("budget", float(budget))]
    units = "s" if timed else "count", "B" if sized else "count"
    return LineChart("Memory over time", time, "memory", series, *units, "linear", "linear", marks, limits)


def tradeoff(runs: Sequence[tuple[str, Number, Number]], cost: str, timed: bool, sized: bool, budget: Number | None = None) -> LineChart:
    """Peak memory against cost of schedules: name, cost, peak. Those of one cost and peak share a mark."""
    places: dict[tuple[float, float], list[str]] = {}
    for name, x, y in runs:
        places.setdefault((float(x), float(y)), []).append(name)
    series = [Series("schedules", sorted(places), "markers")]
    marks = [Mark(x, ", ".join(names), y) for (x, y), names in places.items()]
    limits = [] if budget is None else [Limit("budget", float(budget))]
    units = "s" if timed else "count", "B" if sized else "count"
    return LineChart(f"Peak memory against {cost}", cost, "peak memory", series, *units, marks=marks, limits=limits)


def spent(cost: Number, timed: bool) -> str:
    """Three digits of a time, else steps.

    >>> spent(0.07527, True), spent(38, False)
    ('75.3 ms', '38 steps')
    """
    return format_time(float(cost), 3) if timed else f"{text(cost, 'count')} steps"


def held(size: Number, sized: bool) -> str:
    """Three digits of bytes, else values.

    >>> held(421100000, True), held(8, False), held(1, False)
    ('421 MB', '8 values', '1 value')
    """
    return format_si(float(size), "B", 3) if sized else f"{text(size, 'count')} value{'s' * (size != 1)}"


def more_than(run: Run) -> float:
    """How much more it costs than with everything kept."""
    chain = run.chain
    return float(run.cost / (chain.forward_cost(0, len(chain)) + chain.backward_cost)) - 1


def verdict(rows: Sequence[ScheduleRow], featured: ScheduleRow | None, memory: Number | None, timed: bool, sized: bool) -> list[str]:
    """What a schedule costs and keeps: the cheapest within ``memory``, else the featured one beside keeping everything and nothing."""
    done = {row.strategy.name: row.run for row in rows if row.run is not None}
    if memory is not None:
        return _budget(done, memory, timed, sized)
    if featured is None or featured.run is None:
        return []
    name, run = featured.strategy.name, featured.run
    rebuilt = f" ({percent(more_than(run))} more than everything kept)" if run.extra_steps else ""
    ends = [
        f"{words}: {spent(done[key].cost, timed)}, {held(done[key].peak, sized)}"
        for key, words in (("keep-all", "everything kept"), ("keep-none", "nothing kept"))
        if key in done and key != name
    ]
    sentence = "; ".join(ends)
    return [
        f"With {name}: {spent(run.cost, timed)}{rebuilt}, {held(run.peak, sized)} at the peak.",
        *([f"{sentence[:1].upper()}{sentence[1:]}."] if sentence else []),
        _when(run),
    ]


def _when(run: Run) -> str:
    """At which action the peak is."""
    action = run.worst.action
    return f"The peak is {'at the' if action.kind == LOSS else 'in'} {action}."


def _budget(done: dict[str, Run], memory: Number, timed: bool, sized: bool) -> list[str]:
    fitting = sorted((run.cost, name) for name, run in done.items() if run.peak <= memory)
    budget = held(memory, sized)
    if not fitting:
        tail = [f"The least is {held(run.peak, sized)}, with {name}: {spent(run.cost, timed)}." for name, run in _least(done)]
        return [f"Does not fit: no schedule takes {budget} or less.", *tail]
    name = fitting[0][1]
    run = done[name]
    more = f", {percent(more_than(run))} more than with everything kept" if more_than(run) > 0 else ", no more than with everything kept"
    return [
        f"Fits: {held(run.peak, sized)} of {budget} with {name}, the {'fastest' if timed else 'cheapest'} that fits.",
        f"It takes {spent(run.cost, timed)}{more}.",
        _when(run),
    ]


def _least(done: dict[str, Run]) -> list[tuple[str, Run]]:
    """The schedule of the lowest peak, if there is one."""
    return sorted(done.items(), key=lambda pair: (pair[1].peak, pair[1].cost))[:1]


def listed(rows: Sequence[ScheduleRow], featured: ScheduleRow | None, memory: Number | None) -> list[tuple[str, Run]]:
    """The schedules that are drawn: the cheapest within ``memory`` or the featured one, everything kept, and others by their peaks."""
    done = {row.strategy.name: row.run for row in rows if row.run is not None}
    fitting = {name: run for name, run in done.items() if memory is not None and run.peak <= memory}
    first = min(fitting, key=lambda name: fitting[name].cost) if fitting else featured.strategy.name if featured and featured.run else None
    small = sorted(done, key=lambda name: done[name].peak)
    names = dict.fromkeys(name for name in (first, "keep-all", "segments", "sqrt-n", "revolve", *small) if name in done)
    return [(name, done[name]) for name in list(names)[:MOST_LINES] if name is not None]


def meters(runs: Sequence[tuple[str, Run]], memory: Number | None, timed: bool, sized: bool) -> tuple[str, list[Meter]]:
    """Peaks of ``runs`` as shares of the budget, else of what everything kept takes."""
    kept = dict(runs).get("keep-all")
    whole = memory if memory is not None else None if kept is None else kept.peak
    if not whole:
        return "", []
    found = [Meter(name, float(run.peak / whole), f"{held(run.peak, sized)}, {spent(run.cost, timed)}") for name, run in runs]
    return ("budget" if memory is not None else "memory with everything kept"), found


def figures(runs: Sequence[tuple[str, Run]], timed: bool, sized: bool) -> list[Figure]:
    """Of the schedule that is meant: its cost, what of it is rebuilt, its peak."""
    if not runs:
        return []
    name, run = runs[0]
    kept = dict(runs).get("keep-all")
    return [
        Figure(f"cost of {name}", spent(run.cost, timed)),
        Figure("rebuilt layers", f"{run.extra_steps:,}"),
        Figure("more than with everything kept", f"{more_than(run):.1%}"),
        Figure("peak", held(run.peak, sized)),
        *([Figure("peak with everything kept", held(kept.peak, sized))] if kept is not None and name != "keep-all" else []),
    ]


def charts(rows: Sequence[ScheduleRow], runs: Sequence[tuple[str, Run]], memory: Number | None, timed: bool, sized: bool) -> list[Chart]:
    """Memory over time of the schedules that are drawn, and the peak of every schedule against its cost."""
    if not runs:
        return []
    every = [(row.strategy.name, row.run.cost, row.run.peak) for row in rows if row.run is not None]
    over_time = timeline([(name, moments_of(run)) for name, run in runs], "time" if timed else "steps", timed, sized, memory)
    return [over_time, tradeoff(every, "time" if timed else "steps", timed, sized, memory)]
