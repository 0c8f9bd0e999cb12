"""The exceptions a caller may meet.

PerfmodelError            anything this package reports on purpose; exit code 1
├── UsageError            an argument has no meaning here; exit code 2
├── DataError             a file or a value in it is wrong; names the place
└── UnavailableError      the device or profile lacks what the question needs
"""

from __future__ import annotations


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


def cut(text: str, most: int = LONGEST_ECHO) -> str:
    """``text`` as a message repeats it: what is longer loses its middle.

    >>> cut("h200"), cut("x" * 1000, 20)
    ('h200', 'xxxxxxxxxx...xxxxxxx')
    """
    return text if len(text) <= most else f"{text[: most // 2]}...{text[most // 2 + 3 - most :]}"


def suggest(name: str, known: list[str], otherwise: str | None = None) -> str:
    """``did you mean ...?`` with the nearest known names; where none is near ``otherwise``, or all of them."""
    import difflib

    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return otherwise or f"known: {', '.join(known)}"
