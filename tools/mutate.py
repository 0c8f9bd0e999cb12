"""Do the tests notice? Small faults are put into a copy of the package, one at a time, and the tests that import the module are run.

    python tools/mutate.py                 200 places, always the same ones
    python tools/mutate.py --places 15     the first 15 of them
    python tools/mutate.py --only cache.py

A mutant dies if a test fails or takes too long. Survivors are printed as file, line and change: each wants a test, or does the same
as the code before (a name in a message, a start of a search).
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("perfmodel", "tests", "tools", "hardware_specs", "configs", "docs", "README.md", "pyproject.toml")
SKIPPED = ("commands", "report", "kernels", "cuda", "libraries", "simulator", "claims")
"""What prints, and what only a GPU or PyTorch runs."""
SEED, PLACES, LIMIT_S = 15, 200, 120.0
SWAPS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*"}
COMPARES = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
CALLS = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}


@dataclass(frozen=True)
class Mutant:
    """``text`` in the place of what stands in ``path`` from ``begin`` to ``end``, offsets in bytes."""

    path: str
    line: int
    begin: int
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        """The module with the fault."""
        return source[: self.begin] + self.text.encode() + source[self.end :]


def mutants(path: str, source: bytes) -> Iterator[Mutant]:
    """Every fault that one module can have."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def at(line: int, column: int) -> int:
        return starts[line - 1] + column

    def between(left: ast.expr, right: ast.expr, text: str) -> Mutant:
        """An operator between two operands; comments and brackets around it stay."""
        begin, end = at(left.end_lineno or 0, left.end_col_offset or 0), at(right.lineno, right.col_offset)
        found = re.search(rb"[-+*/<>=!]+", source[begin:end])
        if found is None:
            raise ValueError(f"{path}, line {left.lineno}: no operator")
        return Mutant(path, left.lineno, begin + found.start(), begin + found.end(), text)

    def instead(node: ast.expr, text: str) -> Mutant:
        return Mutant(path, node.lineno, at(node.lineno, node.col_offset), at(node.end_lineno or 0, node.end_col_offset or 0), text)

    for node in _code(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield instead(node, str(not node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            yield instead(node, repr(node.value + 1 if isinstance(node.value, int) else node.value * 1.25))
        elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
            yield between(node.left, node.right, SWAPS[type(node.op)])
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARES:
            yield between(node.left, node.comparators[0], COMPARES[type(node.ops[0])])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            yield instead(node.func, CALLS[node.func.id])
        elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
            yield instead(node.value, "None")


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that do something: no annotations, no text with values in it."""
    for name, value in ast.iter_fields(tree):
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and name not in ("annotation", "returns") and not isinstance(node, ast.JoinedStr):
                yield node
                yield from _code(node)


def sample(places: int, only: str) -> list[Mutant]:
    """A fixed choice among all faults of the package."""
    files = [path for path in sorted((ROOT / "perfmodel").rglob("*.py")) if not any(f"/{name}" in path.as_posix() for name in SKIPPED)]
    found = [mutant for path in files for mutant in mutants(path.relative_to(ROOT).as_posix(), path.read_bytes()) if only in mutant.path]
    random.Random(SEED).shuffle(found)
    return found[:places]


def tests_of(path: str) -> list[str]:
    """Its own doctests, then the test files that name the module, those that name little else first; else tests of its package."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, name = module.rpartition(".")
    parent, _, last = package.rpartition(".")
    wanted = re.compile(rf"\b{re.escape(module)}\b|from {re.escape(package)} import .*\b{name}\b")
    near = re.compile(rf"\b{re.escape(package)}\b|from {re.escape(parent)} import .*\b{last}\b")
    texts = {file: file.read_text() for file in sorted((ROOT / "tests").glob("test_*.py"))}
    direct = [file for file, text in texts.items() if wanted.search(text)]
    beside = [file for file, text in texts.items() if file not in direct and near.search(text)]
    listed = [*sorted(direct, key=lambda file: texts[file].count("import")), *beside[:3]]
    return [path, *(f"tests/{file.name}" for file in listed)]


def survives(mutant: Mutant, copy: Path, limit_s: float) -> bool:
    """Whether all tests pass; the copy is as it was afterwards."""
    file = copy / mutant.path
    source = file.read_bytes()
    if not _pass_unharmed(mutant.path, copy, limit_s):
        raise SystemExit(f"{mutant.path}: its tests fail, or take over {limit_s:g} s, without a fault")
    file.write_bytes(mutant.apply(source))
    try:
        return _pass(tests_of(mutant.path), copy, limit_s)
    finally:
        file.write_bytes(source)


@cache
def _pass_unharmed(path: str, copy: Path, limit_s: float) -> bool:
    return _pass(tests_of(path), copy, limit_s)


def _pass(tests: list[str], copy: Path, limit_s: float) -> bool:
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    with subprocess.Popen(command, cwd=copy, env=environment, stdout=-3, stderr=-3, start_new_session=True) as run:
        try:
            return run.wait(limit_s) == 0
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            return False


def main() -> int:
    """Prints each survivor as it is found, and the score."""
    parser = argparse.ArgumentParser(description="Put small faults into a copy of the package and run the tests on it.")
    parser.add_argument("--places", type=int, default=PLACES, help=f"how many faults [default: {PLACES}]")
    parser.add_argument("--only", default="", help="faults in files whose path holds this")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help=f"seconds of tests, more are a death [default: {LIMIT_S:g}]")
    asked = parser.parse_args()
    chosen = sample(asked.places, asked.only)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            take = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            take(ROOT / name, copy / name)
        alive = 0
        for number, mutant in enumerate(chosen, start=1):
            if survives(mutant, copy, asked.limit):
                alive += 1
                was = (ROOT / mutant.path).read_bytes()[mutant.begin : mutant.end].decode()
                print(f"{mutant.path}:{mutant.line}: {' '.join(was.split())[:80]} -> {mutant.text}", flush=True)
            print(f"{number} of {len(chosen)}, {alive} alive", file=sys.stderr, flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} mutants died")
    return 0


if __name__ == "__main__":
    sys.exit(main())
