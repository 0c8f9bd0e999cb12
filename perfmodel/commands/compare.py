"""Two reports, devices, algorithms or implementations, compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from perfmodel import __version__
from perfmodel.commands._command import Pictured, command
from perfmodel.commands._shared import command_line, share_of, workloads_of
from perfmodel.core.errors import DataError, UsageError, suggest
from perfmodel.core.frozen import dataclass
from perfmodel.core.question import Common, Question, argument, as_in, option

if TYPE_CHECKING:
    from perfmodel.report import Report
    from perfmodel.report.compare import Change

FAILS = ("slower", "changed", "never")


@dataclass(frozen=True, slots=True)
class ComparisonQuestion(Question):
    """The two sides to compare, and the smallest change that counts."""

    before: str = argument("A", "A saved report or --json output (.json), a device, an algorithm, an implementation.")
    after: str = argument("B", "Another one of the same kind.")
    attention: list[str] | None = as_in(Common, "attention")
    matmul: list[str] | None = as_in(Common, "matmul")
    model: list[str] | None = as_in(Common, "model")
    hardware: str | None = option("Device on which algorithms or implementations run.")
    threshold: str = option("Changes up to this are SAME; the noise of a measurement if that is larger.", default="5%")
    fail_on: str = option("Exit code 3 if something is 'slower', or 'changed'; 1 if nothing can be compared.", default="never")


@command
def compare(asked: ComparisonQuestion, to: Pictured) -> None:
    """Two reports, devices, algorithms or implementations: before and after, with ratio and SAME, FASTER or SLOWER.

    Example: perfmodel compare before.json after.json --fail-on slower. Or: perfmodel compare a100-sxm-80gb h200 --model 'llama-3-8b decode'
    """
    allowed = share_of("--threshold", asked.threshold)
    if asked.fail_on not in FAILS:
        raise UsageError(f"--fail-on is {asked.fail_on!r}", suggest(asked.fail_on, list(FAILS)))
    options = {name: getattr(asked, name) for name in ("attention", "matmul", "model", "hardware")}
    line = command_line("compare", asked.before, asked.after, **options)
    documents = [name for name in (asked.before, asked.after) if name.endswith(".json")]
    if len(documents) == 1:
        raise UsageError(f"{documents[0]} is a document and the other is none", "give two documents, or two names")
    if documents:
        if any(options.values()):
            raise UsageError("two documents are compared as they are", "leave out workloads and --hardware")
        document, changed = _documents(asked.before, asked.after, allowed, line)
    else:
        document, changed = _named(asked, allowed, line)
    to.emit(document)
    checked = [change for change in changed if change.speed or asked.fail_on == "changed"]
    if asked.fail_on != "never" and not checked:
        subject = "nothing" if asked.fail_on == "changed" else "no time or rate"
        raise DataError(
            f"--fail-on {asked.fail_on}: {asked.before} and {asked.after} have {subject} in common, so nothing was checked",
            "compare two documents of one command, whose workloads have the same names",
        )
    words = {change.word for change in changed}
    if (asked.fail_on == "slower" and "SLOWER" in words) or (asked.fail_on == "changed" and words - {"SAME"}):
        raise typer.Exit(3)


def _documents(before: str, after: str, threshold: float, line: str) -> tuple[Report, list[Change]]:
    """The report and the changes between two saved answers."""
    from perfmodel.core.checks import sha256
    from perfmodel.core.files import read_json
    from perfmodel.report.compare import Compared, MetricComparison
    from perfmodel.report.document import Provenance
    from perfmodel.report.saved_metrics import UNITS, metrics_of

    sides, paths = list[Compared](), (Path(before), Path(after))
    saved = {name: read_json(Path(name)) for name in (before, after)}
    units = next((raw[UNITS] for raw in reversed(saved.values()) if isinstance(raw, dict) and UNITS in raw), None)
    for name, path in zip((before, after), paths, strict=True):
        try:
            sides.append(Compared(path.stem if paths[0].stem != paths[1].stem else name, metrics_of(saved[name], name, units)))
        except DataError as error:
            raise DataError(error.message if name in error.message else f"{name}: {error.message}", error.fix) from None
    before_side, after_side = sides
    comparison = MetricComparison(before_side, after_side, threshold)
    document = comparison.report()
    versions = [f"{name}: made by perfmodel {raw.get('version', 'of an unknown version')}." for name, raw in saved.items()]
    provenance = Provenance(line, __version__, [], {name: sha256(Path(name)) for name in saved})
    return replace(document, notes=[*document.notes, *versions], provenance=provenance), comparison.changes


def _named(options: ComparisonQuestion, threshold: float, line: str) -> tuple[Report, list[Change]]:
    """The report and the changes between two devices, algorithms or implementations."""
    from perfmodel.study.kinds.comparison import ComparisonSection
    from perfmodel.study.schema import Scope

    scope = Scope()
    section = ComparisonSection([options.before, options.after], workloads_of(options), options.hardware, threshold, "changes")
    document, changed, warnings = section.compared(scope)
    cannot = [warning for warning in warnings if "CANNOT" in warning]
    verdict = [*cannot, *document.verdict[:2], *(warning for warning in warnings if warning not in cannot), *document.verdict[2:]][:3]
    return replace(document, verdict=verdict, reasons=[*warnings, *document.reasons], provenance=scope.provenance(line)), changed
