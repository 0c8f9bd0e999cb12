"""A study computed: its sections one after another, as one Report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel import __version__
from perfmodel.core.errors import DataError, PerfmodelError
from perfmodel.core.files import sha256
from perfmodel.report.against import ratio_notes
from perfmodel.report.charts.schema import Chart, Roofline
from perfmodel.report.compare import DEFAULT_THRESHOLD, changes, of_report, summary
from perfmodel.report.document import Formula, Provenance, Report
from perfmodel.report.roofline_chart import with_baseline
from perfmodel.study.base import Scope, SectionResult, together
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
            raise file.placed(place, error) from None
    return joined(file.study.title, parts, scope, command, file.study.notes or [])


def joined(title: str, parts: Sequence[SectionResult], scope: Scope, command: str = "", notes: Sequence[str] = ()) -> Report:
    """``parts`` as one document, with what they rest on; the first sentence of each part comes first."""
    whole, first = together(parts), [sentence for part in parts for sentence in part.verdict[:1]]
    verdict = [*first, *(sentence for part in parts for sentence in part.verdict[1:])]
    once: dict[tuple[str, str], Formula] = {}
    for formula in whole.formulas:
        once.setdefault((formula.group, formula.name), formula)
    return Report(
        title,
        verdict,
        [],
        list(dict.fromkeys([*notes, *whole.notes, *ratio_notes(verdict)])),
        charts=whole.charts,
        data_tables=whole.data_tables,
        formulas=list(once.values()),
        provenance=Provenance(command, __version__, list(scope.profiles.values()), scope.inputs),
    )


def with_base(report: Report, base: Report, name: str) -> Report:
    """``report`` with arrows from the points of the same name in ``base``, and what became faster or slower since, first."""
    both = of_report(base), of_report(report)
    verdict = [*summary(changes(*both, DEFAULT_THRESHOLD), name, "this report", DEFAULT_THRESHOLD, both), *report.verdict]
    charts: list[Chart] = [_arrows(chart, base, name) if isinstance(chart, Roofline) else chart for chart in report.charts]
    points = [point for chart in charts if isinstance(chart, Roofline) for point in chart.points]
    if points and not any(point.before for point in points):
        lost = f"NOTHING TO COMPARE WITH: no point of this report is in {name} with a time, on the same device and by the same name"
        verdict = [f"{lost}; no arrow is drawn.", *verdict]
    return replace(report, verdict=verdict, charts=charts)


def _arrows(chart: Roofline, base: Report, name: str) -> Roofline:
    before = [point for old in base.rooflines if old.device == chart.device for point in old.points]
    return replace(chart, points=with_baseline(chart.points, before, name))
