"""One run at a time on a file or a folder: by a lock of the system, which ends with its process, however that ends.

For a folder the lock is on the folder itself, for a file on its progress file, which is there while rows are written; so no lock is
left lying about. Systems and file systems that know no such locks are written to without.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from perfmodel.core.errors import UsageError
from perfmodel.sweep.resume import progress_path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """No other run writes to ``folder`` meanwhile; UsageError if one does."""
    if fcntl is None:  # where a folder cannot be opened either
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        _lock(handle, folder)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def alone_at(path: Path) -> Iterator[None]:
    """The same for a file. Its progress file is made, and taken away again if nothing was noted in it."""
    place = progress_path(path)
    handle = _locked(place, path)
    try:
        yield
    finally:
        if os.fstat(handle).st_size == 0:
            place.unlink(missing_ok=True)
        os.close(handle)


def _locked(place: Path, path: Path) -> int:
    """``place`` open and locked: the file of that name, not one that another run took away before the lock was had."""
    while True:
        handle = os.open(place, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(handle, path)
            if _is_still(handle, place):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _is_still(handle: int, place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), place.stat())
    except FileNotFoundError:
        return False


def _lock(handle: int, path: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"--output: another run is writing to {path}", "wait until it has ended, or name another place") from None
    except OSError:  # the file system has no locks, as some network ones
        return
