"""What a reader sees of words from elsewhere: characters that steer a terminal, turn the writing or hide are written as escapes."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import Any

from perfmodel.report.document import Report

UNSHOWN = ("data", "records", "profile")
"""Fields of a report that are saved and not shown: they keep every character."""
_SPACE = re.compile(r"\r\n|[\t\n\v\f\r\x85\u2028\u2029]")
_STEERING = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0 and C1 controls: ESC begins a terminal's commands
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks, embeddings, overrides and isolates of direction
    "\u200b\u2060-\u2065\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"  # invisible, none at all, and halves of surrogate pairs
)


def visible(text: str) -> str:
    r"""``text`` on one line, each steering character as its escape.

    >>> visible("a\x1b[31m\nb\u202e")
    'a\\x1b[31m b\\u202e'
    """
    if text.isascii() and text.isprintable():
        return text
    return _STEERING.sub(_escape, _SPACE.sub(" ", text))


def _escape(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


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
