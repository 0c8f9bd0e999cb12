"""The tours of docs/tour.md: each question is answered within the first screen of a terminal of 80 columns and 24 lines."""

from __future__ import annotations

import io
import re
import shlex
import sys
from pathlib import Path

import pytest

from perfmodel.cli import main

PAGE = (Path(__file__).parents[1] / "docs" / "tour.md").read_text(encoding="utf-8")
STEPS = re.findall(r"```console\n\$ perfmodel (.*)\n```\n\nOn screen: (.*)\n", PAGE)
COLUMNS, LINES = 80, 24


class Terminal(io.StringIO):
    """A stdout that says it is one."""

    def isatty(self) -> bool:
        return True


def test_every_command_of_the_page_is_a_step() -> None:
    assert len(STEPS) == PAGE.count("$ perfmodel") >= 15
    assert len(re.findall(r"^## ", PAGE, re.MULTILINE)) == 4


@pytest.mark.parametrize(("line", "answers"), STEPS)
def test_the_answer_is_on_the_first_screen(monkeypatch, tmp_path, line: str, answers: str) -> None:
    """The last line of the screen is the next prompt's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(shlex.split(line)) == 0
    shown = terminal.getvalue().splitlines()[: LINES - 1]
    assert max(map(len, shown)) <= COLUMNS
    flowing = " ".join(" ".join(shown).split())
    for answer in re.findall(r"`([^`]+)`", answers):
        wanted = re.escape(" ".join(answer.split())).replace(r"\.\.\.", r"[\d.,]+%?")
        assert re.search(wanted, flowing), (answer, shown)
