"""The README shows what the program prints, and names every command."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from perfmodel.cli import command_names
from tools.refresh.readme import CAPTION, PAGES, SHOWN, caption
from tools.scores import PAGE
from tools.scores.predicted_measured import NAMES, NEAR, PICTURE, drawn, pairs

README = PAGES[0]
SCOREBOARD = "validate --scoreboard"
"""Whose rows ``test_accuracy`` judges too."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_something_is_shown(page) -> None:
    assert SHOWN.findall(page.read_text())


def test_the_picture_is_current():
    assert drawn() == PICTURE.read_text(encoding="utf-8"), "refresh with: python -m tools.refresh.readme"
    for page in PAGES:
        assert f"({PICTURE.relative_to(page.parent)})" in page.read_text()


def test_the_picture_shows_what_is_near_and_what_is_not():
    shown = pairs()
    assert {pair.group for pair in shown} == set(NAMES.values())
    near = sum(abs(pair.predicted / pair.measured - 1) <= NEAR for pair in shown)
    assert f"{near} of {len(shown)} kernels are predicted within 10%" in PICTURE.read_text(encoding="utf-8")
    assert 0.7 < near / len(shown) < 1


def test_the_error_in_the_caption_is_that_of_the_page():
    """Which adds up what the page shows state by state."""
    assert CAPTION.findall(README.read_text()) == [caption()], "refresh with: python -m tools.refresh.readme"
    [kernels] = re.findall(r"on ([\d,]+) kernels drawn afterwards", caption())
    states = re.findall(r"^- (?:clean|dirty|warm): ([\d,]+) kernels", PAGE.read_text(), re.MULTILINE)
    assert int(kernels.replace(",", "")) == sum(int(count.replace(",", "")) for count in states)


def test_the_readme_is_short():
    lines = README.read_text().splitlines()
    assert len(lines) <= 90
    assert max(len(line) for line in lines if not line.startswith("|")) <= 140


@pytest.mark.parametrize(
    ("command", "text"), [shown for page in PAGES for shown in SHOWN.findall(page.read_text()) if shown[0] != SCOREBOARD]
)
def test_outputs_are_current(run, command, text):
    assert run("", *shlex.split(command)).out == text, "refresh with: python -m tools.refresh.readme"


def test_every_command_of_the_pages_is_in_the_table():
    """In order; one that was added since is on no page yet."""
    listed = re.findall(r"^\| `perfmodel (\S+)`", README.read_text(), re.MULTILINE)
    described = re.findall(r"^## (\S+)", (README.parent / "docs" / "commands.md").read_text(), re.MULTILINE)
    known = [name.replace("_", "-") for name in command_names()]
    assert listed == [name for name in known if name in listed] == list(dict.fromkeys(described))


def test_number_of_devices_is_that_of_their_page():
    [number] = re.findall(r"^(\d+) profiles;", (README.parent / "docs" / "devices.md").read_text(), re.MULTILINE)
    assert f"{number} profiles" in README.read_text()


def test_every_promised_format_is_written(run, tmp_path):
    """Add ... `-o report.html` for a page (`.md`, ... too)."""
    [(first, others)] = re.findall(r"`-o report(\.\w+)` for a page \(([^)]*) too\)", README.read_text())
    promised = [first, *re.findall(r"`(\.\w+)`", others)]
    assert len(promised) > 3
    [(command, _), *_] = SHOWN.findall(README.read_text())
    for suffix in promised:
        made = tmp_path / f"report{suffix}"
        outcome = run(command, "-o", str(made))
        assert outcome.code == 0, outcome.err
        assert made.stat().st_size > 1000, suffix


def test_help_of_the_interface():
    """As the README says, right after the package is imported, which loads nothing else."""
    assert "`help(perfmodel.api)`" in README.read_text()
    code = "import perfmodel, sys; assert 'perfmodel.core.errors' not in sys.modules; help(perfmodel.api)"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "perfmodel.api - The Python interface" in finished.stdout
