"""What this machine reaches: bandwidths of its memory levels, rates of its units, and what a launch costs.

Every value is measured, and belongs beside a profile's datasheet values, never in their place: ``field`` names the profile's field
for measured values, where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from perfmodel.core.errors import PerfmodelError
from perfmodel.validation.cuda.timing import StoppingRule, Timing

RULE = StoppingRule(relative_error=0.005, least_runs=10, runs=50, budget_s=0.3)
QUICK_RULE = StoppingRule(relative_error=0.02, least_runs=5, runs=20, budget_s=0.05)
Part = Callable[[StoppingRule], Iterator["Measured"]]


@dataclass(frozen=True, slots=True)
class Measured:
    """One result in base units (B/s, FLOP/s, OP/s, B, s); ``value`` None and ``reason`` in words where there is none.

    ``spread``: (p90 - p10) / median. ``size``: bytes of the array, on a curve over sizes.
    """

    name: str
    unit: str
    value: float | None
    spread: float = 0.0
    runs: int = 0
    size: int | None = None
    field: str | None = None
    reason: str = ""


def rate(name: str, unit: str, amount: float, timing: Timing, size: int | None = None, field: str | None = None) -> Measured:
    """``amount`` per run over the median time."""
    return Measured(name, unit, amount / timing.median, timing.noise, timing.runs, size, field)


def run_parts(
    parts: Mapping[str, Part], progress: Callable[[str], None], rule: StoppingRule, around: Callable[[], AbstractContextManager[None]]
) -> list[Measured]:
    """The results of all ``parts``; one that fails leaves what it had measured, and its reason."""
    found: list[Measured] = []
    for name, part in parts.items():
        progress(name)
        try:
            with around():
                for result in part(rule):
                    found.append(result)
        except PerfmodelError as error:
            found.append(Measured(name, "", None, reason=error.message))
        except Exception as error:  # the driver's own errors: the other parts can still be measured
            found.append(Measured(name, "", None, reason=f"{type(error).__name__}: {error}".splitlines()[0]))
    return found


def sizes(smallest: int, largest: int, steps: int = 1) -> list[int]:
    """Powers of two from ``smallest`` to ``largest``; with ``steps`` 2 also what lies halfway between two.

    >>> sizes(4096, 16384), sizes(4096, 8192, 2)
    ([4096, 8192, 16384], [4096, 6144, 8192])
    """
    found, size = [], smallest
    while size <= largest:
        found += [size + size * step // steps for step in range(steps) if size + size * step // steps <= largest]
        size *= 2
    return found


def plateau(curve: Sequence[Measured]) -> Measured:
    """The highest bandwidth of ``curve``."""
    best = max(curve, key=lambda point: point.value or 0.0)
    return replace(best, name="L2 read, plateau", field="memory.l2.measured_bandwidth")


def apparent_size(curve: Sequence[Measured]) -> Measured:
    """Where bandwidth has fallen halfway, in logarithms, from the plateau to that of the largest array; between sizes by straight lines.

    ``spread``: the step between the two sizes, relative.
    """
    points = [(point.size, point.value) for point in curve if point.size and point.value]
    top, low = max(value for _, value in points), points[-1][1]
    result = Measured("L2, apparent size", "B", None, runs=sum(point.runs for point in curve))
    if top < 1.2 * low:
        return replace(result, reason="bandwidth does not fall with size: no step to see")
    halfway = math.sqrt(top * low)
    after = next(i for i, (_, value) in reversed(list(enumerate(points))) if value > halfway) + 1
    (small, fast), (large, slow) = points[after - 1], points[after]
    share = (math.log(fast) - math.log(halfway)) / (math.log(fast) - math.log(slow))
    return replace(result, value=small * (large / small) ** share, spread=large / small - 1)
