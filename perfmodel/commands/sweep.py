"""Grids of configurations, from one point to a billion: rows to a file, the best of them, where flash attention stops paying."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.commands._command import Command, Destination, Pictured, add_command, new_app
from perfmodel.commands._progress import SweepProgress
from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.question import Question, argument, option

if TYPE_CHECKING:
    from perfmodel.sweep.parts import Output
    from perfmodel.sweep.run_sweep import SweepResult
    from perfmodel.sweep.study import SweepStudy

app = new_app()


@dataclass(frozen=True, slots=True)
class SweepQuestion(Question):
    """A study or a workload with axes, which rows are kept, and what is looked for among them."""

    words: list[str] | None = argument("[STUDY] [--AXIS VALUES]...", "A study file or its name, or a workload; then axes.", None)
    where: list[str] | None = option("Keep rows that meet this, such as 'n * batch <= 65536'. Repeatable.")
    columns: str | None = option("Columns to write, separated by commas. [default: the usual ones]")
    minimize: str | None = option("Find the rows with the least time, io, memory or other column.")
    maximize: str | None = option("Find the rows with the most tokens_per_s, mfu, max_batch or other column.")
    subject_to: list[str] | None = option("The same as --where: 'memory < 80 GB'. Repeatable.")
    pareto: str | None = option("Two columns, as time,memory or tpot_s,tokens_per_s: rows that none beats in both.")
    top: int | None = option("Rows that --minimize or --maximize shows. [default: 10]")
    memory: str | None = option("Memory for rows held at once, such as 512MiB; libraries take about 100 MB more. [default: 1GiB]")
    form: str | None = option("csv, jsonl or parquet, for rows to stdout (-o -).", "--format")
    resume: bool = option("Go on with a file that was interrupted.", default=False)
    dask: str | None = option("Run on this dask scheduler, into a folder of Parquet files.", metavar="ADDRESS")


@dataclass(frozen=True)
class _Rows(Pictured):
    OFFERS = None  # rows are files of other formats

    output: list[str] | None = option(
        "Rows to FILE: .csv, .jsonl, .parquet, a folder/ of Parquet files, - with --format; or the report: .html, .svg, .png, .json, .md.",
        "--output",
        "-o",
        metavar="FILE",
    )


class SweepCommand(Command):
    """Help that lists the axes of every workload."""

    def get_help(self, ctx: Any) -> str:
        """The usual help, then axes and columns."""
        return f"{super().get_help(ctx)}\n{axes_help()}"


@add_command(app, cls=SweepCommand, context_settings={"ignore_unknown_options": True})
def sweep(asked: SweepQuestion, to: _Rows) -> None:
    """Evaluate a grid of configurations: rows to a file, and a summary.

    Example: perfmodel sweep --n 512:131072:x2 --d 64,128 --hardware a100-sxm-80gb,h200
    """
    rows, reports = where_to(to.output, asked.form, asked.resume, asked.dask)
    shown = replace(to, output=reports)
    shown.check(["charts"])
    from perfmodel.sweep.run_sweep import run_sweep

    study = merged(asked).complete()
    budget = memory_bytes(asked.memory)
    progress = SweepProgress()
    try:
        with _terminated_is_interrupted(), progress:
            result = run_sweep(study, rows, budget, progress.expect)
    except KeyboardInterrupt:
        progress.interrupted(None if rows is None else rows.path)
        raise
    _show(result, rows, shown)


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


def _show(result: SweepResult, rows: Output | None, to: Pictured) -> None:
    """The report, on stderr where the rows took stdout."""
    from perfmodel.report.sweep import report

    if rows is None or rows.path is not None:
        later = "; what follows is of those computed now" if rows is not None and rows.resume and result.grid.slow else ""
        to.emit(report(result, "" if rows is None else f"Rows are in {rows.path}{later}.", to.pictures))
        return
    from perfmodel.report.formats import readable
    from perfmodel.report.formats.txt import render

    made = report(result, pictures=to.pictures)
    sys.stderr.write(render(readable(made)))
    if to.files:
        Destination(False, to.files).emit(made)


# The words


def merged(asked: SweepQuestion) -> SweepStudy:
    """The study that is named or spelt out, options before what its file says."""
    from perfmodel.sweep.study import WORKLOADS, SweepStudy, read_study

    words = asked.words or []
    named = words[:1] if words and not words[0].startswith("-") else []
    study = SweepStudy() if not named else SweepStudy(named[0]) if named[0] in WORKLOADS else read_study(named[0])
    if asked.top is not None and not (asked.minimize or asked.maximize or study.minimize or study.maximize):
        fix = "give a column with one of them, or leave it out"
        raise UsageError("--top is for --minimize and --maximize, and nothing here reads it", fix)
    options = {name: getattr(asked, name) for name in ("columns", "minimize", "maximize", "pareto", "top")}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    axes = {**study.axes, **axes_of(words[len(named) :], study.workload)}
    where = [*study.where, *(asked.where or ()), *(asked.subject_to or ())]
    return replace(study, axes=axes, where=where, **given)


def axes_of(words: Sequence[str], kind: str) -> dict[str, Any]:
    """``--n 512 --causal`` as axes; an option given twice has both values."""
    from perfmodel.sweep.study import workload_named

    workload = workload_named(kind)
    known = {one.name.replace("_", "-"): one for one in workload.inputs}
    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word, _, value = rest.pop(0).partition("=")
        name = word.lstrip("-")
        negated = name.startswith("no-") and name not in known
        one = known.get(name.removeprefix("no-") if negated else name)
        if not word.startswith("-") or one is None:
            raise UsageError(f"{word}: sweeps over {workload.name} have no such option", suggest(name, list(known)))
        if one.kind == "flag" and not value:
            value = rest.pop(0) if rest and not rest[0].startswith("-") and not negated else str(not negated).lower()
        elif not value:
            if not rest:
                raise UsageError(f"{word} needs a value", "such as --n 512:131072:x2")
            value = rest.pop(0)
        found[one.name] = f"{found[one.name]},{value}" if one.name in found else value
    return found


def where_to(output: Sequence[str] | None, form: str | None, resume: bool, dask: str | None) -> tuple[Output | None, list[str]]:
    """The output for rows, if any, and those for the report. UsageError if they do not go together."""
    from perfmodel.report.formats import suffixes

    reports, rows = list[str](), list[str]()
    for name in output or ():
        suffix = Path(name).suffix
        if name.endswith("/") or suffix in (".csv", ".jsonl", ".parquet") or (name == "-" and form is not None) or (dask and not suffix):
            rows.append(name)
        elif name == "-" or suffix in suffixes(["charts"]):
            reports.append(name)
        else:
            kind = repr(suffix) if suffix else "a file without suffix"
            fix = f"end it in .csv, .jsonl or .parquet, or in / for a folder, for rows; in {', '.join(suffixes(['charts']))} for the report"
            raise UsageError(f"--output: no format is written to {kind} ({name})", f"{fix}; rows to stdout: -o - --format csv")
    if len(rows) > 1:
        raise UsageError(f"--output: rows go to one place, not to {len(rows)}", "run the sweep again for another format")
    for word, given in (("--resume", resume), ("--dask", dask), ("--format", form)):
        if given and not rows:
            raise UsageError(f"{word} is about rows in a file", "say where with -o, such as -o rows.parquet")
    return _rows_output(rows[0], form, resume, dask) if rows else None, reports


def _rows_output(name: str, form: str | None, resume: bool, dask: str | None) -> Output:
    from perfmodel.sweep.parts import Output
    from perfmodel.sweep.writers import find

    folder = name.endswith("/") or dask is not None
    if name == "-":
        if resume or dask:
            raise UsageError("--resume and --dask need a file", "give one with -o")
        find(str(form))
        return Output(None, str(form))
    path, written = Path(name), "parquet" if folder else Path(name).suffix.removeprefix(".")
    if form not in (None, written):
        raise UsageError(f"--format {form} does not fit {name}", "leave it out: the suffix says it")
    if folder and path.suffix in (".csv", ".jsonl"):
        who = "--dask writes a" if dask else "a name that ends in / is a"
        raise UsageError(f"{who} folder of Parquet files, not {name}", "name a folder, such as -o rows/")
    if not path.parent.is_dir():
        raise UsageError(f"--output: there is no folder {path.parent}", "create it first")
    if not folder and path.is_dir():
        raise UsageError(f"--output: {path} is a folder", "end it in / to write Parquet files into it, or name a file")
    return Output(path, written, folder, resume, dask)


def memory_bytes(text: str | None) -> int:
    """The memory that ``--memory`` gives a sweep."""
    from perfmodel.core.checks import size_bytes
    from perfmodel.sweep.run_sweep import DEFAULT_MEMORY

    if text is None:
        return DEFAULT_MEMORY
    if not text.strip().endswith("B"):
        raise UsageError(f"--memory: {text[:40]!r} has no unit", "give a size of 1MiB or more, such as 512MiB")
    return size_bytes("memory", text, least=1 << 20)


def axes_help() -> str:
    """Axes and columns of every workload."""
    from perfmodel.sweep.study import WORKLOADS, workload_named

    lines = [
        "Axes are options named as those of the command itself:",
        "  --n 512:131072:x2 --d 64,128 --batch 1:64:+1 --kv-heads heads/4 --hardware all --causal both",
        "A value is a number, a list, a range (:xF multiplies, :+S adds), or an expression of other axes; 'all' is every name.",
    ]
    for name in WORKLOADS:
        workload = workload_named(name)
        listed = ", ".join(one.name.replace("_", "-") for one in workload.inputs)
        lines += ["", f"Axes of {name}: {listed}", f"Columns: {', '.join(one.name for one in workload.columns)}"]
        if workload.words:
            lines.append("Short names: " + ", ".join(f"{word} = {column}" for word, column in workload.words.items()))
    return "\n".join(lines)
