"""Report on claims: what was claimed, what was computed, the verdict and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from perfmodel import __version__
from perfmodel.claims.base import SYMBOLS, VERDICTS, Check, Claim, Computed, read, verdict_of
from perfmodel.claims.devices import Reading
from perfmodel.core.units import format_count, format_si, format_time
from perfmodel.report.document import Report, Table
from perfmodel.report.op_common import Sources, steps_data, steps_table

_PREFIXED = ("B", "B/s", "FLOP", "FLOP/s", "OP/s")
_NOTE = (
    "In quotation marks: the source's own words. A printed number agrees if the computed one lies within half a unit of its last digit "
    "(a wider tolerance is in --json). A claim is wrong if a number disagrees, but holds with relabelling if all agree once a label "
    "is put right, and is incomplete if one disagrees beyond what is stated; without a number of this package it is not checkable."
)


def report(claims: Sequence[Claim], *, explained: bool = False) -> Report:
    """``claims`` as a Report of schema perfmodel.claims/1; ``explained``: with the formula of every computed number."""
    sources = Sources()
    columns = ["id", "statement", "claimed", "computed", "verdict", "why", "source"]
    rows = [_row(claim, sources) for claim in claims]
    found = Report(
        "Claims of lecture notes and papers, recomputed",
        [_summary(claims)],
        [Table("", columns, rows, "l" * len(columns))] if rows else [],
        [_NOTE],
        data(claims),
    )
    if explained:
        found = _explained(found, claims, sources)
    return replace(found, notes=[*found.notes, *sources.notes()])


def _summary(claims: Sequence[Claim]) -> str:
    counts = Counter(claim.verdict for claim in claims)
    words = {"holds": ("holds", "hold"), "holds with relabelling": ("holds with relabelling", "hold with relabelling")}
    parts = []
    for verdict in VERDICTS:
        one, many = words.get(verdict, (f"is {verdict}", f"are {verdict}"))
        if counts[verdict]:
            parts.append(f"{counts[verdict]} {one if counts[verdict] == 1 else many}")
    return f"{len(claims)} claim{'' if len(claims) == 1 else 's'}{': ' if parts else ''}{', '.join(parts)}."


def _row(claim: Claim, sources: Sources) -> list[str]:
    numbers = claim.run()
    computed = "; ".join(f"{number.what} {_number(number)}" if len(numbers) > 1 else _number(number) for number in numbers)
    verdict, source = verdict_of(numbers), sources.cite(f"{claim.source}, {claim.place}")
    return [claim.id, claim.statement, _claimed(claim, numbers), computed or "-", verdict, claim.why, source]


def _claimed(claim: Claim, numbers: Sequence[Computed]) -> str:
    """What the checks as stated compare with, each once."""
    given = [_claimed_number(check, number) for check, number in zip(claim.checks, numbers, strict=True) if number.agrees is not None]
    return "; ".join(dict.fromkeys(given)) or "-"


def _claimed_number(check: Check, number: Computed) -> str:
    assert number.claimed_value is not None
    text = check.printed or _shown(number.claimed_value, number)
    return text if number.relation == "=" else f"{number.relation} {text}"


def _number(number: Computed) -> str:
    return _shown(number.value, number)


def _shown(value: float, number: Computed) -> str:
    if number.unit in _PREFIXED:
        return format_si(value, number.unit, number.digits)
    if number.unit == "s":
        return format_time(value)
    whole = value.is_integer() and abs(value) >= 10**number.digits
    return f"{format_count(int(value)) if whole else f'{value:.{number.digits}g}'} {number.unit}".strip()


# JSON


def data(claims: Sequence[Claim]) -> dict[str, Any]:
    """The object of schema perfmodel.claims/1."""
    counts = Counter(claim.verdict for claim in claims)
    return {
        "schema": "perfmodel.claims/1",
        "version": __version__,
        "counts": {verdict: counts[verdict] for verdict in VERDICTS},
        "claims": [_object(claim) for claim in claims],
    }


def _object(claim: Claim) -> dict[str, Any]:
    numbers = claim.run()
    return {
        "id": claim.id,
        "source": claim.source,
        "place": claim.place,
        "quoted": bool(claim.quote),
        "statement": claim.statement,
        "claimed": _claimed(claim, numbers),
        "verdict": verdict_of(numbers),
        "why": claim.why,
        "inputs": _inputs(read(claim.given)),
        "figures": [
            {**asdict(number), "inputs": _inputs(claim.inputs(check))} for check, number in zip(claim.checks, numbers, strict=True)
        ],
        "functions": [f"{function.__module__}.{function.__name__}" for function in claim.functions],
    }


def _inputs(given: Any) -> list[dict[str, Any]]:
    return [_input(name, value) for name, value in given.items()]


def _input(name: str, value: Any) -> dict[str, Any]:
    symbol, meaning = SYMBOLS.get(name, (name, ""))
    if isinstance(value, Reading):
        return {"symbol": symbol, "meaning": value.meaning, "value": value.quantity.number, "source": value.source}
    return {"symbol": symbol, "meaning": meaning, "value": value, "source": "given"}


# Explanation


def _explained(plain: Report, claims: Sequence[Claim], sources: Sources) -> Report:
    tables, objects = list(plain.tables), []
    for claim in claims:
        for check in claim.checks:
            steps = claim.explain(check)
            tables.append(steps_table(f"{claim.id}, {check.what}", steps, sources))
            objects.append({"id": claim.id, "what": check.what, "steps": steps_data(steps)})
    return replace(plain, tables=tables, data={**plain.data, "explanation": objects})
