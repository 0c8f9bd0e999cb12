"""The last wide draw: every group within its limits, or listed with what is known of it."""

from __future__ import annotations

import re
from datetime import date

import pytest
from tables import table

from perfmodel.timing.base import STATES
from perfmodel.validation.records import as_record, held_out, read_records, shipped_records
from tools.scores import wide_rows
from tools.scores.accuracy_parts import PAGE, PART, wide_part
from tools.scores.wide_rows import BURST, FILES, LEAST_COVERED, MOST_COVERED, SUSTAINED, limits_of

CELL = re.compile(r"([\d.]+)%, ([\d.]+)%, (\d+)% of (\d+)")
FALLS_SHORT = {(group, state): said for rows in table("falls_short_of_the_wide_draw").values() for group, state, said in rows}
"""Groups and states beyond a limit: which one, and what is known of it. Found, not chosen by: nothing was set on these rows."""


def cells() -> dict[tuple[str, str], tuple[float, float, float, int]]:
    """Median, 90 % quantile, coverage and rows of each group and state, as the page shows them."""
    found, heads = {}, []
    for line in dict(PART.findall(PAGE.read_text(encoding="utf-8")))["wide"].splitlines():
        parts = line.strip("| ").split(" | ")
        if parts[0] in ("group", "kernels", "steps") and parts[1] in (*STATES, BURST):
            heads = parts[1:]
        for state, cell in zip(heads, parts[1:], strict=False):
            if match := CELL.fullmatch(cell):
                median, p90, covered, rows = map(float, match.groups())
                found[parts[0], state] = median / 100, p90 / 100, covered / 100, int(rows)
    return found


def test_every_group_is_within_its_limits_or_listed() -> None:
    """A listed group that comes within its limits leaves the list."""
    short = {}
    for (group, state), (median, p90, covered, rows) in cells().items():
        most, most_p90 = limits_of(group)
        said = [f"error {median:.1%}"] * (median > most) + [f"90 % {p90:.1%}"] * (p90 > most_p90)
        said += [f"coverage {covered:.0%}"] * (not LEAST_COVERED <= covered <= MOST_COVERED)
        if said:
            short[group, state] = f"{', '.join(said)} of {rows:.0f}"
    assert short == FALLS_SHORT


def test_the_draw_is_wide() -> None:
    found = cells()
    assert {state for _, state in found} == {*STATES, BURST, SUSTAINED}
    assert sum(rows for *_, rows in found.values()) > 5000
    assert len({group for group, _ in found}) > 20


@pytest.mark.slow
def test_the_page_shows_the_rows() -> None:
    assert dict(PART.findall(PAGE.read_text(encoding="utf-8")))["wide"] == wide_part()


def test_some_of_the_rows_again() -> None:
    """One small group in full, so that the page cannot stray far between its refreshes."""
    group = "copy/torch-copy/forward"
    raws = [raw for raw in wide_rows.raws() if raw["workload"] == "copy"]
    shown = {state: cell for (name, state), cell in cells().items() if name == group}
    for (_, state), one in wide_rows.judged(raws).items():
        median, p90, covered, rows = shown[state]
        assert one.cell() == f"{median:.1%}, {p90:.1%}, {covered:.0%} of {rows:.0f}"


def test_no_row_of_the_draw_is_shipped_or_fitted() -> None:
    assert FILES
    for path in FILES:
        date.fromisoformat(path.name.partition("_wide_")[2].removesuffix(".jsonl.gz"))
    drawn = [as_record(raw) for raw in wide_rows.raws()]
    assert all(held_out(record) for record in drawn)
    seeds = {match[1] for record in drawn if (match := re.search(r"seed (\d+)", record.source))}
    own = [path for path in shipped_records() if path.parent.name == "nvidia-h200-sxm"]
    assert len(seeds) == 1
    assert not any(f"seed {seed};" in record.source for seed in seeds for path in own for _, record in read_records(path))
