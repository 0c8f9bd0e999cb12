"""Words from elsewhere, as they are shown: characters that steer a terminal, turn the writing or hide are written as escapes."""

from __future__ import annotations

import re

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


def visible_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(visible, text.split("\n")))


def visible_json(text: str) -> str:
    r"""JSON ``text`` with the same characters written as JSON's own escapes: it means what it meant.

    >>> visible_json('{"a": "\x9b"}')
    '{"a": "\\u009b"}'
    """
    return "\n".join(_STEERING.sub(lambda found: f"\\u{ord(found.group()):04x}", line) for line in text.split("\n"))
