"""The report of a sweep: number of rows, the best row of each group, where one algorithm beats another, and results of a search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

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
    grid = result.grid
    wins_by_axis = _wins_by_axis(result)
    axes = [f"{len(values):,} x {words(name)}" for name, values in {**grid.choices, **grid.numbers}.items() if len(values) > 1]
    title = f"Sweep over {grid.workload.name}: {grid.points:,} rows"
    return Report(
        f"{title} ({', '.join(axes)})" if axes else title,
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
    pareto = result.pareto
    searched: dict[str, Any] = {"minimize": None, "maximize": None}
    if result.best:
        option = "maximize" if result.best.most else "minimize"
        searched[option] = {"column": result.best.column, "rows": result.best.rows}
    return {
        **head("sweep", result.grid.study.as_json()),
        "devices": list(map(str, result.grid.choices.get("hardware", ()))),
        "columns": [{"name": field.name, "unit": field.unit, "meaning": meanings[field.source]} for field in result.grid.fields],
        "counts": {"rows": counts.rows, "points": result.grid.points, "excluded": counts.excluded, "left_out": counts.left_out},
        "best": {"column": summary.objective, "groups": list(summary.best.values())},
        "comparison": _comparison(result, wins_by_axis) if summary.compared else None,
        **searched,
        "pareto": None if pareto is None else {"columns": [pareto.first, pareto.second], "rows": pareto.rows},
        "rows": result.rows,
    }


def _comparison(result: SweepResult, wins_by_axis: Sequence[Sequence[Metric]]) -> dict[str, Any]:
    """The wins of each value of the compared choice against the first, in all configurations and along each axis."""
    summary = result.summary

    def counts(pairs: Mapping[str, Sequence[int]]) -> dict[str, dict[str, int]]:
        return {other: {"wins": wins, "of": total} for other, (wins, total) in pairs.items()}

    return {
        "reference": str(summary.reference),
        "column": summary.objective,
        "wins": counts(summary.compared),
        "predicted": counts(summary.predicted),
        "along": list(map(as_json, wins_by_axis)),
    }


# Metrics: where one value of the compared choice beats the first, such as flash attention against standard


def _wins_by_axis(result: SweepResult) -> list[list[Metric]]:
    """The metrics of ``_along`` of each alternative and axis."""
    rows = []
    for other, axes in result.summary.shares.items():
        rows += [_along(other, axis, shares) for axis, shares in axes.items() if _share_changes(shares)]
    return rows


def _share_changes(shares: WinShares) -> bool:
    """Whether the share of wins is not the same at all values that have any configuration."""
    present = shares.of > 0
    return len(set((shares.wins[present] / shares.of[present]).tolist())) > 1


class _Where(NamedTuple):
    """The values of an axis at which an alternative wins everywhere, or nowhere.

    Numbers: all such ``ranges``, and as ``value`` the one at an end of the axis or None. Words: the words as ``value``. ``text``: either as
    text.
    """

    value: Any
    ranges: list[AxisRange]
    text: str


def _along(other: str, axis: str, shares: WinShares) -> list[Metric]:
    """Metrics: values of ``axis`` at which ``other`` wins in every configuration or in none, and the range of its share of wins."""
    present = shares.of > 0
    values, share = shares.values[present], shares.wins[present] / shares.of[present]
    is_numeric = values.dtype.kind not in "US"
    if is_numeric:
        order = values.argsort()
        values, share = values[order], share[order]

    def where(holds: Any) -> _Where:
        if not is_numeric:
            chosen = values[holds].tolist()
            return _Where(chosen, [], _listed(chosen))
        ranges = _ranges(values, holds)
        at_end = _range_at_end(ranges, values)
        return _Where(at_end, ranges, _listed(ranges))

    never, always = where(share == 0), where(share == 1)
    low, high = float(share.min()), float(share.max())
    return [
        Metric("name", other, unit="text"),
        Metric("axis", axis, unit="text"),
        Metric("never", never.value),
        Metric("always", always.value),
        Metric("never_at", never.ranges),
        Metric("always_at", always.ranges),
        Metric("least_share", low),
        Metric("most_share", high),
        Metric("", never.text, "nowhere"),
        Metric("", always.text, "everywhere"),
        Metric("", f"{low:.0%} to {high:.0%}", "share"),
    ]


def _ranges(values: Any, holds: Any) -> list[AxisRange]:
    """Ranges of the sorted ``values`` in which ``holds`` is true."""
    ranges: list[AxisRange] = []
    was_true = False
    for value, is_true in zip(map(_plain, values), holds, strict=True):
        if is_true:
            start = ranges.pop()[0] if was_true else value
            ranges.append((start, value))
        was_true = is_true
    return ranges


def _range_at_end(ranges: Sequence[AxisRange], values: Any) -> AxisRange | None:
    """The range at an end of the axis; of two, the one with more of ``values``; None if there is none."""
    at_ends = [(low, high) for low, high in ranges if low == values[0] or high == values[-1]]
    return max(at_ends, key=lambda ends: ((ends[0] <= values) & (values <= ends[1])).sum(), default=None)


def _plain(value: Any) -> int | float:
    return int(value) if float(value).is_integer() else float(value)


def _listed(ranges: Any) -> str:
    """Words or ranges as text: the first few, then the number of others and their extent."""
    if not ranges:
        return "-"
    texts = [item if isinstance(item, str) else " to ".join(f"{end:,}" for end in dict.fromkeys(item)) for item in ranges]
    if len(texts) <= SHOWN_WORDS:
        return ", ".join(texts)
    first = f"{', '.join(texts[:SHOWN_WORDS])} and {len(texts) - SHOWN_WORDS} more"
    return first if isinstance(ranges[-1], str) else f"{first} up to {ranges[-1][1]:,}"


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
    if not best.rows:
        return ["No row is left."]
    row = best.rows[0]
    inputs = [_input_words(name, row[name], result) for name in _swept(result) if name in row]
    at = f" at {', '.join(inputs)}" if inputs else ""
    room = {None: "", 0: "; it does NOT FIT the memory", 1: ", fits the memory"}[row.get(FITS)]
    first = f"{upper_first(best.word)} {words(best.column)}: {cell(best.column, row[best.column], result)}{at}{room}."
    if result.pareto is not None:
        front = result.pareto
        return [first, f"Pareto front: {len(front.rows):,} rows that none beats in {words(front.first)} and {words(front.second)}."]
    return [first, *_faster(result)]


def _input_words(name: str, value: Any, result: SweepResult) -> str:
    """An input with its value; a choice as its value alone, a flag as its name."""
    return _word(name, value) if isinstance(value, (str, bool)) else f"{words(name)} {cell(name, value, result)}"


def _ranked(result: SweepResult) -> list[dict[str, Any]]:
    """The best row of each group, the best of all first."""
    return sorted(result.summary.best.values(), key=lambda row: float(row[result.summary.objective]))


def _swept(result: SweepResult) -> list[str]:
    """Names of inputs with several values."""
    axes = {**result.grid.choices, **result.grid.numbers}
    return [field.name for field in result.grid.fields if len(axes.get(field.source, ())) > 1]


def _word(name: str, value: str | bool) -> str:
    """A choice as its value; a flag as its name."""
    if isinstance(value, str):
        return value
    return name if value else f"not {name}"


def _faster(result: SweepResult) -> list[str]:
    """Sentence on which algorithm is better than the reference, by prediction or by objective, in what share of configurations."""
    summary = result.summary
    predicted = {other: counts for other, counts in summary.predicted.items() if counts[1]}
    compared = {other: counts for other, counts in summary.compared.items() if counts[1]}
    if not predicted and not compared:
        return []
    if predicted:
        phrase = "Faster by prediction"
    elif summary.objective == ROOF:
        phrase = "Lower roof"
    else:
        phrase = f"Less {words(summary.objective)}"
    shares = [f"{other} in {_share(wins, total, 0)}" for other, (wins, total) in (predicted or compared).items()]
    wins_by_axis = _wins_by_axis(result)
    same_column = not predicted or summary.objective == PREDICTED  # wins along an axis are by the objective
    where = ""
    if len(shares) == len(wins_by_axis) == 1 and same_column:
        by_label = {metric.label or metric.key: metric.value for metric in wins_by_axis[0]}
        where = f", {by_label['axis']} {by_label['everywhere']}"
    return [f"{phrase} than {summary.reference}: {', '.join(shares)} of the configurations{where}."]


def _share(wins: int, total: int, decimals: int) -> str:
    """A share in percent, rounded so that it is 0 or 100 only if exact."""
    if wins == total:
        return "all"
    if not wins:
        return "none"
    smallest = 10.0 ** -(decimals + 2)
    return f"{min(max(wins / total, smallest), 1 - smallest):.{decimals}%}"


def _counts(result: SweepResult) -> str:
    """Sentence on the number of rows, and of those left out."""
    counts = result.counts
    phrases = [f"{counts.rows:,} rows"]
    if counts.excluded:
        phrases.append(f"{counts.excluded:,} excluded by constraints")
    if counts.left_out:
        phrases.append(f"{sum(counts.left_out.values()):,} without an answer")
    unfit = sum(_is_unfit(row) for row in result.rows or ())
    if unfit:
        phrases.append(f"{unfit:,} {'does' if unfit == 1 else 'do'} not fit the memory")
    return f"{'; '.join(phrases)}."


def _is_unfit(row: Row) -> bool:
    """Whether ``row`` is known not to fit the memory."""
    return row.get(FITS) == 0


def _kernels(result: SweepResult) -> str:
    """Sentence that predicted times of several devices may be of different kernels; empty if one is given."""
    choices = result.grid.choices
    is_given = choices.get("implementation", (None,)) != (None,)
    several_devices = len(choices.get("hardware", ())) > 1
    if is_given or not several_devices or PREDICTED not in result.grid.columns:
        return ""
    advice = ": take one with --implementation" if "implementation" in choices else ""
    return f"Devices may be predicted for different kernels{advice}."


def _compared(result: SweepResult) -> list[str]:
    """A sentence per alternative on how many configurations it wins against the reference."""
    summary = result.summary
    by_roofs = ", by the ratio of roofs alone" if summary.objective == ROOF else ""

    def wins_text(wins: int, total: int) -> str:
        return f"than {summary.reference} in {_share(wins, total, 1)} of {total:,} configurations"

    sentences = []
    for other, (wins, total) in summary.compared.items():
        predicted_wins, predicted_total = summary.predicted.get(other, (0, 0))
        if predicted_total:
            sentences.append(f"{other} is predicted to take less time {wins_text(predicted_wins, predicted_total)}.")
        if total:
            sentences.append(f"{other} has less {words(summary.objective)} {wins_text(wins, total)}{by_roofs}.")
    return sentences


def _figures(result: SweepResult) -> list[Figure]:
    """Figures: rows, ends of the main column, rows that fit, size of the front."""
    figures = [Figure("rows", f"{result.counts.rows:,}")]
    column = _column(result)
    values = [row[column] for row in result.rows or result.summary.best.values() if row.get(column) is not None]
    if values:
        figures.append(Figure(f"least {words(column)}", cell(column, min(values), result)))
        figures.append(Figure(f"most {words(column)}", cell(column, max(values), result)))
    fitting = [row[FITS] for row in result.rows or () if row.get(FITS) is not None]
    if fitting:
        figures.append(Figure("fit the memory", f"{sum(fitting):,.0f} of {len(fitting):,}"))
    if result.pareto:
        figures.append(Figure("on the Pareto front", f"{len(result.pareto.rows):,}"))
    return figures


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
    by_weight = [_column(result), *MATTER]  # a narrow screen leaves out the last
    if pareto:
        by_weight = [pareto.first, pareto.second, *by_weight]
    filled = [name for name in by_weight if name in rows[0] and any(row[name] is not None for row in rows)]
    return [rows_table(title, rows, result, list(dict.fromkeys([*_swept(result), *filled])))]


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
        first_sign, second_sign = result.pareto.signs
        better = "less" if first_sign > 0 else "more"
        no_worse = "no more" if second_sign > 0 else "no less"
        title = f"Pareto front: no row has {better} {words(first)} and {no_worse} {words(second)}{note}"
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
    shown = list(by_name) if names is None else [name for name in names if name in by_name]
    cells = [[cell(name, row[name], result) for name in shown] for row in rows]
    align = "".join("l" if by_name[name].kind == WORD else "r" for name in shown)
    return Table(title, [words(name) for name in shown], cells, align)


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


def _rank(result: SweepResult, column: str) -> Callable[[Row], float]:
    """A function that is smaller for a row with a better value of ``column``; less is better where nothing else is known."""
    more_is_better = any(entry.name == column and entry.better > 0 for entry in result.grid.workload.columns)
    return lambda row: float(-row[column] if more_is_better else row[column])


def _lines(result: SweepResult) -> LineChart | None:
    """Chart with a line per combination of words; at each value it has the best row over the other axes."""
    numbers = result.grid.numbers
    counts = {field.name: len(numbers[field.source]) for field in result.grid.fields if field.source in numbers}
    several = {name: count for name, count in counts.items() if count > 1}
    if result.rows is None or not several:
        return None
    axis, column = max(several, key=lambda name: several[name]), _column(result)
    lines = _best_along(result, axis, column)
    rank = _rank(result, column)

    def by_last_value(name: str) -> tuple[float, float]:
        last = max(lines[name])
        return -last, rank(lines[name][last])

    shown = sorted(lines, key=by_last_value)[:LINES]
    series, unfit = list[Series](), list[tuple[float, float]]()
    for name in shown:
        series.append(Series(name, [(x, row[column]) for x, row in sorted(lines[name].items())], group=name))
        unfit += [(x, row[column]) for x, row in lines[name].items() if _is_unfit(row)]
    if not series:
        return None
    if unfit:
        series.append(Series(NO_ROOM, sorted(unfit), "markers"))
    notes = []
    other_axes = [name for name in several if name != axis]
    if other_axes:
        notes.append(f"At each {axis} the best over {' and '.join(other_axes)}.")
    if len(lines) > len(shown):
        notes.append(f"{len(shown)} of {len(lines)} lines: the best at the largest {axis}.")
    title = upper_first(f"{words(column)} over {words(axis)}")
    return LineChart(title, words(axis), words(column), series, "count", _unit(result, column), caption=" ".join(notes))


def _best_along(result: SweepResult, axis: str, column: str) -> dict[str, dict[float, Row]]:
    """The best row by line and value of the axis; a row that fits the memory is better than any that does not."""
    rank = _rank(result, column)
    lines = dict[str, dict[float, Row]]()
    for row in result.rows or []:
        if (row.get(column) or 0) > 0 and row[axis] > 0:
            line = lines.setdefault(_name(row, result), {})
            best = line.get(row[axis], row)
            line[row[axis]] = min(best, row, key=lambda row: (_is_unfit(row), rank(row)))
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
    front = sorted((row[x], row[y]) for row in pareto.rows if row[x] > 0 and row[y] > 0)
    if not front:
        return None
    step = max(1, len(rows) // CLOUD)
    unfit = sorted((row[x], row[y]) for row in rows[::step] if _is_unfit(row))
    fitting = sorted((row[x], row[y]) for row in rows[::step] if not _is_unfit(row))
    series = [Series("Pareto front", front, group="front")]
    if fitting:
        series.append(Series("rows", fitting, "markers"))
    if unfit:
        series.append(Series(NO_ROOM, unfit, "markers"))
    title = f"Pareto front: {words(y)} against {words(x)}"
    return LineChart(title, words(x), words(y), series, _unit(result, x), _unit(result, y))


def _bars(result: SweepResult) -> list[Chart]:
    """Chart of the best row of each combination of words."""
    column = _column(result)
    rows: Sequence[Row] = result.best.rows if result.best else list(result.summary.best.values()) or result.rows or []
    ranked = sorted((row for row in rows if row.get(column)), key=_rank(result, column))[:BARS]
    bars = []
    for row in ranked:
        name = _name(row, result)
        bars.append(Bar(f"{name}, {NO_ROOM}" if _is_unfit(row) else name, [(column, row[column])]))
    return [BarChart(f"{upper_first(words(column))}, the best rows", _unit(result, column), bars)] if bars else []


def _notes(result: SweepResult) -> list[str]:
    shown = [*(result.rows or ())[:SHOWN_ROWS], *result.summary.best.values()]
    if result.best:
        shown += result.best.rows
    notes = []
    if any(map(_is_unfit, shown)):
        notes.append("fits NO: times are those of a GPU with more memory. Only rows that fit: --where 'fits == 1'.")
    reasons = sorted(result.counts.left_out.items(), key=lambda item: -item[1])
    notes += [f"Without an answer: {number:,} rows: {reason}." for reason, number in reasons[:SHOWN_REASONS]]
    if len(reasons) > SHOWN_REASONS:
        remaining = sum(number for _, number in reasons[SHOWN_REASONS:])
        notes.append(f"Without an answer: {remaining:,} rows for {len(reasons) - SHOWN_REASONS} other reasons, all in the JSON.")
    return notes
