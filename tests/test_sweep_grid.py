"""Axes, derived axes, constraints; and chunks, which cover a grid once whatever their size."""

from __future__ import annotations

import contextlib
import math
from math import prod
from typing import Any

import numpy as np
import pytest
from each import each
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import table

import perfmodel
from perfmodel.catalog import device_ids
from perfmodel.core.errors import DataError, UsageError
from perfmodel.sweep.base import SweepInput
from perfmodel.sweep.grid import SubGrid, grid_of
from perfmodel.sweep.study import WORKLOADS, SweepStudy, read_study, workload_named
from perfmodel.sweep.summary import _wins
from perfmodel.sweep.values import is_expression, values_of

WHOLE, SIZE = SweepInput("n", ""), SweepInput("sram", "", unit="B")


@each(
    ("raw", "values"),
    [
        (64.0, [64]),
        ("64,128, 64", [64, 128]),
        ([64, "128:512:x2"], [64, 128, 256, 512]),
        ("512:131072:x2", [512 << i for i in range(9)]),
        ("100:1000:x1.5", [100, 150, 225, 338, 506, 759]),
        ("1:3:x1.2", [1, 2, 3]),
        ("1:10:+3", [1, 4, 7, 10]),
        ("3:5", [3, 4, 5]),
        ("1_000:3_000:+1_000", [1000, 2000, 3000]),
        ("1e3", [1000]),
        (range(3, 6), [3, 4, 5]),
        (np.array([3, 4]), [3, 4]),
        (np.int64(64), [64]),
        (np.array(64), [64]),
        ("1:9:x1.0001", list(range(1, 10))),
    ],
)
def test_values(raw: Any, values: list[int]) -> None:
    found = list(values_of(WHOLE, raw))
    assert found == values
    assert all(type(value) is int for value in found)


def test_sizes_flags_and_names() -> None:
    assert values_of(SIZE, "16KiB:64KiB:x2") == [16384, 32768, 65536]
    assert list(values_of(SIZE, "16KiB:48KiB:+16KiB")) == [16384, 32768, 49152]
    assert values_of(SIZE, "1.5KiB, 2 kB") == [1536, 2000]
    assert values_of(SweepInput("causal", "", kind="flag"), "both") == [False, True]
    assert values_of(SweepInput("causal", "", kind="flag"), [True, "no"]) == [True, False]
    study = grid_of(SweepStudy("attention", {"n": 64, "d": 64, "hardware": "all,h200", "algorithm": "flash, flash2, standard"}))
    assert study.choices["hardware"] == tuple(device_ids())
    assert study.choices["algorithm"] == ("flash2", "standard")


@each(
    ("one", "raw", "words"),
    [
        (WHOLE, "0", "--n is 0"),
        (WHOLE, "-3", "'-3' is no number"),
        (WHOLE, "1.5", "--n is 1.5"),
        (WHOLE, "1e16", "--n is 1"),
        (WHOLE, "64KiB", "'64KiB' is no number"),
        (SIZE, "64", "'64' is not in B"),
        (SIZE, "1.5B", "whole number of bytes"),
        (WHOLE, "5:1", "empty or endless"),
        (WHOLE, "1:5:x1", "empty or endless"),
        (WHOLE, "1:1000000000000:+1", "1,000,000,000,000 values"),
        (WHOLE, "", "is no number"),
        (WHOLE, [], "no values"),
        (WHOLE, None, "None is no number"),
        (WHOLE, np.array([True]), "True is no number"),
        (WHOLE, 3j, "is no number"),
        (WHOLE, np.nan, "--n is nan"),
        (WHOLE, "1:10:x1.0000001", "23,025,853 steps"),
        (WHOLE, "1:10:x2KiB", "'2KiB' is no factor"),
        (WHOLE, "1:10:+2KiB", "'2KiB' is no step"),
        (SweepInput("dropout", "", kind="number", least=0, most=1, below=1), "1", "up to, not including, 1"),
        (WHOLE, [[3]], "is no number"),
        (WHOLE, True, "is no number"),
        (SweepInput("causal", "", kind="flag"), "maybe", "true, false or both"),
        (SweepInput("kind", "", kind="name", names=lambda: ["one"]), "two", "unknown kind 'two'"),
    ],
)
def test_values_without_meaning(one: SweepInput, raw: Any, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        values_of(one, raw)
    assert words in str(caught.value)


def test_what_is_an_expression() -> None:
    found = {text: is_expression(WHOLE, text) for text in ("heads / 4", "2 * 3", "1__0", "512:1024:x2,7", "64KiB")}
    assert found == {"heads / 4": True, "2 * 3": True, "1__0": True, "512:1024:x2,7": False, "64KiB": False}
    assert not is_expression(SweepInput("hardware", "", kind="name", choice=True), "h200")
    grid = grid_of(SweepStudy("attention", {"n": "2 * 3", "d": 64}))
    assert (grid.numbers["n"].tolist(), "n" in grid.derived) == ([6], False)


def test_derived_axes() -> None:
    axes = {"n": "64,128", "d": "32:128:x2", "heads": [8, 16], "kv_heads": "heads / 4", "kv_len": "max(n, 100) * batch", "batch": 2}
    grid = grid_of(SweepStudy("attention", axes))
    [part] = grid.parts
    assert (list(part.axes), part.lengths, part.points) == (["n", "heads", "d"], (2, 2, 3), 12)
    assert grid.source("dv") == "d"


@each(("axes", "where", "words"), table("studies_without_meaning"))
def test_studies_without_meaning(axes: dict[str, Any], where: tuple[str, ...], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        grid_of(SweepStudy("attention", axes, where))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("where", table("quantities_that_may_be_compared"))
def test_quantities_that_may_be_compared(where: str) -> None:
    assert perfmodel.sweep(n=64, d=64, where=where).rows == 2


axis_values = st.sampled_from(["1", "1:9:+3", "heads / 2", "d // 3", "n", "0", "-1", "2 * 3", "1:", "'a'", "not n", "64KiB", "n / 0"])
columns = ["n", "n * d", "hardware", "pass", "causal", "packed", "memory", "time", "flops", "dropout"]
terms = st.sampled_from([*columns, "'h200'", "'flash'", "3", "80 GB", "3 ms", "1 / 0"])
signs = st.sampled_from(["<", "==", "+", "/", "and"])
constraint_texts = st.builds("{}{} {} {}".format, st.sampled_from(["", "not "]), terms, signs, terms)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(n=axis_values, heads=axis_values, kv_heads=axis_values, where=constraint_texts)
def test_any_axes_and_constraints_are_a_sweep_or_a_usage_error(n: str, heads: str, kv_heads: str, where: str) -> None:
    with contextlib.suppress(UsageError):
        perfmodel.sweep(n=n, d=64, heads=heads, kv_heads=kv_heads)
    with contextlib.suppress(UsageError):
        perfmodel.sweep(n=64, d=64, where=where)


def test_constraints_take_words_of_a_name_as_axes_do() -> None:
    found = perfmodel.sweep(n=64, d=64, hardware=["h200", "l40s"], where="hardware == 'h200' and algorithm != 'flash'")
    assert (found["hardware"].tolist(), found["algorithm"].tolist()) == (["nvidia-h200-sxm"], ["standard"])


def test_every_workload_has_sound_inputs_and_columns() -> None:
    for name in WORKLOADS:
        workload = workload_named(name)
        inputs, columns = {one.name for one in workload.inputs}, {one.name for one in workload.columns}
        assert set(workload.shown) | set(workload.words.values()) | {workload.objective} <= columns
        assert set(workload.always) <= inputs
        assert not {*workload.words} & (inputs | columns)
        assert not inputs & columns
        for one in workload.columns:
            assert one.unit or one.name in ("mfu", "fits", "at_least"), one
            assert not one.name.endswith("_s") or one.unit == "s" or one.unit.endswith("/s")
            assert not one.name.endswith("_bytes") or one.unit == "B"
            assert not one.name.endswith("_elements") or one.unit == "elements"
    with pytest.raises(UsageError, match="no sweep over 'attentoin'"):
        workload_named("attentoin")


lengths = st.lists(st.integers(2, 7), max_size=4)


@given(lengths=lengths, points=st.integers(1, 60))
def test_blocks_cover_a_part_once(lengths: list[int], points: int) -> None:
    part = SubGrid({}, {}, {str(i): np.arange(length) for i, length in enumerate(lengths)})
    seen = np.zeros(tuple(lengths), int)
    order = []
    for slices in part.blocks(points):
        seen[slices] += 1
        order.append(np.arange(prod(lengths)).reshape(lengths)[slices].min())
        assert prod(one.stop - one.start for one in slices) <= points
    assert (seen == 1).all()
    assert order == sorted(order)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(rows=st.integers(1, 200), n=st.integers(1, 40), algorithms=st.sampled_from(["standard", "standard,flash2", "all"]))
def test_chunks_cover_a_grid_once(rows: int, n: int, algorithms: str) -> None:
    grid = grid_of(SweepStudy("attention", {"n": f"1:{n}:+1", "d": "64,128", "causal": "both", "algorithm": algorithms, "heads": "1,2,4"}))
    found = list(grid.chunks(rows))
    assert [chunk.index for chunk in found] == list(range(len(found)))
    assert sum(chunk.points for chunk in found) * len(grid.compared) == grid.points
    blocks = [(number, tuple((one.start, one.stop) for one in slices)) for chunk in found for number, slices in chunk.blocks]
    assert blocks == sorted(set(blocks))
    most = max(rows // len(grid.compared), 1)
    assert all(chunk.points <= most for chunk in found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["no mapping 'sweep'"]),
        ("sweep:\n  axes: {n: 64}\n  code: print(1)\n", ["line 3", "sweep.code", "unknown field"]),
        ("sweep:\n  axes:\n    n: {a: 1}\n", ["line 3", "sweep.axes.n: {'a': 1} is no number"]),
        ("sweep:\n  axes:\n    n: [64, [128, 3]]\n", ["line 3", "sweep.axes.n: [128, 3] is no number"]),
        ("sweep:\n  axes:\n    n: .nan\n", ["line 3", "sweep.axes.n is nan"]),
        ("sweep:\n  axes:\n    n: 64\n    heads: true\n", ["line 4", "sweep.axes.heads: True is no number"]),
        ("sweep:\n  axes:\n    n: 5__1\n", ["line 3", "sweep.axes.n '5__1'"]),
        ("sweep:\n  axes:\n    nn: 5\n", ["line 3", "sweep.axes.nn", "no such axis"]),
        ("sweep:\n  axes: {n: 64}\n  workload: matmull\n", ["line 3", "sweep.workload: there is no sweep over 'matmull'"]),
        ("sweep:\n  axis: {n: 64}\n", ["line 2", "sweep.axis: unknown field"]),
        ("sweep:\n  axes: &a {n: 64}\n  where: *a\n", ["aliases"]),
        ("sweep: !!python/object/apply:os.system [ls]\n", ["tag"]),
        ("sweep:\n  where: n < 3\n", ["sweep.axes", "required"]),
        ("sweep: " + "[" * 5000, ["nested deeper"]),
    ],
)
def test_study_files_without_meaning(tmp_path, text: str, words: list[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_study(str(path))
    for word in (str(path), *words):
        assert word in str(caught.value)


@given(pairs=st.lists(st.tuples(*2 * [st.sampled_from([1.0, 2.0, 3.0, math.inf, math.nan])]), min_size=1))
def test_of_two_that_both_have_a_number_one_wins_or_they_are_equal(pairs: list[tuple[float, float]]) -> None:
    first, other = np.array(pairs).T
    (wins, both), (losses, _) = _wins(first, other), _wins(other, first)
    assert (both == np.isfinite(first) & np.isfinite(other)).all()
    assert (wins.astype(int) + losses + (both & (first == other)) == both).all()
