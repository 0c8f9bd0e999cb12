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
