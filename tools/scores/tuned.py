"""Constants that were chosen on measurements and stand in code: which, where, and which time models draw on them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from perfmodel.timing.base import find_model
from tools.scores import ROOT

MODELS = "perfmodel.timing.models"
Constant = tuple[str, str]
"""Module and name."""


def module_of(path: Path) -> ModuleType:
    """The module of a file of the package."""
    return import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


@cache
def modules() -> dict[str, ModuleType]:
    """Those that have tuned constants, by name."""
    paths = [path for path in sorted((ROOT / "perfmodel").rglob("*.py")) if marked(path.read_text(encoding="utf-8"), "tuned")]
    return {module.__name__: module for module in map(module_of, paths)}


def marked(source: str, *marks: str) -> list[str]:
    """Names of the constants whose lines end in one of ``marks``, as a comment."""
    lines = source.splitlines()
    mark = re.compile(rf"  # ({'|'.join(marks)})\b")
    found = [one for one in ast.parse(source).body if isinstance(one, (ast.Assign, ast.AnnAssign)) and mark.search(lines[one.lineno - 1])]
    targets = [target for one in found for target in (one.targets if isinstance(one, ast.Assign) else [one.target])]
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


@cache
def meanings(module: ModuleType) -> dict[str, str]:
    """The first paragraph below the assignment of each constant."""
    body = ast.parse(inspect.getsource(module)).body
    found: dict[str, str] = {}
    for one, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(one, ast.Assign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            names = [name.id for target in one.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            found |= dict.fromkeys(names, " ".join(str(after.value.value).split("\n\n")[0].replace("``", "`").split()))
    return found


def flat(value: Any) -> list[float]:
    """The numbers that a constant holds."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else None
    return [value] if inside is None else [number for one in inside for number in flat(one)]


def numbers(value: Any) -> int:
    """How many a constant holds."""
    return len(flat(value))


def shown(value: Any) -> str:
    """The number, or all of them."""
    return ", ".join(f"{one:.4g}" for one in flat(value))


@cache
def declared() -> tuple[Constant, ...]:
    """Every tuned constant."""
    return tuple((name, constant) for name, module in modules().items() for constant in marked(inspect.getsource(module), "tuned"))


def count(constants: Iterable[Constant]) -> int:
    """Numbers in ``constants``."""
    return sum(numbers(getattr(modules()[module], name)) for module, name in constants)


@cache
def _defined(module: str) -> tuple[dict[str, ast.stmt], dict[str, Constant]]:
    """Top-level definitions of a module by name, and what it imports, anywhere, by the name it has there: of a whole module, no name."""
    found: dict[str, ast.stmt] = {}
    imported: dict[str, Constant] = {}
    tree = ast.parse(inspect.getsource(import_module(module)))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            whole = node.module == MODELS
            found_as = {one.asname or one.name: one.name for one in node.names}
            imported |= {name: (f"{MODELS}.{own}", "") if whole else (node.module, own) for name, own in found_as.items()}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id: node for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return found, imported


def _spoken_of(module: str, name: str) -> Iterator[Constant]:
    """What the definition of ``name`` in ``module`` uses, by where it is defined."""
    defined, imported = _defined(module)
    for node in ast.walk(defined[name]) if name in defined else ():
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and imported.get(node.value.id, ("", "."))[1] == "":
            yield imported[node.value.id][0], node.attr
        elif isinstance(node, ast.Name) and node.id != name:
            yield (module, node.id) if node.id in defined else imported.get(node.id, ("", ""))


@cache
def drawn_on(name: str) -> frozenset[Constant]:
    """Tuned constants that the time model ``name`` uses, itself or by way of other definitions in files of time models."""
    functions: list[Any] = [find_model(name).seconds]
    for one in functions:  # of a model that an engine makes: what its page gives the engine
        functions += [cell.cell_contents for cell in one.__closure__ or () if inspect.isfunction(cell.cell_contents)]
    seen: set[Constant] = set()
    left = [(one.__module__, one.__qualname__.partition(".")[0]) for one in functions]
    while left:
        one = left.pop()
        if one not in seen:
            seen.add(one)
            left += _spoken_of(*one) if one[0].startswith(MODELS) else []
    return frozenset(seen & set(declared()))
