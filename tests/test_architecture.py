"""Layers point down, and a cheap question starts cheaply."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest
from each import each

ROOT = Path(__file__).parents[1] / "perfmodel"

LAYERS = (
    *(
        "core",
        "kernels",
        "timing",
        "transformer",
        "serving",
        "program",
        "catalog",
        "remat",
        "sweep",
        "claims",
        "validation",
        "report",
        "study",
    ),
    *("commands", "cli", "result", "api", "__main__"),
)
"""From the bottom to the top: each name imports only those before it."""
RANK = {name: rank for rank, name in enumerate(LAYERS)}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def part(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


class Source(NamedTuple):
    """What a file imports, modules and what is taken of them; names that it calls, with the keywords of the calls; and its classes."""

    imports: set[str]
    modules: set[str]
    calls: set[tuple[str, str]]
    classes: list[str]


@cache
def source(path: Path) -> Source:
    """Of ``path``, wherever in it something stands."""
    found = Source(set(), set(), set(), [])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            found.modules.add(str(node.module))
            found.imports.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            found.modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ClassDef):
            found.classes.append(node.name)
        elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            found.calls.update((ast.unparse(node.func), str(word)) for word in ("", *(one.arg for one in node.keywords)))
    return found


def test_every_part_has_one_rank() -> None:
    assert {part(path) for path in FILES} == set(LAYERS)


@each("path", FILES)
def test_imports_point_down(path: Path) -> None:
    own = part(path)
    found = source(path)
    names = found.modules | {name for name in found.imports if name.count(".") == 1}
    for other in {name.split(".")[1] for name in names if name.startswith("perfmodel.")} - {own, "__version__"}:
        assert RANK[other] < RANK[own], f"{own} (layer {RANK[own]}) imports {other} (layer {RANK[other]})"


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


def test_no_modules_import_each_other() -> None:
    """Over all imports, those inside functions and those for types alone too."""
    known = {module(path): path for path in FILES}
    needs: dict[str, set[str]] = {}
    for name, path in known.items():
        found = source(path)
        needs[name] = (found.imports | found.modules) & known.keys() - {name}
    order = TopologicalSorter({name: {each for each in wanted if not name.startswith(f"{each}.")} for name, wanted in needs.items()})
    order.prepare()  # CycleError names the circle


@each("path", [p for p in FILES if part(p) not in ("commands", "cli", "__main__")])
def test_nothing_below_commands_prints_or_exits(path: Path) -> None:
    calls = {name for name, _ in source(path).calls}
    assert calls.isdisjoint({"print", "exit", "quit", "sys.exit", "typer.echo", "sys.stdout.write", "sys.stderr.write"})


@each("path", [*FILES, ROOT / "__init__.py"])
def test_nothing_is_evaluated(path: Path) -> None:
    """No text of a user becomes code: no eval, no pickle, no YAML loader but the safe one, no shell."""
    found = source(path)
    calls = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load"}
    assert calls.isdisjoint(name for name, _ in found.calls)
    assert "shell" not in {word for _, word in found.calls}
    taken = found.modules | {name.rpartition(".")[2] for name in found.imports}
    assert taken.isdisjoint({"pickle", "marshal", "shelve", "dill", "cloudpickle"})


def test_one_module_reads_yaml() -> None:
    assert [module(path) for path in FILES if re.search(r"import yaml\b", path.read_text())] == ["perfmodel.core.files"]


def loaded(*args: str) -> dict[str, object]:
    code = (
        "import io, json, re, sys, contextlib\n"
        "from perfmodel.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()): main(sys.argv[1:])\n"
        "peak = int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "print(json.dumps({'modules': sorted(sys.modules), 'kib': peak}))"
    )
    finished = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
    result: dict[str, object] = json.loads(finished.stdout)
    return result


ALGORITHMS = "perfmodel.kernels.attention.algorithms."
"""Of which every file is loaded; the budget is without them."""


HEAVY = {"numba", "matplotlib", "pydantic.main", "rich.table", "torch", "pandas", "pyarrow", "distributed"}


@pytest.mark.parametrize(
    ("line", "absent", "modules"),
    [
        ("--help", {"numpy", "yaml"}, 160),
        ("attention --help", {"numpy", "yaml"}, 190),
        ("sweep model --help", {"numpy"}, 280),
        ("attention --n 4096 --d 64", {"numpy"}, 265),
        ("kv-cache llama-3-8b", {"numpy"}, 295),
        ("memory llama-3-8b", {"numpy"}, 290),
        ("model llama-3-8b", {"numpy"}, 292),
        ("claims --json", {"numpy"}, 360),
        ("sweep --n 64 --d 64", set(), 370),
    ],
)
def test_import_budget(line: str, absent: set[str], modules: int) -> None:
    found = loaded(*line.split())
    assert isinstance(found["modules"], list)
    assert (HEAVY | absent) & set(found["modules"]) == set()
    assert sum(not name.startswith(ALGORITHMS) for name in found["modules"]) <= modules
    assert isinstance(found["kib"], int)
    assert found["kib"] * 1024 <= 60e6 or "numpy" not in absent


def test_the_page_on_the_structure_names_what_is_there() -> None:
    """Its picture has every part of the package from the top to the bottom, and every path in its text exists."""
    page = (ROOT.parent / "docs" / "architecture.md").read_text()
    drawn = [
        line.split()[0] for line in page.split("```")[1].splitlines()[1:] if line.strip(" |") and line.startswith(" ") and line[1] != " "
    ]
    parts = [name.rstrip("/").removesuffix(".py") for name in drawn]
    assert sorted(parts) == sorted(set(LAYERS) - {"__main__"})
    assert [RANK[name] for name in parts] == sorted((RANK[name] for name in parts), reverse=True)
    paths = re.findall(r"`([\w/]+(?:/|\.py))`", page)
    assert len(paths) > 20
    missing = [path for path in paths if not any((folder / path).exists() for folder in (ROOT, ROOT.parent))]
    assert missing == []


def test_a_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for path in FILES:
        for name in source(path).classes:
            places.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
