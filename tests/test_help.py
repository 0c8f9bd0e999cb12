"""``--help`` of every command: one look at a terminal of 80 columns, common options first."""

from __future__ import annotations

import pytest
from each import each

from perfmodel.cli import command_names
from perfmodel.commands._command import OUTPUT
from tools.commands import all_commands, command

MOST_LINES, WIDTH = 50, 80
PAGES = ["", *all_commands(), *(f"sweep {name}" for name in ("matmul", "kv-cache", "model"))]


@pytest.mark.parametrize("name", PAGES)
def test_help_fits_a_screenful(run, monkeypatch, name: str) -> None:
    """Fifty lines as a terminal shows them; only an example, which is to be copied, may be longer than one."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    lines = run(f"{name} --help").out.splitlines()
    shown = sum(max(1, -(-len(line) // WIDTH)) for line in lines)
    assert shown <= MOST_LINES, shown
    assert all(len(line) <= WIDTH or line.startswith("  Example: ") for line in lines)
    assert not any(line.endswith("..") and not line.endswith("...") for line in lines)


@each("name", all_commands())
def test_common_options_come_first(run, name: str) -> None:
    """Arguments and common options, then headings, then where the answer goes; every option is on the page, by its own name."""
    text = run(f"{name} --help").out
    headings = [line.rstrip(":") for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings[:1] in (["Options"], [OUTPUT], [])
    assert OUTPUT not in headings[:-1], headings
    for param in command(name).params:
        if param.param_type_name == "option" and param.name != "help" and not getattr(param, "hidden", False):
            assert f" {max(param.opts, key=len)}" in text
    for common in ("--n ", "--hardware ", "--dtype "):
        if len(headings) > 2 and common in text:
            assert text.index(common) < text.index(headings[1]), common


@pytest.mark.parametrize("name", ["", "hardware"])
def test_lists_of_commands_are_whole(run, monkeypatch, name: str) -> None:
    """A line per command, which ends as a sentence does."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    text = run(f"{name} --help").out
    listed = text.partition("Commands:\n")[2].rstrip().splitlines()
    assert len(listed) == (len([one for one in all_commands() if one.startswith(f"{name} ")]) if name else len(command_names()))
    assert all(line.endswith(".") and ".." not in line for line in listed), listed


def test_defaults_that_differ_between_commands(run) -> None:
    """As the commands have them: this machine where kernels run, the clock that a headline is of, the tile that is counted."""
    wide = ("matmul -m 8192 -n 8192 -k 8192 --json", lambda found: found["results"][0]["tile"]["bc"])
    for line, number in (("--hardware h200", 256), ("--dtype fp8 --hardware h200", 128), ("--hardware a100-sxm-80gb", 128)):
        assert wide[1](run(f"{wide[0]} {line}").json) == number
    assert "16 bit on Hopper and B200: 256" in " ".join(run("matmul --help").out.split())
    assert "[default: burst]" in run("matmul --help").out
    assert run("matmul -m 8192 -n 8192 -k 8192 --hardware h200 --json").json["results"][0]["clock"] == "burst"
    assert "[default: sustained]" in run("model --help").out
    assert run("model gpt2 --hardware h200 --json").json["totals"]["clock"] == "sustained"
    assert "at 2,048 tokens" in run("batch llama-3-8b --hardware h200").out
    assert "at 1,024 tokens" in run("batch gpt2 --hardware h200").out
    assert "[default: 2048 or the model's most]" in run("batch --help").out
    for name in ("calibrate", "validate"):
        assert "[default: this machine's, or the records']" in " ".join(run(f"{name} --help").out.split())
