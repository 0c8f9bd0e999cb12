"""Analytical performance model for attention and transformers on accelerators.

``perfmodel.attention(n=4096, d=64)`` answers one question, ``perfmodel.sweep(n="512:131072:x2", d=[64, 128])`` a grid of them: see
``perfmodel.api``.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

__all__ = ["Report", "__version__", "api", "attention", "sweep"]

_LAZY = {
    "Report": ("perfmodel.report.document", "Report"),
    "api": ("perfmodel.api", ""),
    "attention": ("perfmodel.api", "attention"),
    "sweep": ("perfmodel.sweep", ""),
}
"""Public names that load their module only when asked for: the module, and the name in it, empty for the module itself."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'perfmodel' has no attribute {name!r}")
    module, inside = _LAZY[name]
    found = import_module(module)
    return getattr(found, inside) if inside else found
