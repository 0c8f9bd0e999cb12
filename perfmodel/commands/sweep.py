"""Grids of configurations, from one point to a billion: rows to a file, the best of them, where flash attention stops paying."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.commands._progress import Teller
from perfmodel.commands._shared import Command, JsonOption, check_outputs, emit, new_app
from perfmodel.commands._sweep_options import memory_bytes, merged, where_to

if TYPE_CHECKING:
    from perfmodel.sweep.parts import Output
    from perfmodel.sweep.run_sweep import SweepResult

app = new_app()


class SweepCommand(Command):
    """Help that lists the axes of every workload."""

    def get_help(self, ctx: Any) -> str:
        """The usual help, then axes and columns."""
        from perfmodel.commands._sweep_options import axes_help

        return f"{super().get_help(ctx)}\n{axes_help()}"


@app.command(cls=SweepCommand, context_settings={"ignore_unknown_options": True})
def sweep(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STUDY] [--AXIS VALUES]...", help="A study file or its name, or a workload; then axes.", show_default=False
        ),
    ] = None,
    where: Annotated[list[str] | None, typer.Option(help="Keep rows that meet this, such as 'n * batch <= 65536'. Repeatable.")] = None,
    columns: Annotated[str | None, typer.Option(help="Columns to write, separated by commas. [default: the usual ones]")] = None,
    minimize: Annotated[str | None, typer.Option(help="Find the rows with the least time, io, memory or other column.")] = None,
    subject_to: Annotated[list[str] | None, typer.Option(help="The same as --where: 'memory < 80 GB'. Repeatable.")] = None,
    pareto: Annotated[str | None, typer.Option(help="Two columns, as time,memory: the rows that none beats in both.")] = None,
    top: Annotated[int | None, typer.Option(help="Rows that --minimize shows. [default: 10]")] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory for rows held at once, such as 512MiB; libraries take about 100 MB more. [default: 1GiB]")
    ] = None,
    form: Annotated[str | None, typer.Option("--format", help="csv, jsonl or parquet, for rows to stdout (-o -).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a file that was interrupted.")] = False,
    dask: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Run on this dask scheduler, into a folder of Parquet files.")] = None,
    json: JsonOption = False,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Rows to FILE: .csv, .jsonl, .parquet, a folder/ of Parquet files, - with --format; or the report: .html, .json, .md.",
        ),
    ] = None,
) -> None:
    """Evaluate a grid of configurations: rows to a file, and a summary.

    Example: perfmodel sweep --n 512:131072:x2 --d 64,128 --hardware a100-sxm-80gb,h200
    """
    rows, reports = where_to(output, form, resume, dask)
    outputs = check_outputs(reports)
    from perfmodel.sweep.run_sweep import complete, run_sweep

    given = {"columns": columns, "minimize": minimize, "pareto": pareto, "top": top, "where": [*(where or ()), *(subject_to or ())]}
    study, search = complete(*merged(words or [], given))
    budget = memory_bytes(memory)
    teller = Teller()
    try:
        with _terminated_is_interrupted():
            result = run_sweep(study, search, rows, budget, teller.expect)
    except KeyboardInterrupt:
        teller.interrupted(None if rows is None else rows.path)
        raise
    teller.done()
    _show(result, rows, json, outputs)


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


def _show(result: SweepResult, rows: Output | None, json: bool, outputs: list[str]) -> None:
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
