"""Every file format: a module here, named as the suffix it writes, has ``render(report)``, which gives text, or bytes.

A module with ``NEEDS`` writes that field of a report, which only some commands fill. One with ``check`` says by it, before any work,
what it lacks.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module

from perfmodel.core.plugins import module_names


def suffixes(offers: Collection[str] = ()) -> list[str]:
    """Suffixes that can be written, such as ``.json``, by a command whose reports fill the fields ``offers``."""
    needs = {name: getattr(import_module(f"{__name__}.{name}"), "NEEDS", None) for name in module_names(__path__)}
    return [f".{name}" for name, need in needs.items() if need is None or need in offers]
