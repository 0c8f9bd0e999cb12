"""What every command shares: help, version, exit codes, terminals; and the hardware command."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from each import each

from perfmodel import __version__
from perfmodel.catalog import device_ids
from perfmodel.cli import command_names
from perfmodel.core.files import read_yaml
from perfmodel.report.document import Report, Table
from perfmodel.report.formats.md import render as markdown
from perfmodel.report.terminal import render as terminal


def test_help_lists_every_command_and_version_answers(run):
    outcome = run("--help")
    assert outcome.code == 0
    for name in command_names():
        assert re.search(rf"^  {name.replace('_', '-')} ", outcome.out, re.MULTILINE)
    assert run("--version").out == f"perfmodel {__version__}\n"
    assert run("").code == 2


@pytest.mark.parametrize("line", ["--help", "--n 64 --d 64 --help", "--n x --help"])
def test_help_wins_over_everything_else(run, line):
    assert run(f"attention {line}").code == 0


def test_module_and_script_run_the_same():
    script = Path(sys.executable).with_name("perfmodel")
    outputs = [
        subprocess.run([*how, "--version"], capture_output=True, text=True, check=True).stdout
        for how in ([sys.executable, "-m", "perfmodel"], [script])
    ]
    assert outputs[0] == outputs[1] == f"perfmodel {__version__}\n"


def test_an_interrupt_is_exit_130(run, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("perfmodel.catalog.find_device", interrupt)
    assert run("attention --n 64 --d 64").code == 130


def test_a_bug_is_not_hidden(run, monkeypatch):
    def bug(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("perfmodel.catalog.find_device", bug)
    with pytest.raises(ZeroDivisionError):
        run("attention --n 64 --d 64")


@pytest.fixture
def report() -> Report:
    rows = [["first", "1", "a|b *c*"], ["second", "22", "<script>"]]
    return Report("Title", ["It is so."], [Table("numbers", ["", "value", "note"], rows, "lrl")], ["A note."])


def test_markdown_escapes_what_would_be_markup(report):
    text = markdown(report)
    assert r"a\|b \*c\*" in text
    assert r"\<script\>" in text
    assert "| --- | ---: | --- |" in text
    assert all(line.count("|") - line.count(r"\|") == 4 for line in text.splitlines() if line.startswith("|"))


def test_terminal_wraps_to_its_width_and_colours_on_request(report):
    plain = terminal(report, 30, color=False)
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= 30
    assert "\x1b[1m" in terminal(report, 80)


def test_a_terminal_gets_the_styled_report(monkeypatch, capsys):
    from perfmodel.cli import main

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["attention", "--n", "64", "--d", "64"]) == 0
    styled = capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["attention", "--n", "64", "--d", "64"]) == 0
    bare = capsys.readouterr().out
    assert "\x1b[" in styled
    assert "\x1b[" not in bare
    assert max(map(len, bare.splitlines())) <= 100


# Hardware


@each("name", device_ids())
def test_hardware_show_prints_every_number_with_its_source(run, name):
    raw, _ = read_yaml(Path(__file__).parents[1] / "hardware_specs" / f"{name}.yaml")
    outcome = run(f"hardware show {name} --full")
    assert outcome.code == 0
    for key, text in raw["sources"].items():
        assert f"{key}: {text}" in outcome.out
    for value in re.findall(r"value: ([^,}]+)", yaml.safe_dump(raw, default_flow_style=True, width=10**6)):
        assert value.strip().strip("'") in outcome.out
    data = run(f"hardware show {name} --json").json
    assert data["schema"] == "perfmodel.device/1"
    assert data["device"]["id"] == name


@each("name", device_ids())
def test_hardware_check_passes(run, name):
    assert run(f"hardware check {name}").code == 0


def test_ridge_points_are_explained(run):
    shown = run("hardware show nvidia-a100-pcie-80gb --explain all")
    assert "P_tensor_fp16 / BW_dram = 312000000000000 / 1935360000000 = 161.21" in shown.out
    data = run("hardware show nvidia-a100-pcie-80gb --explain all --json").json
    values = {step["name"]: step["value"] for part in data["explanation"] for step in part["steps"]}
    for name, point in data["ridge_points"].items():
        assert values[f"ridge point, {name}"] == point["value"]
