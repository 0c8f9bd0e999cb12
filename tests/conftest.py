"""Shared by all tests."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import pytest

from perfmodel.cli import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run() -> Callable[..., Outcome]:
    """``run("attention --n 64 --d 64")`` -> exit code and what was printed, without a subprocess."""

    def call(line: str, *more: str) -> Outcome:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main([*line.split(), *more])
        return Outcome(code, out.getvalue(), err.getvalue())

    return call
