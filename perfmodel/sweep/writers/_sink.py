"""Where bytes go: a file that can be cut back to its last whole rows, or a stream that cannot."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


class Sink:
    """A file opened for writing at ``position``; None as path is standard output."""

    def __init__(self, path: Path | None, position: int = 0) -> None:
        self.path, self.position = path, position
        self._file: BinaryIO
        if path is None:
            self._file = sys.stdout.buffer
        else:
            self._file = open(path, "r+b" if position else "wb", buffering=0)  # noqa: SIM115 - closed by close()
            if position:
                self._file.truncate(position)
                self._file.seek(position)
        self._reserved = position

    @property
    def seekable(self) -> bool:
        """Whether it is a regular file."""
        return self.path is not None and self.path.is_file()

    def write(self, data: bytes | memoryview) -> int:
        """All of ``data``; OSError if it does not fit."""
        left = memoryview(data).cast("B")
        while len(left):
            written = self._file.write(left)
            left = left[written:]
        self.position += len(data)
        return len(data)

    def reserve(self, size: int) -> None:
        """Make sure that ``size`` more bytes can be written; OSError where the disk or a limit has no room."""
        if not self.seekable or self.position + size <= self._reserved:
            return
        if not hasattr(os, "posix_fallocate"):  # macOS: nothing can be kept, but a full disk is seen
            if shutil.disk_usage(self.path or ".").free < size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return
        try:
            os.posix_fallocate(self._file.fileno(), self.position, size)
            self._reserved = self.position + size
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                raise

    def cut(self, position: int) -> None:
        """Forget what was written after ``position``."""
        if self.seekable:
            self._file.truncate(position)
            self._file.seek(position)
            self.position = self._reserved = position

    def sync(self) -> None:
        """Let the bytes reach the disk, or the reader of a pipe."""
        self._file.flush()
        if self.seekable:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Give back what was reserved, and close a file; once more does nothing."""
        if self._file.closed:
            return
        if self.seekable:
            self._file.truncate(self.position)
        if self.path is not None:
            self._file.close()
        else:
            self._file.flush()


@contextlib.contextmanager
def whole(sink: Sink) -> Iterator[None]:
    """What is written inside stands there whole or, after an error, not at all."""
    before = sink.position
    try:
        yield
    except OSError:
        with contextlib.suppress(OSError):
            sink.cut(before)
        raise
