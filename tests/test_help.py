"""``--help`` of every command: one look at a terminal of 80 columns, common options first."""

from __future__ import annotations

import pytest
from each import each
from fuzzing import all_commands, command

from perfmodel.commands._command import OUTPUT

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
