"""Rows of tests that are data and no code: ``tests/data/tables.yaml``."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.core.files import read_yaml


@cache
def _tables() -> Any:
    return read_yaml(Path(__file__).parent / "data" / "tables.yaml")[0]


def table(name: str) -> Any:
    """The rows called ``name``; a list of them, or lists by the name of what they are for."""
    return _tables()[name]
