"""Put the current output of every shown command into the README: ``python tests/refresh_readme.py``."""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

from perfmodel.cli import main

README = Path(__file__).parents[1] / "README.md"


def current(match: re.Match[str]) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        main(shlex.split(match[1]))
    return f"<!-- output: {match[1]} -->\n```text\n{out.getvalue()}```"


if __name__ == "__main__":
    README.write_text(re.sub(r"<!-- output: (.*?) -->\n```text\n.*?```", current, README.read_text(), flags=re.DOTALL))
