"""Docstrings as text that is shown: also where Python was told to strip them (``-OO``, ``PYTHONOPTIMIZE=2``)."""

from __future__ import annotations

from typing import Any


def docstring(documented: Any) -> str:
    """The docstring of a module, class or function, without its indentation; from the source where it was stripped."""
    import inspect

    found = inspect.getdoc(documented)
    if found is not None:
        return found
    import ast
    from textwrap import dedent

    tree = ast.parse(dedent(inspect.getsource(documented)))
    node: Any = tree if inspect.ismodule(documented) else tree.body[0]
    return ast.get_docstring(node) or ""
