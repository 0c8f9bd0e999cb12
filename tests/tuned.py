"""Constants that were chosen on measurements and stand in code: which, where, and which time models draw on them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
MODELS = "perfmodel.timing.models"
Constant = tuple[str, str]
"""Module and name."""


def module_of(path: Path) -> ModuleType:
    return import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


@cache
def modules() -> dict[str, ModuleType]:
    """Those that declare tuned constants, by name."""
    paths = [path for path in sorted((ROOT / "perfmodel").rglob("*.py")) if "\nTUNED = (" in path.read_text(encoding="utf-8")]
    return {module.__name__: module for module in map(module_of, paths)}


def meanings(module: ModuleType) -> dict[str, str]:
    """The first paragraph below the assignment of each constant."""
    body = ast.parse(inspect.getsource(module)).body
    found: dict[str, str] = {}
    for one, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(one, ast.Assign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            names = [name.id for target in one.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            found |= dict.fromkeys(names, " ".join(str(after.value.value).split("\n\n")[0].replace("``", "`").split()))
    return found


def numbers(value: Any) -> int:
    """How many a constant holds."""
    return len(value) if isinstance(value, (tuple, dict)) else 1


def shown(value: Any) -> str:
    """The number, or all of them."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
    return ", ".join(f"{one:.4g}" for one in values)


def declared() -> Iterator[Constant]:
    """Every tuned constant."""
    for name, module in modules().items():
        yield from ((name, constant) for constant in module.TUNED)


def count(constants: Iterator[Constant] | set[Constant]) -> int:
    """Numbers in ``constants``."""
    return sum(numbers(getattr(modules()[module], name)) for module, name in constants)


@cache
def drawn_on(name: str) -> frozenset[Constant]:
    """Tuned constants of a module of time models and of what it imports; from elsewhere those imported by name."""
    module = import_module(name)
    found = {(name, constant) for constant in getattr(module, "TUNED", ())}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        for alias in node.names:
            if node.module == MODELS:
                found |= drawn_on(f"{MODELS}.{alias.name}")
            elif node.module.startswith(MODELS) and alias.name not in getattr(import_module(node.module), "KNOWN", ()):
                found |= drawn_on(node.module)
            elif node.module in modules() and alias.name in modules()[node.module].TUNED:
                found.add((node.module, alias.name))
    return frozenset(found)
