"""Put the current output of every shown command, and the picture, into README and docs: ``python tests/refresh_readme.py``."""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

from perfmodel.cli import main

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "accuracy.md")
SHOWN = re.compile(r"<!-- output: (.*?) -->\n```text\n(.*?)```", re.DOTALL)
PICTURE = ROOT / "docs" / "h200-roofline.svg"
DRAWN_BY = "roofline predicted-vs-measured-h200 -o"


def printed(*args: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        main(list(args))
    return out.getvalue()


def current(match: re.Match[str]) -> str:
    return f"<!-- output: {match[1]} -->\n```text\n{printed(*shlex.split(match[1]))}```"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(SHOWN.sub(current, page.read_text()))
    printed(*DRAWN_BY.split(), str(PICTURE))
