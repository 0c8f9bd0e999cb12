"""Small faults: a constant, a comparison, an operator, ``min`` for ``max``, a flipped boolean, a returned None."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = ("commands/", "report/", "validation/kernels/", "validation/cuda/", "validation/libraries/", "validation/simulator/", "claims.py")
"""What prints, and what only a GPU or PyTorch runs."""
SEED = 15
SWAPS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*"}
COMPARES = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
CALLS = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}


@dataclass(frozen=True)
class Mutant:
    """``text`` in the place of what stands in ``path`` from ``begin`` to ``end``; ``whole``: the expression that it is in.

    Offsets in bytes. ``in_function``: whether it runs when a function does, and not when the module is imported.
    """

    path: str
    line: int
    begin: int
    end: int
    text: str
    whole: tuple[int, int]
    in_function: bool

    def apply(self, source: bytes) -> bytes:
        """The module with the fault."""
        return source[: self.begin] + self.text.encode() + source[self.end :]

    @cached_property
    def change(self) -> tuple[str, str, str]:
        """Path, and its lines without and with the fault: what names the place whatever happens to the lines around it."""
        source = (ROOT / self.path).read_bytes()
        first, after = source.rfind(b"\n", 0, self.begin) + 1, source.find(b"\n", self.end)
        was, becomes = source[first:after], source[first : self.begin] + self.text.encode() + source[self.end : after]
        return self.path, " ".join(was.decode().split()), " ".join(becomes.decode().split())


def mutants(path: str, source: bytes) -> Iterator[Mutant]:
    """Every fault that one module can have."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node: ast.expr) -> tuple[int, int]:
        return starts[node.lineno - 1] + node.col_offset, starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def between(node: ast.expr, left: ast.expr, right: ast.expr, text: str) -> Mutant:
        """An operator between two operands; comments and brackets around it stay."""
        begin, end = span(left)[1], span(right)[0]
        found = re.search(rb"[-+*/<>=!]+", source[begin:end])
        if found is None:
            raise ValueError(f"{path}, line {left.lineno}: no operator")
        return Mutant(path, left.lineno, begin + found.start(), begin + found.end(), text, span(node), inside)

    def instead(node: ast.expr, text: str, whole: ast.expr | None = None) -> Mutant:
        return Mutant(path, node.lineno, *span(node), text, span(whole or node), inside)

    for node, inside in _code(ast.parse(source), False):  # noqa: B007 (read by the functions above)
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield instead(node, str(not node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            yield instead(node, repr(node.value + 1 if isinstance(node.value, int) else node.value * 1.25 or 1.0))
        elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
            yield between(node, node.left, node.right, SWAPS[type(node.op)])
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARES:
            yield between(node, node.left, node.comparators[0], COMPARES[type(node.ops[0])])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            yield instead(node.func, CALLS[node.func.id], node)
        elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
            yield instead(node.value, "None")


def _code(tree: ast.AST, inside: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Nodes that do something, and whether they are inside a function: no annotations, no text with values in it."""
    for name, value in ast.iter_fields(tree):
        within = inside or (isinstance(tree, (ast.FunctionDef, ast.Lambda)) and name == "body")
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and name not in ("annotation", "returns") and not isinstance(node, ast.JoinedStr):
                yield node, within
                yield from _code(node, within)


def every() -> list[Mutant]:
    """All faults of the package, in an order of chance that changes of other lines do not disturb."""
    files = [
        path for path in sorted((ROOT / "perfmodel").rglob("*.py")) if not any(f"perfmodel/{name}" in path.as_posix() for name in SKIPPED)
    ]
    found = [mutant for path in files for mutant in mutants(path.relative_to(ROOT).as_posix(), path.read_bytes())]
    return sorted(found, key=lambda mutant: hashlib.sha256(f"{SEED} {mutant.change}".encode()).digest())
