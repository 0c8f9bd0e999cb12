"""The JSON of sixty command lines is what it was; who changes one runs ``python -m tools.refresh.answers`` and reads the difference."""

from __future__ import annotations

import pytest

from perfmodel import catalog
from perfmodel.kernels.attention import algorithms
from tools.refresh.answers import FOLDER, asked, kept, lines, written
from tools.refresh.docs import DOCS
from tools.scores.accuracy_parts import there


@pytest.fixture(autouse=True)
def _as_the_pages_have_it(monkeypatch):
    """``all`` is every algorithm, and the list every device, but for those that were added since."""
    known = there(algorithms.names(), (DOCS / "formulas.md").read_text(), "`--algorithm {}`")
    ids = there(catalog.device_ids(), (DOCS / "devices.md").read_text(), "\n| {} |")
    monkeypatch.setattr(algorithms, "module_names", lambda folders: [name.replace("-", "_") for name in known])
    monkeypatch.setattr(catalog, "device_ids", lambda: ids)


@pytest.mark.parametrize("line", lines())
def test_the_answer_is_as_it_was(line: str) -> None:
    assert written(asked(line)) == kept(line).read_text()


def test_every_line_is_kept_once() -> None:
    assert sorted(map(kept, lines())) == sorted(FOLDER.iterdir())
