"""Where, in a sweep, one value of the compared choice beats the first: flash attention against standard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from perfmodel.report.document import Table
from perfmodel.sweep.ask import Result
from perfmodel.sweep.summary import Shares

SHOWN_WORDS = 3


@dataclass(frozen=True, slots=True)
class Pays:
    """Along one axis: values at which the other wins in every configuration, in none, and its share at the ends.

    ``always`` and ``never`` are (first, last) of the stretch at an end of a sorted axis, or lists of words; None for no such value.
    """

    other: str
    axis: str
    always: Any
    never: Any
    lowest: float
    highest: float


def pays(result: Result) -> Iterator[Pays]:
    """Every axis along which it matters which one is taken."""
    for other, axes in result.summary.shares.items():
        for axis, shares in axes.items():
            found = _along(other, axis, shares)
            if found is not None:
                yield found


def _along(other: str, axis: str, shares: Shares) -> Pays | None:
    known = shares.of > 0
    if known.sum() < 2:
        return None
    values, share = shares.values[known], shares.wins[known] / shares.of[known]
    if share.min() == share.max():
        return None
    if values.dtype.kind in "US":
        return Pays(other, axis, values[share == 1].tolist(), values[share == 0].tolist(), float(share.min()), float(share.max()))
    order = values.argsort()
    values, share = values[order], share[order]
    return Pays(other, axis, _end(values, share == 1), _end(values, share == 0), float(share.min()), float(share.max()))


def _end(values: Any, holds: Any) -> tuple[int | float, int | float] | None:
    """The stretch from one end of the axis in which ``holds`` is true throughout; the longer one if both ends have one."""
    count = len(values)
    first = count if holds.all() else int(holds.argmin())
    last = count if holds.all() else int(holds[::-1].argmin())
    if not max(first, last):
        return None
    start, stop = (0, first) if first >= last else (count - last, count)
    return _plain(values[start]), _plain(values[stop - 1])


def _plain(value: Any) -> int | float:
    return int(value) if float(value).is_integer() else float(value)


def pays_sentences(result: Result) -> list[str]:
    """In how many configurations each other one wins."""
    summary = result.summary
    found = []
    for other, (wins, of) in summary.compared.items():
        if of:
            share = f"{min(max(wins / of, 0.001), 0.999):.1%}" if wins not in (0, of) else ("all" if wins else "none")
            found.append(f"{other} has less {summary.objective} than {summary.reference} in {share} of {of:,} configurations.")
    return found


def pays_table(result: Result) -> list[Table]:
    """One line per axis along which the answer changes."""
    rows = [[one.other, one.axis, _words(one.never), _words(one.always), f"{one.lowest:.0%} to {one.highest:.0%}"] for one in pays(result)]
    title = f"where less {result.summary.objective} than {result.summary.reference}"
    return [Table(title, ["", "along", "nowhere at", "everywhere at", "share of configurations"], rows, "llrrr")] if rows else []


def _words(stretch: Any) -> str:
    if not stretch:
        return "-"
    if isinstance(stretch, list):
        return ", ".join(stretch[:SHOWN_WORDS]) + (f" and {len(stretch) - SHOWN_WORDS} more" if len(stretch) > SHOWN_WORDS else "")
    first, last = stretch
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def pays_data(result: Result) -> dict[str, Any] | None:
    """The same for JSON; None where nothing is compared."""
    summary = result.summary
    if not summary.compared:
        return None
    counts = {other: {"wins": wins, "of": of} for other, (wins, of) in summary.compared.items()}
    along = [
        {
            "name": one.other,
            "axis": one.axis,
            "never": one.never,
            "always": one.always,
            "least_share": one.lowest,
            "most_share": one.highest,
        }
        for one in pays(result)
    ]
    return {"reference": str(summary.reference), "column": summary.objective, "wins": counts, "along": along}
