"""Folders in which each file is one algorithm, command or format: adding one is adding a file."""

from __future__ import annotations

import os
from collections.abc import Iterable


def module_names(folders: Iterable[str]) -> list[str]:
    """Modules in a package's ``__path__``, sorted; those that begin with an underscore are helpers."""
    files = [name.removesuffix(".py") for folder in folders for name in os.listdir(folder) if name.endswith(".py")]
    return sorted(name for name in files if not name.startswith("_"))
