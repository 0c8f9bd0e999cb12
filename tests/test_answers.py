"""The JSON of sixty command lines is what it was; who changes one on purpose runs ``python tests/answers.py`` and reads the difference."""

from __future__ import annotations

import pytest
from answers import FOLDER, asked, kept, lines, written


@pytest.mark.parametrize("line", lines())
def test_the_answer_is_as_it_was(line: str) -> None:
    assert written(asked(line)) == kept(line).read_text()


def test_every_line_is_kept_once() -> None:
    assert sorted(map(kept, lines())) == sorted(FOLDER.iterdir())
