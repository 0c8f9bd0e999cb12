"""What sixty command lines answer: their JSON is what it was, and in a terminal of 60, 80, 100 and 140 columns whole numbers, no long line.

Who changes the JSON runs ``python -m tools.refresh.answers`` and reads the difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from reports import data, reported

from perfmodel import catalog
from perfmodel.kernels.attention import algorithms
from perfmodel.report.document import SCREEN_ROWS, Figure, Report, on_screen
from perfmodel.report.formats import readable
from perfmodel.report.formats.md import render as as_md
from perfmodel.report.formats.txt import render as as_txt
from perfmodel.report.terminal import render
from tools.refresh.answers import FOLDER, kept, lines, rounded, written
from tools.refresh.docs import DOCS
from tools.scores.accuracy_parts import there

WIDTHS = 60, 80, 100, 140
SCREEN = 24
NUMBER = re.compile(r"\d(?:[\d,.]*\d)?(?: ?(?:[numkMGTPE]i?)?(?:B/s|FLOP/s|FLOP/B|FLOP|B|s|tokens/s|%|x)\b)?")


@pytest.fixture(scope="module", autouse=True)
def _as_the_pages_have_it() -> Iterator[None]:
    """``all`` is every algorithm, and the list every device, but for those that were added since."""
    known = there(algorithms.names(), (DOCS / "formulas.md").read_text(), "`--algorithm {}`")
    ids = there(catalog.device_ids(), (DOCS / "devices.md").read_text(), "\n| {} |")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(algorithms, "module_names", lambda folders: [name.replace("-", "_") for name in known])
        patched.setattr(catalog, "device_ids", lambda: ids)
        yield


@pytest.fixture(params=lines(), scope="module")
def line(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def report(line: str) -> Report:
    return reported(line)


def test_the_answer_is_as_it_was(line: str) -> None:
    assert written(rounded(data(line))) == kept(line).read_text()


def test_every_line_is_kept_once() -> None:
    assert sorted(map(kept, lines())) == sorted(FOLDER.iterdir())


COUNTED = re.compile(r"  --full: .*|left out at \d+ columns")
"""What a screen says of itself, and not of the answer."""


SEVERAL = ("serve", "roofline", "compare", "report", "validate", "sweep", "claims")
"""Commands that answer for several workloads: their sentences may be longer, and begin with a name."""


def test_a_screen_answers(report: Report, line: str) -> None:
    """At most three sentences, a line each, and twelve rows; no number broken, no line too long; hardly more lines when narrow."""
    assert 1 <= len(report.verdict) <= 3
    for sentence in report.verdict:
        assert "e+" not in sentence
        if not line.startswith(SEVERAL):
            assert len(sentence) <= 105
            assert sentence[0].isupper() or sentence[0].isdigit()
    assert sum(len(table.rows) for table in on_screen(report)) <= SCREEN_ROWS
    whole = numbers(as_txt(readable(report), full=False))
    screens = {width: render(report, width, color=False, full=False) for width in WIDTHS}
    for width, text in screens.items():
        assert max(map(len, text.splitlines())) <= width
        assert numbers(COUNTED.sub("", text)) <= whole, width
    heights = {width: text.count("\n") for width, text in screens.items()}
    assert heights[60] <= 1.5 * heights[140] + 1, heights  # of a text, and of the line that names what is left out
    assert heights[80] <= 2 * SCREEN


def numbers(text: str) -> set[str]:
    """Every number of ``text`` with its unit."""
    return set(NUMBER.findall(text))


def test_the_whole_report_has_no_line_too_long_either(report: Report) -> None:
    for width in WIDTHS:
        assert max(map(len, render(report, width, color=False).splitlines())) <= width


def test_markdown_holds_what_a_screen_says_first(report: Report) -> None:
    """Figures and meters are numbers of a file as well."""
    plain = as_md(readable(report)).replace("\\", "")
    for one in [*report.figures, *report.meters]:
        assert (one.value if isinstance(one, Figure) else one.name) in plain
