"""Progress on stderr: lines, or on a terminal a bar with the time left for work of more than a second."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from perfmodel.commands._command import say
from perfmodel.core.units import format_si, format_time

AFTER_S = 1.0
"""Seconds after which a bar appears."""
_NUMBERED = re.compile(r"(?:\w+ )?(?P<number>\d+)(?:/| of )(?P<total>\d+)\b")
"""Beginning of a text that says which case of how many is done."""


class ProgressBar:
    """A progress bar. A call prints a text; one such as ``3/20 matmul`` also moves the bar, as does ``done``, with 0 for a new phase."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.start = self.phase_start = clock()
        self.share = 0.0
        self.words = ""
        self.rich: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.rich is not None:
            self.rich.stop()

    def done(self, share: float) -> None:
        """Show that ``share`` of the phase is done."""
        self.share = share
        if share == 0:
            self.phase_start = self.clock()
        if self.rich is None and self.clock() - self.start > AFTER_S and sys.stderr.isatty():
            self.rich = _bar()
        if self.rich is not None:
            [task] = self.rich.task_ids
            if share == 0:
                self.rich.reset(task, total=1.0)
            self.rich.update(task, completed=share, description=self.words)

    def __call__(self, text: str) -> None:
        """Print ``text``, or show it beside the bar."""
        match = _NUMBERED.match(text)
        if match and int(match["total"]):
            self.done(min(1.0, int(match["number"]) / int(match["total"])))
        if self.rich is not None:
            self.rich.console.print(text, markup=False, highlight=False)
        elif 0 < self.share < 1:
            spent_s = self.clock() - self.phase_start
            left_s = spent_s * (1 / self.share - 1)
            say(f"{text} ({self.share:.0%} done, about {left_s:.0f} s left)")
        else:
            say(text)


def _bar() -> Any:
    """A new bar on the terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(elapsed_when_finished=True))
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task("", total=1.0)
    bar.start()
    return bar


class SweepProgress(ProgressBar):
    """Progress of a sweep in rows; without a terminal, a line every ten seconds."""

    def __init__(self) -> None:
        super().__init__(time.monotonic)
        self.points = self.total = 0
        self.next_line_at = self.start + AFTER_S

    def expect(self, total: int) -> Callable[[int], None]:
        """Set the number of rows to ``total``; returns the function to report finished rows to."""
        self.total = total
        return self.tell

    def tell(self, points: int) -> None:
        """Add ``points`` finished rows."""
        self.points += points
        now = self.clock()
        if sys.stderr.isatty():
            self.words = f"{self.points:,} of {self.total:,} rows"
            self.done(self.points / self.total if self.total else 1.0)
        elif now > self.next_line_at:
            self.next_line_at = now + 10
            rate = self.points / (now - self.start)
            time_left = format_time((self.total - self.points) / rate, 2)
            say(f"{self.points:,} of {self.total:,} rows, {format_si(rate, 'rows/s', 3)}, {time_left} left")

    def interrupted(self, path: Path | None) -> None:
        """Print how many rows ``path`` has, and how to go on."""
        if path is None:
            return
        from perfmodel.sweep.parts import interrupted_rows

        place = interrupted_rows(path)
        text = f"{place} holds the rows so far\n  go on with the same options and --resume" if place else "no rows were written"
        say(f"perfmodel: interrupted; {text}")
