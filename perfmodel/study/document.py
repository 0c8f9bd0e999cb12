"""A study as one Report: a short part for the screen, then all sections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, zip_longest

from perfmodel.core.errors import DataError, PerfmodelError
from perfmodel.report import roofline as roofline_answer
from perfmodel.report.answer import upper_first
from perfmodel.report.charts.format_number import as_text, between, percent, text
from perfmodel.report.charts.roofline_metrics import share_of_roof
from perfmodel.report.charts.schema import BarChart, Chart, LineChart, Roofline
from perfmodel.report.document import DataTable, Formula, Report, Table
from perfmodel.report.speedup import ratio_notes
from perfmodel.study.schema import Scope, StudyFile, kind_names, merged

SENTENCES = 3
"""Most sentences of a verdict."""
FIGURES, DECIDE = 5, 3
"""Most figures of a report on points, and of one for a design review."""
ASSUMED = 4
"""Most notes that stand for assumptions if no section names any."""
SENSITIVE = 4
"""Most sentences on what would change the verdict."""
SPELLED = 60
"""Most letters of the names of lines for a caption with their last values."""
BARS = {"ratio": "Ratio, longer is better", "B": "Bytes by part", "s": "Time by part"}
"""Captions of bar charts by unit."""
LEADING = ("On ", "The ", "By ", "Of ")
"""Beginnings of an answer that become lower case after the title of its section."""


Done = Callable[[float], None]
"""Function that is told which share of the work is done."""


def build(
    file: StudyFile, command: str = "", kinds: Sequence[str] = (), done: Done = lambda share: None, scope: Scope | None = None
) -> Report:
    """The report of a study, or only of its sections of ``kinds``. DataError names file and line of a section that cannot be computed."""
    study, scope = file.study, scope or Scope(file.path.parent if file.path else None)
    if not study.sections:
        raise DataError(f"{file.path}: the study has no sections", f"each is of one of the kinds {', '.join(kind_names())}")
    if file.path:
        scope.file(file.path.name)
    parts = []
    for place, section in enumerate(study.sections):
        if kinds and type(section).__module__.rsplit(".", 1)[-1] not in kinds:
            continue
        try:
            parts.append(section.build(scope))
        except PerfmodelError as error:
            raise file.placed(place, error) from None
        done((place + 1) / len(study.sections))
    notes = study.notes or []
    report = joined(study.title, parts, scope, command, notes)
    if kinds:
        return report
    charts: list[Chart] = [replace(chart, caption=f"{caption(chart)} {chart.caption}".strip()) for chart in report.charts]
    assumptions = [*notes, *report.assumptions] or report.notes[:ASSUMED]
    return replace(report, charts=charts, question=study.question or study.title, figures=report.figures[:DECIDE], assumptions=assumptions)


def joined(title: str, parts: Sequence[Report], scope: Scope, command: str = "", notes: Sequence[str] = ()) -> Report:
    """``parts`` as one document with its provenance; the first sentence of each part comes first.

    Parts with rooflines alone come after the others. The first part leads: its sentences have no title before them, and its assumptions
    are those of the document, while the assumptions of later parts become notes.
    """
    whole = merged(parts, title)
    others = [part for part in parts if not _only_points(part)]
    only_points = [part for part in parts if _only_points(part)]
    ordered = [*others, *only_points]
    leader = ordered[0] if ordered else Report("", [], [])

    def titled(part: Report, sentences: list[str]) -> list[str]:
        return sentences if part is leader else _titled(part.title, sentences)

    answers = in_turn([titled(part, part.verdict or part.reasons) for part in others])
    answers += in_turn([titled(part, part.verdict or part.reasons) for part in only_points])
    verdict = answers[:SENTENCES]
    first_reasons = [reason for part in parts for reason in part.reasons[:1]]
    later_reasons = [reason for part in parts for reason in part.reasons[1:]]
    all_reasons = dict.fromkeys([*answers[SENTENCES:], *first_reasons, *later_reasons])
    reasons = [reason for reason in all_reasons if reason not in verdict]
    later_assumptions = [sentence for part in ordered[1:] for sentence in titled(part, part.assumptions)]
    formula_by_name: dict[tuple[str, str], Formula] = {}
    for formula in whole.formulas:
        formula_by_name.setdefault((formula.group, formula.name), formula)
    sensitivities = [part.sensitivity for part in ordered if part.sensitivity] or [[]]
    return replace(
        whole,
        verdict=verdict,
        notes=list(dict.fromkeys([*notes, *whole.notes, *later_assumptions, *ratio_notes([*verdict, *reasons])])),
        formulas=list(formula_by_name.values()),
        provenance=scope.provenance(command),
        meters=whole.meters if len(parts) == 1 else [],
        figures=(whole.figures or roofline_answer.figures(whole.rooflines))[:FIGURES],
        brief=_brief(parts),
        reasons=reasons,
        assumptions=list(dict.fromkeys(leader.assumptions)),
        sensitivity=sensitivities[0][:SENSITIVE],
    )


def _titled(title: str, sentences: list[str]) -> list[str]:
    """``sentences`` with the title of their section before each, if it has one."""
    if not title:
        return sentences
    lowered = [text[0].lower() + text[1:] if text.startswith(LEADING) else text for text in sentences]
    return [f"{upper_first(title)}: {text}" for text in lowered]


def caption(chart: Chart) -> str:
    """Sentence that says what a chart shows."""
    if isinstance(chart, Roofline):
        words = f"FLOP per second against FLOP per byte on {chart.device_name}; lines are roofs, points are kernels."
        shares = [share for share in map(share_of_roof, chart.points) if share is not None]
        if len(shares) > 1:
            words += f" They reach {between(percent(min(shares)), percent(max(shares)))} of their roofs."
        return words
    if isinstance(chart, LineChart):
        words = f"{upper_first(chart.y_label)} against {chart.x_label}"
        if any(line.band for line in chart.series):
            words += ", shaded with the 80 % interval"
        if any(line.style == "dashed" and line.name.endswith("roof") for line in chart.series):
            words += "; dashed: at the roof"
        return f"{words}.{_at_the_end(chart)}"
    if isinstance(chart, BarChart):
        words = BARS.get(chart.unit, upper_first(chart.unit))
        if chart.limits:
            words += "; the lines are " if len(chart.limits) > 1 else "; the line is "
            words += " and ".join(limit.label for limit in chart.limits)
        return f"{words}."
    return "Predicted against measured time; the band holds 80 % of the measurements."


def _at_the_end(chart: LineChart) -> str:
    """Phrase with the last common values of a few lines; empty for many."""
    points_of = {line.name: dict(line.points) for line in chart.series if line.style != "dashed"}
    if not points_of or chart.x_unit != "count" or len("".join(points_of)) > SPELLED:
        return ""
    common = set.intersection(*(set(points) for points in points_of.values()))
    if not common:
        return ""
    last = max(common)
    values = ", ".join(f"{name} {text(points[last], chart.y_unit)}" for name, points in points_of.items())
    return f" At {text(last, chart.x_unit)}: {values}."


def _only_points(part: Report) -> bool:
    return bool(part.charts) and all(isinstance(chart, Roofline) for chart in part.charts)


def in_turn(lists: Sequence[Sequence[str]]) -> list[str]:
    """The first of each list, then the second of each, and so on.

    >>> in_turn([["a", "b"], ["c"]])
    ['a', 'c', 'b']
    """
    return [item for item in chain.from_iterable(zip_longest(*lists)) if item]


def _brief(parts: Sequence[Report]) -> list[Table]:
    """The table for the screen: the first section's own, its roofline points, or its first table."""
    for part in parts:
        points = roofline_answer.table(part.rooflines)
        tables = part.brief or points or [as_text(_without_ends(table)) for table in part.data_tables]
        if tables:
            return tables[:1]
    return []


def _without_ends(table: DataTable) -> DataTable:
    """``table`` without intervals, which take a line each on a narrow screen."""
    ends = {key for column in table.columns for key in (column.low, column.high)}
    kept = [place for place, column in enumerate(table.columns) if column.key not in ends]
    columns = [replace(table.columns[place], low="", high="") for place in kept]
    return DataTable(table.title, columns, [[row[place] for place in kept] for row in table.rows])
