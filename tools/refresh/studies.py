"""Write the golden renderings of the small study anew: ``python -m tools.refresh.studies``."""

from __future__ import annotations

from pathlib import Path

from perfmodel import __version__
from perfmodel.report import render_for
from perfmodel.study.document import build
from perfmodel.study.schema import read_study
from tools.scores import DATA

FOLDER = DATA / "studies"
GOLDEN = ("small.md", "small.svg", "small.json")


def rendered(name: str) -> str:
    """The small study in the format of ``name``, without the version of this package."""
    text = render_for(Path(name), build(read_study(str(FOLDER / "small.yaml")), "perfmodel report small.yaml"))
    assert isinstance(text, str)
    return text.replace(f'"version": "{__version__}"', '"version": "VERSION"').replace(f"perfmodel {__version__}", "perfmodel VERSION")


if __name__ == "__main__":
    for golden in GOLDEN:
        (FOLDER / golden).write_text(rendered(golden), encoding="utf-8")
