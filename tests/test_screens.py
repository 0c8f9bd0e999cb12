"""What a command prints where stdout is a terminal: its width, colours, an answer within a screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from reports import reported

from perfmodel.report.document import TO_PASTE, Report, Table, on_screen
from perfmodel.report.terminal import render

SCREEN = 24


@pytest.mark.parametrize("width", [60, 140])
def test_a_terminal_is_asked_for_its_width(width: int) -> None:
    text = in_a_terminal("attention --n 4096 --d 64", width, NO_COLOR="1")
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= width
    assert "flash2 is predicted" in text


def test_colour_is_an_addition() -> None:
    plain, coloured = (in_a_terminal("attention --n 4096 --d 64", 80, **kind) for kind in ({"NO_COLOR": "1"}, {"TERM": "xterm"}))
    assert re.search(r"\x1b\[(1;)?32mfaster\x1b\[0m", coloured)
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain


LONG = (
    "attention --n 8k --d 128 --heads 32 --kv-heads 8 --batch 4 --causal --dtype BF16 --hardware h200",
    "compare a100-sxm-80gb h200 --model llama-3-8b",
    "memory llama-3-8b --batch 8 --n 4k --dp 8 --zero 3 --hardware h100-sxm",
    "serve gpt-oss-120b --hardware h200 --concurrency 256 --gpu-hour 2.50",
    "serve qwen3-8b --hardware h200 --gpus 2 --engine vllm --search --tpot 20ms",
)


@pytest.mark.parametrize("line", LONG)
def test_an_answer_fits_the_lines_of_its_terminal(line: str) -> None:
    """With the next prompt; what has no room is counted. A pipe gets it whole."""
    for width in (60, 80):
        shown = render(reported(line), width, color=False, full=False, height=SCREEN)
        assert len(shown.splitlines()) < SCREEN
        assert "--full: " in shown
    if line == LONG[0]:
        assert in_a_terminal(line, width, NO_COLOR="1") == shown


def test_rows_give_way_from_the_last_table_on_and_sums_and_commands_stay_whole() -> None:
    rows = [[f"{place}", "1"] for place in range(5)]
    tables = [Table("", ["part", "s"], [*rows, ["together", "5"]]), Table("", [TO_PASTE], [["a \\"], ["b"]])]
    report = Report("x", ["y"], tables, brief=tables)
    sizes = [[len(table.rows) for table in on_screen(report, room)] for room in (8, 7, 4, 3, 1)]
    assert sizes == [[6, 2], [5, 2], [2, 2], [2], [1]]
    assert on_screen(report, 4)[0].rows[-1] == ["together", "5"]


def test_a_terminal_reads_which_files_were_written(tmp_path: Path) -> None:
    assert in_a_terminal(f"attention --n 4096 --d 64 -o {tmp_path}/a.md", 80) == f"wrote {tmp_path}/a.md\n"


def in_a_terminal(line: str, width: int, **environment: str) -> str:
    """What the command prints where stdout is a terminal of ``width`` columns."""
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", SCREEN, width, 0, 0))
    known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
    asked = [sys.executable, "-m", "perfmodel", *line.split()]
    with subprocess.Popen(asked, stdout=secondary, stderr=secondary, env=known | environment) as process:
        os.close(secondary)
        found = b""
        while True:
            try:
                part = os.read(primary, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            found += part
    os.close(primary)
    assert process.returncode == 0, found
    return found.decode().replace("\r\n", "\n")
