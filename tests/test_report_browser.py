"""The page in a real browser, opened from disk without a network: what a reader sees, points at, chooses, sorts and saves."""

from __future__ import annotations

import csv
import io
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import BINARY, Browser
from test_answer_first import LINES

from perfmodel.report import write
from perfmodel.report.charts.chart_tables import points_table
from tools.refresh.report_example import HOSTILE, crowded, example, long_names

pytestmark = pytest.mark.skipif(BINARY is None, reason="no chromium is installed; apt-get install chromium")

AXE = next(
    (
        path
        for path in (Path(os.environ.get("AXE_CORE", "axe.min.js")), Path(__file__).parents[1] / "node_modules" / "axe-core" / "axe.min.js")
        if path.is_file()
    ),
    None,
)
WIDTHS = (1280, 400)

OVERLAPS = """
(() => {
  const seen = [...document.querySelectorAll(".picture")].filter(p => getComputedStyle(p).display !== "none");
  const corners = t => { const b = t.getBBox(), m = t.getScreenCTM();
    return [[b.x, b.y], [b.x + b.width, b.y], [b.x + b.width, b.y + b.height], [b.x, b.y + b.height]]
      .map(([x, y]) => [m.a * x + m.c * y + m.e, m.b * x + m.d * y + m.f]); };
  const apart = (one, other) => [one, other].some(box => box.some((a, i) => {
    const b = box[(i + 1) % 4], n = [b[1] - a[1], a[0] - b[0]], span = c => c.map(p => p[0] * n[0] + p[1] * n[1]);
    const [s, t] = [span(one), span(other)], slack = 1.5 * Math.hypot(...n);  // a line's box is higher than its letters
    return Math.max(...s) <= Math.min(...t) + slack || Math.max(...t) <= Math.min(...s) + slack;
  }));
  const found = [];
  for (const picture of seen) {
    const frame = picture.getBoundingClientRect();
    const boxes = [...picture.querySelectorAll("text")].filter(t => !t.closest("[hidden]")).map(t => [t.textContent, corners(t)]);
    const inside = ([x, y]) => x >= frame.left - 1 && x <= frame.right + 1 && y >= frame.top - 1 && y <= frame.bottom + 1;
    boxes.filter(([, box]) => !box.every(inside)).forEach(([words]) => found.push(words + " leaves"));
    boxes.forEach(([a, one], i) => boxes.slice(i + 1).forEach(([b, other]) => { if (!apart(one, other)) found.push(a + " meets " + b); }));
  }
  return found;
})()
"""
POINT = "[...document.querySelectorAll('.picture a[data-point=\"{}\"]')].find(e => e.getClientRects().length)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    started = Browser()
    yield started
    started.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "example.html"
    write(path, example())
    return path


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "crowd.html"
    write(path, crowded())
    return path


@pytest.fixture(autouse=True)
def _quiet(browser: Browser) -> Iterator[None]:
    yield
    assert browser.problems == []
    outside = [url for url in browser.requests if not url.startswith(("data:", "blob:", "file:"))]
    assert outside == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_fits_its_width_and_its_labels_keep_apart(browser: Browser, page: Path, crowd: Path, width: int, theme: str) -> None:
    for path in (page, crowd):
        browser.open(path, width, theme=theme)
        browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        assert browser.run(OVERLAPS) == []
        browser.run("document.querySelectorAll('input[data-level]').forEach(i => i.click())")
        browser.run("document.querySelectorAll('input[data-key]:not(:checked)').forEach(i => i.click())")
        assert browser.run(OVERLAPS) == []


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("line", LINES)
def test_the_page_of_a_kernel_fits_its_width(run, browser: Browser, tmp_path: Path, line: str, theme: str) -> None:
    path = tmp_path / "page.html"
    assert run(line, "-o", str(path)).code == 0
    for width in WIDTHS:
        browser.open(path, width, theme=theme)
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        assert browser.run("document.querySelectorAll('.picture').length >= 1")
        assert browser.run(OVERLAPS) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_one_picture_is_shown_at_every_width(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width)
    shown = "[...document.querySelectorAll('.picture')].filter(p => p.getClientRects().length)"
    seen = browser.run(f"{shown}.map(p => p.getBoundingClientRect()).map(b => [b.left, b.width])")
    assert len(seen) == 5
    assert all(wide > 340 and left >= 0 and left + wide <= width for left, wide in seen)
    if width > 1000:  # rooflines are as wide as the page
        assert [wide > 1100 for _, wide in seen] == [True, True, False, False, False]
    letters = "[...document.querySelectorAll('.picture text')].filter(t => !t.closest('[hidden]') && t.getClientRects().length)"
    scale = "(m => Math.hypot(m.a, m.b))(t.getScreenCTM())"
    assert browser.run(f"Math.min(...{letters}.map(t => parseFloat(getComputedStyle(t).fontSize) * {scale}))") > 9


def test_pointing_at_a_point_shows_its_row(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run(f"{POINT.format(3)}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    place = browser.run(
        f"(b => [b.x + b.width / 2, b.y + b.height / 2])({POINT.format(3)}.querySelector('.measured').getBoundingClientRect())"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    shown = browser.run("document.querySelector('#tip').hidden ? '' : document.querySelector('#tip').innerText")
    assert "flash N=4096" in shown
    for words in ("512 GFLOP", "2,133", "900 us (850 us to 1 ms)", "880 us (4.0% noise)", "60.7%", "1.65x"):
        assert words in shown
    assert (
        browser.run("[...document.querySelectorAll('.on')].map(e => e.tagName).sort().join()") == "A,TR,a,a,a,a"
    )  # key, row, two levels of the picture in two sizes
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=5, y=5)
    assert browser.run("document.querySelector('#tip').hidden && !document.querySelector('.on')")


def test_keys_walk_through_the_points(browser: Browser, page: Path) -> None:
    browser.open(page)
    stops = "[...document.querySelectorAll('.picture a[tabindex=\"0\"]')].filter(a => a.getClientRects().length).length"
    assert browser.run(stops) == 2  # one tab stop per roofline
    browser.run(f"{POINT.format(1)}.focus({{focusVisible: true}})")
    walked = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft", "ArrowLeft"):
        browser.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        walked.append(browser.run("document.activeElement.dataset.point"))
    assert walked == ["2", "3", "2", "1", "6"]
    assert "tiny" in browser.run("document.querySelector('#tip').innerText")
    assert browser.run(f"{POINT.format(3)}.getAttribute('aria-label')") == "3: flash N=4096, 60.7% of its roof"
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="Escape")
    assert browser.run("document.querySelector('#tip').hidden")
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", text="\r")
    browser.call("Input.dispatchKeyEvent", type="keyUp", key="Enter")
    assert browser.run("document.querySelector('tr:target')?.id") == "point-6"


def test_selectors_change_the_picture(browser: Browser, page: Path) -> None:
    browser.open(page)
    seen = "[...document.querySelectorAll('#chart-1 ~ .figure .picture a[data-point=\"3\"]')].find(a => a.getClientRects().length)"
    where = f"{seen}.querySelector('.measured').getBoundingClientRect().x"
    before = browser.run(where)
    browser.run("document.querySelector('input[data-level][value=l2]').click()")
    assert browser.run(where) < before  # more bytes through the L2, less FLOP per byte
    texts = "[...document.querySelector('.picture').querySelectorAll('text')]"
    shown = f"{texts}.filter(t => !t.closest('[hidden]')).map(t => t.textContent)"
    assert not any("fp8" in word for word in browser.run(shown))
    browser.run("document.querySelector('input[data-key][value=\"tensor fp8\"]').click()")
    assert any("tensor fp8 2 PFLOP/s" in word for word in browser.run(shown))
    assert any("FLOP per byte of L2" in word for word in browser.run(shown))
    browser.run("document.querySelector('input[data-key][value=\"tensor bf16\"]').click()")
    assert browser.run("[...document.querySelectorAll('.picture')][0].querySelectorAll('a:not([hidden])').length") == 0


def test_a_device_can_be_chosen(browser: Browser, page: Path) -> None:
    browser.open(page)
    rows = "[...document.querySelectorAll('#points tbody tr')].filter(r => !r.hidden).length"
    assert browser.run(rows) == 8
    browser.run("(() => { const s = document.querySelector('#device'); s.value = 'two'; s.dispatchEvent(new Event('change')); })()")
    assert browser.run(rows) == 2
    assert browser.run("[...document.querySelectorAll('section[data-device]')].map(s => s.hidden)") == [True, False]


def test_the_table_sorts_by_its_numbers(browser: Browser, page: Path) -> None:
    browser.open(page)
    order = "[...document.querySelectorAll('#points tbody tr')].map(r => r.id.slice(6)).join()"
    press = "document.querySelector('#points th[data-k={}] button').click()"
    browser.run(press.format("flops"))
    assert browser.run(order) == "5,6,8,4,1,2,3,7"
    browser.run(press.format("flops"))
    assert browser.run(order) == "3,7,1,2,4,8,6,5"
    assert browser.run("document.querySelector('#points th[data-k=flops]').getAttribute('aria-sort')") == "descending"
    browser.run(press.format("predicted_s"))
    assert browser.run(order).startswith("2,3,7")  # those without a prediction last
    browser.open(page, 400)
    browser.run("(() => { const s = document.querySelector('#points-sort'); s.value = 'name'; s.dispatchEvent(new Event('change')); })()")
    assert browser.run(order).startswith("4,5,")  # HOSTILE, then copy


def test_downloads_have_the_right_numbers(browser: Browser, page: Path) -> None:
    browser.open(page)
    expected = points_table(example().rooflines)
    browser.run("document.querySelector('button[data-save=csv][data-of=points]').click()")
    rows = list(csv.reader(io.StringIO(browser.downloaded("points.csv").decode())))
    assert rows[0][:2] == ["number [count]", "name"]
    assert [column.split(" [")[0] for column in rows[0]] == [column.key for column in expected.columns]
    for found, wanted in zip(rows[1:], expected.rows, strict=True):
        for cell, value in zip(found, wanted, strict=True):
            if isinstance(value, (int, float)):
                assert float(cell) == pytest.approx(value, rel=1e-9)
            else:
                assert cell == (value or "")
    assert rows[4][1] == HOSTILE
    browser.run("document.querySelector('button[data-save=json][data-of=points]').click()")
    saved = json.loads(browser.downloaded("points.json"))
    assert saved["rows"][2]["measured_s"] == 880e-6
    assert {column["key"]: column["unit"] for column in saved["columns"]}["measured_s"] == "s"


def test_a_picture_can_be_saved(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelector('button[data-export=png]').click()")
    picture = browser.downloaded("roofline-of-device-one.png")
    assert struct.unpack(">II", picture[16:24]) == (3552, 1380)
    assert len(picture) > 20_000  # something is drawn on it
    browser.run("document.querySelector('button[data-export=svg]').click()")
    drawing = browser.downloaded("roofline-of-device-one.svg").decode()
    assert "tensor bf16 1 PFLOP/s" in drawing
    assert "@font-face" in drawing


def test_the_theme_follows_the_system_and_the_button(browser: Browser, page: Path) -> None:
    back = "getComputedStyle(document.documentElement).backgroundColor"
    browser.open(page, theme="dark")
    dark = browser.run(back)
    browser.open(page, theme="light")
    light = browser.run(back)
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(18, 23, 29)")
    browser.run("document.querySelector('#theme').click()")
    assert browser.run(back) == dark
    browser.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert browser.run(back) == light  # paper is white
    assert browser.run("getComputedStyle(document.querySelector('.tools')).display") == "none"


def test_the_browser_runs_no_markup_from_names(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert HOSTILE in browser.run("document.querySelector('#point-4 .name').textContent")
    assert browser.run("document.querySelectorAll('script').length") == 1 + browser.run(
        "document.querySelectorAll('script[data-table]').length"
    )


def test_the_browser_runs_no_script_and_no_style_but_the_pages_own(browser: Browser, page: Path) -> None:
    browser.open(page)
    add = "{{ const e = document.createElement('{}'); e.textContent = '{}'; document.head.append(e); }}"
    colour = "getComputedStyle(document.querySelector('h1')).color"
    before = browser.run(colour)
    browser.run(add.format("script", "window.foreign = 1") + add.format("style", "h1 {{ color: rgb(1, 2, 3) !important }}"))
    browser.run("document.querySelector('h1').setAttribute('style', 'color: rgb(1, 2, 3) !important')")
    assert browser.run(f"[typeof window.foreign, {colour}]") == ["undefined", before]
    assert len(browser.problems) >= 3
    assert all("Content Security Policy" in said for said in browser.problems)
    browser.problems.clear()


def test_a_notebook_frame_grows_with_the_page(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "notebook.html"
    path.write_text(f"<!DOCTYPE html><meta charset=utf-8><body style='width:900px'>{example()._repr_html_()}</body>", encoding="utf-8")
    browser.open(path)
    assert browser.run("document.querySelector('iframe').contentDocument.querySelector('h1').textContent") == "Attention on two devices"
    assert browser.run("document.querySelector('iframe').clientHeight") > 1500


@pytest.mark.skipif(AXE is None, reason="no axe-core: npm install axe-core, or name its axe.min.js in AXE_CORE")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_an_accessibility_check_finds_nothing(browser: Browser, page: Path, width: int, theme: str) -> None:
    assert AXE is not None
    browser.open(page, width, theme=theme)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    browser.run(AXE.read_text(encoding="utf-8"))
    found = browser.run("axe.run(document).then(r => r.violations.map(v => `${v.impact} ${v.id}: ${v.nodes[0].html.slice(0, 200)}`))")
    assert found == []


def test_the_check_of_labels_sees_an_overlap(browser: Browser, page: Path) -> None:
    browser.open(page)
    moved = "(([a, b]) => { a.setAttribute('x', b.getAttribute('x')); a.setAttribute('y', b.getAttribute('y')); })"
    browser.run(f"{moved}(document.querySelectorAll('.picture .tick'))")
    assert browser.run(OVERLAPS) != []


@pytest.mark.parametrize("width", WIDTHS)
def test_long_names_break_and_nothing_runs_over(browser: Browser, tmp_path: Path, width: int) -> None:
    path = tmp_path / "long.html"
    write(path, long_names())
    browser.open(path, width)
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    wide = "[...document.querySelectorAll('section > .scroll')].filter(s => s.scrollWidth > s.clientWidth).length"
    assert browser.run(wide) == 0
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run(OVERLAPS) == []
