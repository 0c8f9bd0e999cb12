"""How far a long command is, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from perfmodel.commands._command import say


class ProgressBar:
    """A bar with the time left on a terminal, else plain lines: called with a text it says it, ``done`` moves it, 0 starts a phase."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.began, self.share = clock, clock(), 0.0
        self.rich: Any = None

    def __enter__(self) -> ProgressBar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

            columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(elapsed_when_finished=True))
            self.rich = Progress(*columns, console=Console(stderr=True), transient=True)
            self.rich.add_task("", total=1.0)
            self.rich.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.rich is not None:
            self.rich.stop()

    def done(self, share: float) -> None:
        """``share`` of the phase is done."""
        self.share = share
        if share == 0:
            self.began = self.clock()
        if self.rich is not None:
            [task] = self.rich.task_ids
            if share == 0:
                self.rich.reset(task, total=1.0)
            self.rich.update(task, completed=share)

    def __call__(self, text: str) -> None:
        """Say ``text``."""
        if self.rich is not None:
            self.rich.console.print(text, markup=False, highlight=False)
        else:
            say(f"{text}{self._left()}")

    def _left(self) -> str:
        if not 0 < self.share < 1:
            return ""
        left = (self.clock() - self.began) * (1 / self.share - 1)
        return f" ({self.share:.0%} done, about {left:.0f} s left)"


class SweepProgress:
    """Progress on stderr once a sweep takes over a second: twice a second on a terminal, else every ten."""

    def __init__(self) -> None:
        self.begun = self.told = time.monotonic()
        self.points = self.total = 0
        self.terminal = sys.stderr.isatty()
        self.said = False

    def expect(self, total: int) -> Callable[[int], None]:
        """To be told of rows, of which there will be ``total``."""
        self.total = total
        return self.tell

    def tell(self, points: int) -> None:
        """``points`` more are done."""
        self.points += points
        now = time.monotonic()
        due = not self.said or now - self.told > (0.5 if self.terminal else 10)
        if now - self.begun > 1 and due:
            self.told, self.said = now, True
            self._write(now - self.begun)

    def _write(self, seconds: float) -> None:
        from perfmodel.core.units import format_si, format_time

        rate = self.points / seconds
        left = format_time((self.total - self.points) / rate, 2)
        text = f"{self.points:,} of {self.total:,} rows, {format_si(rate, 'rows/s', 3)}, {left} left"
        sys.stderr.write(f"\r{text}\x1b[K" if self.terminal else f"{text}\n")
        sys.stderr.flush()

    def done(self) -> None:
        """Clear the line."""
        if self.said and self.terminal:
            sys.stderr.write("\r\x1b[K")

    def interrupted(self, path: Path | None) -> None:
        """Say what there is, and how to go on."""
        self.done()
        if path is None:
            return
        from perfmodel.sweep.parts import kept

        place = kept(path)
        text = f"{place} holds the rows so far\n  go on with the same options and --resume" if place else "no rows were written"
        say(f"perfmodel: interrupted; {text}")
