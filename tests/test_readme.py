"""The README shows what the program prints, and names every command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from perfmodel.catalog import device_ids
from perfmodel.cli import command_names

README = Path(__file__).parents[1] / "README.md"
SHOWN = re.compile(r"<!-- output: (.*?) -->\n```text\n(.*?)```", re.DOTALL)


def test_something_is_shown() -> None:
    assert SHOWN.findall(README.read_text())


@pytest.mark.parametrize(("command", "text"), SHOWN.findall(README.read_text()))
def test_outputs_are_current(run, command, text):
    assert run("", *shlex.split(command)).out == text, "refresh with: python tests/refresh_readme.py"


def test_every_command_is_in_the_table():
    assert re.findall(r"^\| `perfmodel (\S+)`", README.read_text(), re.MULTILINE) == [name.replace("_", "-") for name in command_names()]


def test_numbers_of_devices_are_current():
    assert f"{len(device_ids())} profiles" in README.read_text()
