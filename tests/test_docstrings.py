"""What is read from docstrings is the same where Python strips them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import perfmodel
from perfmodel.cli import command_names

SHOWN = [
    "--help",
    *(f"{name.replace('_', '-')} --help" for name in command_names()),
    "hardware list --help",
    "claims S001 --explain all",
    "report --schema",
    # nothing predicts it: what the calibration covers is told
    "attention --n 4096 --d 64 --hardware h200 --implementation flash_attn --direction backward --dropout 0.1",
]
STRIPPED = """
import io, json, sys
from contextlib import redirect_stdout, redirect_stderr
from perfmodel.cli import main
def text(line):
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(out):
        main(line.split())
    return out.getvalue()
assert False, "asserts are stripped too"
print(json.dumps([main.__doc__, *map(text, json.load(sys.stdin))]))
"""


def test_stripped_docstrings_are_shown_all_the_same(run: Any) -> None:
    settings = {**os.environ, "PYTHONOPTIMIZE": "2", "PYTHONDONTWRITEBYTECODE": "1"}
    line = [sys.executable, "-c", STRIPPED]
    done = subprocess.run(line, input=json.dumps(SHOWN), env=settings, capture_output=True, text=True, check=True)
    stripped, *found = json.loads(done.stdout)
    assert stripped is None
    for shown, text in zip(SHOWN, found, strict=True):
        outcome = run(shown)
        assert text == outcome.out + outcome.err, shown


def test_docstrings_are_read_in_one_place() -> None:
    folder = Path(perfmodel.__file__).parent
    readers = [path for path in folder.rglob("*.py") if re.search(r"__doc__(?! = )|getdoc\(", path.read_text(encoding="utf-8"))]
    assert readers == [folder / "core" / "plugins.py"]
