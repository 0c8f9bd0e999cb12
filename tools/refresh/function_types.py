"""Types of the functions of the package, for editors and type checkers: ``perfmodel/_functions.pyi``, from the commands' options."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import get_args

import perfmodel
from perfmodel.api import function
from perfmodel.cli import command_names

FILE = Path(perfmodel.__file__).with_name("_functions.pyi")
HEAD = """# From the commands, by tools/refresh/docs.py: their options for editors and type checkers.
from collections.abc import Sequence
from typing import Any

from perfmodel.api import answer as answer, compare_attention as compare_attention, sweep as sweep
from perfmodel.program.capture import capture as capture
from perfmodel.report.document import Report as Report
from perfmodel.result import Result as Result
"""
TAKEN = {"int": "int | str", "float": "float | str", "list[str]": "Sequence[str] | str"}
"""What a call takes where the command line has a type: a number may be written as there, and one text stands for a list of it."""


def typed(annotation: object) -> str:
    """An annotation as a call may have it: ``Sequence[str] | str | None`` of a list of texts or None."""
    text = annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    return " | ".join(TAKEN.get(part, part) for part in text.split(" | "))


def stub() -> str:
    """The whole file."""
    parts = [HEAD]
    for name in (name for name in command_names() if name != "sweep"):
        listed: list[str] = []
        starred = False
        for one in inspect.signature(function(name)).parameters.values():
            if one.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
                listed, starred = [*listed, "*"], True
            if one.kind is inspect.Parameter.VAR_POSITIONAL:
                listed, starred = [*listed, f"*{one.name}: {typed(one.annotation)}"], True
                continue
            default = "" if one.default is inspect.Parameter.empty else f" = {one.default!r}"
            optional = " | None" if one.default is None and "None" not in typed(one.annotation) else ""
            listed.append(f"{one.name}: {typed(one.annotation)}{optional}{default}")
            listed += ["/"] * (one.kind is inspect.Parameter.POSITIONAL_ONLY)
        parts.append(_written(name, listed))
    parts.append("def __getattr__(name: str) -> Any: ...\n")
    return "\n".join(parts)


def _written(name: str, listed: list[str]) -> str:
    inside = "".join(f"    {one},\n" for one in listed)
    return f"def {name}(\n{inside}) -> Result: ...\n"


def options(text: str) -> dict[str, dict[str, str]]:
    """Of each function in ``text`` its parameters, with their types."""
    found = {}
    for node in (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)):
        listed = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        found[node.name] = {one.arg: ast.unparse(one.annotation) for one in listed if one.annotation}
    return found
