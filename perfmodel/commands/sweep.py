"""Grids of configurations, from one point to a billion: rows to a file, the best of them, where flash attention stops paying."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.commands._command import Command, Destination, check_outputs, command, emit, new_app
from perfmodel.commands._progress import Teller
from perfmodel.commands._sweep_options import SweepQuestion, axes_help, memory_bytes, merged, where_to
from perfmodel.core.question import option

if TYPE_CHECKING:
    from perfmodel.sweep.ask import Output, Result

app = new_app()


@dataclass(frozen=True)
class _Rows(Destination):
    output: list[str] | None = option(
        "Rows to FILE: .csv, .jsonl, .parquet, a folder/ of Parquet files, - with --format; or the report: .html, .json, .md.",
        "--output",
        "-o",
        metavar="FILE",
    )

    def check(self) -> None:
        """Which are of rows and which of the report, the command finds out."""


class SweepCommand(Command):
    """Help that lists the axes of every workload."""

    def get_help(self, ctx: Any) -> str:
        """The usual help, then axes and columns."""
        return f"{super().get_help(ctx)}\n{axes_help()}"


@command(app, cls=SweepCommand, context_settings={"ignore_unknown_options": True})
def sweep(asked: SweepQuestion, to: _Rows) -> None:
    """Evaluate a grid of configurations: rows to a file, and a summary.

    Example: perfmodel sweep --n 512:131072:x2 --d 64,128 --hardware a100-sxm-80gb,h200
    """
    rows, reports = where_to(to.output, asked.form, asked.resume, asked.dask)
    outputs = check_outputs(reports)
    from perfmodel.sweep.ask import ask, complete

    study, search = complete(*merged(asked))
    budget = memory_bytes(asked.memory)
    teller = Teller()
    try:
        with _terminated_is_interrupted():
            result = ask(study, search, rows, budget, teller.expect)
    except KeyboardInterrupt:
        teller.interrupted(None if rows is None else rows.path)
        raise
    teller.done()
    _show(result, rows, to.json, outputs)


@contextmanager
def _terminated_is_interrupted() -> Iterator[None]:
    """Let SIGTERM end a sweep as Ctrl-C does: with a file that can be read."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _show(result: Result, rows: Output | None, json: bool, outputs: list[str]) -> None:
    """The report, on stderr where the rows took stdout."""
    from perfmodel.report.sweep import report

    target = None if rows is None or rows.path is None else Path(rows.path)
    carried = rows is not None and rows.resume and result.grid.slow
    where = "" if target is None else f"Rows are in {target}{'; what follows is of those computed now' if carried else ''}."
    made = report(result, where)
    if rows is not None and rows.path is None:
        from perfmodel.report.formats import readable
        from perfmodel.report.formats.txt import render

        sys.stderr.write(render(readable(made)))
        emit_files = [name for name in outputs if name != "-"]
        if emit_files:
            emit(made, False, emit_files)
        return
    emit(made, json, outputs)
