"""What a command prints, and what its files say of how they were made."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfmodel.report import Report
    from perfmodel.report.document import ProfileUse

WORDS = "perfmodel.words"
"""Where a context keeps the command line as typed."""
CONTEXT: ContextVar[Any] = ContextVar("context", default=None)
"""The context of the command that runs."""
_UNSIGNED = re.compile(r"--(?:output(?:=.*)?|json|full)|-o.*", re.DOTALL)
"""Words of a command line that say where its answer goes."""


def signed(report: Report) -> Report:
    """``report`` with its provenance: the command line that made it, and the profiles that it rests on."""
    from perfmodel import __version__
    from perfmodel.report.document import Provenance

    context = CONTEXT.get()
    if context is None or report.provenance is not None:
        return report
    words, is_file = [], False
    for word in context.meta.get(WORDS, ()):
        if not is_file and not _UNSIGNED.fullmatch(word):
            words.append(word)
        is_file = not is_file and word in ("--output", "-o")
    given = [context.params.get(name) or () for name in ("hardware", "device", "devices")]
    devices = [name for one in given for text in ([one] if isinstance(one, str) else one) for name in text.split(",")]
    used = [report.data.get(key) for key in ("hardware", "device")]
    devices += [one["id"] for one in used if isinstance(one, dict) and "id" in one] + [chart.device for chart in report.rooflines]
    devices += [one for one in report.data.get("devices", ()) if isinstance(one, str)]
    profiles: dict[str, ProfileUse] = {}
    for one in filter(None, map(_profile, devices)):
        profiles.setdefault(one.id, one)
    command = shlex.join([*context.command_path.split(), *words])
    return replace(report, provenance=Provenance(command, __version__, list(profiles.values())))


def _profile(name: str) -> ProfileUse | None:
    """The profile that ``name`` means; None if it means none."""
    from perfmodel.catalog import find_device
    from perfmodel.core.errors import PerfmodelError
    from perfmodel.report.roofline_chart import profile_use

    try:
        return profile_use(find_device(name), Path(name) if name.endswith((".yaml", ".yml")) else None)
    except PerfmodelError:
        return None


def as_text(report: Report, as_json: bool, full: bool) -> str:
    """``report`` as it is printed: JSON, plain text for a pipe, or for the terminal."""
    if as_json:
        from perfmodel.report.formats.json import render as render_json

        return render_json(replace(report, provenance=None) if report.data else report)
    if not sys.stdout.isatty():
        from perfmodel.report.formats import readable
        from perfmodel.report.formats.txt import render as render_text

        return render_text(readable(report), full)
    from perfmodel.report.terminal import render

    size = shutil.get_terminal_size()
    return render(report, size.columns, color=not os.environ.get("NO_COLOR"), full=full, height=size.lines)
