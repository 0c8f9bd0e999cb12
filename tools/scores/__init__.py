"""Predictions beside measurements that no fit has seen: what docs/accuracy.md and the tests of accuracy read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
PAGE = ROOT / "docs" / "accuracy.md"
