"""Analytical performance model for attention and transformers on accelerators.

Each command is a function, and what it returns a ``Result``: printed it is the verdict, its fields are attributes.

    >>> import perfmodel
    >>> comparison = perfmodel.attention(n=4096, d=64, heads=16, hardware="h200")
    >>> comparison.results[1].algorithm, comparison.results[1].bound, comparison.inputs.heads
    ('flash2', 'tensor', 16)

``dir(perfmodel)`` lists the commands, ``help(perfmodel.matmul)`` says what one takes. ``perfmodel.sweep(n="512:131072:x2", d=[64, 128])``
answers a grid of questions. More: ``help(perfmodel.api)``.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfmodel._functions import *  # noqa: F403

__version__ = "0.1.0"

__all__ = ["Report", "Result", "__version__", "answer", "api", "attention", "capture", "compare_attention", "sweep"]  # noqa: F405
_MODULES = {"Report": "report.document", "Result": "result", "answer": "api", "capture": "program.capture", "compare_attention": "api"}
"""Modules of public names that are no commands."""


def __getattr__(name: str) -> Any:
    """A public name, loaded when it is first used: a class, a module, or the function of a command."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    if name == "api":
        return import_module(f"{__name__}.api")
    if name not in _commands():
        raise AttributeError(f"module 'perfmodel' has no attribute {name!r}")
    if find_spec(f"{__name__}.{name}"):  # a module with the name of a command, such as sweep, can be called as the command
        return import_module(f"{__name__}.{name}")
    return import_module("perfmodel.api").function(name)


def __dir__() -> list[str]:
    """Public names and every command."""
    return sorted({*__all__, *_commands()})


def _commands() -> list[str]:
    from perfmodel.core.plugins import module_names

    return module_names(import_module("perfmodel.commands").__path__)
