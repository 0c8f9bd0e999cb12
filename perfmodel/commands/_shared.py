"""What every command does the same way: answer ``--help`` at once, and hand out its report."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from perfmodel.report import Report

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
OutputOption = Annotated[
    list[str] | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the report to FILE: .json, .md or .txt; - is stdout. Repeatable."),
]


class Command(TyperCommand):
    """A command whose ``--help`` answers before any option is converted, so that it answers fast."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Print help at once if asked for; else parse as usual."""
        if "--help" in args:
            typer.echo(self.get_help(ctx))
            ctx.exit()
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


def new_app(**settings: Any) -> typer.Typer:
    """A Typer application in the house's settings: plain help, no completion options of its own."""
    return typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False, **settings)


def check_outputs(outputs: Sequence[str] | None) -> list[str]:
    """``outputs``, after making sure that each file can be written."""
    from perfmodel.report import check_output

    for name in outputs or ():
        if name != "-":
            check_output(Path(name))
    return list(outputs or ())


def emit(report: Report, as_json: bool, outputs: Sequence[str] = ()) -> None:
    """Write ``report`` to every file, and to stdout unless only files were asked for."""
    from perfmodel.report import write

    for name in outputs:
        if name != "-":
            write(Path(name), report)
    if not outputs or as_json or "-" in outputs:
        sys.stdout.write(_as_text(report, as_json))


def _as_text(report: Report, as_json: bool) -> str:
    if as_json:
        from perfmodel.report.json import render as render_json

        return render_json(report)
    if not sys.stdout.isatty():
        from perfmodel.report.text import render as render_text

        return render_text(report)
    from perfmodel.report.terminal import render

    return render(report, shutil.get_terminal_size().columns, color="NO_COLOR" not in os.environ)
