"""The verdict on two alternatives, the same for every command: by times if both are known, else by roofs, and it says which.

A kernel takes at least the time of its roof. So the gain over a reference that only has a roof is at least that roof over the time, and the
gain of what only has a roof is at most the reference's time over that. Of two roofs only their ratio is known, and called so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from perfmodel.core.hardware import Device
from perfmodel.core.units import format_time
from perfmodel.report.charts.format_number import percent
from perfmodel.report.charts.schema import Interval

MEASURED, PREDICTED = "measured", "predicted"
EVEN = 0.005
"""Times this close, relative, are as fast; what is written to three digits."""
ROOFS_EVEN = 0.02
"""Roofs this close are called even."""
LAUNCH_S = 10e-6
"""A roof below this is mostly launch, where a profile does not say how long a launch takes."""
EITHER = ", so either may be faster"
OPPOSITE = {"": "", "at most ": "at least ", "at least ": "at most "}
_ENDS = re.compile(r"(?:faster|slower|as fast)[^:;]* \([\d.,]+x to ")
RATIO_NOTE = "The interval of a ratio combines the two 80 % intervals as independent errors in log space."


@dataclass(frozen=True, slots=True)
class Side:
    """One of two. ``roof_s``: seconds at its roof; ``time``: measured or predicted ones, as ``kind`` says, of the kernel ``by``.

    ``left_out``: what its roof leaves out although it dominates, in words.
    """

    name: str
    roof_s: float
    time: Interval | None = None
    kind: str = PREDICTED
    by: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def whose(self) -> str:
        """The kernel whose time it is, after that time."""
        return f" by {self.by}" if self.by else ""


def ratio(over: Interval, under: Interval) -> Interval:
    """``over`` / ``under``; its ends as far away as independent errors in log space add up, none where an end is unknown.

    >>> ratio(Interval(4.0, 2.0, 8.0), Interval(1.0, 1.0, 1.0))
    Interval(value=4.0, low=2.0, high=8.0)
    """
    value = over.value / under.value
    if over.low is None or over.high is None or under.low is None or under.high is None:
        return Interval(value)
    down = math.hypot(math.log(over.value / over.low), math.log(under.high / under.value))
    up = math.hypot(math.log(over.high / over.value), math.log(under.value / under.low))
    return Interval(value, value * math.exp(-down), value * math.exp(up))


def times(gain: float) -> str:
    """
    >>> times(2.0), times(5463.2)
    ('2x', '5,460x')
    """
    rounded = float(f"{gain:.3g}")
    return f"{rounded:,.0f}x" if rounded >= 1000 else f"{gain:.3g}x"


def way(gain: float, than: str = "", most: str = "") -> str:
    """Words for a gain: how much faster or slower. ``most``: put before a gain, "at most " or "at least "; its opposite before a loss.

    >>> way(2.0), way(0.5, "standard"), way(1.001, "standard"), way(0.5, most="at most ")
    ('2x faster', '2x slower than standard', 'as fast as standard', 'at least 2x slower')
    """
    if abs(gain - 1) <= EVEN:
        return "as fast" + (f" as {than}" if than else "")
    words = f"{most}{times(gain)} faster" if gain > 1 else f"{OPPOSITE[most]}{times(1 / gain)} slower"
    return words + (f" than {than}" if than else "")


def ways(low: float, high: float, than: str) -> str:
    """Words for a range of gains, to two digits.

    >>> ways(5.89, 11.44, "standard"), ways(0.25, 0.5, "standard")
    ('5.9 to 11 times faster than standard', '2 to 4 times slower than standard')
    >>> ways(2.0, 2.01, "standard"), ways(0.5, 2.0, "standard")
    ('2 times faster than standard', 'from 2x slower to 2x faster than standard')
    """
    if max(abs(low - 1), abs(high - 1)) <= EVEN:
        return way(low, than)
    if low <= 1 + EVEN and high >= 1 - EVEN:
        return f"from {way(low)} to {way(high)} than {than}"
    near, far, word = (low, high, "faster") if low > 1 else (1 / high, 1 / low, "slower")
    return f"{' to '.join(dict.fromkeys(map(_rough, (near, far))))} times {word} than {than}"


def _rough(gain: float) -> str:
    return f"{float(f'{gain:.2g}'):,.12g}"


def ends(known: Interval) -> str:
    """The interval of a ratio, in the direction of ``way``; says that either may be faster if it contains 1."""
    if known.low is None or known.high is None:
        return ""
    low, high = (known.low, known.high) if known.value >= 1 else (1 / known.high, 1 / known.low)
    return f" ({times(low)} to {times(high)}{EITHER if low < 1 else ''})"


def spent(known: Interval) -> str:
    """
    >>> spent(Interval(0.0035, 0.0032, 0.0037)), spent(Interval(1e-3))
    ('3.5 ms (3.2 ms to 3.7 ms)', '1 ms')
    """
    if known.low is None or known.high is None:
        return format_time(known.value)
    return f"{format_time(known.value)} ({format_time(known.low, 3)} to {format_time(known.high, 3)})"


def against(reference: Side, other: Side, at: str = "") -> str:
    """The verdict on ``other``, without a full stop. ``at``: for which of several workloads, such as `` at n 4,096``."""
    if reference.time is None or other.time is None:
        return _at_most(reference, other, at)
    known = ratio(reference.time, other.time)
    kind = other.kind if other.kind == reference.kind else f"{other.kind}, against {reference.kind},"
    both = " against ".join(f"{format_time(time.value)}{one.whose}" for one, time in ((other, other.time), (reference, reference.time)))
    return f"{other.name} is {kind} {way(known.value, reference.name)}{at}{ends(known)}: {both}{_roofs(reference, other)}"


def _roofs(reference: Side, other: Side) -> str:
    if not reference.roof_s or not other.roof_s:
        return ""
    return f"; ratio of roofs {times(reference.roof_s / other.roof_s)}"


def _at_most(reference: Side, other: Side, at: str) -> str:
    """Verdict by roofs only, with the time of the side that has one."""
    known = next((f"only {one.name} is {one.kind}, {spent(one.time)}{one.whose}" for one in (other, reference) if one.time), "")
    roofs = f"(ratio of roofs: {format_time(other.roof_s)} against {format_time(reference.roof_s)})"
    left = [words for one in (reference, other) if one.time is None for words in one.left_out]
    sentence = f"{other.name} {by_roofs(reference, other, at)} {roofs}; {known or 'neither is predicted'}"
    return sentence + (f". Left out: {'; '.join(left)}" if left else "")


def by_roofs(reference: Side, other: Side, at: str = "") -> str:
    """How ``other`` compares as far as roofs tell, after its name."""
    gain, most = roof_gain(reference, other)
    return f"is {way(gain, reference.name, most)}{at}" + " by roofs" * (not most)


def roof_gain(reference: Side, other: Side) -> tuple[float, str]:
    """Gain of ``other`` where at least one of the two has a roof alone, and whether that is the most or the least it is."""
    if other.time is not None:
        return reference.roof_s / other.time.value, "at least "
    if reference.time is not None:
        return reference.time.value / other.roof_s, "at most "
    gain = reference.roof_s / other.roof_s
    return 1.0 if abs(gain - 1) <= ROOFS_EVEN else gain, ""


def alone(one: Side) -> str:
    """Clause on one side: its time and its roof."""
    if one.time is None:
        return f"{one.name} has a roof of {format_time(one.roof_s)} and is not predicted"
    share = one.roof_s / one.time.value
    roof = f"{'below' if share > 1 + EVEN else f'{percent(share)} of'} its roof of {format_time(one.roof_s)}"
    roof = f", {roof}" if one.roof_s else ""
    return f"{one.name} is {one.kind} at {spent(one.time)}{one.whose}{roof}"


def ratio_notes(verdict: Iterable[str]) -> list[str]:
    """How the intervals of ratios in ``verdict`` came about, if there are any."""
    return [RATIO_NOTE] * any(_ENDS.search(sentence) for sentence in verdict)


def idle_and_launch(name: str, kernels: int, blocks: int, roof_s: float, device: Device) -> list[str]:
    """What takes more of a time than its roof: launches of ``kernels``, and multiprocessors without any of ``blocks`` (0: unknown)."""
    what = f"{name}'s {kernels} launches" if kernels > 1 else f"the launch of {name}"
    launches = launching_s(kernels, device)
    longer = f", {format_time(launches, 2)}, longer than the roof" if device.launch_overhead else ""
    found = [f"{what}{longer}"] * (launches >= roof_s)
    count = device.multiprocessors
    if count is not None and 0 < 2 * blocks <= count.number:
        found.append(f"{name} has {blocks:,} block{'s' * (blocks > 1)} for {count.number:,.0f} multiprocessors")
    return found


def launching_s(kernels: int, device: Device) -> float:
    """Seconds to launch ``kernels`` one after another."""
    known = device.launch_overhead
    return kernels * float(known.stream.number if known else LAUNCH_S)


def launching(kernels: int, roof_s: float, device: Device) -> list[str]:
    """The launches of ``kernels``, if they take longer than their roof."""
    time = f" ({format_time(launching_s(kernels, device), 2)})" if device.launch_overhead else ""
    what = f"{kernels} launches" if kernels > 1 else "the launch"
    return [f"{what}{time}"] * (launching_s(kernels, device) >= roof_s)
