"""The sections of a study joined as one Report: what a screen says first, then all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, zip_longest

from perfmodel import __version__
from perfmodel.core.checks import sha256
from perfmodel.core.errors import DataError, PerfmodelError
from perfmodel.report import roofline as roofline_answer
from perfmodel.report.against import ratio_notes
from perfmodel.report.charts.format_number import as_text
from perfmodel.report.charts.schema import Chart, Roofline
from perfmodel.report.compare import DEFAULT_THRESHOLD, answers, changes, summary
from perfmodel.report.document import DataTable, Figure, Formula, Provenance, Report, Table
from perfmodel.report.roofline_chart import with_baseline
from perfmodel.report.saved_metrics import of_report
from perfmodel.study.schema import Scope, SectionResult, StudyFile, kind_names, together

SENTENCES = 3
"""Of a verdict."""
FIGURES = 5


Done = Callable[[float], None]
"""Hears what share of the work is done."""


def build(file: StudyFile, command: str = "", kinds: Sequence[str] = (), done: Done = lambda share: None) -> Report:
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
        done((place + 1) / len(file.study.sections))
    return joined(file.study.title, parts, scope, command, file.study.notes or [])


def joined(title: str, parts: Sequence[SectionResult], scope: Scope, command: str = "", notes: Sequence[str] = ()) -> Report:
    """``parts`` as one document, with what they rest on; the first sentence of each part comes first."""
    whole = together(parts)
    others, points = ([part.answers or part.verdict for part in parts if _only_points(part) is only] for only in (False, True))
    said = [*in_turn(others), *in_turn(points)]
    verdict = said[:SENTENCES]
    reasons = [sentence for sentence in dict.fromkeys([*said[SENTENCES:], *first_of_each(parts)]) if sentence not in verdict]
    once: dict[tuple[str, str], Formula] = {}
    for formula in whole.formulas:
        once.setdefault((formula.group, formula.name), formula)
    return Report(
        title,
        verdict,
        [],
        list(dict.fromkeys([*notes, *whole.notes, *ratio_notes([*verdict, *reasons])])),
        charts=whole.charts,
        data_tables=whole.data_tables,
        formulas=list(once.values()),
        provenance=Provenance(command, __version__, list(scope.profiles.values()), scope.inputs),
        meters=whole.meters if len(parts) == 1 else [],
        metered=next(iter(whole.metered), "predicted time"),
        figures=_figures(parts, whole.charts),
        brief=_brief(parts),
        reasons=reasons,
    )


def _only_points(part: SectionResult) -> bool:
    return bool(part.charts) and all(isinstance(chart, Roofline) for chart in part.charts)


def in_turn(lists: Sequence[Sequence[str]]) -> list[str]:
    """The first of each list, then the second of each, and so on.

    >>> in_turn([["a", "b"], ["c"]])
    ['a', 'c', 'b']
    """
    return [one for one in chain.from_iterable(zip_longest(*lists)) if one]


def first_of_each(parts: Sequence[SectionResult]) -> list[str]:
    """Full sentences: the first of each part, then the others."""
    first = [sentence for part in parts for sentence in part.verdict[:1]]
    return [*first, *(sentence for part in parts for sentence in part.verdict[1:])]


def _brief(parts: Sequence[SectionResult]) -> list[Table]:
    """The table of a screen: that of the first section, points of its rooflines, or its first table."""
    for part in parts:
        points = roofline_answer.table([chart for chart in part.charts if isinstance(chart, Roofline)])
        if found := part.brief or points or [as_text(_without_ends(table)) for table in part.data_tables]:
            return found[:1]
    return []


def _without_ends(table: DataTable) -> DataTable:
    """``table`` without intervals, which take a line each on a narrow screen."""
    ends = {key for column in table.columns for key in (column.low, column.high)}
    kept = [place for place, column in enumerate(table.columns) if column.key not in ends]
    columns = [replace(table.columns[place], low="", high="") for place in kept]
    return DataTable(table.title, columns, [[row[place] for place in kept] for row in table.rows])


def _figures(parts: Sequence[SectionResult], charts: Sequence[Chart]) -> list[Figure]:
    """Of each section the first, then the second, at most five in all; of rooflines alone those of their points."""
    given = [one for one in chain.from_iterable(zip_longest(*(part.figures for part in parts))) if one is not None]
    rooflines = [chart for chart in charts if isinstance(chart, Roofline)]
    return given[:FIGURES] or roofline_answer.figures(rooflines)[:FIGURES]


def with_base(report: Report, base: Report, name: str) -> Report:
    """``report`` with arrows from the points of the same name in ``base``, and what became faster or slower since, first."""
    both = of_report(base), of_report(report)
    found, sides = changes(*both, DEFAULT_THRESHOLD), (name, "this report")
    verdict = [*answers(found, *sides, DEFAULT_THRESHOLD, both)[:1], *report.verdict]
    full = summary(found, *sides, DEFAULT_THRESHOLD, both)
    charts: list[Chart] = [_arrows(chart, base, name) if isinstance(chart, Roofline) else chart for chart in report.charts]
    points = [point for chart in charts if isinstance(chart, Roofline) for point in chart.points]
    if points and not any(point.before for point in points):
        lost = f"NOTHING TO COMPARE WITH: no point of this report is in {name} with a time, on the same device and by the same name"
        verdict = [f"{lost}; no arrow is drawn.", *report.verdict]
    reasons = [*full, *verdict[SENTENCES:], *report.reasons]
    return replace(report, verdict=verdict[:SENTENCES], reasons=reasons, charts=charts)


def _arrows(chart: Roofline, base: Report, name: str) -> Roofline:
    before = [point for old in base.rooflines if old.device == chart.device for point in old.points]
    return replace(chart, points=with_baseline(chart.points, before, name))
