"""Where, in a sweep, one value of the compared choice beats the first: flash attention against standard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.report.document import Table
from perfmodel.sweep.run_sweep import SweepResult
from perfmodel.sweep.summary import WinShares

SHOWN_WORDS = 3
ROOF = "roofline_s"
"""The column of times at the roof."""

Stretch = tuple[int | float, int | float]


@dataclass(frozen=True, slots=True)
class Pays:
    """Along one axis: values at which the other wins in every configuration, in none, and its share at the ends.

    ``always`` and ``never`` are (first, last) of the stretch at an end of a sorted axis, or lists of words; None for no such value.
    ``always_at`` and ``never_at`` are all such stretches of an axis of numbers, those at its ends among them.
    """

    other: str
    axis: str
    always: Any
    never: Any
    lowest: float
    highest: float
    always_at: Sequence[Stretch] = ()
    never_at: Sequence[Stretch] = ()


def pays(result: SweepResult) -> Iterator[Pays]:
    """Every axis along which it matters which one is taken."""
    for other, axes in result.summary.shares.items():
        for axis, shares in axes.items():
            found = _along(other, axis, shares)
            if found is not None:
                yield found


def _along(other: str, axis: str, shares: WinShares) -> Pays | None:
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
    always, never, least, most = share == 1, share == 0, float(share.min()), float(share.max())
    return Pays(other, axis, _end(values, always), _end(values, never), least, most, _stretches(values, always), _stretches(values, never))


def _stretches(values: Any, holds: Any) -> list[Stretch]:
    """Every stretch of the axis in which ``holds`` is true throughout."""
    found: list[Stretch] = []
    begun = None
    for index, one in enumerate([*holds.tolist(), False]):
        if one and begun is None:
            begun = index
        elif not one and begun is not None:
            found.append((_plain(values[begun]), _plain(values[index - 1])))
            begun = None
    return found


def _end(values: Any, holds: Any) -> Stretch | None:
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


def pays_sentences(result: SweepResult) -> list[str]:
    """In how many configurations each other one has less."""
    summary = result.summary
    found = []
    for other, (wins, of) in summary.compared.items():
        known, both = summary.predicted.get(other, (0, 0))
        roofs = ", by the ratio of roofs alone" if summary.objective == ROOF else ""
        if both:
            found.append(f"{other} is predicted to take less time than {summary.reference} in {_part(known, both)} configurations.")
        if of:
            found.append(f"{other} has less {summary.objective} than {summary.reference} in {_part(wins, of)} configurations{roofs}.")
    return found


def _part(wins: int, of: int) -> str:
    share = f"{min(max(wins / of, 0.001), 0.999):.1%}" if wins not in (0, of) else ("all" if wins else "none")
    return f"{share} of {of:,}"


def pays_table(result: SweepResult) -> list[Table]:
    """One line per axis along which the answer changes."""
    rows = [
        [
            one.other,
            one.axis,
            _words(one.never_at or one.never),
            _words(one.always_at or one.always),
            f"{one.lowest:.0%} to {one.highest:.0%}",
        ]
        for one in pays(result)
    ]
    title = f"where less {result.summary.objective} than {result.summary.reference}"
    return [Table(title, ["", "along", "nowhere at", "everywhere at", "share of configurations"], rows, "llrrr")] if rows else []


def _words(stretches: Any) -> str:
    """Words, or stretches of numbers; of many the first few, and how far the others reach."""
    if not stretches:
        return "-"
    named = [one if isinstance(one, str) else _told(*one) for one in stretches]
    if len(named) <= SHOWN_WORDS:
        return ", ".join(named)
    more = f"{len(named) - SHOWN_WORDS} more"
    return f"{', '.join(named[:SHOWN_WORDS])} and {more}" + ("" if isinstance(stretches[-1], str) else f" up to {stretches[-1][1]:,}")


def _told(first: float, last: float) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def pays_data(result: SweepResult) -> dict[str, Any] | None:
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
            "never_at": list(one.never_at),
            "always_at": list(one.always_at),
            "least_share": one.lowest,
            "most_share": one.highest,
        }
        for one in pays(result)
    ]
    predicted = {other: {"wins": wins, "of": of} for other, (wins, of) in summary.predicted.items()}
    names = {"reference": str(summary.reference), "column": summary.objective}
    return {**names, "wins": counts, "predicted": predicted, "along": along}
