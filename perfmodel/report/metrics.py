"""Metrics: each number of an answer is written once, and JSON objects and tables are views of a list of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from perfmodel.core.arith import Number
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate, Traffic
from perfmodel.core.units import format_si, format_time
from perfmodel.report.charts.format_number import ABSENT, between, text
from perfmodel.report.document import Table
from perfmodel.report.saved import Interval
from perfmodel.timing.predict import Prediction


class Metric(NamedTuple):
    """A metric: ``value`` in ``unit``, a key of ``UNITS``, or empty if the label says the unit.

    ``key``: its place in the JSON object with dots between levels; empty: only in tables. ``label``: its row or column in a table; empty:
    only in JSON. ``low`` and ``high``: ends of its 80 % interval, which JSON has beside it. ``before``, ``after``: text around it in a
    table. ``source``: its source, the last key of its JSON object.
    """

    key: str
    value: Any
    label: str = ""
    unit: str = "count"
    low: float | None = None
    high: float | None = None
    before: str = ""
    after: str = ""
    source: str = ""

    @property
    def brief(self) -> str:
        """The value with its unit."""
        if self.value is None:
            return ABSENT
        if self.unit == "resource":
            return BOUND_WORDS[self.value].removeprefix("the ")
        if isinstance(self.value, str):
            return f"{self.before}{self.value}{self.after}"
        return f"{self.before}{text(self.value, self.unit) if self.unit else format_si(self.value)}{self.after}"

    @property
    def shown(self) -> str:
        """The value with its unit and interval."""
        if self.low is None or self.high is None:
            return self.brief
        low, high = (format_time(end, 3) if self.unit == "s" else text(end, self.unit) for end in (self.low, self.high))
        return f"{self.before}{text(self.value, self.unit)} ({between(low, high)}){self.after}"


class Name(str):
    """A key of a JSON object that remembers the unit of its number; empty if its metric has none."""

    __slots__ = ("unit",)
    unit: str

    def __new__(cls, name: str, unit: str) -> Name:
        """The key ``name`` of a number in ``unit``."""
        text = super().__new__(cls, name)
        text.unit = "" if unit == "count" else unit
        return text

    def __reduce__(self) -> tuple[type[Name], tuple[str, str]]:
        return Name, (str(self), self.unit)


_RATE = re.compile(r"(\w+_)?(?P<what>[a-z]+)_per_s(_|$)")
_ENDS = {"_per_byte": "FLOP/B", "_per_loaded_byte": "FLOP/B", "intensity": "FLOP/B", "seconds": "s", "bytes": "B", "flops": "FLOP"}
_ENDS |= {"_s": "s", "_us": "us", "_ns": "ns", "_w": "W", "_j": "J", "_hz": "Hz"}
_ENDS |= {"cycles": "cycles", "picojoules": "pJ", "elements": "elements", "share": "share", "shares": "share", "speedup": "ratio"}
_QUALIFIED = re.compile(r"_(per|if)_.*")


@cache
def unit_by_name(key: str) -> str:
    """The unit in the last two names of a JSON path, or else ``count``.

    >>> [unit_by_name(key) for key in ("requests_per_s", "ttft_s.mean", "dram.read_bytes", "time_s.bytes", "freed_bytes_per_s", "running")]
    ['requests/s', 's', 'B', 'B', 'B/s', 'count']
    >>> [unit_by_name(key) for key in ("bytes_per_token", "flop_per_byte", "launch_us", "shares.reading weights")]
    ['B', 'FLOP/B', 'us', 'share']
    """
    for name in reversed(key.split(".")[-2:]):
        rate = _RATE.match(name)
        if rate:
            return f"{_ENDS.get(rate['what'], rate['what'])}/s"
        unqualified = _QUALIFIED.sub("", f"_{name}")
        for written in (f"_{name}", unqualified):
            for end, unit in _ENDS.items():
                if written.endswith(end):
                    return unit
    return "count"


def better(unit: str) -> int:
    """Which direction is better: -1 low, 1 high, 0 neither.

    >>> better("s"), better("requests/s"), better("B")
    (-1, 1, 0)
    """
    if unit in ("s", "us", "ns", "J", "price"):
        return -1
    return 1 if unit.endswith("/s") or unit == "FLOP/J" else 0


Metrics = Sequence[Metric]
Labels = Mapping[str, str] | Sequence[str] | None


def as_json(metrics: Iterable[Metric]) -> dict[str, Any]:
    """The nested object of ``metrics``.

    >>> as_json([Metric("time_s.roofline", 1.0), Metric("time_s.predicted", 2.0, low=1.5, high=2.5), Metric("flops", 8)])
    {'time_s': {'roofline': 1.0, 'predicted': 2.0, 'low': 1.5, 'high': 2.5}, 'flops': 8}
    """
    nested: dict[str, Any] = {}
    cited: list[tuple[dict[str, Any], str]] = []
    for metric in metrics:
        if not metric.key:
            continue
        *path, name = metric.key.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[Name(name, metric.unit)] = metric.value
        if isinstance(metric.value, dict):
            place[name] = {Name(term, metric.unit): value for term, value in metric.value.items()}
        if metric.low is not None or metric.key == "time_s.predicted":
            place |= {"low": metric.low, "high": metric.high}
        cited += [(place, metric.source)] if metric.source else []
    for place, source in cited:
        place["source"] = source
    return nested


def as_table(
    title: str, columns: Mapping[str, Metrics], corner: str = "", *, labels: Labels = None, without: Collection[str] = ()
) -> Table:
    """A table with a column per list of metrics and a row per label; empty rows and those of the keys ``without`` are left out.

    ``labels``: keys with a row, in this order, perhaps with other labels; by default all with a label. An indented row names its parent if
    that has no row before it.

    >>> as_table("", {"here": [Metric("bytes", 2048, "size", "B"), Metric("time_s", None, "time", "s")]}).rows
    [['size', '2.048 kB']]
    """
    shown_columns = [[metric for metric in metrics if metric.key not in without] for metrics in columns.values()]
    cells = [(label, [_metric_of(metrics, keys, labels) for metrics in shown_columns]) for label, keys in _labels(shown_columns, labels)]
    rows = [
        [label, *(ABSENT if metric is None else metric.shown for metric in row_cells)]
        for label, row_cells in cells
        if any(metric is not None and metric.value is not None for metric in row_cells)
    ]
    return Table(title, [corner, *columns], rows)


def as_rows(title: str, entries: Iterable[Metrics], *, labels: Labels = None) -> Table:
    """A table with a row per list of metrics and a column per label, without intervals. ``labels``: keys with a column, as in ``as_table``.

    Neighbouring keys with one label share a column.

    >>> as_rows("", [[Metric("name", "x", "tensor", "text"), Metric("bytes", 2048, "size", "B")]])
    Table(title='', columns=['tensor', 'size'], rows=[['x', '2.048 kB']], align='lr', drawn=False)
    """
    entry_rows = list(entries)
    heads = _labels(entry_rows, labels)
    cells = [[_metric_of(entry, keys, labels) for _, keys in heads] for entry in entry_rows]
    rows = [[ABSENT if metric is None else metric.brief for metric in row] for row in cells]
    align = ""
    for column in zip(*cells, strict=True):
        has_words = any(metric is not None and metric.unit in ("text", "resource") for metric in column)
        align += "l" if has_words or not align else "r"  # the first column names the row
    return Table(title, [label for label, _ in heads], rows, align)


def _labels(columns: Iterable[Metrics], labels: Labels) -> list[tuple[str, list[str]]]:
    """Every label with its keys; a metric without a key goes by its own label."""
    if labels is None:
        return [(label, [label]) for label in dict.fromkeys(metric.label for metrics in columns for metric in metrics if metric.label)]
    if not isinstance(labels, Mapping):
        labels = _whole(columns, labels)
    return [(label, [key for key, _ in pairs]) for label, pairs in groupby(labels.items(), itemgetter(1))]


def _whole(columns: Iterable[Metrics], keys: Sequence[str]) -> dict[str, str]:
    """The labels of ``keys``; an indented label gets its parent's in front if that does not come before it."""
    label_of, parent_of = dict[str, str](), dict[str, str]()
    parent = ""
    for metrics in columns:
        for metric in metrics:
            if metric.label:
                parent = parent if metric.label.startswith(" ") else metric.label
                label_of[metric.key or metric.label] = metric.label
                parent_of[metric.key or metric.label] = parent
    whole_labels = dict[str, str]()
    previous_parent = ""
    for key in keys:
        if key in label_of:
            label, parent = label_of[key], parent_of[key]
            whole_labels[key] = label if parent in (previous_parent, label) else f"{parent}, {label.strip()}"
            previous_parent = parent
    return whole_labels


def _metric_of(metrics: Metrics, keys: Collection[str], labels: Labels) -> Metric | None:
    """The first metric with one of ``keys``, or without ``labels`` with one of them as its label."""
    return next((metric for metric in metrics if (metric.label if labels is None else metric.key or metric.label) in keys), None)


def of_fields(of: Any, *names: str, unit: str = "count") -> list[Metric]:
    """Attributes of ``of``, unchanged, in JSON only."""
    return [Metric(name, getattr(of, name), unit=unit) for name in names]


BYTES = frozenset({"accesses.bytes", "accesses.zero_fill_bytes"})
NO_EXPONENTIALS = BYTES | {"work.sfu"}
NO_MATMUL = BYTES | {"flops", "executed_flops", "arithmetic_intensity.sram", "arithmetic_intensity.dram"}
"""Keys of rows that mean nothing for an operation without products."""


def of_cost(cost: Estimate, predicted: Interval | None = None, labels: Mapping[str, str] | None = None) -> list[Metric]:
    """Metrics of counts and times of an estimate. ``predicted``: seconds. ``labels``: unusual labels by key."""
    value, low, high = (None, None, None) if predicted is None else (predicted.value, predicted.low, predicted.high)
    metrics = [
        Metric("flops", cost.flops, "FLOP", "FLOP"),
        Metric("executed_flops", cost.executed_flops, "FLOP, executed", "FLOP"),
        Metric("work.tensor", cost.work.tensor, unit="FLOP"),
        Metric("work.vector", cost.work.vector, "vector operations", "FLOP"),
        Metric("work.sfu", cost.work.sfu, "exponentials", "operations"),
        Metric("accesses.reads", cost.reads, unit="elements"),
        Metric("accesses.writes", cost.writes, unit="elements"),
        Metric("accesses.total", cost.reads + cost.writes, "accesses without a cache", "elements"),
        Metric("accesses.bytes", cost.access_bytes, "bytes without a cache", "B"),
        Metric("accesses.zero_fill", cost.zero_fill, unit="elements"),
        Metric("accesses.zero_fill_bytes", cost.zero_fill_bytes, "  zero fill besides", "B"),
        Metric("accesses.group_sum", cost.group_sum, unit="elements"),
        *of_traffic("sram", cost.sram),
        *of_traffic("dram", cost.dram),
        Metric("arithmetic_intensity.sram", _intensity(cost.flops, cost.sram), "arithmetic intensity, L2", "FLOP/B"),
        Metric("arithmetic_intensity.dram", _intensity(cost.flops, cost.dram), "arithmetic intensity, DRAM", "FLOP/B"),
        Metric("time_s.lower", cost.lower_s, "lower bound, cold L2", "s"),
        Metric("time_s.lower_warm", cost.lower_warm_s, unit="s"),
        Metric("time_s.roofline", cost.roofline_s, "roofline", "s"),
        *(Metric("", term, f"  {BOUND_WORDS[name].removeprefix('the ')} alone", "s") for name, term in cost.terms.items()),
        Metric("time_s.no_overlap", cost.no_overlap_s, "  without overlap", "s"),
        Metric("time_s.predicted", value, "predicted", "s", low, high),
        Metric("time_s.terms", cost.terms, unit="s"),
        Metric("time_s.unknown", sorted(cost.unknown)),
        Metric("bound", cost.bound, "bound by", "resource"),
    ]
    return [metric._replace(label=labels.get(metric.key, metric.label)) for metric in metrics] if labels else metrics


def of_memory(size: Number, device: Device, extra: Number | None = None) -> list[Metric]:
    """Metrics of bytes alive at once, whether they fit the DRAM of ``device``, and bytes beyond inputs and outputs."""
    fitting = device.fits(int(size))
    fit = Metric("fits", fitting)
    metrics = [Metric("memory_bytes", size, "memory", "B", after="" if fitting is not False else " (does not fit)"), fit]
    return metrics if extra is None else [*metrics, Metric("extra_memory_bytes", extra, "  beyond inputs and outputs", "B")]


def outside(device: Device) -> str:
    """Name for bytes that cross the SRAM of a multiprocessor: that of the L2 if there is one."""
    return "L2" if device.vendor in ("NVIDIA", "AMD") or device.cache_bytes is not None else "SRAM"


def words_for(device: Device) -> dict[str, str]:
    """Labels of ``of_cost`` that differ on ``device``, by key, for a device without a cache outside the SRAM."""
    name = outside(device)
    return {} if name == "L2" else {"traffic.sram.bytes": f"{name} traffic", "arithmetic_intensity.sram": f"arithmetic intensity, {name}"}


def of_traffic(level: str, moved: Traffic) -> list[Metric]:
    """Metrics of bytes read and written at ``level``; at the SRAM, those that the L2 delivers."""
    return [
        Metric(f"traffic.{level}.read_bytes", moved.read),
        Metric(f"traffic.{level}.write_bytes", moved.write),
        Metric(f"traffic.{level}.bytes", moved.total, f"{'L2' if level == 'sram' else level.upper()} traffic", "B"),
    ]


def _intensity(flops: Number, moved: Traffic) -> float | None:
    """FLOP/B, or None if no byte crosses the level (as with a score matrix that stays in the L2)."""
    return float(flops / moved.total) if moved.total else None


BOUND_WORDS = {
    "sram": "shared memory bandwidth",
    "dram": "DRAM bandwidth",
    "l2": "L2 bandwidth",
    "llc": "LLC bandwidth",
    "tensor": "the tensor unit",
    "vector": "the vector unit",
    "sfu": "the exponential unit",
    "interconnect": "the interconnect",
}


def bound_by(cost: Estimate) -> str:
    """Phrase on what bounds a roof, with its seconds."""
    if cost.bound is None:
        return "nothing whose rate the profile knows"
    term, roof = format_time(cost.terms[cost.bound]), format_time(cost.roofline_s)
    return f"{BOUND_WORDS[cost.bound]} ({term})" if term == roof else f"{BOUND_WORDS[cost.bound]} ({term} of {roof})"


def seconds(prediction: Prediction | None) -> Interval | None:
    """Seconds of ``prediction`` with the ends of its interval; None without one."""
    if prediction is None:
        return None
    return Interval(float(prediction.seconds), float(prediction.low), float(prediction.high))
