"""The exceptions of this package, and functions that clean foreign text for their messages.

PerfmodelError            anything this package reports on purpose; exit code 1
├── UsageError            an argument has no meaning here; exit code 2
├── DataError             a file or a value in it is wrong; names the place
└── UnavailableError      the device or profile lacks what the question needs
"""

from __future__ import annotations

import re


class PerfmodelError(Exception):
    """One message: what is wrong, where, and (``fix``) what to do about it."""

    exit_code = 1

    def __init__(self, message: str, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return self.message if self.fix is None else f"{self.message}\n  {self.fix}"


class UsageError(PerfmodelError):
    """An option or argument whose value has no meaning."""

    exit_code = 2


class DataError(PerfmodelError):
    """A file that cannot be read, or a value in it that is wrong."""


class UnavailableError(PerfmodelError):
    """The question needs something that this device or profile does not have."""


LONGEST_ECHO = 60
"""Characters of a user's text that a message repeats."""
LONGEST_LIST = 700
"""Characters of names that a message lists."""


def cut(text: str, most: int = LONGEST_ECHO) -> str:
    """``text`` cut in its middle to at most ``most`` characters, for a message.

    >>> cut("h200"), cut("x" * 1000, 20)
    ('h200', 'xxxxxxxxxx...xxxxxxx')
    """
    return text if len(text) <= most else f"{text[: most // 2]}...{text[most // 2 + 3 - most :]}"


def suggest(name: str, known: list[str], otherwise: str | None = None) -> str:
    """``did you mean ...?`` with the nearest known names; if none is near, ``otherwise``, or as many names as a message has room for."""
    import difflib

    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    if otherwise:
        return otherwise
    shown = list(known)
    while len(", ".join(shown)) > LONGEST_LIST:
        shown.pop()
    return f"known: {', '.join(shown)}" + (f" and {len(known) - len(shown)} more" if len(shown) < len(known) else "")


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


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def visible_lines(text: str) -> str:
    """``text`` of several lines, each steering character as its escape."""
    return "\n".join(map(visible, text.split("\n")))


def visible_json(text: str) -> str:
    r"""JSON ``text`` with steering characters as JSON escapes, so that its meaning does not change.

    >>> visible_json('{"a": "\x9b"}')
    '{"a": "\\u009b"}'
    """
    return "\n".join(_STEERING.sub(lambda match: f"\\u{ord(match.group()):04x}", line) for line in text.split("\n"))
