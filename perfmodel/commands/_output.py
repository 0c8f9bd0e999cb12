"""The output of a command: its provenance, and the text that is printed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfmodel.report import Report

WORDS = "perfmodel.words"
"""Key under which a context keeps the command line as typed."""
CONTEXT: ContextVar[Any] = ContextVar("context", default=None)
"""The context of the running command."""
_DESTINATION = re.compile(r"--(?:output(?:=.*)?|json|full)|-o.*", re.DOTALL)
"""Words of a command line that only say where its answer goes, and are left out of the provenance."""


def signed_here(report: Report) -> Report:
    """``report`` with its provenance: the command line, and the device profiles that it rests on."""
    from perfmodel.report.provenance import named_devices, with_provenance

    context = CONTEXT.get()
    if context is None:
        return report
    kept_words = []
    names_file = False
    for word in context.meta.get(WORDS, ()):
        if names_file:
            names_file = False
        elif word in ("--output", "-o"):
            names_file = True
        elif not _DESTINATION.fullmatch(word):
            kept_words.append(word)
    command_line = shlex.join([*context.command_path.split(), *kept_words])
    return with_provenance(report, command_line, named_devices(context.params))


def as_text(report: Report, as_json: bool, full: bool) -> str:
    """``report`` as text: JSON, plain text for a pipe, or a page for the terminal."""
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
