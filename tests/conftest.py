"""Shared by all tests."""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from perfmodel.cli import main

sys.path.append(str(Path(__file__).parents[1]))  # tools/; last, so that an installed perfmodel is the one tested

collect_ignore = ["data"]

# no test asserts a time; the same examples in every run
settings.register_profile("any machine", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


gc.disable()  # while tests are collected: next to nothing of that is garbage


def pytest_collection_finish() -> None:
    """What was collected stays, so that no collection looks through it again."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """numba's CUDA simulator calls itself a device; what needs a GPU does not run there."""
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        for marker, reason in (("gpu", "the CUDA simulator is no GPU"), ("driver", "the CUDA simulator has no driver")):
            if item.get_closest_marker(marker):
                pytest.skip(reason)


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


@pytest.fixture
def run_full(run: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """``run`` with every table and note."""
    return lambda line, *more: run(line, *more, "--full")


@pytest.fixture
def interrupts_arrive() -> Iterator[None]:
    """In what a shell runs in the background they are ignored, and in all that it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
