"""Two reports, devices, algorithms or implementations: before and after, with ratio and SAME, FASTER or SLOWER."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.commands._report_options import (
    AttentionOption,
    MatmulOption,
    ModelOption,
    command_line,
    workloads_of,
)
from perfmodel.commands._shared import OFFERS, Command, JsonOption, PictureOption, check_outputs, emit, new_app, share_of

if TYPE_CHECKING:
    from perfmodel.report import Report
    from perfmodel.report.compare import Change

app = new_app()
FAILS = ("slower", "changed", "never")


@app.command(cls=Command)
def compare(
    before: Annotated[
        str, typer.Argument(metavar="A", help="A saved report or --json output (.json), a device, an algorithm, an implementation.")
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="Another one of the same kind.")],
    attention: AttentionOption = None,
    matmul: MatmulOption = None,
    model: ModelOption = None,
    hardware: Annotated[str | None, typer.Option(help="Device on which algorithms or implementations run.")] = None,
    threshold: Annotated[str, typer.Option(help="Changes up to this are SAME; the noise of a measurement if that is larger.")] = "5%",
    fail_on: Annotated[
        str, typer.Option(help="Exit code 3 if something is 'slower', or 'changed'; 1 if nothing can be compared.")
    ] = "never",
    json: JsonOption = False,
    output: PictureOption = None,
) -> None:
    """Two reports, devices, algorithms or implementations: before and after, with ratio and SAME, FASTER or SLOWER.

    Example: perfmodel compare before.json after.json --fail-on slower. Or: perfmodel compare a100-sxm-80gb h200 --model 'llama-3-8b decode'
    """
    outputs = check_outputs(output, OFFERS)
    allowed = share_of("--threshold", threshold)
    from perfmodel.core.errors import DataError, UsageError, suggest

    if fail_on not in FAILS:
        raise UsageError(f"--fail-on is {fail_on!r}", suggest(fail_on, list(FAILS)))
    line = command_line("compare", before, after, attention=attention, matmul=matmul, model=model, hardware=hardware)
    documents = [name for name in (before, after) if name.endswith(".json")]
    if len(documents) == 1:
        raise UsageError(f"{documents[0]} is a document and the other is none", "give two documents, or two names")
    if documents:
        if attention or matmul or model or hardware:
            raise UsageError("two documents are compared as they are", "leave out workloads and --hardware")
        found, changed = _documents(before, after, allowed, line)
    else:
        found, changed = _named(before, after, (attention, matmul, model), hardware, allowed, line)
    emit(found, json, outputs)
    checked = [one for one in changed if one.better or fail_on == "changed"]
    if fail_on != "never" and not checked:
        what = "nothing" if fail_on == "changed" else "no time or rate"
        raise DataError(
            f"--fail-on {fail_on}: {before} and {after} have {what} in common, so nothing was checked",
            "compare two documents of one command, whose workloads have the same names",
        )
    words = {one.word for one in changed}
    if (fail_on == "slower" and "SLOWER" in words) or (fail_on == "changed" and words - {"SAME"}):
        raise typer.Exit(3)


def _documents(before: str, after: str, threshold: float, line: str) -> tuple[Report, list[Change]]:
    from dataclasses import replace
    from pathlib import Path

    from perfmodel import __version__
    from perfmodel.catalog import read_json
    from perfmodel.core.errors import DataError
    from perfmodel.core.files import sha256
    from perfmodel.report.compare import metrics_of, report
    from perfmodel.report.document import Provenance

    found, versions = [], []
    for name in (before, after):
        raw = read_json(Path(name))
        try:
            found.append(metrics_of(raw, name))
        except DataError as error:
            raise DataError(error.message if name in error.message else f"{name}: {error.message}", error.fix) from None
        versions.append(f"{name}: made by perfmodel {raw.get('version', 'of an unknown version')}.")
    names = (Path(before).stem, Path(after).stem) if Path(before).stem != Path(after).stem else (before, after)
    made, changed = report(found[0], found[1], names, threshold)
    inputs = {name: sha256(Path(name)) for name in (before, after)}
    return replace(made, notes=[*made.notes, *versions], provenance=Provenance(line, __version__, [], inputs)), changed


def _named(
    before: str,
    after: str,
    workloads: tuple[list[str] | None, list[str] | None, list[str] | None],
    hardware: str | None,
    threshold: float,
    line: str,
) -> tuple[Report, list[Change]]:
    from dataclasses import replace

    from perfmodel import __version__
    from perfmodel.report.compare import report
    from perfmodel.report.document import Provenance
    from perfmodel.study.base import Scope
    from perfmodel.study.sides import sides

    scope = Scope()
    made = sides([before, after], workloads_of(*workloads), hardware, scope)
    found, changed = report(made.before.metrics, made.after.metrics, (made.before.name, made.after.name), threshold)
    charts = [made.chart] if made.chart is not None else []
    provenance = Provenance(line, __version__, list(scope.profiles.values()))
    verdict = [*found.verdict, *made.warnings]
    return replace(found, verdict=verdict, notes=[*made.notes, *found.notes], charts=list(charts), provenance=provenance), changed
