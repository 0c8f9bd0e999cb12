"""A number of an answer, written once. JSON objects and tables are views of a list of these; a new format is another."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.core.arith import Number
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate
from perfmodel.core.units import format_time
from perfmodel.report.charts.format_number import text
from perfmodel.report.document import Table
from perfmodel.timing.predict import Prediction


@dataclass(frozen=True, slots=True)
class Metric:
    """``value`` in ``unit`` (a key of ``UNITS``). ``key``: its place in the JSON object, dots between levels.

    ``label``: of its row in a table; without one it has none. ``low`` and ``high``: the ends of its 80 % interval, which stand beside
    it in JSON. ``after``: words that follow it in a table.
    """

    key: str
    value: Any
    label: str = ""
    unit: str = "count"
    low: float | None = None
    high: float | None = None
    after: str = ""

    @property
    def shown(self) -> str:
        """The value with its unit and interval, as a table has it."""
        if self.low is None or self.high is None:
            return text(self.value, self.unit) + self.after
        low, high = (format_time(end, 3) if self.unit == "s" else text(end, self.unit) for end in (self.low, self.high))
        return f"{text(self.value, self.unit)} ({low} to {high}){self.after}"


def as_json(metrics: Iterable[Metric]) -> dict[str, Any]:
    """The nested object of ``metrics``.

    >>> as_json([Metric("time_s.roofline", 1.0), Metric("time_s.predicted", 2.0, low=1.5, high=2.5), Metric("flops", 8)])
    {'time_s': {'roofline': 1.0, 'predicted': 2.0, 'low': 1.5, 'high': 2.5}, 'flops': 8}
    """
    found: dict[str, Any] = {}
    for metric in metrics:
        *path, name = metric.key.split(".")
        place = found
        for part in path:
            place = place.setdefault(part, {})
        place[name] = metric.value
        if metric.low is not None or name == "predicted":
            place |= {"low": metric.low, "high": metric.high}
    return found


def as_table(title: str, columns: Mapping[str, Sequence[Metric]], corner: str = "", without: Collection[str] = ()) -> Table:
    """One column per list of metrics, one row per label; a row without any value is left out, and those of the keys ``without``."""
    known = {name: {metric.key: metric for metric in metrics} for name, metrics in columns.items()}
    labels = {metric.key: metric.label for metrics in columns.values() for metric in metrics if metric.label}
    rows = []
    for key in [key for key in labels if key not in without]:
        cells = [known[name].get(key) for name in columns]
        if any(cell is not None and cell.value is not None for cell in cells):
            rows.append([labels[key], *("-" if cell is None else cell.shown for cell in cells)])
    return Table(title, [corner, *columns], rows)


BYTES = frozenset({"accesses.bytes", "accesses.zero_fill_bytes"})
NO_EXPONENTIALS = BYTES | {"work.sfu"}
NO_MATMUL = BYTES | {"flops", "executed_flops", "arithmetic_intensity.sram", "arithmetic_intensity.dram"}
"""Rows that say nothing of an operation without exponentials, or without products."""


def of_cost(cost: Estimate, prediction: Prediction | None = None, labels: Mapping[str, str] | None = None) -> list[Metric]:
    """Counts and times of one estimate, which every result and every kernel of a result have. ``labels``: others than usual, by key."""
    found = _of_cost(cost, prediction)
    return [replace(metric, label=labels[metric.key]) if metric.key in labels else metric for metric in found] if labels else found


def _of_cost(cost: Estimate, prediction: Prediction | None) -> list[Metric]:
    predicted = (None, None, None) if prediction is None else (prediction.seconds, prediction.low, prediction.high)
    return [
        Metric("flops", cost.flops, "FLOP", "FLOP"),
        Metric("executed_flops", cost.executed_flops, "FLOP, executed", "FLOP"),
        Metric("work.tensor", cost.work.tensor),
        Metric("work.vector", cost.work.vector, "vector operations", "FLOP"),
        Metric("work.sfu", cost.work.sfu, "exponentials", "operations"),
        Metric("accesses.reads", cost.reads),
        Metric("accesses.writes", cost.writes),
        Metric("accesses.total", cost.reads + cost.writes, "accesses, two-level model", "elements"),
        Metric("accesses.bytes", cost.access_bytes, "  in bytes", "B"),
        Metric("accesses.zero_fill", cost.zero_fill),
        Metric("accesses.zero_fill_bytes", cost.zero_fill_bytes, "  zero fill besides", "B"),
        Metric("accesses.group_sum", cost.group_sum),
        *(metric for level in ("sram", "dram") for metric in _traffic(cost, level)),
        *(Metric(f"arithmetic_intensity.{level}", intensity(cost, level), _intensity(level), "FLOP/B") for level in ("sram", "dram")),
        Metric("time_s.lower", cost.lower_s, "lower bound, cold L2", "s"),
        Metric("time_s.lower_warm", cost.lower_warm_s),
        Metric("time_s.roofline", cost.roofline_s, "roofline", "s"),
        Metric("time_s.no_overlap", cost.no_overlap_s, "  without overlap", "s"),
        Metric("time_s.predicted", predicted[0], "predicted", "s", predicted[1], predicted[2]),
        Metric("time_s.terms", cost.terms),
        Metric("time_s.unknown", sorted(cost.unknown)),
        Metric("bound", cost.bound, "bound by", "text"),
    ]


def of_memory(size: Number, device: Device, extra: Number | None = None) -> list[Metric]:
    """Bytes at once, whether they fit the DRAM of ``device``, and those beyond inputs and outputs."""
    fitting = fits(int(size), device)
    found = [Metric("memory_bytes", size, "memory", "B", after="" if fitting is not False else " (does not fit)"), Metric("fits", fitting)]
    return found if extra is None else [*found, Metric("extra_memory_bytes", extra, "  beyond inputs and outputs", "B")]


def fits(size: int, device: Device) -> bool | None:
    """Whether ``size`` bytes fit the DRAM of ``device``; None where that is unknown."""
    capacity = device.dram.capacity
    return None if capacity is None else size <= capacity.number


def _traffic(cost: Estimate, level: str) -> list[Metric]:
    moved = getattr(cost, level)
    return [
        Metric(f"traffic.{level}.read_bytes", moved.read),
        Metric(f"traffic.{level}.write_bytes", moved.write),
        Metric(f"traffic.{level}.bytes", moved.total, f"{level.upper()} traffic", "B"),
    ]


def _intensity(level: str) -> str:
    return f"arithmetic intensity, {level.upper()}"


def intensity(cost: Estimate, level: str) -> float | None:
    """FLOP/B, or None where the level sees no byte (a score matrix that the L2 hands over)."""
    moved = getattr(cost, level)
    return float(cost.flops / moved.total) if moved.total else None
