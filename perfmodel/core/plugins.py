"""Folders in which each file is one algorithm, command or format: adding one is adding a file. And packages that can be called."""

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
