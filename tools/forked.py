"""Faults in a process that has the package and the tests loaded: each is put into functions of a fork, which runs its tests."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from functools import _lru_cache_wrapper, partial
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tools.faults import Mutant

Codes = dict[tuple[str, int], types.CodeType]
Job = tuple[Mutant, list[str], float]
Listener = Callable[[Job, str | None], None]
"""Called with each fault and the test that fails, '' if none does; None where only a new process can have the fault."""


def in_forks(jobs: list[Job], files: list[str], copy: Path, heard: Listener) -> None:
    """Collect the tests of ``files`` in this process, and run those of each job in a fork of it."""
    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(copy)
    sys.path.insert(0, str(copy))
    plain = [f"-p{name}" for name in ("no:cacheprovider", "no:cov", "no:xdist")]
    pytest.main(["-q", "--tb=no", *plain, *files], plugins=[Loop(jobs, copy, heard)])


class Loop:
    """A pytest plugin that runs, for each of ``jobs``, its tests in a fork with the fault, at most so many seconds."""

    def __init__(self, jobs: list[Job], copy: Path, heard: Listener) -> None:
        self.jobs, self.copy, self.heard = jobs, copy, heard

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In the place of running all tests."""
        items = {item.nodeid: item for item in session.items}
        gc.unfreeze()  # tests/conftest.py keeps what was collected from the collector, and so from this list
        things = [thing for thing in gc.get_objects() if isinstance(thing, (types.FunctionType, _lru_cache_wrapper))]
        for job in self.jobs:
            mutant, tests, limit_s = job
            file = self.copy / mutant.path
            source = file.read_bytes()
            if not mutant.in_function or b"njit" in source:
                self.heard(job, None)
                continue
            chosen = [items[test] for test in tests if test in items]
            codes = changed_codes(mutant, source, str(file))
            write(file, mutant.apply(source))  # for processes that tests start, and modules that are not loaded yet
            try:
                found = _in_fork(partial(_killer, things, codes, str(file), chosen), limit_s)
            finally:
                write(file, source)
            self.heard(job, None if found == UNCHANGED else found)
        return True


def _in_fork(run: Callable[[], str], limit_s: float) -> str:
    """What ``run`` returns in a child; a child that is too slow, or ends otherwise, is told as such."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(out)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(limit_s) + 1)
        try:
            os.write(into, run().encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(into)
    with os.fdopen(out) as pipe:
        found = pipe.read()
    _, status = os.waitpid(child, 0)
    return found or (f"no end, status {status}" if status else "")


def _killer(things: list[Any], codes: Codes, file: str, items: list[pytest.Item]) -> str:
    """The name of the first test that fails, '' if none does. Functions change in place; what any has kept is forgotten."""
    for thing in things:
        if isinstance(thing, _lru_cache_wrapper):
            if str(thing.__module__).startswith("perfmodel"):
                thing.cache_clear()
        elif thing.__code__.co_filename == file:
            try:
                thing.__code__ = codes.get((thing.__code__.co_qualname, thing.__code__.co_firstlineno), thing.__code__)
            except ValueError:  # with the fault it closes over other names
                return UNCHANGED
    for item, after in zip(items, [*items[1:], None], strict=True):
        if any(report.failed for report in runtestprotocol(item, log=False, nextitem=after)):
            return item.nodeid
    return ""


def changed_codes(mutant: Mutant, source: bytes, file: str) -> Codes:
    """Of each function of the module, by its name and first line, what it is with the fault."""
    was, becomes = _codes(compile(source, file, "exec")), _codes(compile(mutant.apply(source), file, "exec"))
    return {(name[0], code.co_firstlineno): becomes[name] for name, code in was.items() if name in becomes}


UNCHANGED = "?"
TIMES = itertools.count(10**9)


def write(file: Path, source: bytes) -> None:
    """With a time of its own: what Python compiled before is then out of date, however soon and alike the next text."""
    file.write_bytes(source)
    os.utime(file, (now := next(TIMES), now))


def _codes(module: types.CodeType) -> dict[tuple[str, int], types.CodeType]:
    """Of each function, by its name and how many of that name are before it."""
    seen: Counter[str] = Counter()

    def inside(code: types.CodeType) -> Iterator[types.CodeType]:
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield constant
                yield from inside(constant)

    found = {}
    for code in inside(module):
        found[code.co_qualname, seen[code.co_qualname]] = code
        seen[code.co_qualname] += 1
    return found
