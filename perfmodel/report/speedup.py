"""Verdicts on two alternatives, the same for every command: by times if both are known, else by roofs, as stated.

A kernel takes at least the time of its roof. So the gain over a reference with only a roof is at least that roof over the time, and the
gain of an alternative with only a roof is at most the reference's time over that roof. Of two roofs only their ratio is known and stated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from perfmodel.core.units import format_time
from perfmodel.report.answer import ROOFS_EVEN, time_text
from perfmodel.report.charts.format_number import percent
from perfmodel.report.saved import Interval

MEASURED, PREDICTED = "measured", "predicted"
EVEN = 0.005
"""Relative difference below which two times are equally fast."""
EITHER = ", so either may be faster"
OPPOSITE = {"": "", "at most ": "at least ", "at least ": "at most "}
_ENDS = re.compile(r"(?:faster|slower|as fast)[^:;]* \([\d.,]+x to ")
RATIO_NOTE = "The interval of a ratio combines the two 80 % intervals as independent errors in log space."


class Side(NamedTuple):
    """One side of a comparison. ``roof_s``: seconds at its roof; ``time``: those of the kernel ``by``, measured or predicted (``kind``).

    ``left_out``: phrases on dominant causes that its roof leaves out.
    """

    name: str
    roof_s: float
    time: Interval | None = None
    kind: str = PREDICTED
    by: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def whose(self) -> str:
        """Text with the kernel, to follow its time."""
        return f" by {self.by}" if self.by else ""


def ratio(over: Interval, under: Interval) -> Interval:
    """``over`` / ``under`` with ends for independent errors in log space; without ends if any is unknown.

    >>> ratio(Interval(4.0, 2.0, 8.0), Interval(1.0, 1.0, 1.0))
    Interval(value=4.0, low=2.0, high=8.0)
    """
    value = over.value / under.value
    if over.low is None or over.high is None or under.low is None or under.high is None:
        return Interval(value)
    down = math.hypot(math.log(over.value / over.low), math.log(under.high / under.value))
    up = math.hypot(math.log(over.high / over.value), math.log(under.value / under.low))
    return Interval(value, value * math.exp(-down), value * math.exp(up))


def ratio_text(gain: float) -> str:
    """A ratio to three digits.

    >>> ratio_text(2.0), ratio_text(5463.2)
    ('2x', '5,460x')
    """
    rounded = float(f"{gain:.3g}")
    return f"{rounded:,.0f}x" if rounded >= 1000 else f"{gain:.3g}x"


def gain_text(gain: float, than: str = "", most: str = "") -> str:
    """Phrase for a gain: how much faster or slower. ``most``: "at most " or "at least " before a gain, of which a loss gets the opposite.

    >>> gain_text(2.0), gain_text(0.5, "standard"), gain_text(1.001, "standard"), gain_text(0.5, most="at most ")
    ('2x faster', '2x slower than standard', 'as fast as standard', 'at least 2x slower')
    """
    if abs(gain - 1) <= EVEN:
        return "as fast" + (f" as {than}" if than else "")
    words = f"{most}{ratio_text(gain)} faster" if gain > 1 else f"{OPPOSITE[most]}{ratio_text(1 / gain)} slower"
    return words + (f" than {than}" if than else "")


def gain_range_text(low: float, high: float, than: str) -> str:
    """Phrase for a range of gains to two digits.

    >>> gain_range_text(5.89, 11.44, "standard"), gain_range_text(0.25, 0.5, "standard")
    ('5.9 to 11 times faster than standard', '2 to 4 times slower than standard')
    >>> gain_range_text(2.0, 2.01, "standard"), gain_range_text(0.5, 2.0, "standard")
    ('2 times faster than standard', 'from 2x slower to 2x faster than standard')
    """
    if max(abs(low - 1), abs(high - 1)) <= EVEN:
        return gain_text(low, than)
    if low <= 1 + EVEN and high >= 1 - EVEN:
        return f"from {gain_text(low)} to {gain_text(high)} than {than}"
    word = "faster"
    if high < 1:
        low, high, word = 1 / high, 1 / low, "slower"
    ends = dict.fromkeys((_two_digits(low), _two_digits(high)))
    return f"{' to '.join(ends)} times {word} than {than}"


def _two_digits(gain: float) -> str:
    return f"{float(f'{gain:.2g}'):,.12g}"


def interval_text(interval: Interval) -> str:
    """Phrase for the interval of a ratio, inverted for a loss; it says that either may be faster if 1 is inside."""
    if interval.low is None or interval.high is None:
        return ""
    low, high = interval.low, interval.high
    if interval.value < 1:
        low, high = 1 / high, 1 / low
    return f" ({ratio_text(low)} to {ratio_text(high)}{EITHER if low < 1 else ''})"


def verdict_sentence(reference: Side, other: Side, at: str = "") -> str:
    """Sentence without full stop on ``other`` against ``reference``. ``at``: the workload, such as `` at n 4,096``."""
    if reference.time is None or other.time is None:
        return _verdict_by_roofs(reference, other, at)
    gain = ratio(reference.time, other.time)
    verdict = f"{other.name} is {_kinds(reference, other)} {gain_text(gain.value, reference.name)}{at}{interval_text(gain)}"
    times = f"{format_time(other.time.value)}{other.whose} against {format_time(reference.time.value)}{reference.whose}"
    roofs = f"; ratio of roofs {ratio_text(reference.roof_s / other.roof_s)}" if reference.roof_s and other.roof_s else ""
    return f"{verdict}: {times}{roofs}"


def _kinds(reference: Side, other: Side) -> str:
    """What the times are: measured or predicted, or which of them is which."""
    return other.kind if other.kind == reference.kind else f"{other.kind}, against {reference.kind},"


def faster_sentence(reference: Side, other: Side) -> str:
    """Sentence without full stop on which side is faster, without the times.

    >>> faster_sentence(Side("standard", 1e-3, Interval(2e-3, 1.8e-3, 2.2e-3)), Side("flash2", 5e-4, Interval(1e-3, 0.9e-3, 1.1e-3)))
    'flash2 is predicted 2x faster than standard (1.74x to 2.31x)'
    >>> faster_sentence(Side("standard", 1e-3, Interval(2e-3, 1e-3, 4e-3)), Side("flash2", 5e-4, Interval(1e-3, 5e-4, 2e-3)))
    'either may be faster: flash2 is predicted 2x faster (0.75x to 5.33x)'
    >>> faster_sentence(Side("standard", 1e-3), Side("flash2", 5e-4))
    'by the ratio of roofs flash2 is 2x faster than standard; not predicted'
    >>> faster_sentence(Side("standard", 1e-3), Side("flash2", 5e-4, Interval(8e-4)))
    'flash2 is at least 1.25x faster than standard; standard is not predicted: its roof stands in'
    """
    if reference.time is None or other.time is None:
        gain_by_roof, limit = roof_gain(reference, other)
        words = f"{other.name} is {gain_text(gain_by_roof, reference.name, limit)}"
        if not limit:
            return f"by the ratio of roofs {words}; not predicted"
        unpredicted = reference if reference.time is None else other
        return f"{words}; {unpredicted.name} is not predicted: its roof stands in"
    gain = ratio(reference.time, other.time)
    kind = _kinds(reference, other)
    interval = interval_text(gain)
    if EITHER in interval:  # first, and short: a sentence is a line
        return f"either may be faster: {other.name} is {kind} {gain_text(gain.value)}{interval.replace(EITHER, '')}"
    return f"{other.name} is {kind} {gain_text(gain.value, reference.name)}{interval}"


def _verdict_by_roofs(reference: Side, other: Side, at: str) -> str:
    """Sentence without full stop by roofs, with the time of the side that has one."""
    gain, limit = roof_gain(reference, other)
    words = f"{other.name} is {gain_text(gain, reference.name, limit)}{at}"
    times = f"{format_time(other.roof_s)} against {format_time(reference.roof_s)}"
    words += f" (roofs: {times})" if limit else f" by roofs (ratio of roofs: {times})"
    timed = "neither is predicted"
    for side in (reference, other):
        if side.time is not None:
            timed = f"only {side.name} is {side.kind}, {time_text(side.time)}{side.whose}"
    left_out = [cause for side in (reference, other) if side.time is None for cause in side.left_out]
    return f"{words}; {timed}. Left out: {'; '.join(left_out)}" if left_out else f"{words}; {timed}"


def roof_gain(reference: Side, other: Side) -> tuple[float, str]:
    """Gain of ``other`` if at least one side has only a roof, and ``at least`` or ``at most`` if only one side does; else empty."""
    if other.time is not None:
        return reference.roof_s / other.time.value, "at least "
    if reference.time is not None:
        return reference.time.value / other.roof_s, "at most "
    gain = reference.roof_s / other.roof_s
    return 1.0 if abs(gain - 1) <= ROOFS_EVEN else gain, ""


def side_clause(side: Side) -> str:
    """Clause on the time and roof of one side."""
    if side.time is None:
        return f"{side.name} has a roof of {format_time(side.roof_s)} and is not predicted"
    time = f"{side.name} is {side.kind} at {time_text(side.time)}{side.whose}"
    if not side.roof_s:
        return time
    share = side.roof_s / side.time.value
    place = "below" if share > 1 + EVEN else f"{percent(share)} of"
    return f"{time}, {place} its roof of {format_time(side.roof_s)}"


def ratio_notes(verdict: Iterable[str]) -> list[str]:
    """Notes on the intervals of ratios in ``verdict``, if there are any."""
    return [RATIO_NOTE] * any(_ENDS.search(sentence) for sentence in verdict)
