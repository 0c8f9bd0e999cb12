"""What an attention report adds where it is asked for: what SRAM buys, and where tiling pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.core.roofline import Estimate
from perfmodel.core.units import format_binary
from perfmodel.kernels.attention.request import Comparison
from perfmodel.report.document import Report
from perfmodel.report.metrics import Metric, as_json, as_rows


def _with(plain: Report, key: str, title: str, entries: Sequence[Sequence[Metric]], full: str = "") -> Report:
    """``plain`` with one line per entry, in a table and in the JSON object. ``full``: the label of a column that a screen leaves out."""
    table, short = as_rows(title, entries), as_rows(title, [[one for one in entry if one.label != full] for entry in entries])
    data = {**plain.data, key: list(map(as_json, entries))}
    return replace(plain, tables=[*plain.tables, table], brief=[short, *plain.brief], data=data)


def with_sram_sweep(plain: Report, comparison: Comparison) -> Report:
    """``plain`` and what each SRAM size buys."""
    from perfmodel.kernels.attention.crossover import sram_sweep

    entries, first = [], dict[str, Estimate | None]()
    for point in sram_sweep(comparison):
        name, tile = point.algorithm.name, point.result and point.result.tile
        reference = first.setdefault(name, None if point.result is None else point.result.total)
        cost = point.result.total if point.result is not None and tile is not None else None
        entries.append(
            [
                Metric("algorithm", name, "algorithm", "text"),
                Metric("sram_bytes", point.sram_bytes),
                Metric("", format_binary(point.sram_bytes), "SRAM M"),
                Metric("tile", tile and {"br": tile.br, "bc": tile.bc}),
                Metric("", f"{tile.br} x {tile.bc}" if tile else "no tile fits", "tile that moves least"),
                Metric("accesses_bytes", cost and cost.access_bytes, "accesses", "B"),
                Metric("", cost and (1 - cost.access_bytes / reference.access_bytes if reference else 0.0), "saved", "error"),
                Metric("roofline_s", cost and cost.roofline_s, "roofline", "s"),
            ]
        )
    return _with(plain, "sram_sweep", "what SRAM buys, forward", entries)


def with_crossovers(plain: Report, comparison: Comparison) -> Report:
    """``plain`` and the sizes at which tiling pays."""
    from perfmodel.kernels.attention.crossover import crossovers

    entries = [
        [
            Metric("algorithm", one.algorithm.name, "algorithm", "text"),
            Metric("measure", one.measure, "by", "text"),
            Metric("wins_here", one.wins_here),
            Metric("", "yes" if one.wins_here else "no", "pays here", "text"),
            Metric("first_n", one.first_n, "from N"),
            Metric("last_d", one.last_d, "up to d"),
            Metric("first_sram_bytes", one.first_sram_bytes, "from M", after=" B"),
            Metric("law", one.law),
            Metric("last_d_by_law", one.last_d_by_law),
            Metric("", f"{one.last_d_by_law:.1f}, {one.law}" if one.law and one.last_d_by_law else "", "leading terms: up to d", "text"),
        ]
        for one in crossovers(comparison)
    ]
    return _with(plain, "crossover", "where tiling pays, forward, the other sizes held", entries, "leading terms: up to d")
