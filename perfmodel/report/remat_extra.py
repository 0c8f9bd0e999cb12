"""Further tables of a report of schedules: what memory buys, and tensor by tensor, keep it or compute it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfmodel.core.units import format_si, format_time
from perfmodel.remat.device_chain import Choice
from perfmodel.remat.evaluate import Point
from perfmodel.report.document import Table
from perfmodel.report.remat_words import Words

TENSOR_NOTE = (
    "At the roofline: what perfmodel recompute says of keeping against computing again, inputs at hand. Frees: bytes per second of the "
    "kernel's roofline time; where memory is short, give up the uppermost first."
)


def curve_table(points: Sequence[Point], words: Words) -> Table:
    """The cheapest schedule for some amounts of memory."""
    rows = [[words.size(point.memory), words.cost(point.cost), f"{point.overhead:.1%}"] for point in points]
    return Table(
        "what memory buys: the cheapest schedule within it",
        ["memory", "time" if words.question.timed else "steps", "more than with everything kept"],
        rows,
        "rrr",
    )


def curve_data(points: Sequence[Point]) -> list[dict[str, Any]]:
    """The same as JSON objects."""
    return [{"memory": point.memory, "cost": point.cost, "overhead": point.overhead} for point in points]


def tensor_table(found: Sequence[Choice]) -> Table:
    """Each kind of tensor, that which frees the most memory per second first."""
    rows = [
        [
            choice.tensor.name,
            f"{choice.tensor.count:,}",
            format_si(choice.tensor.size, "B"),
            f"{choice.result.intensity:.4g}",
            format_time(choice.tensor.seconds),
            format_si(choice.freed_bytes_per_s, "B/s"),
            "recompute" if choice.result.recomputes else "store",
        ]
        for choice in found
    ]
    columns = ["tensor", "number", "size", "FLOP/B", "to make again", "frees", "at the roofline"]
    return Table("keep it or compute it again, tensor by tensor", columns, rows, "lrrrrrl")


def tensor_data(found: Sequence[Choice]) -> list[dict[str, Any]]:
    """The same as JSON objects."""
    return [
        {
            "tensor": choice.tensor.name,
            "count": choice.tensor.count,
            "bytes": choice.tensor.size,
            "flop_per_byte": choice.result.intensity,
            "recompute_s": choice.result.recompute_s,
            "store_s": choice.result.best.store_s,
            "kernel_s": choice.tensor.seconds,
            "freed_bytes_per_s": choice.freed_bytes_per_s,
            "verdict": "recompute" if choice.result.recomputes else "store",
        }
        for choice in found
    ]
