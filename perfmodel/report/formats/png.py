"""PNG: the sheet of SVG, drawn with fonts of the package, so that every machine makes the same bytes."""

from __future__ import annotations

import re
from html import unescape
from importlib.util import find_spec
from pathlib import Path

from perfmodel.core.errors import UsageError
from perfmodel.report.document import Report
from perfmodel.report.formats import svg

NEEDS = "charts"
FONTS = [str(Path(__file__).parent / "assets" / f"Inter-{name}.otf") for name in ("Regular", "SemiBold")]
WIDTH = 2240
"""Width in pixels: two per unit of a single chart."""
_DRAWN = re.compile(r"[\x20-\x7e\n\u00a0±²³µ·×–—…≤≥≈→]*")
"""Characters in those fonts; others are drawn with the machine's fonts."""


def check() -> None:
    """UsageError if resvg-py, which draws PNG, is not installed."""
    if find_spec("resvg_py") is None:
        raise UsageError("--output: writing .png needs resvg-py", "pip install resvg-py, or write .svg")


def render(report: Report) -> bytes:
    """The picture. UsageError for a report without charts, or without resvg-py."""
    check()
    from resvg_py import svg_to_bytes

    drawing = svg.render(report)
    only_package_fonts = _DRAWN.fullmatch(unescape(drawing)) is not None
    return bytes(svg_to_bytes(svg_string=drawing, width=WIDTH, skip_system_fonts=only_package_fonts, font_files=FONTS))
