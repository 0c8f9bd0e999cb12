"""Open input files: regular ones, of a size that is read whole or line by line. Whatever is wrong with one is a DataError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from perfmodel.core.errors import DataError


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """``path`` for reading. A pipe or a device is refused before it is opened: its reader may wait forever, or read without an end."""
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: not a regular file", "write what it holds to a file first")
        with path.open("rb") as file:
            yield file
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def read_text(path: Path, most: int, fix: str, encoding: str = "utf-8") -> str:
    """All of ``path``; DataError with ``fix`` if it is larger than ``most`` B."""
    with opened(path) as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise DataError(f"{path}: larger than {most:,} B", fix)
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8") from None


def sha256(path: Path) -> str:
    """Digest of ``path``, which is not held in memory."""
    import hashlib

    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
