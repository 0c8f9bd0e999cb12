"""Report on claims: what was claimed, what was computed, the verdict and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace

from perfmodel.claims import VERDICTS, Check, Claim, Computed
from perfmodel.core.units import format_count, format_si, format_time
from perfmodel.report.document import Figure, Report, Table
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.op_common import Sources, head, with_steps

_PREFIXED = ("B", "B/s", "FLOP", "FLOP/s", "OP/s")
_NOTE = (
    "In quotation marks: the source's own words. A printed number agrees if the computed one lies within half a unit of its last digit "
    "(a wider tolerance is in --json). A claim is wrong if a number disagrees, but holds with relabelling if all agree once a label "
    "is put right, and is incomplete if one disagrees beyond what is stated; without a number of this package it is not checkable."
)


def report(claims: Sequence[Claim], *, explained: bool = False) -> Report:
    """``claims`` as a Report of schema perfmodel.claims/1; ``explained``: with the formula of every computed number."""
    sources, counts = Sources(), Counter(claim.verdict for claim in claims)
    found = [_metrics(claim, sources) for claim in claims]
    data = {**head("claims"), "counts": {verdict: counts[verdict] for verdict in VERDICTS}, "claims": list(map(as_json, found))}
    tables = [as_rows("", found, labels=COLUMNS)] if found else []
    brief = [_card(found)] if 0 < len(found) <= CARDS else [as_rows("", _first(claims, found), labels=BRIEF)] * bool(found)
    title = "Claims of lecture notes and papers, recomputed"
    figures = [Figure("claims", str(len(claims))), Figure("sources", str(len({claim.source for claim in claims})))]
    figures += [Figure(verdict, str(number)) for verdict, number in counts.most_common(3)]
    plain = Report(title, [_summary(len(claims), counts)], tables, [_NOTE], data, brief=brief, figures=figures)
    if not explained:
        return replace(plain, notes=[*plain.notes, *sources.notes()])
    parts = [(claim, check) for claim in claims for check in claim.checks]
    steps = [(f"{claim.id}, {check.what}", {"id": claim.id, "what": check.what}, claim.explain(check)) for claim, check in parts]
    return with_steps(plain, steps, sources)


def _summary(number: int, counts: Counter[str]) -> str:
    words = {"holds": ("holds", "hold"), "holds with relabelling": ("holds with relabelling", "hold with relabelling")}
    parts = []
    for verdict in VERDICTS:
        one, many = words.get(verdict, (f"is {verdict}", f"are {verdict}"))
        if counts[verdict]:
            parts.append(f"{counts[verdict]} {one if counts[verdict] == 1 else many}")
    return f"{number} claim{'' if number == 1 else 's'}{': ' if parts else ''}{', '.join(parts)}."


BRIEF = {"id": "id", "verdict": "verdict", "statement": "statement", "why": "reason"}
FIRST = ("wrong", "incomplete", "holds with relabelling")
"""Verdicts that a screen shows first."""
SHOWN = 8
CARDS = 2
"""Claims up to which each is shown whole on a screen."""


def _first(claims: Sequence[Claim], found: Sequence[Sequence[Metric]]) -> list[Sequence[Metric]]:
    """Those that a screen shows."""
    ranks = [FIRST.index(claim.verdict) if claim.verdict in FIRST else len(FIRST) for claim in claims]
    return [found[place] for place in sorted(range(len(claims)), key=ranks.__getitem__)[:SHOWN]]


def _card(found: Sequence[Sequence[Metric]]) -> Table:
    """A column per claim."""
    columns = [{one.key or one.label: one for one in metrics} for metrics in found]
    rows = [[name, *(column[name].brief for column in columns)] for name in ("statement", "claimed", "computed", "verdict", "why")]
    return Table("", ["", *(column["id"].brief for column in columns)], rows, "l" * (1 + len(columns)))


COLUMNS = {name: name for name in ("id", "statement", "claimed", "computed", "verdict", "why", "cited")} | {"cited": "source"}


def _metrics(claim: Claim, sources: Sources) -> list[Metric]:
    pairs = list(zip(claim.checks, claim.numbers, strict=True))
    given = "; ".join(dict.fromkeys(_claimed(check, number) for check, number in pairs if number.claimed_value is not None)) or "-"
    several = len(claim.numbers) > 1
    shown = "; ".join(f"{one.what} {_shown(one.value, one)}" if several else _shown(one.value, one) for one in claim.numbers)
    figures = [{**asdict(number), "inputs": [asdict(one) for one in claim.inputs(check).values()]} for check, number in pairs]
    found = {
        "id": claim.id,
        "source": claim.source,
        "place": claim.place,
        "quoted": bool(claim.quote),
        "statement": claim.statement,
        "claimed": given,
        "verdict": claim.verdict,
        "why": claim.why,
        "inputs": [asdict(one) for one in claim.inputs().values()],
        "figures": figures,
        "functions": [f"{function.__module__}.{function.__name__}" for function in claim.functions],
    }
    beside = {"computed": shown or "-", "cited": sources.cite(f"{claim.source}, {claim.place}")}
    shared = [Metric(key, value, unit="text") for key, value in found.items()]
    return shared + [Metric("", value, key, "text") for key, value in beside.items()]


def _claimed(check: Check, number: Computed) -> str:
    assert number.claimed_value is not None
    text = check.printed or _shown(number.claimed_value, number)
    return text if number.relation == "=" else f"{number.relation} {text}"


def _shown(value: float, number: Computed) -> str:
    if number.unit in _PREFIXED:
        return format_si(value, number.unit, number.digits)
    if number.unit == "s":
        return format_time(value)
    whole = value.is_integer() and abs(value) >= 10**number.digits
    return f"{format_count(int(value)) if whole else f'{value:.{number.digits}g}'} {number.unit}".strip()
