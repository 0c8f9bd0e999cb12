"""The page of every command in a real browser: what the first screen and the first sheet of paper hold, on a phone, in the dark."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import BINARY, Browser
from test_report_browser import AXE, OVERLAPS

from perfmodel.cli import main
from tools.commands import all_commands

pytestmark = pytest.mark.skipif(BINARY is None, reason="no chromium is installed; apt-get install chromium")

LINES = """
attention --n 4096 --d 64 --heads 16 --batch 8 --hardware h200
batch llama-3-8b --hardware h200
claims --verdict wrong
compare flash2 standard --attention 'n=4096 d=64' --hardware h200
fuse --example sin-cos
hardware show h200
kv-cache llama-3-8b --n 8192 --batch 16 --hardware h100-sxm
matmul -m 4096 -n 4096 -k 4096 --dtype bf16 --hardware h200
memory llama-3-8b --batch 8 --n 4096 --dp 8 --zero 3 --recompute full
mlp --batch 4096 --d-in 1024 --d-hidden 4096 --d-out 1024
model llama-3-8b --phase prefill --n 2048 --hardware h200
model gpt2-xl --phase train --batch 8 --n 1024 --hardware h200
occupancy --threads 256 --registers 64 --sram 48KiB --stride 2
recompute --bytes 64MiB --flops 10GFLOP
remat gpt2-xl
report standard-vs-flash
roofline --attention 'n=4096 d=64 heads=16 batch=8' --matmul 8192x8192x8192 --hardware h200
serve llama-3.1-8b --hardware h200 --concurrency 16
softmax --rows 4096 --cols 32768
sweep attention --n 512:8192:x4 --d 64,128 --hardware a100-sxm-80gb,h200
trace tests/data/traces/gpt-training-h200.json.gz
validate --records tests/data/records.jsonl
"""
WITHOUT_CHART = ("claims", "occupancy", "hardware")
"""Commands that have nothing to draw."""
SCREEN = (1280, 800)
PAPER = {"A4": (710, 1039), "Letter": (733, 972)}
"""Pixels inside margins of 11 mm."""
SEEN = "[...document.querySelectorAll('{}')].find(e => e.getClientRects().length)"
BOTTOM = f"(e => e ? e.getBoundingClientRect().bottom + scrollY : 0)({SEEN})"


def lines() -> list[str]:
    """The command lines."""
    return LINES.split("\n")[1:-1]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    started = Browser()
    yield started
    started.close()


@pytest.fixture(scope="module", params=lines())
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / f"{request.param.split()[0]}.html"
    assert main([*shlex.split(request.param), "-o", str(path)]) in (0, 3)
    return path


def bottoms(browser: Browser, page: Path) -> dict[str, float]:
    """Where what must be seen at once ends, in pixels from the top."""
    seen = ["header .verdict", "header .figures"] + ["section .picture"] * (page.stem not in WITHOUT_CHART)
    found = {name: browser.run(BOTTOM.format(name)) for name in seen}
    assert all(found.values()), found
    return found


def test_the_first_screen_answers(browser: Browser, page: Path) -> None:
    browser.open(page, *SCREEN)
    assert max(bottoms(browser, page).values()) <= SCREEN[1]
    assert 3 <= browser.run("document.querySelectorAll('header .figures dd').length") <= 5
    assert browser.problems == []


@pytest.mark.parametrize("paper", PAPER)
def test_the_first_sheet_answers(browser: Browser, page: Path, paper: str) -> None:
    width, height = PAPER[paper]
    browser.open(page, width, height)
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert max(bottoms(browser, page).values()) <= height


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_runs_over(browser: Browser, page: Path, width: int, theme: str) -> None:
    browser.open(page, width, theme=theme)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run(OVERLAPS) == []
    assert browser.problems == []
    if AXE is not None:
        browser.run(AXE.read_text(encoding="utf-8"))
        found = browser.run("axe.run(document).then(r => r.violations.map(v => `${v.impact} ${v.id}: ${v.nodes[0].html.slice(0, 200)}`))")
        assert found == []


def test_every_command_has_a_page() -> None:
    assert {line.split()[0] for line in lines()} >= {name.split()[0] for name in all_commands()} - {"calibrate"}


def test_a_page_says_how_it_was_made(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "perfmodel " in text.partition("<dt>command</dt>")[2][:200]
    assert json.dumps("SHA-256")[1:-1] in text or page.stem in ("claims", "remat")
