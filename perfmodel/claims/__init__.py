"""Statements of lecture notes and papers, recomputed. One file per topic; each defines ``CLAIMS``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module

from perfmodel.claims.base import VERDICTS, Claim
from perfmodel.errors import UsageError, suggest

_NO_TOPICS = ("__init__", "base", "devices", "formulas")


def all_claims() -> list[Claim]:
    """Every claim of every topic, by id."""
    files = [name.removesuffix(".py") for folder in __path__ for name in os.listdir(folder) if name.endswith(".py")]
    topics = [import_module(f"{__name__}.{name}") for name in sorted(files) if name not in _NO_TOPICS]
    claims: list[Claim] = [claim for topic in topics for claim in topic.CLAIMS]
    return sorted(claims, key=lambda claim: claim.id)


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
