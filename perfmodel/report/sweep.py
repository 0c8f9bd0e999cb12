"""The report of a sweep: number of rows, the best row of each group, where one algorithm beats another, and results of a search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from perfmodel.core.units import format_count, format_si, format_time
from perfmodel.report.answer import upper_first
from perfmodel.report.charts.format_number import UNITS, digits
from perfmodel.report.charts.schema import Bar, BarChart, Chart, LineChart, Series
from perfmodel.report.document import SCREEN_ROWS, Figure, Report, Table
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.op_common import head
from perfmodel.sweep.base import FITS
from perfmodel.sweep.run import SweepResult
from perfmodel.sweep.summary import Best, WinShares
from perfmodel.sweep.table import WHOLE, WORD

SHOWN_ROWS, SHOWN_GROUPS, SHOWN_REASONS, SHOWN_WORDS = 40, 20, 5, 3
"""Most rows of a table, groups, reasons for rows without an answer, and words of a list."""
LINES, BARS, CLOUD = 6, 12, 400
"""Most lines and bars of a chart, and most rows beside a Pareto front."""
ROOF, PREDICTED = "roofline_s", "predicted_s"
"""Columns of times at the roof and of predicted times."""
MATTER = (FITS, PREDICTED, "tokens_per_s", ROOF, "memory_bytes", "dram_bytes")
"""Columns of the short table beside those that were searched for."""
NO_ROOM = "does not fit"
WORDS = {ROOF: "time at the roof", PREDICTED: "predicted time", "flops": "FLOP", "memory_bytes": "memory"}
WORDS |= {"seconds": "time", "request_s": "time of a request", "ttft_s": "time to first token", "tpot_s": "time per token"}
WORDS |= {"dram_bytes": "DRAM traffic", "sram_bytes": "L2 traffic", "lower_s": "lower bound", "lower_warm_s": "lower bound, warm"}
"""Words for columns by name."""
Row = Mapping[str, Any]
AxisRange = tuple[int | float, int | float]
"""First and last value of a range of an axis."""
WIN_LABELS = {"name": "", "axis": "along", "nowhere": "nowhere at", "everywhere": "everywhere at", "share": "share of configurations"}


def report(result: SweepResult, written: str = "", pictures: bool = False) -> Report:
    """``result`` as a Report with data of schema perfmodel.sweep/1. ``written``: phrase on where the rows are."""
    grid, shares = result.grid, result.summary.shares
    wins_by_axis = [row for other, axes in shares.items() for axis, share in axes.items() for row in _along(other, axis, share)]
    axes = ", ".join(f"{len(values):,} x {words(name)}" for name, values in {**grid.choices, **grid.numbers}.items() if len(values) > 1)
    return Report(
        f"Sweep over {grid.workload.name}: {grid.points:,} rows{f' ({axes})' if axes else ''}",
        [*_headline(result), " ".join(filter(None, [_counts(result), written, _kernels(result)]))],
        _tables(result, wins_by_axis),
        _notes(result),
        data(result, wins_by_axis),
        charts=_charts(result) if pictures else [],
        figures=_figures(result),
        brief=_brief(result),
        reasons=_compared(result),
    )


def data(result: SweepResult, wins_by_axis: Sequence[Sequence[Metric]]) -> dict[str, Any]:
    """The object of schema perfmodel.sweep/1; ``rows`` is null if there are too many."""
    workload, counts, summary = result.grid.workload, result.counts, result.summary
    meanings = {item.name: item.meaning for item in workload.inputs} | {item.name: item.meaning for item in workload.columns}
    best, pareto = result.best, result.pareto
    searched = {"maximize" if best.most else "minimize": {"column": best.column, "rows": best.rows}} if best else {}
    return {
        **head("sweep", result.grid.study.as_json()),
        "devices": list(map(str, result.grid.choices.get("hardware", ()))),
        "columns": [{"name": field.name, "unit": field.unit, "meaning": meanings[field.source]} for field in result.grid.fields],
        "counts": {"rows": counts.rows, "points": result.grid.points, "excluded": counts.excluded, "left_out": counts.left_out},
        "best": {"column": summary.objective, "groups": list(summary.best.values())},
        "comparison": _comparison(result, wins_by_axis) if summary.compared else None,
        **{option: searched.get(option) for option in ("minimize", "maximize")},
        "pareto": None if pareto is None else {"columns": [pareto.first, pareto.second], "rows": pareto.rows},
        "rows": result.rows,
    }


def _comparison(result: SweepResult, wins_by_axis: Sequence[Sequence[Metric]]) -> dict[str, Any]:
    summary = result.summary
    wins, predicted = (
        {other: {"wins": wins, "of": of} for other, (wins, of) in pairs.items()} for pairs in (summary.compared, summary.predicted)
    )
    names = {"reference": str(summary.reference), "column": summary.objective}
    return {**names, "wins": wins, "predicted": predicted, "along": list(map(as_json, wins_by_axis))}


# Metrics: where one value of the compared choice beats the first, such as flash attention against standard


def _along(other: str, axis: str, shares: WinShares) -> Iterator[list[Metric]]:
    """Metrics: values of ``axis`` at which ``other`` wins in every configuration or in none, and the range of its share of wins.

    For numbers, ``always_at`` and ``never_at`` are all such ranges, and ``always`` and ``never`` those at an end of the axis, or None. For
    words, ``always`` and ``never`` are lists.
    """
    present = shares.of > 0
    if present.sum() < 2:
        return
    values, share = shares.values[present], shares.wins[present] / shares.of[present]
    low, high = float(share.min()), float(share.max())
    if low == high:
        return
    numbers = values.dtype.kind not in "US"
    order = values.argsort() if numbers else slice(None)
    values, share = values[order], share[order]
    ranges = [_ranges(values, share == end) if numbers else [] for end in (0, 1)]
    ends = [_end(places, values) if numbers else values[share == end].tolist() for end, places in enumerate(ranges)]
    named = [_listed(places or end) for places, end in zip(ranges, ends, strict=True)]
    yield [
        Metric("name", other, unit="text"),
        Metric("axis", axis, unit="text"),
        *(Metric(key, end) for key, end in zip(("never", "always"), ends, strict=True)),
        *(Metric(key, places) for key, places in zip(("never_at", "always_at"), ranges, strict=True)),
        Metric("least_share", low),
        Metric("most_share", high),
        *(Metric("", words, key) for key, words in zip(("nowhere", "everywhere"), named, strict=True)),
        Metric("", f"{low:.0%} to {high:.0%}", "share"),
    ]


def _ranges(values: Any, holds: Any) -> list[AxisRange]:
    """Ranges of the axis in which ``holds`` is true."""
    runs = [list(places) for true, places in groupby(range(len(values)), holds.tolist().__getitem__) if true]
    return [(_plain(values[run[0]]), _plain(values[run[-1]])) for run in runs]


def _end(ranges: Sequence[AxisRange], values: Any) -> AxisRange | None:
    """The range at an end of the axis, the longer of two; None if there is none."""
    at_ends = [places for places in ranges if places[0] == values[0] or places[1] == values[-1]]
    return max(at_ends, key=lambda places: ((places[0] <= values) & (values <= places[1])).sum(), default=None)


def _plain(value: Any) -> int | float:
    return int(value) if float(value).is_integer() else float(value)


def _listed(ranges: Any) -> str:
    """Words or ranges as text: the first few, then the number of others and their extent."""
    if not ranges:
        return "-"
    named = [item if isinstance(item, str) else " to ".join(f"{end:,}" for end in dict.fromkeys(item)) for item in ranges]
    if len(named) <= SHOWN_WORDS:
        return ", ".join(named)
    remaining = f"{len(named) - SHOWN_WORDS} more"
    return f"{', '.join(named[:SHOWN_WORDS])} and {remaining}" + ("" if isinstance(ranges[-1], str) else f" up to {ranges[-1][1]:,}")


# Headline


def _column(result: SweepResult) -> str:
    """The column of charts and figures: the one searched for, else the predicted time if every row has one, else the objective."""
    rows, objective = result.rows or [], result.summary.objective
    if result.best is not None:
        return result.best.column
    return PREDICTED if rows and all(row.get(PREDICTED) is not None for row in rows) else objective


def _headline(result: SweepResult) -> list[str]:
    """The headline: the best row, and how often an algorithm beats the reference."""
    best = result.best or Best(result.summary.objective, rows=_ranked(result))
    column, rows = best.column, best.rows
    if not rows:
        return ["No row is left."]
    room = {None: "", 0: "; it does NOT FIT the memory", 1: ", fits the memory"}[rows[0].get(FITS)]
    values = [(name, rows[0][name]) for name in _swept(result) if name in rows[0]]
    named = [_word(name, at) if isinstance(at, (str, bool)) else f"{words(name)} {cell(name, at, result)}" for name, at in values]
    at = f" at {', '.join(named)}" if named else ""
    first = f"{upper_first(best.word)} {words(column)}: {cell(column, rows[0][column], result)}{at}{room}."
    if result.pareto is not None:
        front = result.pareto
        return [first, f"Pareto front: {len(front.rows):,} rows that none beats in {words(front.first)} and {words(front.second)}."]
    return [first, *_faster(result)]


def _ranked(result: SweepResult) -> list[dict[str, Any]]:
    """The best row of each group, the best of all first."""
    return sorted(result.summary.best.values(), key=lambda row: float(row[result.summary.objective]))


def _swept(result: SweepResult) -> list[str]:
    """Names of inputs with several values."""
    axes = {**result.grid.choices, **result.grid.numbers}
    return [field.name for field in result.grid.fields if len(axes.get(field.source, ())) > 1]


def _word(name: str, value: str | bool) -> str:
    """A choice as its value; a flag as its name."""
    return value if isinstance(value, str) else name if value else f"not {name}"


def _faster(result: SweepResult) -> list[str]:
    """Sentence on which algorithm is better than the reference, by prediction or by objective, in what share of configurations."""
    summary = result.summary
    predicted = {other: pair for other, pair in summary.predicted.items() if pair[1]}
    phrase = "Faster by prediction" if predicted else "Lower roof" if summary.objective == ROOF else f"Less {words(summary.objective)}"
    predicted = predicted or {other: pair for other, pair in summary.compared.items() if pair[1]}
    named = [f"{other} in {_share(wins, of, 0)}" for other, (wins, of) in predicted.items()]
    rows = [row for other, axes in summary.shares.items() for axis, share in axes.items() for row in _along(other, axis, share)]
    if len(named) == len(rows) == 1 and (phrase != "Faster by prediction" or summary.objective == PREDICTED):
        by_label = {metric.label or metric.key: metric.value for metric in rows[0]}
        where = f", {by_label['axis']} {by_label['everywhere']}" if by_label["everywhere"] else ""
        return [f"{phrase} than {summary.reference}: {named[0]} of the configurations{where}."]
    return [f"{phrase} than {summary.reference}: {', '.join(named)} of the configurations."] if named else []


def _share(wins: int, of: int, decimals: int) -> str:
    """A share in percent, rounded so that it is 0 or 100 only if exact."""
    smallest = 10.0 ** -(decimals + 2)
    if wins == of or not wins:
        return "all" if wins == of else "none"
    return f"{min(max(wins / of, smallest), 1 - smallest):.{decimals}%}"


def _counts(result: SweepResult) -> str:
    """Sentence on the number of rows, and of those left out."""
    counts = result.counts
    excluded = f"; {counts.excluded:,} excluded by constraints" if counts.excluded else ""
    missing = f"; {sum(counts.left_out.values()):,} without an answer" if counts.left_out else ""
    unfit = sum(row.get(FITS) == 0 for row in result.rows or ())
    large = f"; {unfit:,} do{'es' * (unfit == 1)} not fit the memory" if unfit else ""
    return f"{counts.rows:,} rows{excluded}{missing}{large}."


def _kernels(result: SweepResult) -> str:
    """Sentence that predicted times of several devices may be of different kernels; empty if one is given."""
    choices = result.grid.choices
    named = choices.get("implementation", (None,)) != (None,)
    if PREDICTED not in result.grid.columns or len(choices.get("hardware", ())) < 2 or named:
        return ""
    return f"Devices may be predicted for different kernels{': take one with --implementation' * ('implementation' in choices)}."


def _compared(result: SweepResult) -> list[str]:
    """A sentence per alternative on how many configurations it wins against the reference."""
    summary, sentences = result.summary, []
    roofs = ", by the ratio of roofs alone" if summary.objective == ROOF else ""
    for other, pair in summary.compared.items():
        predicted, has = "is predicted to take less time", f"has less {words(summary.objective)}"
        for phrase, (wins, of), note in ((predicted, summary.predicted.get(other, (0, 0)), ""), (has, pair, roofs)):
            share = f"{_share(wins, of, 1)} of {of:,}"
            sentences += [f"{other} {phrase} than {summary.reference} in {share} configurations{note}."] * (of > 0)
    return sentences


def _figures(result: SweepResult) -> list[Figure]:
    """Figures: rows, ends of the main column, rows that fit, size of the front."""
    column = _column(result)
    values = [row[column] for row in result.rows or result.summary.best.values() if row.get(column) is not None]
    ends = (("least", min(values)), ("most", max(values))) if values else ()
    fitting = [row[FITS] for row in result.rows or () if row.get(FITS) is not None]
    figures = [Figure("rows", f"{result.counts.rows:,}")]
    figures += [Figure(f"{word} {words(column)}", cell(column, end, result)) for word, end in ends]
    figures += [Figure("fit the memory", f"{sum(fitting):,.0f} of {len(fitting):,}")] if fitting else []
    return [*figures, *([Figure("on the Pareto front", f"{len(result.pareto.rows):,}")] if result.pareto else [])]


def _brief(result: SweepResult) -> list[Table]:
    """The short table: rows searched for, of the front, the best of every group, or all; swept columns come first."""
    summary, best, pareto = result.summary, result.best, result.pareto
    rows: Sequence[dict[str, Any]]
    if pareto is not None:
        title, rows = "Pareto front", spread(pareto.rows, SCREEN_ROWS)
    elif best is not None:
        title, rows = f"{best.word} {words(best.column)}", best.rows[:SCREEN_ROWS]
    elif len(summary.best) > 1:
        title, rows = f"least {words(summary.objective)} by {', '.join(summary.swept)}", _ranked(result)[:SCREEN_ROWS]
    else:
        title, rows = "rows", spread(result.rows or [], SCREEN_ROWS)
    if not rows:
        return []
    sought = [*([pareto.first, pareto.second] if pareto else []), _column(result), *MATTER]  # as a narrow screen keeps them
    columns = [name for name in sought if name in rows[0] and any(row[name] is not None for row in rows)]
    return [rows_table(title, rows, result, list(dict.fromkeys([*_swept(result), *columns])))]


def _tables(result: SweepResult, wins_by_axis: Sequence[Sequence[Metric]]) -> list[Table]:
    """Tables: all rows if few, the best row of each combination of choices, where an alternative wins, results of a search."""
    summary, tables = result.summary, []
    if result.rows and len(result.rows) <= SHOWN_ROWS:
        tables.append(rows_table("rows", result.rows, result))
    if len(summary.best) > 1:
        note = f", {SHOWN_GROUPS} of {len(summary.best):,} groups" if len(summary.best) > SHOWN_GROUPS else ""
        title = f"least {words(summary.objective)} by {', '.join(summary.swept)}{note}"
        tables.append(rows_table(title, _ranked(result)[:SHOWN_GROUPS], result))
    if wins_by_axis:
        tables.append(as_rows(f"where less {words(summary.objective)} than {summary.reference}", wins_by_axis, labels=WIN_LABELS))
    if result.best is not None:
        title = f"the {len(result.best.rows)} rows with the {result.best.word} {words(result.best.column)}"
        tables.append(rows_table(title, result.best.rows, result))
    if result.pareto is not None:
        rows, first, second = result.pareto.rows, result.pareto.first, result.pareto.second
        note = f", {SHOWN_ROWS} of {len(rows):,}" if len(rows) > SHOWN_ROWS else ""
        less = [("less", "no more") if sign > 0 else ("more", "no less") for sign in result.pareto.signs]
        title = f"Pareto front: no row has {less[0][0]} {words(first)} and {less[1][1]} {words(second)}{note}"
        tables.append(rows_table(title, spread(rows, SHOWN_ROWS), result))
    return tables


# Rows as text


def words(name: str) -> str:
    """The name of a column in words.

    >>> words("roofline_s"), words("tokens_per_s"), words("kv_len")
    ('time at the roof', 'tokens/s', 'kv len')
    """
    plain = name.replace("_per_s", "/s").removesuffix("_s").removesuffix("_bytes").replace("_", " ")
    return WORDS.get(name, plain)


def spread(rows: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most ``most`` of ``rows``, evenly spaced and with both ends."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(index * (len(rows) - 1) / (most - 1))] for index in range(most)]


def rows_table(title: str, rows: Sequence[Mapping[str, Any]], result: SweepResult, names: Sequence[str] | None = None) -> Table:
    """Table of ``rows`` with the columns ``names``, by default all."""
    by_name = {field.name: field for field in result.grid.fields if rows and field.name in rows[0]}
    fields = [by_name[name] for name in (by_name if names is None else names) if name in by_name]
    cells = [[cell(field.name, row[field.name], result) for field in fields] for row in rows]
    return Table(title, [words(field.name) for field in fields], cells, "".join("l" if field.kind == WORD else "r" for field in fields))


def cell(name: str, value: Any, result: SweepResult) -> str:
    """A value of the column ``name`` as text with its unit."""
    field = next(candidate for candidate in result.grid.fields if candidate.name == name)
    if value is None:
        return "-"
    if name == FITS:
        return "yes" if value else "NO"
    if isinstance(value, (bool, str)):
        return str(value)
    if field.unit == "s":
        return format_time(value)
    if field.unit in ("B", "FLOP", "OP"):
        return format_si(value, field.unit)
    exact = field.kind == WHOLE or float(value).is_integer() or abs(value) >= 1000
    return format_count(round(value)) if exact else digits(value, 4)


# Charts


def _charts(result: SweepResult) -> list[Chart]:
    """Charts: the front if asked for; lines if an axis of numbers has several values, else bars of the best rows."""
    charts: list[Chart] = [chart for chart in (_front(result), _lines(result)) if chart is not None]
    return charts or _bars(result)


def _unit(result: SweepResult, name: str) -> str:
    unit = next(field.unit for field in result.grid.fields if field.name == name)
    return unit if unit in UNITS else "count"


def _better(result: SweepResult, name: str) -> int:
    return next((entry.better for entry in result.grid.workload.columns if entry.name == name), -1) or -1


def _lines(result: SweepResult) -> LineChart | None:
    """Chart with a line per combination of words; at each value it has the best row over the other axes."""
    counts = {field.name: len(result.grid.numbers[field.source]) for field in result.grid.fields if field.source in result.grid.numbers}
    axis, column = max(counts, key=lambda name: counts[name], default=""), _column(result)
    if result.rows is None or counts.get(axis, 0) < 2:
        return None
    best = _best_along(result, axis, column)
    sign = -_better(result, column)
    named = sorted(best, key=lambda name: (-(x := max(best[name])), sign * best[name][x][column]))[:LINES]
    series = [Series(name, [(x, row[column]) for x, row in sorted(best[name].items())], group=name) for name in named]
    unfit = sorted((x, row[column]) for name in named for x, row in best[name].items() if row.get(FITS) == 0)
    series += [Series(NO_ROOM, unfit, "markers")] if unfit else []
    other_axes = [name for name, count in counts.items() if count > 1 and name != axis]
    notes = [f"At each {axis} the best over {' and '.join(other_axes)}."] * bool(other_axes)
    notes += [f"{len(named)} of {len(best)} lines: the best at the largest {axis}."] * (len(best) > len(named))
    title = upper_first(f"{words(column)} over {words(axis)}")
    chart = LineChart(title, words(axis), words(column), series, "count", _unit(result, column), caption=" ".join(notes))
    return chart if any(line.points for line in series) else None


def _best_along(result: SweepResult, axis: str, column: str) -> dict[str, dict[float, Row]]:
    """The best row by line and value of the axis."""
    sign, lines = -_better(result, column), dict[str, dict[float, Row]]()
    for row in result.rows or []:
        if (row.get(column) or 0) > 0 and row[axis] > 0:
            line = lines.setdefault(_name(row, result), {})
            best = line.setdefault(row[axis], row)
            line[row[axis]] = min(best, row, key=lambda row: (row.get(FITS) == 0, sign * row[column]))  # what fits comes first
    return lines


def _name(row: Row, result: SweepResult) -> str:
    """Name of a row: its values of swept choices."""
    swept = {name: row[name] for name in result.summary.swept if name in row}
    named = [_word(name, value) if isinstance(value, bool) else str(value) for name, value in swept.items()]
    return ", ".join(named) or result.grid.workload.name


def _front(result: SweepResult) -> LineChart | None:
    """Chart of rows as dots, with the front as a line."""
    pareto = result.pareto
    if pareto is None or not pareto.rows:
        return None
    x, y = pareto.first, pareto.second
    best = {(row[x], row[y]) for row in pareto.rows}
    rows = [row for row in result.rows or [] if row.get(x) and row.get(y) and (row[x], row[y]) not in best]
    step = max(1, len(rows) // CLOUD)
    fit, unfit = ([row for row in rows[::step] if (row.get(FITS) == 0) is wrong] for wrong in (False, True))
    front = sorted((row[x], row[y]) for row in pareto.rows if row[x] > 0 and row[y] > 0)
    series = [Series("Pareto front", front, group="front")]
    groups = (("rows", fit), (NO_ROOM, unfit))
    series += [Series(name, sorted((row[x], row[y]) for row in group), "markers") for name, group in groups if group]
    title = f"Pareto front: {words(y)} against {words(x)}"
    return LineChart(title, words(x), words(y), series, _unit(result, x), _unit(result, y)) if front else None


def _bars(result: SweepResult) -> list[Chart]:
    """Chart of the best row of each combination of words."""
    column = _column(result)
    rows: Sequence[Row] = result.best.rows if result.best else list(result.summary.best.values()) or result.rows or []
    ranked = sorted((row for row in rows if row.get(column)), key=lambda row: -_better(result, column) * row[column])[:BARS]
    bars = [Bar(f"{_name(row, result)}{f', {NO_ROOM}' * (row.get(FITS) == 0)}", [(column, row[column])]) for row in ranked]
    return [BarChart(f"{upper_first(words(column))}, the best rows", _unit(result, column), bars)] if bars else []


def _notes(result: SweepResult) -> list[str]:
    sample = [*(result.rows or ())[:SHOWN_ROWS], *result.summary.best.values(), *(result.best.rows if result.best else ())]
    unfit = any(row.get(FITS) == 0 for row in sample)
    notes = ["fits NO: times are those of a GPU with more memory. Only rows that fit: --where 'fits == 1'."] * unfit
    reasons = sorted(result.counts.left_out.items(), key=lambda item: -item[1])
    notes += [f"Without an answer: {number:,} rows: {reason}." for reason, number in reasons[:SHOWN_REASONS]]
    if len(reasons) > SHOWN_REASONS:
        remaining = sum(number for _, number in reasons[SHOWN_REASONS:])
        notes.append(f"Without an answer: {remaining:,} rows for {len(reasons) - SHOWN_REASONS} other reasons, all in the JSON.")
    return notes
