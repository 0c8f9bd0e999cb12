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
    charts: list[Chart] = [replace(chart, caption=" ".join(filter(None, [caption(chart), chart.caption]))) for chart in report.charts]
    assumptions = [*notes, *report.assumptions] or report.notes[:ASSUMED]
    return replace(report, charts=charts, question=study.question or study.title, figures=report.figures[:DECIDE], assumptions=assumptions)


def joined(title: str, parts: Sequence[Report], scope: Scope, command: str = "", notes: Sequence[str] = ()) -> Report:
    """``parts`` as one document with its provenance; the first sentence of each part comes first."""
    whole, ordered = merged(parts, title), sorted(parts, key=_only_points)
    leader = next(iter(ordered), None)
    answers = [(_only_points(part), _titled(part, part.verdict or part.reasons, part is not leader)) for part in ordered]
    in_order = [sentence for points in (False, True) for sentence in in_turn([sentences for only, sentences in answers if only is points])]
    assumed, *other_assumptions = [list(dict.fromkeys(_titled(part, part.assumptions, part is not leader))) for part in ordered] or [[]]
    verdict = in_order[:SENTENCES]
    full = [sentence for firsts in (True, False) for part in parts for sentence in (part.reasons[:1] if firsts else part.reasons[1:])]
    reasons = [sentence for sentence in dict.fromkeys([*in_order[SENTENCES:], *full]) if sentence not in verdict]
    further = [sentence for listed in other_assumptions for sentence in listed]
    once: dict[tuple[str, str], Formula] = {}
    for formula in whole.formulas:
        once.setdefault((formula.group, formula.name), formula)
    return replace(
        whole,
        verdict=verdict,
        notes=list(dict.fromkeys([*notes, *whole.notes, *further, *ratio_notes([*verdict, *reasons])])),
        formulas=list(once.values()),
        provenance=scope.provenance(command),
        meters=whole.meters if len(parts) == 1 else [],
        figures=(whole.figures or roofline_answer.figures(whole.rooflines))[:FIGURES],
        brief=_brief(parts),
        reasons=reasons,
        assumptions=assumed,
        sensitivity=next((part.sensitivity[:SENSITIVE] for part in ordered if part.sensitivity), []),
    )


def _titled(part: Report, sentences: list[str], titled: bool) -> list[str]:
    """Sentences of a section; ``titled``: each begins with the section's title."""
    if not titled or not part.title:
        return sentences
    return [f"{upper_first(part.title)}: {text[0].lower() if text.startswith(LEADING) else text[0]}{text[1:]}" for text in sentences]


def caption(chart: Chart) -> str:
    """Sentence that says what a chart shows."""
    if isinstance(chart, Roofline):
        shares = [share for point in chart.points if (share := share_of_roof(point)) is not None]
        reach = f" They reach {between(percent(min(shares)), percent(max(shares)))} of their roofs." if len(shares) > 1 else ""
        return f"FLOP per second against FLOP per byte on {chart.device_name}; lines are roofs, points are kernels.{reach}"
    if isinstance(chart, LineChart):
        drawn = [", shaded with the 80 % interval"] * any(line.band for line in chart.series)
        drawn += ["; dashed: at the roof"] * any(line.style == "dashed" and line.name.endswith("roof") for line in chart.series)
        return f"{upper_first(chart.y_label)} against {chart.x_label}{''.join(drawn)}.{_at_the_end(chart)}"
    if isinstance(chart, BarChart):
        lines = [limit.label for limit in chart.limits]
        marked = f"; the line{'s are' if len(lines) > 1 else ' is'} {' and '.join(lines)}" * bool(lines)
        return f"{BARS.get(chart.unit, upper_first(chart.unit))}{marked}."
    return "Predicted against measured time; the band holds 80 % of the measurements."


def _at_the_end(chart: LineChart) -> str:
    """Phrase with the last common values of a few lines; empty for many."""
    lines = [(line.name, dict(line.points)) for line in chart.series if line.style != "dashed"]
    last = max(set.intersection(*(set(points) for _, points in lines)), default=None) if lines else None
    if last is None or chart.x_unit != "count" or sum(len(name) for name, _ in lines) > SPELLED:
        return ""
    return f" At {text(last, chart.x_unit)}: {', '.join(f'{name} {text(points[last], chart.y_unit)}' for name, points in lines)}."


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
        if table_ := part.brief or points or [as_text(_without_ends(table)) for table in part.data_tables]:
            return table_[:1]
    return []


def _without_ends(table: DataTable) -> DataTable:
    """``table`` without intervals, which take a line each on a narrow screen."""
    ends = {key for column in table.columns for key in (column.low, column.high)}
    kept = [place for place, column in enumerate(table.columns) if column.key not in ends]
    columns = [replace(table.columns[place], low="", high="") for place in kept]
    return DataTable(table.title, columns, [[row[place] for place in kept] for row in table.rows])
