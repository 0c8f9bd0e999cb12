"""Rows of tests that are data and no code: ``tests/data/tables.yaml``."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml


@cache
def _tables() -> Any:
    return yaml.safe_load((Path(__file__).parent / "data" / "tables.yaml").read_text(encoding="utf-8"))


def table(name: str) -> Any:
    """The rows called ``name``; a list of them, or lists by the name of what they are for."""
    return _tables()[name]
