"""A study computed: its sections one after another, as one Report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from perfmodel import __version__
from perfmodel.core.errors import DataError, PerfmodelError
from perfmodel.core.files import sha256
from perfmodel.report.against import ratio_notes
from perfmodel.report.charts.schema import Roofline
from perfmodel.report.compare import DEFAULT_THRESHOLD, changes, of_report, summary
from perfmodel.report.document import Formula, Provenance, Report
from perfmodel.report.roofline_chart import with_baseline
from perfmodel.study.base import Part, Scope
from perfmodel.study.schema import StudyFile, kind_names


def build(file: StudyFile, command: str = "", kinds: Sequence[str] = ()) -> Report:
    """The report of a study; ``kinds``: of these sections only. DataError names file and line of a section that cannot be computed."""
    if not file.study.sections:
        raise DataError(f"{file.path}: the study has no sections", f"each is of one of the kinds {', '.join(kind_names())}")
    scope = Scope(file.path.parent)
    scope.inputs[file.path.name] = sha256(file.path)
    parts = []
    for place, section in enumerate(file.study.sections):
        if kinds and type(section).__module__.rsplit(".", 1)[-1] not in kinds:
            continue
        try:
            parts.append(section.build(scope))
        except PerfmodelError as error:
            raise file.told(place, error) from None
    return joined(file.study.title, parts, scope, command, file.study.notes or [])


def joined(title: str, parts: Sequence[Part], scope: Scope, command: str = "", notes: Sequence[str] = ()) -> Report:
    """``parts`` as one document, with what they rest on; the first sentence of each part comes first."""
    verdict = [*(part.verdict[0] for part in parts if part.verdict), *(said for part in parts for said in part.verdict[1:])]
    return Report(
        title,
        verdict,
        [],
        list(dict.fromkeys([*notes, *(note for part in parts for note in part.notes), *ratio_notes(verdict)])),
        charts=[chart for part in parts for chart in part.charts],
        data_tables=[table for part in parts for table in part.data_tables],
        formulas=_once(formula for part in parts for formula in part.formulas),
        provenance=Provenance(command, __version__, list(scope.profiles.values()), scope.inputs),
    )


def _once(formulas: Iterable[Formula]) -> list[Formula]:
    found: dict[tuple[str, str], Formula] = {}
    for formula in formulas:
        found.setdefault((formula.group, formula.name), formula)
    return list(found.values())


def with_base(report: Report, base: Report, name: str) -> Report:
    """``report`` with arrows from the points of the same name in ``base``, and what became faster or slower since, first."""
    both = of_report(base), of_report(report)
    said = summary(changes(*both, DEFAULT_THRESHOLD), name, "this report", DEFAULT_THRESHOLD, both)
    charts = [_arrows(chart, base, name) if isinstance(chart, Roofline) else chart for chart in report.charts]
    found = replace(report, verdict=[*said, *report.verdict], charts=charts)
    points = [point for chart in found.rooflines for point in chart.points]
    if points and not any(point.before for point in points):
        lost = f"NOTHING TO COMPARE WITH: no point of this report is in {name} with a time, on the same device and by the same name"
        found = replace(found, verdict=[f"{lost}; no arrow is drawn.", *found.verdict])
    return found


def _arrows(chart: Roofline, base: Report, name: str) -> Roofline:
    before = [point for old in base.rooflines if old.device == chart.device for point in old.points]
    return replace(chart, points=with_baseline(chart.points, before, name))
