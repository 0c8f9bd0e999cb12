"""What exchanges hide behind. While kernels run, links are idle and so is a part of DRAM: each second of each is given away once.

Every exchange that runs beside kernels asks a window for the seconds that it hides, and the window books them: two exchanges cannot
hide behind the same second of a link, and a step is never shorter than what any one resource is busy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

DRAM = "DRAM"


@dataclass(slots=True)
class Window:
    """``seconds`` of kernels, and how long each resource is ``busy`` in them. ``outer``: a longer one that this is a part of."""

    seconds: float
    busy: dict[str, float] = field(default_factory=dict)
    outer: Window | None = None

    def hide(self, seconds: float, needs: Mapping[str, float]) -> float:
        """Seconds, of those of an exchange, that run beside the kernels. ``needs``: of each resource in all."""
        within = [self] if self.outer is None else [self, self.outer]
        share = min([1.0, *(max(window.free(name), 0.0) / need for window in within for name, need in needs.items() if need)])
        for window in within:
            window.book({name: share * need for name, need in needs.items()})
        return share * seconds

    def free(self, name: str) -> float:
        """Seconds in which the resource ``name`` is idle."""
        return self.seconds - self.busy.get(name, 0.0)

    def book(self, taken: Mapping[str, float], times: float = 1) -> None:
        """More seconds of each resource that something takes, ``times`` over."""
        for name, seconds in taken.items():
            self.busy[name] = self.busy.get(name, 0.0) + times * seconds


def joined(windows: Iterable[tuple[Window, float]]) -> Window:
    """Windows one after the other, each so many times."""
    found = Window(0.0)
    for window, times in windows:
        found.seconds += times * window.seconds
        found.book(window.busy, times)
    return found
