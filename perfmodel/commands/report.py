"""A study in one document: verdict, rooflines, sweeps and tables, in every format."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.commands._command import Pictured, command
from perfmodel.commands._shared import based, command_line
from perfmodel.core.question import Common, Question, argument, as_in


@dataclass(frozen=True, slots=True)
class StudyQuestion(Question):
    """Which study to build, and a saved report to compare it with."""

    study: str | None = argument("STUDY", "A shipped study, a study's .yaml, or a saved report's .json.", None)
    baseline: str | None = as_in(Common, "baseline")


@command
def report(asked: StudyQuestion, to: Pictured) -> None:
    """A study in one document: verdict, rooflines, sweeps and tables, in every format.

    A saved report is rendered again without computing. Example: perfmodel report standard-vs-flash -o report.html -o report.md
    """
    from pathlib import Path

    from perfmodel.core.errors import UsageError
    from perfmodel.study.schema import read_study, study_names

    if asked.study is None:
        raise UsageError("STUDY is missing", f"give one of {', '.join(study_names())}; or a path ending in .yaml or .json")
    if asked.study.endswith(".json"):
        from perfmodel.report.document import read_report

        found = read_report(Path(asked.study))
    else:
        from perfmodel.study.document import build

        found = build(read_study(asked.study), command_line("report", asked.study, baseline=asked.baseline))
    to.emit(based(found, asked.baseline))
