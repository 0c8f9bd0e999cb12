"""Widths of engines' intervals: of whole groups of runs, so that a new group's runs are within."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest

from perfmodel.catalog import data_folder, engine_names, find_engine
from tools.refresh.engines import FIGURES, REQUEST, Group, Run, by_group, holding, left_out, pooled, width, widths, written


def test_each_group_weighs_alike() -> None:
    """Nine runs of one group at 0 and one run each of two others: two thirds of the groups are at 1 or above."""
    groups = [[0.0] * 9, [1.0], [2.0]]
    assert [pooled(groups, share) for share in (0.3, 0.5, 0.9)] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("count", [4, 11])
def test_a_new_group_is_held_as_often_as_asked(count: int) -> None:
    """Runs of a group are off together, so that quantiles of all runs as if each stood alone hold a new group's too rarely."""
    draw, shares, alone = random.Random(count), [], []
    for _ in range(300):
        *known, new = ([draw.gauss(middle, 0.05) for _ in range(20)] for middle in (draw.gauss(0, 0.3) for _ in range(count + 1)))
        low, high = width(known)
        shares.append(fmean(low <= math.exp(value) <= high for value in new))
        runs = sorted(value for own in known for value in own)
        alone.append(fmean(runs[len(runs) // 10] <= value <= runs[-1 - len(runs) // 10] for value in new))
    assert fmean(shares) >= 0.8
    assert fmean(alone) < fmean(shares)


def test_a_kind_of_few_groups_takes_the_widths_of_all() -> None:
    missed = {("model", str(number), "engine"): 2 * [(0.1 * number, -0.1 * number)] for number in range(8)}
    kinds: dict[Group, str] = {name: "dense" if name[1] in "12" else "experts" for name in missed}
    found = widths(missed, kinds)
    assert found["dense"]["tpot"][1] >= math.exp(0.7) > found["experts"]["tpot"][0]
    assert widths(missed, dict.fromkeys(missed, "experts"))["experts"] == found["dense"]
    assert holding(missed, kinds)["model", "7", "engine"] == [0.0, 0.0]


def test_a_kind_is_left_out_of_engines_that_have_runs_of_both() -> None:
    """Dense requests take 0.1 s and those with experts 0.15 s under one engine; another has runs of experts alone."""

    def run(model: str, kind: str, engine: str, took: float) -> Run:
        return Run((model, "gpu", engine), kind, (1.0, took), dict.fromkeys(REQUEST, 0.0), (1.0, 0.05), {}, 0.0)

    runs = [run("a", "dense", "both", 0.1), run("b", "experts", "both", 0.15), run("c", "experts", "one", 0.3)]
    missed = left_out(by_group(runs), kinds=True)
    assert {name[0]: round(math.exp(own[0][1]), 2) for name, own in missed.items()} == {"a": 0.67, "b": 1.5}


@pytest.mark.parametrize("name", [name for name in engine_names() if not find_engine(name).roof_shares])
def test_a_file_is_written_with_new_figures(name: str) -> None:
    """And all else stands."""
    path, engine = data_folder("configs") / "engines" / f"{name}.yaml", find_engine(name)
    text = path.read_text(encoding="utf-8")
    own = {one: getattr(engine.overhead, one) for one in ("kernel_s", "request_s") if getattr(engine.overhead, one)}
    assert written(text, own, engine.widths) == text
    changed = written(text, own | {"request_s": 0.5}, {"dense": dict.fromkeys(FIGURES, (0.5, 2.0))})
    assert "request_s: 0.5" in changed
    assert changed.endswith("  dense: {tpot: [0.5, 2], ttft: [0.5, 2]}\n")
    assert "  experts: " in changed
