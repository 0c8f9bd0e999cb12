"""Put the current output of every shown command, and the picture, into README and docs: ``python -m tools.refresh.readme``."""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stdout

from perfmodel.catalog import device_ids
from perfmodel.cli import main
from tools.scores import PAGE, ROOT
from tools.scores.predicted_measured import PICTURE, drawn

PAGES = (ROOT / "README.md", PAGE)
SHOWN = re.compile(r"<!-- output: (.*?) -->\n```text\n(.*?)```", re.DOTALL)
CAPTION = re.compile(r"Median error [\d.]+ %, \d+ % of the 80 % intervals hold, on [\d,]+ kernels drawn afterwards\.")

PROFILES = re.compile(r"\d+ profiles of devices")


def printed(*args: str) -> str:
    """What the command with these arguments prints."""
    out = io.StringIO()
    with redirect_stdout(out):
        main(list(args))
    return out.getvalue()


def current(match: re.Match[str]) -> str:
    """The block of ``match`` with what its command prints now."""
    return f"<!-- output: {match[1]} -->\n```text\n{printed(*shlex.split(match[1]))}```"


def caption() -> str:
    """The error of the picture's kernels, as docs/accuracy.md opens with it."""
    [found] = CAPTION.findall(PAGE.read_text(encoding="utf-8"))
    return str(found)


if __name__ == "__main__":
    for page in PAGES:
        text = SHOWN.sub(current, page.read_text(encoding="utf-8"))
        text = PROFILES.sub(f"{len(device_ids())} profiles of devices", CAPTION.sub(caption(), text))
        page.write_text(text, encoding="utf-8")
    PICTURE.write_text(drawn(), encoding="utf-8")
