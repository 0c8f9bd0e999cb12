"""Statements of lecture notes and papers, recomputed: ``claims.yaml``, and the functions that its expressions name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from perfmodel.catalog import read_yaml
from perfmodel.claims.base import VERDICTS, Check, Claim
from perfmodel.core.errors import UsageError, suggest


@cache
def all_claims() -> list[Claim]:
    """Every claim, by id."""
    raw, _ = read_yaml(Path(__file__).with_name("claims.yaml"))
    sources = raw.pop("sources")
    return [
        Claim(id=name, **{**fields, "source": sources[fields["source"]], "checks": tuple(Check(**row) for row in fields.get("checks", ()))})
        for name, fields in sorted(raw.items())
    ]


def find_claims(ids: Sequence[str] = (), verdict: str | None = None) -> list[Claim]:
    """The claims of these ``ids`` (all if none is given) that have this ``verdict``; UsageError for an unknown one."""
    known = {claim.id: claim for claim in all_claims()}
    for name in ids:
        if name.upper() not in known:
            nearest = suggest(name.upper(), list(known), f"ids run from {min(known)} to {max(known)}")
            raise UsageError(f"ID: no claim is called {name!r}", nearest)
    if verdict is not None and verdict not in VERDICTS:
        raise UsageError(f"--verdict: unknown verdict {verdict!r}", suggest(verdict, list(VERDICTS)))
    chosen = [known[name] for name in sorted({name.upper() for name in ids})] if ids else list(known.values())
    return [claim for claim in chosen if verdict in (None, claim.verdict)]
