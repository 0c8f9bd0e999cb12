"""Folders in which each file is one algorithm, command or format; packages that can be called; docstrings that are shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import Any

API = "perfmodel.api"


def module_names(folders: Iterable[str]) -> list[str]:
    """Modules in a package's ``__path__``, sorted; those that begin with an underscore are helpers."""
    files = [name.removesuffix(".py") for folder in folders for name in os.listdir(folder) if name.endswith(".py")]
    return sorted(name for name in files if not name.startswith("_"))


def make_callable(package: str, function: str) -> None:
    """Let a call of ``package`` be one of that function of the Python interface, which is loaded then.

    A package that is imported takes its name in the one above it, where a function of the same name would stand.
    """

    class Callable(ModuleType):
        def __call__(self, *arguments: Any, **options: Any) -> Any:
            return getattr(import_module(API), function)(*arguments, **options)

    sys.modules[package].__class__ = Callable


def docstring(documented: Any) -> str:
    """The docstring of a module, class or function, without its indentation; from the source where it was stripped."""
    import inspect

    found = inspect.getdoc(documented)
    if found is not None:
        return found
    import ast
    from textwrap import dedent

    tree = ast.parse(dedent(inspect.getsource(documented)))
    node: Any = tree if inspect.ismodule(documented) else tree.body[0]
    return ast.get_docstring(node) or ""
