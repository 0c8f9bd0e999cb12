"""Every strategy of rematerialization: each module in this folder defines one ``STRATEGY``."""

from __future__ import annotations

from importlib import import_module

from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.plugins import module_names
from perfmodel.remat.schedule import Strategy

_ORDER = ("keep-all", "keep-none", "nearest-and-output", "nearest", "segments", "segments-last-kept", "every-k", "sqrt-n", "chen-recursive")


def names() -> list[str]:
    """Canonical names, from everything kept to the optimal ones."""
    found = [name.replace("_", "-") for name in module_names(__path__)]
    return sorted(found, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))


def find(name: str) -> Strategy:
    """The strategy called ``name``; UsageError with the nearest names otherwise."""
    if name not in names():
        raise UsageError(f"--strategy: unknown strategy {name!r}", suggest(name, names()))
    strategy: Strategy = import_module(f"{__name__}.{name.replace('-', '_')}").STRATEGY
    return strategy
