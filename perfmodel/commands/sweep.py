"""Grids of configurations, from one point to a billion."""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from perfmodel.commands._command import Command, Destination, Pictured, add_command, new_app, say
from perfmodel.commands._progress import SweepProgress
from perfmodel.core.checks import size_bytes
from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.frozen import dataclass
from perfmodel.core.question import Question, argument, option

if TYPE_CHECKING:
    from perfmodel.sweep.parts import Output
    from perfmodel.sweep.study import SweepStudy

app = new_app()
ROWS = (".csv", ".jsonl", ".parquet")
"""Suffixes of row files."""
TIME = "time"
"""Short name of a column: the roof for kernels, the prediction for models. It is accepted for one more version."""


@dataclass(frozen=True, slots=True)
class SweepQuestion(Question):
    """A study or a workload with axes, the rows to keep, and what to look for among them."""

    words: list[str] | None = argument("[STUDY] [--AXIS VALUES]...", "A study file or its name, or a workload; then axes.", None)
    where: list[str] | None = option("Keep rows that meet this: 'n * batch <= 65536'.")
    columns: str | None = option("Columns to write, with commas. [default: the usual]")
    minimize: str | None = option("Rows with the least roofline_s, io or other column.")
    maximize: str | None = option("Rows with the most tokens_per_s, mfu or other column.")
    subject_to: list[str] | None = option("The same as --where: 'memory < 80GB'.")
    pareto: str | None = option("Rows that none beats in both: predicted_s,memory.")
    top: int | None = option("Rows that --minimize or --maximize shows. [default: 10]")
    memory: str | None = option("Memory for rows held at once. [default: 1GiB]", "--row-memory", old="--memory")
    form: str | None = option("csv, jsonl or parquet, for rows to stdout (-o -).", "--format")
    resume: bool = option("Go on with a file that was interrupted.", default=False)
    dask: str | None = option("Dask scheduler to run on, into a folder of Parquet.", metavar="ADDRESS")


@dataclass(frozen=True)
class _SweepOutput(Pictured):
    OFFERS = None  # rows are files of other formats

    output: list[str] | None = option(
        "Rows: .csv, .jsonl, .parquet, a folder/, or - with --format; report: .html, .svg, .png, .json, .md.",
        "--output",
        "-o",
        metavar="FILE",
    )


class SweepCommand(Command):
    """A command whose help lists the axes of the workload named beside it, by default attention."""

    named = ""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as every command does, and keep the workload for ``--help``."""
        from perfmodel.sweep.study import WORKLOADS

        self.named = next((word for word in args if word in WORKLOADS), WORKLOADS[0])
        return super().parse_args(ctx, args)

    def get_help(self, ctx: Any) -> str:
        """The usual help, then axes and columns."""
        return f"{super().get_help(ctx).rstrip()}\n\n{_axes_help(self.named)}"


@add_command(app, cls=SweepCommand, context_settings={"ignore_unknown_options": True})
def sweep(options: SweepQuestion, to: _SweepOutput) -> None:
    """Evaluate a grid of configurations: rows to a file, and a summary.

    Example: perfmodel sweep --n 512:131072:x2 --d 64,128 --hardware a100-sxm-80gb,h200
    """
    rows, reports = _outputs(to.output, options.form, options.resume, options.dask)
    printed = replace(to, output=reports)
    printed.check(["charts"])
    from perfmodel.report.sweep import report
    from perfmodel.sweep.run import DEFAULT_MEMORY, run_sweep

    memory = DEFAULT_MEMORY if options.memory is None else size_bytes("row-memory", options.memory, least=1 << 20)
    study, progress = _study(options).complete(), SweepProgress()
    try:
        with _terminated_is_interrupted(), progress:
            result = run_sweep(study, rows, memory, progress.expect)
    except KeyboardInterrupt:
        progress.interrupted(None if rows is None else rows.path)
        raise
    if rows is not None and rows.path is None:  # rows took stdout
        from perfmodel.report.formats import readable
        from perfmodel.report.formats.txt import render

        document = report(result, pictures=printed.pictures)
        sys.stderr.write(render(readable(document)))
        if printed.files:
            Destination(False, printed.files).emit(document)
        return
    written = ""
    if rows is not None:
        only_new_rows = rows.resume and result.grid.pointwise
        written = f"Rows are in {rows.path}{'; what follows is of those computed now' if only_new_rows else ''}."
    printed.emit(report(result, written, printed.pictures))


@contextmanager
def _terminated_is_interrupted() -> Iterator[None]:
    """Context in which SIGTERM ends a sweep as Ctrl-C does, with a readable file."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return
    previous_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def _study(options: SweepQuestion) -> SweepStudy:
    """The sweep that is named or given by options; options override its file."""
    from perfmodel.sweep.study import WORKLOADS, SweepStudy, read_study, workload_named

    words, study = options.words or [], SweepStudy()
    if words and not words[0].startswith("-"):
        name, *words = words
        study = SweepStudy(name) if name in WORKLOADS else read_study(name)
    searches = options.minimize or options.maximize or study.minimize or study.maximize
    if options.top is not None and not searches:
        fix = "give a column with one of them, or leave it out"
        raise UsageError("--top is for --minimize and --maximize, and nothing here reads it", fix)
    conditions = [*(options.where or ()), *(options.subject_to or ())]
    meaning_of_time = workload_named(study.workload).words.get(TIME)
    texts = " ".join(filter(None, [options.minimize, options.pareto, options.columns, *conditions]))
    if meaning_of_time is not None and TIME in re.findall(r"\w+", texts):
        advice = "name roofline_s or predicted_s, the short name is taken for one more version"
        say(f"note: time is {meaning_of_time} of {study.workload}; {advice}")
    values = {name: getattr(options, name) for name in ("columns", "minimize", "maximize", "pareto", "top")}
    overrides: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    return replace(study, axes={**study.axes, **_axes(words, study.workload)}, where=[*study.where, *conditions], **overrides)


def _axes(words: Sequence[str], kind: str) -> dict[str, Any]:
    """Axes from words such as ``--n 512 --causal``; an option given twice has both values."""
    from perfmodel.sweep.study import workload_named

    workload = workload_named(kind)
    by_option = {axis.option.removeprefix("--"): axis for axis in workload.inputs}
    by_old_name = {axis.name.replace("_", "-"): axis for axis in workload.inputs if axis.typed}
    axes: dict[str, Any] = {}
    remaining = list(words)
    while remaining:
        word, _, value = remaining.pop(0).partition("=")
        name = word.lstrip("-")
        negated = name.startswith("no-") and name not in by_option
        if negated:
            name = name.removeprefix("no-")
        axis = by_option.get(name) or by_old_name.get(name)
        if axis is not None and name not in by_option:
            say(f"note: --{name} is called {axis.option} now; the old name is taken for one more version")
        if not word.startswith("-") and "model" in by_option:
            raise UsageError(f"{word}: sweeps take their axes as options", f"name the model as --model {word}")
        if not word.startswith("-") or axis is None:
            raise UsageError(f"{word}: sweeps over {workload.name} have no such option", suggest(name, list(by_option)))
        is_flag = axis.kind == "flag"
        takes_next_word = remaining and not (is_flag and (negated or remaining[0].startswith("-")))
        if not value and takes_next_word:
            value = remaining.pop(0)
        elif not value and is_flag:
            value = "false" if negated else "true"
        elif not value:
            raise UsageError(f"{word} needs a value", "such as --n 512:131072:x2")
        axes[axis.name] = f"{axes[axis.name]},{value}" if axis.name in axes else value
    return axes


def _outputs(output: Sequence[str] | None, form: str | None, resume: bool, dask: str | None) -> tuple[Output | None, list[str]]:
    """The row file, if any, and the outputs for the report. UsageError if they do not go together."""
    from perfmodel.report.formats import suffixes

    pictured, reports, rows = suffixes(["charts"]), list[str](), list[str]()
    for name in output or ():
        suffix = Path(name).suffix
        is_folder = name.endswith("/") or (dask and not suffix)
        is_row_stream = name == "-" and form is not None
        if is_folder or is_row_stream or suffix in ROWS:
            rows.append(name)
        elif name == "-" or suffix in pictured:
            reports.append(name)
        else:
            kind = repr(suffix) if suffix else "a file without suffix"
            fix = f"end it in .csv, .jsonl or .parquet, or in / for a folder, for rows; in {', '.join(pictured)} for the report"
            raise UsageError(f"--output: no format is written to {kind} ({name})", f"{fix}; rows to stdout: -o - --format csv")
    if len(rows) > 1:
        raise UsageError(f"--output: rows go to one place, not to {len(rows)}", "run the sweep again for another format")
    for word, is_given in (("--resume", resume), ("--dask", dask), ("--format", form)):
        if is_given and not rows:
            raise UsageError(f"{word} is about rows in a file", "say where with -o, such as -o rows.parquet")
    return _rows_output(rows[0], form, resume, dask) if rows else None, reports


def _rows_output(name: str, form: str | None, resume: bool, dask: str | None) -> Output:
    """The output ``name`` of rows: stdout for ``-``, a folder of Parquet files, or a file; UsageError if the options do not fit it."""
    from perfmodel.sweep.parts import Output
    from perfmodel.sweep.writers import find

    if name == "-":
        if resume or dask:
            raise UsageError("--resume and --dask need a file", "give one with -o")
        find(str(form))
        return Output(None, str(form))
    path = Path(name)
    is_folder = name.endswith("/") or dask is not None
    row_format = "parquet" if is_folder else path.suffix.removeprefix(".")
    if form not in (None, row_format):
        raise UsageError(f"--format {form} does not fit {name}", "leave it out: the suffix says it")
    if is_folder and path.suffix in (".csv", ".jsonl"):
        reason = "--dask writes a" if dask else "a name that ends in / is a"
        raise UsageError(f"{reason} folder of Parquet files, not {name}", "name a folder, such as -o rows/")
    if not path.parent.is_dir():
        raise UsageError(f"--output: there is no folder {path.parent}", "create it first")
    if not is_folder and path.is_dir():
        raise UsageError(f"--output: {path} is a folder", "end it in / to write Parquet files into it, or name a file")
    return Output(path, row_format, is_folder, resume, dask)


def _axes_help(name: str) -> str:
    """Help on axes and columns of the workload called ``name``, 78 characters wide."""
    from perfmodel.sweep.study import WORKLOADS, workload_named

    workload = workload_named(name)
    other_workloads = ", ".join(other for other in WORKLOADS if other != workload.name)
    axes = ", ".join(axis.option.removeprefix("--") for axis in workload.inputs)
    short = ", ".join(f"{word} = {column}" for word, column in workload.words.items() if word != TIME)
    parts = [
        "Values: a number (8k, 1e6), a list 64,128, a range 512:128Ki:x2 or 1:64:+1, an expression of other axes (heads/4), or all.",
        f"Axes of {workload.name}: {axes}",
        f"Columns: {', '.join(column.name for column in workload.columns)}",
        f"Short: {short}. See also perfmodel sweep NAME --help of {other_workloads}.",
    ]
    return "\n".join(line for part in parts for line in wrap(part, 78, subsequent_indent="  ", break_on_hyphens=False))
