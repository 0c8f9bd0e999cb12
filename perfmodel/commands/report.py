"""A study in one document, in every format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from perfmodel.commands._command import Pictured, command
from perfmodel.commands._progress import ProgressBar
from perfmodel.commands._shared import command_line
from perfmodel.core.errors import DataError, UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.question import DEFAULT_DEVICE, Common, Condition, Question, argument, as_in, option

if TYPE_CHECKING:
    from perfmodel.report import Report

_WORKLOADS = ("attention", "matmul", "model")
_HAS_WORK = Condition(
    "is for --attention, --matmul and --model", "a study names its own", lambda study: any(getattr(study, kind) for kind in _WORKLOADS)
)


@dataclass(frozen=True, slots=True)
class StudyQuestion(Question):
    """The study to build, and a saved report to compare it with."""

    study: str | None = argument("STUDY", "A shipped study, a study's .yaml, or a saved report's .json.", None)
    attention: list[str] | None = option("A study of attention: 'n=1024:65536:x2 d=64 heads=16', one size swept or none. Repeatable.")
    matmul: list[str] | None = option("The same of a matmul: 'm=64:8192:x2 n=4096 k=4096', or 8192x128x8192. Repeatable.")
    model: list[str] | None = option("The same of a phase of a model: 'llama-3-8b decode batch=1:64:x2 kv_len=2048'. Repeatable.")
    hardware: list[str] | None = option(f"Device: id, words of one, or a path. Repeatable. [default: {DEFAULT_DEVICE}]", reader=_HAS_WORK)
    implementation: str | None = as_in(Common, "implementation", reader=_HAS_WORK)
    save_study: str | None = option("Write the study to FILE.yaml, to edit it and to build it again.", metavar="FILE")
    schema: bool = option("Print the JSON Schema of 'study:' files.", default=False)
    baseline: str | None = as_in(Common, "baseline")


@command
def report(options: StudyQuestion, to: Pictured) -> None:
    """A study in one document: verdict, rooflines, sweeps and tables, in every format.

    A saved report is rendered again without computing. Example: perfmodel report standard-vs-flash -o report.html -o report.md
    Or: perfmodel report --attention 'n=1024:65536:x2 d=64 heads=16 batch=8' --hardware h100 --hardware h200
    """
    if options.schema:
        if len(options.given()) > 1 or to.given():
            raise UsageError("--schema only prints a schema", "give it alone")
        from perfmodel.study.described import schema_text

        typer.echo(schema_text())
        return
    workloads = [kind for kind in _WORKLOADS if getattr(options, kind)]
    if options.study is not None and workloads:
        raise UsageError(f"--{workloads[0]} with a study", "a study names its own workloads and devices")
    if options.save_study is not None and not options.save_study.endswith((".yaml", ".yml")):
        raise UsageError(f"--save-study: {options.save_study} is no YAML file", "end it in .yaml")
    from perfmodel.report.baseline import against_saved

    document = _study_of_options(options) if workloads else _study_named(options)
    to.emit(against_saved(document, options.baseline))


def _study_of_options(options: StudyQuestion) -> Report:
    """The report of a study given by options."""
    from perfmodel.core.files import text_of_yaml
    from perfmodel.study.document import build
    from perfmodel.study.options import study_of
    from perfmodel.study.schema import Scope, StudyFile, study_from

    scope = Scope()
    texts = {kind: getattr(options, kind) or [] for kind in _WORKLOADS}
    raw = study_of(texts, options.hardware or [DEFAULT_DEVICE], options.implementation, scope)
    with ProgressBar() as bar:
        document = build(StudyFile(study_from(raw)), command_line("report", **options.given()), done=bar.done, scope=scope)
    if options.save_study is not None:
        _save(options.save_study, f"# perfmodel report {options.save_study}\n{text_of_yaml({'study': raw})}")
    return document


def _study_named(options: StudyQuestion) -> Report:
    """The report of a study file, shipped or not, or a saved report."""
    from perfmodel.study.schema import read_study, study_names

    if options.study is None:
        fix = f"give one of {', '.join(study_names())}; a path ending in .yaml or .json; or --attention, --matmul or --model"
        raise UsageError("STUDY is missing", fix)
    if options.study.endswith(".json"):
        from perfmodel.report.document import read_report

        if options.save_study is not None:
            raise UsageError("--save-study with a saved report", "it does not hold its study; build that again")
        return read_report(Path(options.study))
    from perfmodel.study.document import build

    study = read_study(options.study)
    with ProgressBar() as bar:
        document = build(study, command_line("report", options.study, baseline=options.baseline), done=bar.done)
    if options.save_study is not None and study.path is not None:
        _save(options.save_study, study.path.read_text(encoding="utf-8"))
    return document


def _save(name: str, text: str) -> None:
    try:
        Path(name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"--save-study: {name}: {error.strerror or error}", "choose another place") from None
