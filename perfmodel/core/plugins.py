"""Plugins: folders in which each file is one algorithm, command or format. Also modules that can be called, and docstrings at run time."""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from inspect import Signature, signature
from pathlib import Path
from types import ModuleType
from typing import Any

API = "perfmodel.api"


def module_names(folders: Iterable[str]) -> list[str]:
    """Modules in a package's ``__path__``, sorted; those that begin with an underscore are helpers."""
    files = [name.removesuffix(".py") for folder in folders for name in os.listdir(folder) if name.endswith(".py")]
    return sorted(name for name in files if not name.startswith("_"))


def folders_written(packages: Sequence[str]) -> tuple[int, ...]:
    """Moments, in nanoseconds, at which a file was last added to or taken away from each folder of ``packages``."""
    return tuple(os.stat(folder).st_mtime_ns for package in packages for folder in import_module(package).__path__)


def plugins(packages: Sequence[str], single: str, several: str, wanted: str = "") -> Iterator[tuple[str, Any]]:
    """Pairs of name and plugin from the modules in ``packages``; modules that contain ``wanted`` are loaded first.

    A module defines one plugin as its attribute ``single``, with its ``name`` or else the module's; or a dict ``several`` by name.
    """
    for module in map(import_module, _modules(packages, wanted)):
        if hasattr(module, several):
            yield from getattr(module, several).items()
        else:
            plugin = getattr(module, single)
            yield getattr(plugin, "name", module.__name__.rpartition(".")[2]), plugin


def _modules(packages: Sequence[str], wanted: str) -> list[str]:
    """Full names of the modules: first the one called ``wanted``, then those that contain it in quotes."""
    folders = [(package, folder) for package in packages for folder in import_module(package).__path__]
    files = [(f"{package}.{name}", Path(folder, f"{name}.py")) for package, folder in folders for name in module_names([folder])]
    if wanted:
        stem, quoted = wanted.replace("-", "_"), f'"{wanted}"'
        files.sort(key=lambda file: (file[1].stem != stem, quoted not in _source(file[1])))
    return [name for name, _ in files]


@cache
def _source(path: Path) -> str:
    """Source of the module in ``path``, read once."""
    return path.read_text(encoding="utf-8")


def make_callable(module: str) -> None:
    """Make ``module`` callable: a call runs the function of its name in the Python interface, which is loaded at that time.

    An imported module hides a function of the same name in the package above it.
    """

    class Callable(ModuleType):
        def __call__(self, *arguments: Any, **options: Any) -> Any:
            return _function(module)(*arguments, **options)

        @property
        def __signature__(self) -> Signature:
            return signature(_function(module))

        @property
        def __doc__(self) -> str:  # type: ignore[override]
            package = self.__dict__["__doc__"] or ""
            return f"{package}\n\n{module}{signature(_function(module))}\n\n{docstring(_function(module))}"

    sys.modules[module].__class__ = Callable


def _function(module: str) -> Any:
    return import_module(API).function(module.rpartition(".")[2])


def docstring(documented: Any) -> str:
    """The docstring of a module, class or function without indentation, read from the source if ``python -OO`` stripped it."""
    text = inspect.getdoc(documented)
    is_signature = is_dataclass(documented) and (text or "").startswith(f"{getattr(documented, '__name__', '')}(")  # its signature
    if text is not None and not is_signature:
        return text
    from textwrap import dedent

    tree = ast.parse(dedent(inspect.getsource(documented)))
    node: Any = tree if inspect.ismodule(documented) else tree.body[0]
    return ast.get_docstring(node) or ""
