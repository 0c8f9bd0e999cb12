"""Answers of command lines, each computed once in a process: all that is printed is a view of its report."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from perfmodel.cli import main
from perfmodel.commands._command import Destination
from perfmodel.report.document import Report
from perfmodel.report.formats import readable
from perfmodel.report.formats.json import render as as_json
from perfmodel.report.formats.txt import render as as_txt
from perfmodel.study.document import build
from perfmodel.study.schema import read_study


@cache
def reported(line: str) -> Report:
    """What ``line`` makes, before it is printed."""
    made: list[Report] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Destination, "emit", lambda self, report: made.append(report))
        assert main(shlex.split(line)) in (0, 3)
    return made[0]


@cache
def study(name: str) -> Report:
    """A shipped study."""
    return build(read_study(name), f"perfmodel report {name}")


def data(line: str) -> Any:
    """What ``line --json`` prints."""
    report = reported(line)
    return json.loads(as_json(replace(report, provenance=None) if report.data else report))


def text(line: str, *, full: bool = False) -> str:
    """What ``line`` prints into a pipe."""
    return as_txt(readable(reported(line)), full)
