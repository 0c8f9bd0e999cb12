"""Parts of docs/accuracy.md that come from code and records: between ``<!-- from the code: NAME -->`` and ``<!-- end -->``.

Each is a function of the part as it stands, so that a test can leave out what was added since; None has everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import counted
import drawn_rows
import sustained_rows
import tuned
from drawn_rows import ALIKE, WIDER

from perfmodel.catalog import find_device
from perfmodel.timing.base import MAX_PARAMETERS, find_model, model_names
from perfmodel.validation.statistics import HIGH, LOW

PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
PART = re.compile(r"<!-- from the code: (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    lines = [f"| {' | '.join(cells)} |" for cells in [list(columns), *map(list, rows)]]
    return "\n".join([lines[0], "|" + " --- |" * lines[0].count(" | ") + " --- |", *lines[1:]]) + "\n"


def there(names: Iterable[str], page: str | None, written: str = "{}") -> list[str]:
    """Those that ``page`` knows, as they are ``written`` there; all without one. So what was added since is no fault of the page."""
    return [name for name in names if page is None or written.format(name) in page]


def counted_part(page: str | None = None) -> str:
    """Where L2-to-SM reads were held against counters, and how far off they are."""
    return table(["implementation", "pass", "lengths that tiles divide", "other lengths"], counted.lines())


def tuned_part(page: str | None = None) -> str:
    """Every constant in code that was chosen on measurements, and how many each model has beside its fitted parameters."""
    known = [one for one in tuned.declared() if page is None or f"`{in_package(one[0])}." in page]
    models = [
        [f"`{name}`", str(len(find_model(name).parameters)), str(tuned.count(tuned.drawn_on(name)))]
        for name in there(model_names(), page, "| `{}` |")
        if name != "three-scalars"
    ]
    rows = []
    for module, name in known:
        place = tuned.modules()[module]
        rows.append([f"`{in_package(module)}.{name}`", tuned.shown(getattr(place, name)), tuned.meanings(place)[name]])
    more = tuned.count(known)
    return (
        f"A model has at most {MAX_PARAMETERS} fitted parameters per kernel and architecture, and {more} numbers more stand in code that\n"
        "were chosen on records that fits may see. Models share them: a kernel's prediction depends on some of its model's.\n"
        "Sequences of kernels have those of the parts as well.\n\n"
        + table(["model", "fitted", "chosen"], models)
        + "\n"
        + table(["constant", "value", "meaning"], rows)
    )


def in_package(module: str) -> str:
    return module.removeprefix("perfmodel.")


def assumed_part(page: str | None = None) -> str:
    """What the predictions of each model assume."""
    found: dict[str, list[str]] = {}
    for name in there(model_names(), page, "`{}`"):
        found.setdefault(find_model(name).assumes, []).append(f"`{name}`")
    return "".join(f"- {', '.join(names)}: {text}.\n" for text, names in found.items())


def drawn_part(page: str | None = None) -> str:
    """How many intervals of the drawn rows hold, group by group."""
    groups = drawn_rows.coverage()
    rows, words = [], []
    for group in dict.fromkeys(name for name, _ in groups):
        cells = []
        for kind in (ALIKE, WIDER):
            one = groups[group, kind]
            cells.append(f"{one.covered / len(one.rows):.0%} of {len(one.rows)}, {one.verdict}, error {one.error:.1%}")
        rows.append([group, *cells])
    for kind in (ALIKE, WIDER):
        own = [one for (_, its), one in groups.items() if its == kind]
        held, rowcount = sum(one.covered for one in own), sum(len(one.rows) for one in own)
        verdicts = [sum(one.verdict == verdict for one in own) for verdict in ("kept", "too narrow", "too wide")]
        kept = f"kept in {verdicts[0]} of {len(own)} groups, too narrow in {verdicts[1]}, too wide in {verdicts[2]}"
        words.append(f"- {kind}: {held / rowcount:.1%} of {rowcount:,} intervals hold; {kept}.\n")
    missing = sum(sum(one.missing.values()) for one in groups.values())
    beaten = sum(row.violates for one in groups.values() for row in one.rows)
    words.append(f"- {missing} rows have no prediction, as the second table above says why; {beaten} beat their bound.\n")
    return "".join(words) + "\n" + table(["group", ALIKE, WIDER], rows)


def interval_part(page: str | None = None) -> str:
    """What the interval is by construction."""
    return (
        f"An interval runs from the {LOW:.0%} to the {HIGH:.0%} quantile of residuals of points that a fit did not see:\n"
        f"{HIGH - LOW:.0%} by construction. It is called an 80 % interval because new records scatter more than those on which the\n"
        "structure of the models was chosen; how much more was set with held-out records in view. The rows below came afterwards.\n"
    )


def sustained_part(page: str | None = None) -> str:
    """Clock, watts, joules and seconds of runs for seconds."""
    fit = find_device("nvidia-h200-sxm").power
    assert fit is not None
    missing = sum(sustained_rows.unpredicted().values())
    return (
        f"Parameters were fitted to {fit.points} other kernels; other steps had a part in the choice of the clock's exponent and of the\n"
        "draw of a moment. Fits without a point miss its watts by\n"
        f"{fit.median_error:.1%} in the median and {fit.p90_error:.1%} at the 90 % quantile. Below: a draw with a seed of its own,\n"
        "each cell median and 90 % quantile of |predicted / measured - 1|. Time alone: predicted by the kernel's own model, so that\n"
        "its error is in all figures, or measured, so that the power model alone is judged.\n"
        f"{missing} rows have no model of their time.\n\n"
        + table(["rows", "time alone", "count", "clock", "power", "energy", "time"], sustained_rows.table_rows())
    )


PARTS = {
    "sustained": sustained_part,
    "counted": counted_part,
    "tuned": tuned_part,
    "assumed": assumed_part,
    "interval": interval_part,
    "drawn": drawn_part,
}


def current(match: re.Match[str]) -> str:
    return f"<!-- from the code: {match[1]} -->\n{PARTS[match[1]]()}<!-- end -->"


def refresh() -> None:
    """Write every part anew."""
    PAGE.write_text(PART.sub(current, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
