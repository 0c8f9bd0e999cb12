"""Statements of lecture notes and papers, recomputed."""

from __future__ import annotations

from perfmodel.commands._command import Explained, command
from perfmodel.core.frozen import dataclass
from perfmodel.core.question import Question, argument, option


@dataclass(frozen=True, slots=True)
class ClaimsQuestion(Question):
    """The statements to recompute."""

    ids: list[str] | None = argument("ID", "Claims to show, such as S029. [default: all]", None)
    verdict: str | None = option("Only holds, 'holds with relabelling', incomplete, wrong, pending or 'not checkable'.")


@command
def claims(options: ClaimsQuestion, to: Explained) -> None:
    """Statements of lecture notes and papers, recomputed: what holds, what is wrong and why.

    Example: perfmodel claims --verdict wrong
    """
    from perfmodel.claims import find_claims
    from perfmodel.report.claims import report

    to.emit(report(find_claims(options.ids or (), options.verdict), explained=to.explained))
