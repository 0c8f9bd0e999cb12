"""Before against after: the ratio of every number that two reports share, and whether it changed by more than a threshold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.core.errors import DataError
from perfmodel.report.against import MEASURED, PREDICTED, Side, against, ends, ratio, ratio_notes, times, way
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.schema import Interval, Roofline, RooflinePoint
from perfmodel.report.document import SCHEMA, Column, DataTable, Report, Value, from_data
from perfmodel.report.metrics import Metric, Metrics
from perfmodel.validation.statistics import quantile

SAME, FASTER, SLOWER, LESS, MORE = "SAME", "FASTER", "SLOWER", "LESS", "MORE"
DEFAULT_THRESHOLD = 0.05
MOST_ROWS = 60
"""If there are more rows, those that are SAME are left out of the table."""
UNIT_TITLES = {
    "s": "times",
    "B": "bytes",
    "FLOP": "FLOP",
    "B/s": "bandwidths",
    "FLOP/s": "rates",
    "tokens/s": "tokens per second",
    "FLOP/B": "intensities",
}
BETTER = {"s": -1, "B/s": 1, "FLOP/s": 1, "tokens/s": 1}
"""Which way is better: -1 low, 1 high; in other units neither."""
COUNTS = ("B", "FLOP")
KINDS_OF_TIME = (
    ("time, measured", "measured"),
    ("time, predicted", "predicted", "step, predicted"),
    ("time at the roof", "roofline", "roofline_s"),
    ("lower bound", "lower", "step, bound", "no overlap"),
)
"""Labels of the kinds of time, the most telling first. Only the first kind that both sides have counts in a summary."""
KIND_WORDS = ("measured times", "predicted times", "times at the roof", "lower bounds")
ROOF, OTHER = 2, len(KIND_WORDS)
"""Index of times at the roof in ``KINDS_OF_TIME``, and the index that stands for any other metric."""
RATIOS = {ROOF: ", ratio of roofs", 3: ", ratio of bounds"}
"""What the ratio of two such times is called, by index of their kind."""
PEAKS = ("peak", "bandwidth")
"""Quantities that are roofs of a device."""
COMPARABLE = ("s", "tokens/s")
"""Units in which a median of ratios has a meaning: it has none over the unlike peaks and bandwidths of a device."""
NAMED = 3
"""Changes that the summary names."""


@dataclass(frozen=True, slots=True)
class Change:
    """One quantity before and after. ``ratio``: after / before; None if only one of them is zero. ``word``: SAME, FASTER and so on.

    The ``key`` of a metric names the thing, its ``label`` the quantity: "flash2, forward" and "DRAM bytes".
    """

    before: Metric
    after: Metric
    ratio: float | None
    word: str

    @property
    def better(self) -> int:
        """Which way is better: 1 high, -1 low, 0 neither."""
        return BETTER.get(self.before.unit, 0)

    @property
    def gain(self) -> float:
        """How many times better; 1 if the ratio is unknown or neither way is better."""
        if not self.ratio or not self.better:
            return 1.0
        return self.ratio if self.better > 0 else 1 / self.ratio

    @property
    def kind(self) -> int:
        """Index in ``KINDS_OF_TIME``; ``OTHER`` if the label is none of these."""
        return next((place for place, names in enumerate(KINDS_OF_TIME) if self.before.label in names), OTHER)


def changes(before: Metrics, after: Metrics, threshold: float = DEFAULT_THRESHOLD) -> list[Change]:
    """The changes of every metric that both have, in the order of ``before``. ``threshold``: relative change that still is SAME."""
    known = {(one.key, one.label): one for one in after}
    return [_change(old, known[old.key, old.label], threshold) for old in before if (old.key, old.label) in known]


def _change(old: Metric, new: Metric, threshold: float) -> Change:
    if old.value == new.value:
        return Change(old, new, 1.0, SAME)
    less, more = {-1: (FASTER, SLOWER), 1: (SLOWER, FASTER), 0: (LESS, MORE)}[BETTER.get(old.unit, 0)]
    word = more if new.value > old.value else less
    if not old.value or not new.value:
        return Change(old, new, None, word)
    ratio, allowed = new.value / old.value, 1 + max(threshold, _noise(old), _noise(new))
    return Change(old, new, ratio, SAME if 1 / allowed <= ratio <= allowed else word)


def _noise(one: Metric) -> float:
    """(p90 - p10) / median of a measurement; 0 of anything else."""
    measured = one.label == "time, measured" and one.low is not None and one.high is not None
    return float((one.high or 0) - (one.low or 0)) / one.value if measured else 0.0


def report(before: Metrics, after: Metrics, names: tuple[str, str], threshold: float) -> tuple[Report, list[Change]]:
    """The comparison as a document, and its changes. Numbers that only one of the two has are counted in a note."""
    found = changes(before, after, threshold)
    common = {(one.before.key, one.before.label) for one in found}
    notes = []
    for name, metrics in zip(names, (before, after), strict=True):
        own = [one for one in metrics if (one.key, one.label) not in common]
        if own:
            notes.append(f"Only in {name}: {len(own)} numbers, such as {own[0].key}, {own[0].label}.")
    same = sum(one.word == SAME for one in found)
    if len(found) > MOST_ROWS and same:
        notes.append(f"{same} of {len(found)} rows are the same and left out.")
    notes.append(f"SAME: within {threshold:.0%}, or within the noise of a measurement where that is larger.")
    sentences = summary(found, *names, threshold, (before, after))
    title = f"{names[0]} against {names[1]}"
    return Report(title, sentences, [], notes + ratio_notes(sentences), data_tables=tables("changes", found, *names)), found


def tables(title: str, found: Sequence[Change], before: str, after: str) -> list[DataTable]:
    """A table per unit and a row per change; rows that are the same are left out if there are many."""
    shown = [one for one in found if one.word != SAME] if len(found) > MOST_ROWS else list(found)
    made = []
    for unit in dict.fromkeys(one.before.unit for one in shown):
        heads = {"what": "what", "quantity": "quantity", "before": before, "after": after, "ratio": "after / before", "change": "change"}
        units = {"before": unit, "after": unit, "ratio": "ratio"}
        columns = [Column(key, head, units.get(key, "text")) for key, head in heads.items()]
        own = [(one, one.before) for one in shown if one.before.unit == unit]
        rows: list[list[Value]] = [[old.key, old.label, old.value, one.after.value, one.ratio, one.word] for one, old in own]
        made.append(DataTable(f"{title}: {UNIT_TITLES.get(unit, unit)}", columns, rows))
    return made


def summary(found: Sequence[Change], before: str, after: str, threshold: float, every: tuple[Metrics, Metrics] = ((), ())) -> list[str]:
    """How many are faster and slower, by how much, and the worst by name. ``every``: all metrics of both sides."""
    if not found:
        return [f"{before} and {after} have nothing in common to compare."]
    every = every if every[0] else ([one.before for one in found], [one.after for one in found])
    timed = _counted_once([one for one in found if one.better])
    sentences = [f"{after} against {before}: {_counted(timed, threshold)}."] if timed else []
    named = sorted((one for one in timed if one.word == SLOWER), key=lambda one: one.gain)[:NAMED]
    if not named:
        named = sorted((one for one in timed if one.word == FASTER), key=lambda one: (0 if one.kind == OTHER else one.kind, -one.gain))[:1]
    sentences += [f"{one.word}: {_sentence(one, (before, after), every)}." for one in named]
    counts = [one.word for one in found if not one.better]
    moved = Counter(word for word in counts if word != SAME)
    if moved:
        parts = " and ".join(f"{count} {'is' if count == 1 else 'are'} {word}" for word, count in moved.items())
        sentences.append(f"Of the counts {parts}.")
    elif counts:
        sentences.append(f"All {len(counts)} counts are the same.")
    return sentences


def _counted_once(timed: Sequence[Change]) -> list[Change]:
    """Per thing, only the times of its best kind: its roof, for one, does not change when its kernel does."""
    best: dict[str, int] = {}
    for one in timed:
        best[one.before.key] = min(one.kind, best.get(one.before.key, OTHER))
    return [one for one in timed if one.kind in (OTHER, best[one.before.key])]


def _counted(timed: Sequence[Change], threshold: float) -> str:
    """How many are faster, slower or the same per kind of time, the best kind first, and by how much."""
    clauses: list[str] = []
    for kind in sorted({one.kind for one in timed}):
        own = [one for one in timed if one.kind == kind]
        counts = Counter(one.word for one in own)
        parts = ", ".join(f"{counts[word]} {word}" for word in (FASTER, SLOWER, SAME) if counts[word])
        same = "" if clauses else f" (within {threshold:.0%} is SAME)"
        clauses.append(f"{parts} of {_number_and_kind(kind, own)}{same}; {_gains(kind, own)}")
    return "; ".join(clauses)


def _number_and_kind(kind: int, timed: Sequence[Change]) -> str:
    """``3 measured times``: the number and the name of the kind."""
    units = {one.before.unit for one in timed}
    words = KIND_WORDS[kind] if kind < OTHER else "times" if units == {"s"} else "times and rates" if "s" in units else "rates"
    one = words.replace("times", "time").replace("rates", "rate").replace("bounds", "bound")
    return f"{len(timed)} {words if len(timed) > 1 else one}"


def _gains(kind: int, timed: Sequence[Change]) -> str:
    """The median gain if the units allow one, else the range; for roofs and bounds it says that these are ratios of such."""
    gains = [one.gain for one in timed if one.ratio]
    if not gains:
        return "no ratio is known"
    if all(one.before.unit in COMPARABLE for one in timed):
        of = RATIOS.get(kind, "")
        return f"in the median {way(quantile(gains, 0.5), most='at most ' * bool(of))}{of}{_median_ends(timed)}"
    if all(one.before.label.startswith(PEAKS) for one in timed) and max(gains) > min(gains):
        return "ratios of roofs " + " to ".join(dict.fromkeys(times(gain) for gain in (min(gains), max(gains))))
    least, *most = dict.fromkeys(way(gain) for gain in (min(gains), max(gains)))
    return f"from {least} to {most[0]}" if most else f"all {least}"


def _median_ends(timed: Sequence[Change]) -> str:
    """The median of the lower and of the upper ends of the intervals; empty unless every change has one."""
    found = [ratio(_interval(one.before), _interval(one.after)) for one in timed if one.ratio and one.before.unit == "s"]
    lows, highs = [one.low for one in found if one.low], [one.high for one in found if one.high]
    if not found or len(lows) < len(timed) or len(highs) < len(timed):
        return ""
    return ends(Interval(quantile([one.value for one in found], 0.5), quantile(lows, 0.5), quantile(highs, 0.5)))


def _interval(one: Metric) -> Interval:
    return Interval(one.value, one.low, one.high)


def _sentence(one: Change, names: tuple[str, str], every: tuple[Metrics, Metrics]) -> str:
    old, new = one.before, one.after
    if one.kind <= ROOF:
        first, other = (_side(name, old.key, metrics) for name, metrics in zip(names, every, strict=True))
        return f"{old.key}: {against(first, other)}"
    gain = text(max(one.gain, 1 / one.gain), "ratio")
    of = RATIOS.get(ROOF if old.label.startswith(PEAKS) else one.kind, "")
    return f"{old.key}, {old.label}, {gain}{of} ({text(old.value, old.unit)} before, {text(new.value, new.unit)} after)"


def _side(name: str, what: str, metrics: Metrics) -> Side:
    """The best time and the roof of the thing ``what`` on the side called ``name``."""
    own = {one.label: one for one in metrics if one.key == what}
    measured, predicted, roof, _ = (next((own[name] for name in names if name in own), None) for names in KINDS_OF_TIME)
    best = measured or predicted
    return Side(name, roof.value if roof else 0.0, _interval(best) if best else None, MEASURED if measured else PREDICTED)


# The metrics of saved reports


def metrics_of(raw: Any, name: str) -> list[Metric]:
    """Every number of the document ``raw``. DataError if it is none of this package; ``name`` is its file."""
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema == SCHEMA:
        return of_report(from_data(raw))
    if isinstance(schema, str) and schema.startswith("perfmodel."):
        return _without_repeats(_of_object(raw))
    raise DataError(f"{name}: neither a report nor what --json prints", "save one with -o report.json")


def of_report(report: Report) -> list[Metric]:
    """Metrics from the points of its rooflines and the cells of its tables."""
    several = len({chart.device for chart in report.rooflines}) > 1
    found = [one for chart in report.rooflines for point in chart.points for one in of_point(point, chart, several)]
    return _without_repeats([*found, *(one for table in report.data_tables for one in _of_table(table))])


def of_point(point: RooflinePoint, chart: Roofline, several: bool = False) -> list[Metric]:
    """Time, FLOP and bytes of a point."""
    what = f"{point.name}, {chart.device_name}" if several else point.name
    known, kind = point.measured or point.predicted, "measured" if point.measured else "predicted"
    found = [] if known is None else [Metric(what, known.value, f"time, {kind}", "s", known.low, known.high)]
    if point.roofline_s is not None:
        found.append(Metric(what, point.roofline_s, "time at the roof", "s"))
    if point.flops or point.dtype:  # without a dtype, FLOP were not counted
        found.append(Metric(what, point.flops, "FLOP", "FLOP"))
    return found + [Metric(what, moved, f"{level.upper()} bytes", "B") for level, moved in point.bytes.items()]


def _of_table(table: DataTable) -> Iterator[Metric]:
    """Metrics of the cells with a comparable unit. Texts and integers left of the first such column name the row."""
    shown = [place for place, column in enumerate(table.columns) if column.unit in (*BETTER, *COUNTS)]
    ends = {key for column in table.columns for key in (column.low, column.high)}
    keys = [column.key for column in table.columns]
    for row in table.rows:
        words = [
            f"{column.title} {value:,}" if isinstance(value, int) else str(value)
            for column, value in zip(table.columns[: min(shown, default=0)], row, strict=False)
            if value not in (None, "") and not isinstance(value, float)
        ]
        for place in shown:
            column, value = table.columns[place], row[place]
            if isinstance(value, (int, float)) and column.key not in ends:
                low, high = (row[keys.index(key)] if key in keys else None for key in (column.low, column.high))
                known = (low, high) if isinstance(low, (int, float)) and isinstance(high, (int, float)) else (None, None)
                yield Metric(", ".join([table.title, *words]), value, column.title, column.unit, *known)


def _without_repeats(found: Iterable[Metric]) -> list[Metric]:
    """``found`` without repeated quantities: the first of each stays."""
    kept: dict[tuple[str, str], Metric] = {}
    for one in found:
        kept.setdefault((one.key, one.label), one)
    return list(kept.values())


# The metrics of what --json prints

NAMES = ("algorithm", "pass", "name", "phase", "device", "batch", "kernel", "quantity", "id")
"""Keys that distinguish the objects of a list."""
LEFT_OUT = (
    *("inputs", "hardware", "explanation", "schema", "version", "terms", "parts", "unknown", "tile", "noise", "theta", "ratios"),
    *("low", "high", "lower_warm", "io_lower_bound"),
)
CONTAINERS = ("results", "time_s", "traffic", "accesses", "totals", "kernels", "ops")
"""Objects whose name says nothing beside their fields'."""
PREFIXES = ("sram", "dram", "work", "memory", "bytes")
"""Objects whose name stands before their fields'."""
PER_SECOND = {"tokens_per_s": "tokens/s", "tokens_per_s_bound": "tokens/s", "bytes_per_s": "B/s", "flops_per_s": "FLOP/s"}


def _of_object(raw: Any, place: tuple[str, ...] = ()) -> Iterator[Metric]:
    if isinstance(raw, Mapping):
        for key, value in raw.items():
            if key == "predicted" and raw.get("low") is not None and value is not None:
                yield _metric((*place, key), value, "s", raw["low"], raw["high"])
            elif key not in LEFT_OUT and not (key in NAMES and not isinstance(value, (dict, list))):
                yield from _of_object(value, (*place, str(key)))
    elif isinstance(raw, list):
        for index, item in enumerate(raw):
            named = _name(item) if isinstance(item, Mapping) else ""
            yield from _of_object(item, (*place, named or str(index + 1)))
    elif isinstance(raw, (int, float)) and not isinstance(raw, bool) and (unit := _unit(place)):
        yield _metric(place, raw, unit)


def _name(item: Mapping[str, Any]) -> str:
    """Name that distinguishes ``item`` in its list; a kernel of an algorithm goes by its name alone."""
    keys = ("name",) if {"name", "algorithm"} <= set(item) else NAMES
    return " ".join(str(item[key]) for key in keys if item.get(key) not in (None, ""))


def _metric(place: tuple[str, ...], value: float, unit: str, low: float | None = None, high: float | None = None) -> Metric:
    """The metric at the JSON path ``place``: its key from the path, its label from the last name, such as ``sram read``."""
    *head, quantity = (*place[:-1], place[-1].removesuffix("_s").replace("_", " "))
    if head and head[-1] in PREFIXES:
        quantity = f"{head.pop()} {quantity}"
    what = [word for word in head if word not in CONTAINERS] or head or ["all"]
    return Metric(", ".join(what), value, quantity, unit, low, high)


def _unit(place: tuple[str, ...]) -> str:
    """The unit of a number, by its key and those around it; empty for one that cannot be compared."""
    name = place[-1]
    if name in PER_SECOND:
        return PER_SECOND[name]
    if "time_s" in place or name.endswith("_s"):
        return "s"
    if name.endswith("flops") or "work" in place:
        return "FLOP"
    return "B" if name.endswith("bytes") or "bytes" in place or "memory" in place else ""
