"""Every strategy of rematerialization: a module in this folder defines one ``STRATEGY``, or several in ``STRATEGIES``."""

from __future__ import annotations

from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.plugins import plugins
from perfmodel.remat.schedule import Strategy

_ORDER = ("keep-all", "keep-none", "nearest-and-output", "nearest", "segments", "segments-last-kept", "every-k", "sqrt-n", "chen-recursive")


def _strategies() -> dict[str, Strategy]:
    return dict(plugins([__name__], "STRATEGY", "STRATEGIES"))


def names() -> list[str]:
    """Canonical names, from everything kept to the optimal ones."""
    return sorted(_strategies(), key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))


def find(name: str) -> Strategy:
    """The strategy called ``name``; UsageError with the nearest names otherwise."""
    known = _strategies()
    if name not in known:
        raise UsageError(f"--strategy: unknown strategy {name!r}", suggest(name, names()))
    return known[name]
