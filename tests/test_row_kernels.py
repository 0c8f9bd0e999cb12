"""Kernels over rows: which one PyTorch takes by width, against what a profiler saw on an H200, and what each rule does to times."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from each import each

from perfmodel.catalog import find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.workload import Stream
from perfmodel.timing.base import CLEAN, WARM, Case, Model
from perfmodel.timing.engine import HARDEST
from perfmodel.timing.models import norms, passes, softmax
from perfmodel.timing.models.softmax import REGISTERS, REPEATED, SHARED, WARP, padded, softmax_kernel, steps
from perfmodel.timing.predict import find_model, modelled_s
from perfmodel.validation.records import read_records, shipped_records

SEEN = [json.loads(line) for line in (Path(__file__).parent / "data" / "h200_row_kernels.jsonl").read_text().splitlines()]
"""Shapes at both ends and in the middle of each kernel's widths, with the kernels that torch 2.11 launched."""
NAMES = {
    "softmax_warp_forward": WARP,
    "cunn_SoftMaxForwardReg": REGISTERS,
    "cunn_SoftMaxForwardSmem": SHARED,
    "cunn_SoftMaxForward": REPEATED,
}
WARPS_OF_BLOCK, REGISTERS_OF_SM = 4, 65536
H200 = replace(find_device("h200"), calibration=[])
STREAM, SOFTMAX, NORM = map(find_model, ("stream", "softmax-rows", "norm-rows"))


def seen(prefix: str) -> list[dict]:
    return [row for row in SEEN if row["kernels"][0]["name"].startswith(prefix)]


def of(row: dict) -> Stream:
    return Stream("softmax", row["rows"], row["cols"], dtype=DTYPES[row["dtype"]])


@each("row", [row for row in SEEN if row["implementation"] == "torch-softmax"])
def test_softmax_takes_the_kernel_that_a_profiler_saw(row: dict) -> None:
    assert softmax_kernel(of(row)) == NAMES[row["kernels"][0]["name"]]


def test_a_warp_holds_the_power_of_two_that_its_kernel_is_made_for() -> None:
    found = seen("softmax_warp")
    assert {row["kernels"][0]["template"][0] for row in found} == {5, 6, 7, 8, 9, 10, 11}
    for row in found:
        [kernel] = row["kernels"]
        assert padded(row["cols"]) == 1 << kernel["template"][0]
        at_once = 2 if row["cols"] <= softmax.TWO_ROWS_COLUMNS else 1
        assert kernel["grid"] == -(-row["rows"] // (WARPS_OF_BLOCK * at_once))


def test_a_block_holds_a_row_in_the_registers_that_its_kernel_is_made_for() -> None:
    """Of which a multiprocessor has enough for two such blocks up to ROOMY_COLUMNS."""
    found = seen("cunn_SoftMaxForwardReg")
    assert {row["kernels"][0]["template"][0] for row in found} == {3, 4, 5, 6, 7, 8, 9}
    for row in found:
        [kernel] = row["kernels"]
        assert padded(row["cols"]) == kernel["template"][0] * softmax.BLOCK_THREADS == kernel["template"][0] * kernel["threads"]
        given = -(-kernel["registers"] // 8) * 8  # per thread, in eights
        assert (2 * given * kernel["threads"] <= REGISTERS_OF_SM) == (padded(row["cols"]) <= softmax.ROOMY_COLUMNS)


def test_norms_take_one_kernel_of_128_threads_or_two() -> None:
    for row in SEEN:
        if row["implementation"] == "torch-softmax":
            continue
        names = [kernel["name"] for kernel in row["kernels"]]
        if row["cols"] % norms.VECTOR:
            assert names == ["RowwiseMomentsCUDAKernel", "LayerNormForwardCUDAKernel"]
        else:
            assert names == ["vectorized_layer_norm_kernel"]
            assert row["kernels"][0]["threads"] * norms.VECTOR == norms.COLUMNS
        assert row["kernels"][0]["grid"] == row["rows"]


# What the rules do

FREE = 1e-12


def of_model(model: Model, case: Case, **given: float) -> float:
    """Seconds where all parameters but those ``given`` cost nothing."""
    free = {name: 1e12 if name.endswith("share") else FREE for name in model.starts()}
    return model.seconds(case, H200, {**free, "spill": 1.0, "l2_share": 1.0, "overlap": HARDEST, "warm_share": 1.0, **given})


def softmax_s(rows: int, cols: int, **given: float) -> float:
    return of_model(SOFTMAX, Case(Stream("softmax", rows, cols), "torch-softmax"), **given)


@pytest.mark.parametrize(
    ("cols", "count"),
    [
        (16384, 2),  # in shared memory, by steps of 8 x 1,024
        (16392, 3),
        (16385, 2 + 0.5),  # read three times: two whole steps and an element
        (32768, 4),
        (64728, 7 + 8 * 0.5),  # 7,384 elements at the end: eight steps of 1,024
    ],
)
def test_threads_read_whole_vectors_and_a_repeated_row_ends_one_by_one(cols: int, count: float) -> None:
    w = Stream("softmax", 1, cols)
    assert steps(w, 1024, softmax_kernel(w) == SHARED, 0.5) == count
    assert softmax_s(1, cols, row_us=3.0, step_us=2.0, tail=0.5) == pytest.approx((3 + 2 * count) * 1e-6, rel=1e-4)


def norm_s(rows: int, cols: int, cache: str = CLEAN, **given: float) -> float:
    return of_model(NORM, Case(Stream("norm", rows, cols), "torch-rms-norm", cache=cache), **{"warp_share": FREE, **given})


def test_norms_are_as_slow_as_steps_of_their_threads() -> None:
    """Rows of 32 to 512 elements alike, then by 512; by element, 512 threads once and 256 once."""
    few = {cols: norm_s(1, cols, step_us=0.7, element_step_us=0.4) for cols in (32, 512, 516, 1024, 1028, 1025)}
    assert few[32] == pytest.approx(few[512]) == pytest.approx(0.7e-6)
    assert few[516] == pytest.approx(few[1024]) == pytest.approx(2 * few[512])
    assert few[1028] == pytest.approx(3 * few[512])
    assert few[1025] == pytest.approx((3 + 5) * 0.4e-6)


def test_rows_by_element_take_a_second_kernel_and_their_own_instructions() -> None:
    p = {"launch_us": 4.0, "second_us": 3.0, "element_row_ns": 600.0, "element_ns": 0.5}
    assert norm_s(132, 264, **p) == pytest.approx(4e-6)
    assert norm_s(132, 265, **p) == pytest.approx(7e-6 + (600 + 265 * 0.5) * 1e-9)


def test_few_long_rows_of_a_norm_are_nearly_twice_as_fast_warm() -> None:
    """49 rows of 42,112 elements: 66.1 us clean, 34.2 warm; 9,000 rows do not stay in the L2."""
    block = next(
        one
        for one in find_device("h200").calibration
        if (one.workload, one.implementation, one.direction) == ("norm", "torch-rms-norm", "forward")
    )
    clean, warm = (modelled_s(NORM, norm_case(49, 42112, state), H200, block.parameters) for state in (CLEAN, WARM))
    assert clean == pytest.approx(66.1e-6, rel=0.05)
    assert warm == pytest.approx(34.2e-6, rel=0.1)
    lost = [NORM.seconds(norm_case(9000, 42112, state), H200, block.parameters) for state in (CLEAN, WARM)]
    assert lost[1] == pytest.approx(lost[0], rel=5e-3)


def norm_case(rows: int, cols: int, cache: str) -> Case:
    return Case(Stream("norm", rows, cols), "torch-rms-norm", cache=cache)


# Copies and element-wise kernels


def copy_us(size: int, implementation: str = "torch-copy", **given: float) -> float:
    return 1e6 * of_model(STREAM, Case(Stream("copy", 1, size, dtype=DTYPES["fp8"]), implementation), **{"kept_share": FREE, **given})


@pytest.mark.parametrize(
    ("size", "more_us"),
    [
        (4096, 0.125),  # half of what the multiprocessors wait for
        (1 << 19, 0.25),
        (1 << 20, 0.25),
        ((1 << 20) + 2048, 3.25),
    ],
)
def test_copies_by_pages(size: int, more_us: float) -> None:
    p = {"launch_us": 4.0, "spread_us": 0.25, "rest_us": 3.0}
    assert copy_us(size, **p) == pytest.approx(4 + more_us, abs=0.01)
    assert copy_us(size, "numba-copy", **p) <= 4.25, "a kernel, not the driver's"


def test_large_copies_of_whole_pages_are_faster_as_measured() -> None:
    found: dict[bool, list[float]] = {True: [], False: []}
    for path in shipped_records("torch-rows"):
        for _, record in read_records(path):
            size = int(record.shape.get("bytes", 0))
            if record.implementation == "torch-copy" and passes.LARGE_COPY <= size <= 1 << 25:
                found[size % passes.PAGE == 0].append((record.time_s.median - 2 * size / (0.9 * 4.8e12)) * 1e6)
    assert min(map(len, found.values())) >= 5
    assert max(found[True]) < min(found[False])
    assert median(found[False]) - median(found[True]) == pytest.approx(2.6, abs=0.4)
