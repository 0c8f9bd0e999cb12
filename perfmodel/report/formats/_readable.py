"""A report as a reader sees it: no word from elsewhere steers a terminal, turns the writing or hides."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from perfmodel.core.errors import visible
from perfmodel.report.document import Report

UNSHOWN = ("data", "records", "profile")
"""Fields of a report that are saved and not shown: they keep every character."""


def readable(report: Report) -> Report:
    """``report`` with every word that is shown made ``visible``."""
    kept = {name: getattr(report, name) for name in UNSHOWN}
    shown: Report = _rewritten(replace(report, data={}, records=[], profile=""))
    return replace(shown, **kept)


def _rewritten(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_rewritten, value))
    if isinstance(value, dict):
        return {_rewritten(key): _rewritten(item) for key, item in value.items()}
    if not is_dataclass(value) or isinstance(value, type):
        return value
    found = {one.name: (old, _rewritten(old)) for one in fields(value) if one.init for old in [getattr(value, one.name)]}
    changed = {name: new for name, (old, new) in found.items() if new is not old}
    return replace(value, **changed) if changed else value
