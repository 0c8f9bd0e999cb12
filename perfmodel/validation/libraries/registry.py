"""Every library kernel by workload and name."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from perfmodel.core.errors import DataError, suggest
from perfmodel.core.plugins import module_names
from perfmodel.validation.libraries.base import Library, LibraryCase


@cache
def libraries() -> dict[tuple[str, str], Library]:
    """Implementations by (workload, name), from the files in ``families``."""
    package = import_module("perfmodel.validation.libraries.families")
    modules = [import_module(f"{package.__name__}.{name}") for name in module_names(package.__path__)]
    return {(library.workload, library.name): library for module in modules for library in module.LIBRARIES}


def find(case: LibraryCase) -> Library:
    """What runs ``case``; DataError if nothing does."""
    known = libraries()
    found = known.get((case.workload, case.implementation))
    if found is None:
        names = sorted(name for workload, name in known if workload == case.workload)
        raise DataError(f"no library kernel {case.implementation!r} for {case.workload!r}", suggest(case.implementation, names))
    if case.direction not in found.directions:
        raise DataError(f"{found.name} has no {case.direction} pass here", f"give one of {', '.join(found.directions)}")
    return found
