"""Progress of a long command, on stderr: a bar with the time left on a terminal, else plain lines that say it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from perfmodel.commands._shared import say


class Bar:
    """Called with a text it says it; ``done`` is told the share of a phase that is done, 0 at its start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.began, self.share = clock, clock(), 0.0
        self.rich: Any = None

    def __enter__(self) -> Bar:
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
