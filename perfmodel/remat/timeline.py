"""Memory over time, in as many columns as there is room for: each shows the most that was in memory during its share of the time."""

from __future__ import annotations

from collections.abc import Iterable

from perfmodel.core.arith import Number


def columns(moments: Iterable[tuple[Number, Number]], width: int, *, whole_steps: bool = False) -> list[Number]:
    """The most in each of ``width`` equal parts of the time. ``moments``: the end of each, and what it takes.

    ``whole_steps``: where the time is a number of steps that fit, each gets as many columns, and there may be fewer than ``width``.

    >>> columns([(1, 5), (2, 7), (4, 3)], 4), columns([(1, 5), (2, 7), (4, 3)], 2), columns([(2, 5)], 3, whole_steps=True)
    ([5, 7, 3, 3], [7, 3], [5, 5])
    """
    moments = list(moments)
    total = moments[-1][0] if moments else 0
    if not total:
        return [max(taken for _, taken in moments)] if moments else []
    if whole_steps and total == int(total) <= width:
        width = width // int(total) * int(total)
    found: list[Number] = [0] * width
    first = 0
    for end, taken in moments:
        place = end * width / total
        column = min(int(place), width - 1)
        reach = max(first, column - 1 if column == place else column)  # what ends where a column begins is not in it
        for index in range(first, reach + 1):
            if taken > found[index]:  # noqa: PLR1730 - a call of max takes twice as long
                found[index] = taken
        first = column
    return found
