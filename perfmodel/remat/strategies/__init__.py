"""Every strategy of rematerialization: a module in this folder defines one ``STRATEGY``, or several in ``STRATEGIES``."""

from __future__ import annotations

from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.plugins import plugins
from perfmodel.remat.schedule import Strategy


def _strategies() -> dict[str, Strategy]:
    return dict(plugins([__name__], "STRATEGY", "STRATEGIES"))


def names() -> list[str]:
    """Canonical names in the order of files and of the strategies in each, from keeping everything to the optimal ones."""
    return list(_strategies())


def find(name: str) -> Strategy:
    """The strategy called ``name``; UsageError with the nearest names otherwise."""
    known = _strategies()
    if name not in known:
        raise UsageError(f"--strategy: unknown strategy {name!r}", suggest(name, names()))
    return known[name]
