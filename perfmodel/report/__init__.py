"""Reports: one ``Report`` for all formats, which the modules in ``formats`` render and which ``write`` saves.

A module here makes the report of one command. In all of them ``explained`` adds the formula of every number, ``pictures`` adds charts,
and ``measured_s`` is a measured time of the main result to judge. ``BRIEF`` names the rows of the short table, which a screen shows.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection
from importlib import import_module
from pathlib import Path

from perfmodel.core.errors import DataError, UsageError
from perfmodel.core.plugins import make_callable
from perfmodel.report import formats
from perfmodel.report.document import Report, Table
from perfmodel.report.formats import suffix_of, suffixes

__all__ = ["Report", "Table", "check_output", "render_for", "write"]
make_callable(__name__)


def _framed(report: Report) -> str:
    """The HTML page of a report in a frame, for a notebook."""
    from perfmodel.report.formats.html import framed

    return framed(report)


setattr(Report, "_repr_html_", _framed)  # noqa: B010  (here and not in the class: the page is drawn from the document)


def check_output(path: Path, offers: Collection[str] = ()) -> None:
    """UsageError, before any work, if ``path`` cannot become a report: unknown suffix, no such folder, not writable."""
    allowed, suffix = suffixes(offers), suffix_of(path)
    if suffix not in allowed:
        kind = repr(suffix) if suffix else "a file without suffix"
        raise UsageError(f"--output: no format is written to {kind} ({path})", f"end it in {', '.join(allowed)}")
    check = getattr(import_module(f"{formats.__name__}{suffix}"), "check", None)
    if check is not None:
        check()
    if path.is_dir():
        raise UsageError(f"--output: {path} is a folder", "name a file in it")
    folder = path.parent
    if not folder.is_dir():
        raise UsageError(f"--output: there is no folder {folder}", "create it first")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise UsageError(f"--output: {path} is not writable", "choose another place or mend its permissions")


def render_for(path: Path, report: Report) -> str | bytes:
    """``report`` in the format of the suffix of ``path``; bytes if that is no text."""
    return formats.render(suffix_of(path), report)


def write(path: Path, report: Report) -> None:
    """Write ``report`` to a temporary file beside ``path``, then rename that, so that ``path`` is whole or untouched."""
    import tempfile

    rendered = render_for(path, report)
    content = rendered.encode("utf-8", "replace") if isinstance(rendered, str) else rendered
    temporary = None
    try:
        target = Path(os.path.realpath(path))
        if target.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.exists() and not target.is_file():  # a pipe or a device: nothing to replace
            target.write_bytes(content)
            return
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~_umask()
        with tempfile.NamedTemporaryFile("wb", dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            temporary = file.name
            file.write(content)
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException as error:  # an interrupt as well: nothing half-written stays
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise DataError(f"{path}: {error.strerror or error}", "nothing was written") from None
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
