"""What the numbers of the page rest on: convention, assumptions, roofs and formulas with their sources, provenance."""

from __future__ import annotations

from dataclasses import replace

from perfmodel import __version__
from perfmodel.core.units import format_si
from perfmodel.report.charts.cells import formula_text
from perfmodel.report.charts.draw import clean
from perfmodel.report.charts.kinds import COMPUTE, Roofline
from perfmodel.report.document import FLOP_CONVENTION, Formula, Report, Table
from perfmodel.report.formats._html_tables import text_table


def foundations(report: Report) -> str:
    """Assumptions first, then roofs and formulas, folded."""
    notes = "".join(f"<li>{clean(note)}</li>" for note in [FLOP_CONVENTION, *report.notes])
    parts = [f'<ul class="notes">{notes}</ul>', *map(_roofs, report.rooflines)]
    parts += _formulas(report.formulas)
    return f'<section aria-labelledby="rest-title"><h2 id="rest-title">What the numbers rest on</h2>{"".join(parts)}</section>'


def ceiling_rows(chart: Roofline) -> list[list[str]]:
    """Every roof with its value, the evidence for it and its source."""
    return [[c.name, format_si(c.value, "FLOP/s" if c.kind == COMPUTE else "B/s"), c.evidence, c.source] for c in chart.ceilings]


def _roofs(chart: Roofline) -> str:
    table = text_table(Table("", ["roof", "value", "evidence", "source"], ceiling_rows(chart), "lrll"))
    return f'<details data-device="{clean(chart.device)}"><summary>Roofs of {clean(chart.device_name)}</summary>{table}</details>'


def _formulas(formulas: list[Formula]) -> list[str]:
    """A block per group; what an earlier group has as well is named alone, and every source stands once, below."""
    sources = list(dict.fromkeys(f.source for f in formulas if f.source))
    first: dict[Formula, str] = {}
    parts = []
    for group in dict.fromkeys(formula.group for formula in formulas):
        own = [formula for formula in formulas if formula.group == group]
        known: dict[str, list[str]] = {}
        rows = []
        for formula in own:
            earlier = first.setdefault(replace(formula, group=""), group)
            if earlier == group:
                rows.append(_formula(formula, sources))
            else:
                known.setdefault(earlier, []).append(formula.name)
        as_before = "".join(f"<dt>as in {clean(earlier)}</dt><dd>{clean(', '.join(names))}</dd>" for earlier, names in known.items())
        title = f"Formulas{': ' * bool(group)}{clean(group)}"
        parts.append(f'<details><summary>{title}</summary><dl class="formula">{as_before}{"".join(rows)}</dl></details>')
    listed = "".join(f"<li>[{place}] {clean(source)}</li>" for place, source in enumerate(sources, 1))
    return (
        [*parts, f'<details><summary>Sources of the formulas</summary><ol class="footnotes">{listed}</ol></details>'] if listed else parts
    )


def _formula(formula: Formula, sources: list[str]) -> str:
    mark = f" [{sources.index(formula.source) + 1}]" if formula.source else ""  # not raised: behind a number that would be a power
    return f"<dt>{clean(formula_text(formula))}</dt><dd>{clean(formula.meaning)}{mark}</dd>"


def provenance(report: Report) -> str:
    """How to make the page again."""
    known = report.provenance
    version = known.version if known else __version__
    facts = [("made by", f"perfmodel {clean(version)}")]
    if known:
        facts += [("command", f"<code>{clean(known.command)}</code>")] if known.command else []
        for use in known.profiles:
            date = f", calibrated {clean(use.calibrated)}" if use.calibrated else ""
            facts.append(("profile", f"{clean(use.id)}{date}, SHA-256 <code>{clean(use.sha256)}</code>"))
        facts += [("input", f"{clean(name)}, SHA-256 <code>{clean(digest)}</code>") for name, digest in known.inputs.items()]
    rows = "".join(f"<dt>{name}</dt><dd>{said}</dd>" for name, said in facts)
    return f'<footer><dl class="facts">{rows}</dl></footer>'
