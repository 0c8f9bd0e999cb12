"""Every file format: a module here, named as the suffix it writes, has ``render(report) -> str``."""

from __future__ import annotations

from perfmodel.plugins import module_names


def suffixes() -> list[str]:
    """Suffixes that can be written, such as ``.json``."""
    return [f".{name}" for name in module_names(__path__)]
