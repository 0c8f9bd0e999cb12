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
def compare(options: ComparisonQuestion, to: Pictured) -> None:
    """Two reports, devices, algorithms or implementations: before and after, with ratio and SAME, FASTER or SLOWER.

    Example: perfmodel compare before.json after.json --fail-on slower. Or: perfmodel compare a100-sxm-80gb h200 --model 'llama-3-8b decode'
    """
    threshold = share_of("--threshold", options.threshold)
    if options.fail_on not in FAILS:
        raise UsageError(f"--fail-on is {options.fail_on!r}", suggest(options.fail_on, list(FAILS)))
    workloads = {name: getattr(options, name) for name in ("attention", "matmul", "model", "hardware")}
    line = command_line("compare", options.before, options.after, **workloads)
    documents = [name for name in (options.before, options.after) if name.endswith(".json")]
    if len(documents) == 1:
        raise UsageError(f"{documents[0]} is a document and the other is none", "give two documents, or two names")
    if documents:
        if any(workloads.values()):
            raise UsageError("two documents are compared as they are", "leave out workloads and --hardware")
        document, changes = _documents(options.before, options.after, threshold, line)
    else:
        document, changes = _named(options, threshold, line)
    to.emit(document)
    if options.fail_on != "never" and _failed(options, changes):
        raise typer.Exit(3)


def _failed(options: ComparisonQuestion, changes: list[Change]) -> bool:
    """Whether ``changes`` are what --fail-on names; DataError if none of them is of the kind that it checks."""
    slower_only = options.fail_on == "slower"
    checked = [change for change in changes if change.speed] if slower_only else changes
    if not checked:
        subject = "no time or rate" if slower_only else "nothing"
        raise DataError(
            f"--fail-on {options.fail_on}: {options.before} and {options.after} have {subject} in common, so nothing was checked",
            "compare two documents of one command, whose workloads have the same names",
        )
    words = {change.word for change in changes}
    return "SLOWER" in words if slower_only else words != {"SAME"}


def _documents(before: str, after: str, threshold: float, line: str) -> tuple[Report, list[Change]]:
    """The report and the changes between two saved answers."""
    from perfmodel.core.checks import sha256
    from perfmodel.core.files import read_json
    from perfmodel.report.compare import Compared, MetricComparison
    from perfmodel.report.document import Provenance
    from perfmodel.report.saved_metrics import UNITS, metrics_of

    saved = {name: read_json(Path(name)) for name in (before, after)}
    unit_maps = [raw[UNITS] for raw in (saved[after], saved[before]) if isinstance(raw, dict) and UNITS in raw]
    units = unit_maps[0] if unit_maps else None
    same_stem = Path(before).stem == Path(after).stem

    def side(name: str) -> Compared:
        try:
            return Compared(name if same_stem else Path(name).stem, metrics_of(saved[name], name, units))
        except DataError as error:
            raise DataError(error.message if name in error.message else f"{name}: {error.message}", error.fix) from None

    comparison = MetricComparison(side(before), side(after), threshold)
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
    document, changes, warnings = section.compared(scope)
    cannot_run = [warning for warning in warnings if "CANNOT" in warning]
    other_warnings = [warning for warning in warnings if warning not in cannot_run]
    by_weight = [*cannot_run, *document.verdict[:2], *other_warnings, *document.verdict[2:]]
    reasons = [*warnings, *document.reasons]
    return replace(document, verdict=by_weight[:3], reasons=reasons, provenance=scope.provenance(line)), changes
