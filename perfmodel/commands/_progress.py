"""Progress on stderr: on a terminal a bar with the time left, once the work has taken a second; else lines."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from perfmodel.commands._command import say

AFTER_S = 1.0
"""Work that takes less needs no bar."""
_NUMBERED = re.compile(r"(?:\w+ )?(?P<number>\d+)(?:/| of )(?P<of>\d+)\b")
"""How a line begins that says which case of how many is done."""


class ProgressBar:
    """Called with a text it says it, ``done`` moves the bar, 0 starts a phase; a text such as ``3/20 matmul`` moves it too."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.began, self.share = clock, clock(), 0.0
        self.begun = self.began
        self.words = ""
        self.rich: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.rich is not None:
            self.rich.stop()

    def done(self, share: float) -> None:
        """``share`` of the phase is done."""
        self.share = share
        if share == 0:
            self.began = self.clock()
        if self.rich is None and self.clock() - self.begun > AFTER_S and sys.stderr.isatty():
            self.rich = _bar()
        if self.rich is not None:
            [task] = self.rich.task_ids
            if share == 0:
                self.rich.reset(task, total=1.0)
            self.rich.update(task, completed=share, description=self.words)

    def __call__(self, text: str) -> None:
        """Say ``text``."""
        found = _NUMBERED.match(text)
        if found and int(found["of"]):
            self.done(min(1.0, int(found["number"]) / int(found["of"])))
        if self.rich is not None:
            self.rich.console.print(text, markup=False, highlight=False)
        else:
            left = (
                f" ({self.share:.0%} done, about {(self.clock() - self.began) * (1 / self.share - 1):.0f} s left)"
                if 0 < self.share < 1
                else ""
            )
            say(f"{text}{left}")


def _bar() -> Any:
    """A bar that is shown from now on."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(elapsed_when_finished=True))
    made = Progress(*columns, console=Console(stderr=True), transient=True)
    made.add_task("", total=1.0)
    made.start()
    return made


class SweepProgress(ProgressBar):
    """Progress of a sweep, in rows: where there is no terminal, a line every ten seconds."""

    def __init__(self) -> None:
        super().__init__(time.monotonic)
        self.told = self.begun
        self.points = self.total = 0
        self.said = False

    def expect(self, total: int) -> Callable[[int], None]:
        """A function to tell of rows that are done, of ``total`` in all."""
        self.total = total
        return self.tell

    def tell(self, points: int) -> None:
        """``points`` more are done."""
        self.points += points
        now = self.clock()
        if sys.stderr.isatty():
            self.words = f"{self.points:,} of {self.total:,} rows"
            self.done(self.points / self.total if self.total else 1.0)
        elif now - self.begun > AFTER_S and (not self.said or now - self.told > 10):
            from perfmodel.core.units import format_si, format_time

            self.told, self.said, rate = now, True, self.points / (now - self.begun)
            left = format_time((self.total - self.points) / rate, 2)
            say(f"{self.points:,} of {self.total:,} rows, {format_si(rate, 'rows/s', 3)}, {left} left")

    def interrupted(self, path: Path | None) -> None:
        """Say what there is, and how to go on."""
        if path is None:
            return
        from perfmodel.sweep.parts import interrupted_rows

        place = interrupted_rows(path)
        text = f"{place} holds the rows so far\n  go on with the same options and --resume" if place else "no rows were written"
        say(f"perfmodel: interrupted; {text}")
