"""Helpers of several commands: record files, shares, ``--require``, workloads, the command line as text, ``--baseline``, progress."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from perfmodel.commands._command import say

if TYPE_CHECKING:
    from perfmodel.report import Report
    from perfmodel.study.workloads import Workload

SHIPPED = "shipped"
"""The name of the records that come with the package."""


def record_paths(names: Sequence[str]) -> list[Path]:
    """Files of records, the shipped ones under their name."""
    from perfmodel.validation.records import shipped_records

    return [path for name in names for path in (shipped_records() if name == SHIPPED else [Path(name)])]


LARGEST_SHARE = 1000


def share_of(option: str, text: str) -> float:
    """``25%`` or ``0.25`` as a share; UsageError names the option."""
    from perfmodel.core.errors import UsageError

    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= LARGEST_SHARE:
        raise UsageError(f"{option} is {text!r}", "give a share such as 25% or 0.25")
    return value


def require(least: int | None, found: int, what: str, reasons: Sequence[str] = ()) -> None:
    """UsageError if only ``found`` of ``what`` count and ``--require`` (``least``, 1 if None) asks for more.

    ``reasons``: one text for each that does not count.
    """
    from collections import Counter

    from perfmodel.core.errors import UsageError

    least = 1 if least is None else least
    if found < least:
        listed = [f"{count}: {reason}" for reason, count in Counter(filter(None, reasons)).most_common(3)]
        why = "; ".join(listed or ["there is none in it"] * (not found))
        fix = f"{why}\n  " * bool(why) + f"to take what there is: --require {found}"
        raise UsageError(f"{found or 'no'} {what}, and --require is {least}", fix)


def workloads_of(asked: Any, implementation: str | None = None) -> list[Workload]:
    """The workloads of ``--attention``, ``--matmul`` and ``--model``, in that order."""
    from perfmodel.study.workloads import workload_of

    kinds = ("attention", "matmul", "model")
    return [workload_of(kind, text, implementation) for kind in kinds for text in getattr(asked, kind) or ()]


def command_line(*words: str, **options: object) -> str:
    """The command as a user types it, without outputs: lists repeat their option, None is left out."""
    found = ["perfmodel", *words]
    for name, value in options.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is not None:
                found += [f"--{name.replace('_', '-')}", str(one)]
    return shlex.join(found)


def based(report: Report, baseline: str | None) -> Report:
    """``report`` compared with the report saved at path ``baseline``: arrows and a verdict; unchanged if that is None."""
    if baseline is None:
        return report
    from perfmodel.report.document import read_report
    from perfmodel.study.schema import with_base

    path = Path(baseline)
    return with_base(report, read_report(path), path.stem)


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
        """Sets the number of rows to expect; returns the function to call as rows are done."""
        self.total = total
        return self.tell

    def tell(self, points: int) -> None:
        """Adds ``points`` finished rows and shows the progress if it is due."""
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
        """Message on the rows that an interrupted sweep kept, and how to resume it."""
        self.done()
        if path is None:
            return
        from perfmodel.sweep.parts import interrupted_rows

        place = interrupted_rows(path)
        text = f"{place} holds the rows so far\n  go on with the same options and --resume" if place else "no rows were written"
        say(f"perfmodel: interrupted; {text}")
