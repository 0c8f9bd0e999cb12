"""Put the current output of every shown command, and the picture, into README and docs: ``python tests/refresh_readme.py``."""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

from predicted_measured import PICTURE, drawn

from perfmodel.catalog import device_ids
from perfmodel.cli import main

ROOT = Path(__file__).parents[1]
ACCURACY = ROOT / "docs" / "accuracy.md"
PAGES = (ROOT / "README.md", ACCURACY)
SHOWN = re.compile(r"<!-- output: (.*?) -->\n```text\n(.*?)```", re.DOTALL)
CAPTION = re.compile(r"Median error [\d.]+ %, \d+ % of the 80 % intervals hold, on [\d,]+ kernels drawn afterwards\.")

PROFILES = re.compile(r"\d+ profiles of devices")


def printed(*args: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        main(list(args))
    return out.getvalue()


def current(match: re.Match[str]) -> str:
    return f"<!-- output: {match[1]} -->\n```text\n{printed(*shlex.split(match[1]))}```"


def caption() -> str:
    """The error of the picture's kernels, as docs/accuracy.md opens with it."""
    [found] = CAPTION.findall(ACCURACY.read_text(encoding="utf-8"))
    return str(found)


if __name__ == "__main__":
    for page in PAGES:
        text = SHOWN.sub(current, page.read_text(encoding="utf-8"))
        text = PROFILES.sub(f"{len(device_ids())} profiles of devices", CAPTION.sub(caption(), text))
        page.write_text(text, encoding="utf-8")
    PICTURE.write_text(drawn(), encoding="utf-8")
