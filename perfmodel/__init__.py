"""Analytical performance model for attention and transformers on accelerators.

Each command is a function: ``perfmodel.attention(n=4096, d=64)``, ``perfmodel.matmul(m=8192, n=128, k=8192)``,
``perfmodel.model("llama-3-8b", phase="decode")``; ``perfmodel.sweep(n="512:131072:x2", d=[64, 128])`` answers a grid of questions.
See ``perfmodel.api``.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

__version__ = "0.1.0"

__all__ = ["Report", "__version__", "answer", "api", "attention", "sweep"]


def __getattr__(name: str) -> Any:
    """What is loaded only when asked for: a class, a module, or the function of a command."""
    if name == "Report":
        return import_module("perfmodel.report.document").Report
    if name == "answer":
        return import_module("perfmodel.api").answer
    if name == "api" or (_is_command(name) and find_spec(f"{__name__}.{name}")):  # such a module can be called
        return import_module(f"{__name__}.{name}")
    if _is_command(name):
        return import_module("perfmodel.api").function(name)
    raise AttributeError(f"module 'perfmodel' has no attribute {name!r}")


def _is_command(name: str) -> bool:
    from perfmodel.core.plugins import module_names

    return name in module_names(import_module("perfmodel.commands").__path__)
