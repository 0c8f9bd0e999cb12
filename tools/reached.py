"""Which tests run which places: each place notes the running test, in a copy of the package, while the tests run once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.faults import ROOT, Mutant

LEFT_OUT = (
    *("docs", "readme", "statements", "report_formats", "report_browser", "charts", "docstrings", "dependencies"),
    *("kernels_simulator", "flash_mma", "validation_cuda", "validation_libraries", "sweep_dask", "sweep_killed"),
    *("fuzz_commands", "fuzz_readers", "hostile_files", "faults"),
)
"""Tests of texts, of what GPUs run, of processes and of hostile input."""
NO_GOLDEN = "not golden_files and not renders_the_same"
"""Of the others, those that compare a whole text with one from before are left out by name."""
MOST_S, MOST, AT_ONCE = 45.0, 200, 3
"""Recorded seconds of tests that a fault meets; how many tests; how many cases of one before other tests have their turn."""
NOTES = """
import builtins, os
_seen = set()
def _reached_(place):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if (place, test) not in _seen:
        _seen.add((place, test))
        with open(FILE, "a") as notes:
            notes.write(f"{place} {test}\\n")
builtins._reached_ = _reached_
"""
COMPILED = """
import sys
class _Noting(type(sys)):
    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        if hasattr(value, "py_func"):
            for place in PLACES:
                _reached_(place)
        return value
sys.modules[__name__].__class__ = _Noting
"""
"""What numba compiles cannot note its places: the module notes all of them whenever a compiled function is taken from it to be called."""
SECONDS = """
def pytest_runtest_logreport(report):
    if report.when == "call" and report.passed:
        with open(FILE, "a") as notes:
            notes.write(f"{report.duration} {report.nodeid}\\n")
"""


@dataclass
class Reached:
    """``tests``: of each place, the tests that run it; '' where an import does. ``seconds``: of each test that passes."""

    places: str
    files: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    tests: dict[str, list[str]] = field(default_factory=dict)

    def of(self, number: int, mutant: Mutant) -> list[str]:
        """Tests for one place: those that run it, then others of their files (a value may be kept from one to the next).

        Those that are fast and in files that import the module come first. What an import runs no test runs: files that import it.
        """
        known = set(importing(mutant.path))
        reached = set(self.tests.get(str(number), []))
        files = {test.partition("::")[0] for test in reached - {""}}
        if not mutant.in_function or "" in reached or not reached:
            files |= known
        cases: Counter[tuple[str, bool]] = Counter()
        rank: dict[str, tuple[bool, int, float]] = {}
        for test, seconds in sorted(self.seconds.items(), key=lambda item: item[1]):
            file, function = test.partition("::")[0], test.partition("[")[0]
            if file in files:
                met = test in reached or (not mutant.in_function and file in known)
                rank[test] = (not met, cases[function, met] // AT_ONCE, seconds * (1 if file in known else 3))
                cases[function, met] += 1
        chosen: list[str] = []
        left_s = MOST_S
        for test in sorted(rank, key=lambda test: rank[test])[:MOST]:
            if self.seconds[test] <= left_s:
                chosen.append(test)
                left_s -= self.seconds[test]
        return chosen


def importing(path: str) -> list[str]:
    """The module, for its doctests; the test files that name it; up to three that name its package."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, name = module.rpartition(".")
    parent, _, last = package.rpartition(".")
    wanted = re.compile(rf"\b{re.escape(module)}\b|from {re.escape(package)} import .*\b{name}\b")
    near = re.compile(rf"\b{re.escape(package)}\b|from {re.escape(parent)} import .*\b{last}\b")
    texts = {f"tests/{file.name}": file.read_text() for file in _test_files()}
    direct = [file for file, text in texts.items() if wanted.search(text)]
    beside = [file for file, text in texts.items() if file not in direct and near.search(text)]
    return [path, *direct, *beside[:3]]


def _test_files() -> list[Path]:
    return [file for file in sorted((ROOT / "tests").glob("test_*.py")) if file.stem.removeprefix("test_") not in LEFT_OUT]


def digest(*texts: bytes) -> str:
    """A name for these contents."""
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def with_probes(source: bytes, marked: Sequence[tuple[int, Mutant]]) -> bytes:
    """The module, each place of which notes that it is run; what numba compiles, that its module is used."""
    if b"njit" in source:
        return source + COMPILED.replace("PLACES", repr([number for number, _ in marked])).encode()
    inserted = [(end, -begin, b"))") for _, m in marked for begin, end in [m.whole]]
    inserted += [(begin, -end, b"(_reached_(%d) or (" % number) for number, m in marked for begin, end in [m.whole]]
    # at one offset: what ends there before what begins there, the inner end first, the outer beginning first
    order = sorted(inserted, key=lambda each: (each[0], each[2] != b"))", each[1]))
    for at, _, text in reversed(order):
        source = source[:at] + text + source[at:]
    return source


def reached(file: Path, chosen: Sequence[Mutant], copied: Callable[[], Path]) -> Reached:
    """As kept in ``file``; what the tests of new or changed files run is found, and kept there."""
    sources = sorted((ROOT / "perfmodel").rglob("*.py"))
    places = digest(*(path.read_bytes() for path in sources), repr([mutant.change for mutant in chosen]).encode())
    known = Reached(**json.loads(file.read_text())) if file.exists() else Reached(places)
    if known.places != places:
        known = Reached(places)
    modules = sorted({ROOT / mutant.path for mutant in chosen})
    now = {path.relative_to(ROOT).as_posix(): digest(path.read_bytes()) for path in [*modules, *_test_files()]}
    changed = [name for name in now if known.files.get(name) != now[name]]
    if changed:
        _forget(known, set(now) - set(changed))
        _record(known, chosen, copied(), changed)
        known.files = now
        file.write_text(json.dumps(known.__dict__))
    return known


def _forget(known: Reached, kept: set[str]) -> None:
    known.seconds = {test: value for test, value in known.seconds.items() if test.partition("::")[0] in kept}
    known.tests = {place: [test for test in tests if not test or test in known.seconds] for place, tests in known.tests.items()}


def _record(known: Reached, chosen: Sequence[Mutant], copy: Path, files: Sequence[str]) -> None:
    by_path = defaultdict(list)
    for number, mutant in enumerate(chosen):
        by_path[mutant.path].append((number, mutant))
    for path, marked in by_path.items():
        (copy / path).write_bytes(with_probes((copy / path).read_bytes(), marked))
    (copy / "sitecustomize.py").write_text(NOTES.replace("FILE", repr(str(copy / "reached.txt"))))
    (copy / "noted_seconds.py").write_text(SECONDS.replace("FILE", repr(str(copy / "seconds.txt"))))
    subprocess.run(pytest_command("-p", "noted_seconds", "-k", NO_GOLDEN, *files), cwd=copy, env=environment(copy), check=False)
    for line in (copy / "seconds.txt").read_text().splitlines():
        seconds, test = line.split(" ", 1)
        known.seconds[test] = float(seconds)
    for line in (copy / "reached.txt").read_text().splitlines():
        place, test = line.split(" ", 1)
        if (not test or test in known.seconds) and test not in known.tests.setdefault(place, []):
            known.tests[place].append(test)


def environment(copy: Path) -> dict[str, str]:
    """Of tests in ``copy``: of its package."""
    return {**os.environ, "PYTHONPATH": str(copy)}


def pytest_command(*arguments: str) -> list[str]:
    """Tests without what slows their start."""
    return [sys.executable, "-m", "pytest", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-p", "no:cov", "-p", "no:xdist", *arguments]
