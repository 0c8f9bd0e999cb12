"""The report on claims: what was claimed, what is computed, the verdict, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from perfmodel.claims import VERDICTS, Check, Claim, Computed
from perfmodel.core.units import format_count, format_si, format_time
from perfmodel.report.document import Figure, Report, Table
from perfmodel.report.metrics import Metric, as_json, as_rows, of_fields
from perfmodel.report.op_common import Sources, head, with_steps

BRIEF = {"id": "id", "verdict": "verdict", "statement": "statement", "why": "reason"}
COLUMNS = {name: name for name in ("id", "statement", "claimed", "computed", "verdict", "why", "cited")} | {"cited": "source"}
SHOWN, CARDS = 8, 2
"""Most claims in the short list, and most claims that are shown in full."""
FIRST = ("wrong", "incomplete", "holds with relabelling")
"""Verdicts that come first in the short list."""
_PREFIXED = ("B", "B/s", "FLOP", "FLOP/s", "OP/s")
_NOTE = (
    "In quotation marks: the source's own words. A printed number agrees if the computed one lies within half a unit of its last digit "
    "(a wider tolerance is in --json). A claim is wrong if a number disagrees, but holds with relabelling if all agree once a label "
    "is put right, and is incomplete if one disagrees beyond what is stated; without a number of this package it is not checkable."
)


def report(claims: Sequence[Claim], *, explained: bool = False) -> Report:
    """``claims`` as a Report with data of schema perfmodel.claims/1."""
    sources = Sources()
    counts = Counter(claim.verdict for claim in claims)
    cards = [_metrics(claim, sources) for claim in claims]
    ranks = [FIRST.index(claim.verdict) if claim.verdict in FIRST else len(FIRST) for claim in claims]
    by_rank = sorted(range(len(claims)), key=lambda place: ranks[place])
    brief = []
    if 0 < len(cards) <= CARDS:
        brief = [_cards(cards)]
    elif cards:
        brief = [as_rows("", [cards[place] for place in by_rank[:SHOWN]], labels=BRIEF)]
    plain = Report(
        "Claims of lecture notes and papers, recomputed",
        [_headline(len(claims), counts)],
        [as_rows("", cards, labels=COLUMNS)] if cards else [],
        [_NOTE],
        {**head("claims"), "counts": {verdict: counts[verdict] for verdict in VERDICTS}, "claims": list(map(as_json, cards))},
        figures=[
            Figure("claims", str(len(claims))),
            Figure("sources", str(len({claim.source for claim in claims}))),
            *(Figure(verdict, str(number)) for verdict, number in counts.most_common(3)),
        ],
        brief=brief,
    )
    if not explained:
        return replace(plain, notes=[*plain.notes, *sources.notes()])
    checks = [(claim, check) for claim in claims for check in claim.checks]
    steps = [(f"{claim.id}, {check.what}", {"id": claim.id, "what": check.what}, claim.explain(check)) for claim, check in checks]
    return with_steps(plain, steps, sources)


def _headline(number: int, counts: Counter[str]) -> str:
    """The headline: number of claims, and how many have each verdict."""
    parts = []
    for verdict in VERDICTS:
        count = counts[verdict]
        if verdict.startswith("holds"):
            words = verdict if count == 1 else verdict.replace("holds", "hold")
        else:
            words = f"is {verdict}" if count == 1 else f"are {verdict}"
        if count:
            parts.append(f"{count} {words}")
    claims = "1 claim" if number == 1 else f"{number} claims"
    return f"{claims}: {', '.join(parts)}." if parts else f"{claims}."


def _cards(cards: Sequence[Sequence[Metric]]) -> Table:
    """Table with a column per claim."""
    columns = [{metric.key or metric.label: metric for metric in metrics} for metrics in cards]
    rows = [[name, *(column[name].brief for column in columns)] for name in ("statement", "claimed", "computed", "verdict", "why")]
    return Table("", ["", *(column["id"].brief for column in columns)], rows, "l" * (1 + len(columns)))


def _metrics(claim: Claim, sources: Sources) -> list[Metric]:
    claimed, computed, figures = list[str](), list[str](), list[dict[str, Any]]()
    for check, number in zip(claim.checks, claim.numbers, strict=True):
        if number.claimed_value is not None:
            claimed.append(_claimed(check, number))
        value = _shown(number.value, number)
        computed.append(f"{number.what} {value}" if len(claim.numbers) > 1 else value)
        figures.append({**asdict(number), "inputs": [asdict(item) for item in claim.inputs(check).values()]})
    functions = [f"{function.__module__}.{function.__name__}" for function in claim.functions]
    return [
        *of_fields(claim, "id", "source", "place", "statement", "verdict", "why", unit="text"),
        Metric("quoted", bool(claim.quote), unit="text"),
        Metric("claimed", "; ".join(dict.fromkeys(claimed)) or "-", unit="text"),
        Metric("inputs", [asdict(item) for item in claim.inputs().values()], unit="text"),
        Metric("figures", figures, unit="text"),
        Metric("functions", functions, unit="text"),
        Metric("", "; ".join(computed) or "-", "computed", "text"),
        Metric("", sources.cite(f"{claim.source}, {claim.place}"), "cited", "text"),
    ]


def _claimed(check: Check, number: Computed) -> str:
    assert number.claimed_value is not None
    text = check.printed or _shown(number.claimed_value, number)
    return text if number.relation == "=" else f"{number.relation} {text}"


def _shown(value: float, number: Computed) -> str:
    if number.unit in _PREFIXED:
        return format_si(value, number.unit, number.digits)
    if number.unit == "s":
        return format_time(value)
    is_long_count = value.is_integer() and abs(value) >= 10**number.digits
    text = format_count(int(value)) if is_long_count else f"{value:.{number.digits}g}"
    return f"{text} {number.unit}".strip()
