"""The report for a design review: its answer is made of the predicted numbers, and it is a document on a page, on paper and as text."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import BINARY, Browser
from reports import study

from perfmodel.catalog import find_device
from perfmodel.core.arith import quantile
from perfmodel.report import render_for
from perfmodel.report.charts.schema import RooflinePoint
from perfmodel.report.device_names import short_names
from perfmodel.report.document import Report
from perfmodel.report.saved import Interval
from perfmodel.report.swept_series import Pairwise, SweptSeries, WorkloadAnswer
from perfmodel.study.document import build
from perfmodel.study.schema import read_study

STUDIES = ("standard-vs-flash", "a100-to-h200")
H200 = "nvidia-h200-sxm"
TOKENS = {"1,024": 1024, "16k": 16384, "32k": 32768}


def table(report: Report, title: str) -> list[dict[str, Any]]:
    [found] = [one for one in report.data_tables if one.title == title]
    return found.records()


def gains(report: Report, device: str) -> dict[int, float]:
    """standard / flash2 by length, where both fit."""
    rows = {(row["series"], row["value"]): row for row in table(report, "attention, 8 x 16 heads of 64") if row["device"] == device}
    lengths = [value for series, value in rows if series == "standard" and rows[series, value]["fits"] == "yes"]
    return {n: rows["standard", n]["predicted_s"] / rows["flash2", n]["predicted_s"] for n in lengths}


def test_the_answer_of_a_sweep_is_of_its_numbers() -> None:
    """The range holds from the length on from which no gain is under half the largest."""
    report = study("standard-vs-flash")
    said = re.fullmatch(
        r"On an H200 FlashAttention-2 is predicted ([\d.]+) to ([\d.]+) times faster than standard attention from (\S+) tokens on; "
        r"standard attention stops fitting the memory at (\S+) tokens\.",
        report.verdict[0],
    )
    assert said is not None
    known = gains(report, H200)
    since = min(n for n in known if all(2 * gain >= max(known.values()) for longer, gain in known.items() if longer >= n))
    tail = [gain for n, gain in known.items() if n >= since]
    assert (said[1], said[2]) == (f"{min(tail):.2g}", f"{max(tail):.2g}")
    assert (TOKENS[said[3]], TOKENS[said[4]]) == (since, 2 * max(known))
    assert report.figures[0].value.startswith(f"{known[max(known)]:.3g}x faster (")


def test_the_answer_of_a_comparison_is_of_its_numbers() -> None:
    report = study("a100-to-h200")
    times = [row for row in table(report, "the same work on both: times") if row["quantity"] == "time, predicted"]
    by_gain = sorted(times, key=lambda row: row["before"] / row["after"])
    least, *_, most = ((row["before"] / row["after"], row["what"]) for row in by_gain)
    middle = quantile([row["before"] / row["after"] for row in times], 0.5)
    said = re.fullmatch(
        r"The H200 is predicted (\S+)x faster than the A100 \(\S+x to \S+x\): most (\S+)x \((.+)\), least (\S+)x \((.+)\)\.",
        report.verdict[0],
    )
    assert said is not None
    assert said.groups() == (f"{middle:.3g}", f"{most[0]:.3g}", most[1], f"{least[0]:.3g}", least[1])
    assert f"may cost {middle:.3g}x as much as the A100 per hour" in report.sensitivity[-1]


def test_a_study_without_a_question_asks_its_title(tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text("study: {title: old, sections: [{kind: roofline, devices: [h200], workloads: [{matmul: {m: 64, n: 64, k: 64}}]}]}")
    assert build(read_study(str(file))).question == "old"


@pytest.mark.parametrize("suffix", ["md", "txt", "html"])
def test_every_view_is_of_the_same_document(suffix: str) -> None:
    report = study("standard-vs-flash")
    text = str(render_for(Path(f"x.{suffix}"), report)).replace("&#x27;", "'")
    places = [text.index(words) for words in (report.question, report.verdict[0], "Assumptions", "What would change the verdict")]
    assert places == sorted(places)
    assert places[-1] < text.index("Points")
    if suffix == "md":
        assert f"**{report.verdict[0]}**" in text
    if suffix != "txt":
        assert [f"Figure {place}. {chart.title[0].upper()}" in text for place, chart in enumerate(report.charts, 1)] == [True] * 7


def series(name: str, times: dict[int, Interval | None], fits: int = 10**9) -> SweptSeries:
    def answer(value: int, time: Interval | None) -> WorkloadAnswer:
        return WorkloadAnswer(RooflinePoint(0, name, 1, {}, roofline_s=1.0, predicted=time), name, memory=2 * value, fits=value <= fits)

    return SweptSeries(name, find_device("h200"), {value: answer(value, time) for value, time in times.items()}, [])


def spread(value: float, share: float) -> Interval:
    return Interval(value, value * (1 - share), value * (1 + share))


@pytest.mark.parametrize(
    ("others", "share", "fits", "said"),
    [
        ((0.999, 0.2, 0.1), 0.05, 10**9, "b is predicted 5 to 10 times faster than a from 2,000 tokens on"),
        (
            (0.999, 0.2, 0.1),
            0.05,
            2000,
            "b is predicted from as fast to 5x faster than a from 1,000 tokens on; a stops fitting the memory at 4,000 tokens",
        ),
        ((2.0, 3.0, 4.0), 0.05, 10**9, "b is predicted 2 to 4 times slower than a from 1,000 tokens on"),
        ((0.9, 0.8, 0.9), 0.5, 10**9, "either may be faster: b is predicted 1.1 to 1.2 times faster than a from 1,000 tokens on"),
    ],
)
def test_a_range_says_how_sure_it_is(others: tuple[float, ...], share: float, fits: int, said: str) -> None:
    lengths = (1000, 2000, 4000)
    first = series("a", {n: spread(1.0, share) for n in lengths}, fits)
    other = series("b", {n: spread(time, share) for n, time in zip(lengths, others, strict=True)})
    pair = Pairwise(first, other, "n", lambda _: {})
    assert pair.answer() == said
    needs = "More memory, or a smaller batch: a needs 8 kB at 4,000 tokens."
    assert (needs in pair.sensitivity()) == (fits < max(lengths))
    told = any("either may be faster" in one for one in pair.sensitivity())
    assert told == (share > 0.1 or others[0] == 0.999)


def test_devices_have_short_names_that_tell_them_apart() -> None:
    assert short_names(["NVIDIA H200 SXM", "AMD Instinct MI300X"]) == {"NVIDIA H200 SXM": "H200", "AMD Instinct MI300X": "MI300X"}
    both = ["NVIDIA H100 SXM 80 GB", "NVIDIA H100 PCIe 80 GB"]
    assert short_names(both) == dict(zip(both, both, strict=True))


# The page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if BINARY is None:
        pytest.skip("no chromium is installed; apt-get install chromium")
    started = Browser()
    yield started
    started.close()


@pytest.fixture
def page(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / f"{request.param}.html"
    path.write_text(str(render_for(path, study(request.param))), encoding="utf-8")
    return path


LEFT = "[...document.querySelectorAll('.figures2 .picture')].map(p => Math.round(p.getBoundingClientRect().left))"


@pytest.mark.parametrize("page", STUDIES, indirect=True)
def test_figures_stand_in_pairs_and_tables_are_folded(browser: Browser, page: Path) -> None:
    browser.open(page, 1280, 800)
    places = browser.run(LEFT)
    assert len(set(places)) == 2
    assert all(one != other for one, other in zip(places[::2], places[1::2], strict=False))
    assert browser.run("[...document.querySelectorAll('main table')].every(t => t.closest('details:not([open])'))")
    browser.open(page, 400, 800)
    assert len(set(browser.run(LEFT))) == 1


@pytest.mark.parametrize("page", ["standard-vs-flash"], indirect=True)
def test_a_point_opens_the_table_that_has_it(browser: Browser, page: Path) -> None:
    browser.open(page, 1280, 800)
    browser.run("document.querySelector('.picture a[data-point=\"3\"]').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    assert browser.run("document.querySelector('#point-3').closest('details').open")


@pytest.mark.parametrize("page", STUDIES, indirect=True)
@pytest.mark.parametrize("paper", [(8.27, 11.69), (8.5, 11.0)])
def test_it_prints_on_two_sheets(browser: Browser, page: Path, paper: tuple[float, float]) -> None:
    browser.open(page, 1280, 800)
    width, height = paper
    made = browser.call("Page.printToPDF", paperWidth=width, paperHeight=height, printBackground=True)
    assert len(re.findall(rb"/Type /Page\b(?!s)", base64.b64decode(made["data"]))) == 2
