"""A study in one document: verdict, rooflines, sweeps and tables, in every format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.commands._report_options import BaselineOption, based, command_line
from perfmodel.commands._shared import OFFERS, Command, JsonOption, PictureOption, check_outputs, emit, new_app

if TYPE_CHECKING:
    from perfmodel.report import Report

app = new_app()


@app.command(cls=Command)
def report(
    study: Annotated[
        str | None, typer.Argument(metavar="STUDY", help="A shipped study, a study's .yaml, or a saved report's .json.", show_default=False)
    ] = None,
    baseline: BaselineOption = None,
    json: JsonOption = False,
    output: PictureOption = None,
) -> None:
    """A study in one document: verdict, rooflines, sweeps and tables, in every format.

    A saved report is rendered again without computing. Example: perfmodel report standard-vs-flash -o report.html -o report.md
    """
    outputs = check_outputs(output, OFFERS)
    from perfmodel.core.errors import UsageError
    from perfmodel.study.schema import study_names

    if study is None:
        raise UsageError("STUDY is missing", f"give one of {', '.join(study_names())}; or a path ending in .yaml or .json")
    emit(based(_report(study, baseline), baseline), json, outputs)


def _report(name: str, baseline: str | None) -> Report:
    from pathlib import Path

    if name.endswith(".json"):
        from perfmodel.report.saved import read_report

        return read_report(Path(name))
    from perfmodel.study.build import build
    from perfmodel.study.schema import read_study

    return build(read_study(name), command_line("report", name, baseline=baseline))
