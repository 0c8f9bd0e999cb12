"""Kernels over rows: which one PyTorch takes by width, against what a profiler saw on an H200, and what each rule does to times."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from each import each
from perfmodel.timing.models.row_kernels import REGISTERS, REPEATED, SHARED, WARP, padded, softmax_kernel, thread_elements

from perfmodel.catalog import find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.workload import Stream
from perfmodel.timing.base import CLEAN, WARM, Case
from perfmodel.timing.models import row_kernels, stream
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
SMS, CLOCK = 132, 1.98e9
COPY, ROWWISE, SOFTMAX, NORM = map(find_model, ("copy", "stream", "softmax-rows", "norm-rows"))


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
        at_once = 2 if row["cols"] <= row_kernels.TWO_ROWS_COLUMNS else 1
        assert kernel["grid"] == -(-row["rows"] // (WARPS_OF_BLOCK * at_once))


def test_a_block_holds_a_row_in_the_registers_that_its_kernel_is_made_for() -> None:
    """Of which a multiprocessor has enough for two such blocks up to ROOMY_COLUMNS."""
    found = seen("cunn_SoftMaxForwardReg")
    assert {row["kernels"][0]["template"][0] for row in found} == {3, 4, 5, 6, 7, 8, 9}
    for row in found:
        [kernel] = row["kernels"]
        assert padded(row["cols"]) == kernel["template"][0] * stream.BLOCK_THREADS == kernel["template"][0] * kernel["threads"]
        given = -(-kernel["registers"] // 8) * 8  # per thread, in eights
        assert (2 * given * kernel["threads"] <= REGISTERS_OF_SM) == (padded(row["cols"]) <= row_kernels.ROOMY_COLUMNS)


def test_a_row_in_shared_memory_takes_its_bytes_and_a_number_of_each_warp() -> None:
    found = seen("cunn_SoftMaxForwardSmem")
    assert len(found) == 3
    assert [row["kernels"][0]["shared_bytes"] for row in found] == [row["cols"] * 2 + 128 for row in found]
    assert not any(row["cols"] % 8 for row in found)
    beyond = Stream("softmax", 1, 24512)  # 48 KiB less 128 B
    assert softmax_kernel(beyond) == REPEATED
    assert softmax_kernel(replace(beyond, cols=24504)) == SHARED
    assert softmax_kernel(replace(beyond, cols=12252, dtype=DTYPES["fp32"])) == SHARED, "fp32: half the columns, by four"


def test_norms_take_one_kernel_of_128_threads_or_two() -> None:
    for row in SEEN:
        if row["implementation"] == "torch-softmax":
            continue
        names = [kernel["name"] for kernel in row["kernels"]]
        if row["cols"] % row_kernels.VECTOR:
            assert names == ["RowwiseMomentsCUDAKernel", "LayerNormForwardCUDAKernel"]
        else:
            assert names == ["vectorized_layer_norm_kernel"]
            assert row["kernels"][0]["threads"] * row_kernels.VECTOR == row_kernels.NORM_COLUMNS
        assert row["kernels"][0]["grid"] == row["rows"]


# What the rules do


def softmax_s(rows: int, cols: int, **changes: float) -> float:
    return SOFTMAX.seconds(Case(Stream("softmax", rows, cols), "torch-softmax"), H200, {**SOFTMAX.starts(), "launch_us": 1e-9, **changes})


@pytest.mark.parametrize(
    ("cols", "elements"),
    [
        (16384, 16),  # in shared memory, by steps of 8 x 1,024
        (16392, 24),
        (16385, 8 * (1.5 * 2 + 0.5 * 1)),  # read three times: two whole steps and an element
        (32768, 8 * 1.5 * 4),
        (64728, 8 * (1.5 * 7 + 0.5 * 8)),  # 7,384 elements at the end: eight steps of 1,024
    ],
)
def test_threads_read_whole_vectors_and_a_repeated_row_ends_one_by_one(cols: int, elements: float) -> None:
    assert thread_elements(Stream("softmax", 1, cols)) == elements


def test_the_first_row_in_registers_takes_fewer_cycles_than_those_that_follow() -> None:
    """8,192 elements: 2.9 us alone (7.1 less 4.2 of launch), 4 us each of 6,523 rows, by what was measured."""
    alone, many = (softmax_s(rows, 8192, single_cycles=1.0) for rows in (SMS, 10 * SMS))
    assert alone == pytest.approx(0.7 * 8192 / CLOCK)
    assert many - alone == pytest.approx(9 * (500 + 8192) / CLOCK)
    halves = [softmax_s(rows, 4096, register_cycles=1.0) for rows in (SMS, SMS + SMS // 2)]  # two at once: no whole rounds
    assert halves[1] - halves[0] == pytest.approx(0.5 * (500 + 4096) / CLOCK)


def test_two_rows_of_a_warp_take_the_latency_of_both() -> None:
    one, two = (softmax_s(8, cols, column_ns=4.0, element_cycles=1e-9, warp_share=1e9) for cols in (256, 128))
    assert one == pytest.approx(256 * 4e-9, rel=0.01)
    assert two == pytest.approx(one, rel=0.01)


def norm_s(rows: int, cols: int, **changes: float) -> float:
    p = {**NORM.starts(), "launch_us": 1e-9, **changes}
    return NORM.seconds(Case(Stream("norm", rows, cols), "torch-rms-norm"), H200, p)


def test_norms_are_as_slow_as_steps_of_their_threads() -> None:
    """Rows of 32 to 512 elements alike, then by 512."""
    few = {cols: norm_s(1, cols, bandwidth_share=1e9, row_ns=1e-9, column_ns=1.4) for cols in (32, 512, 516, 1024, 1028)}
    assert few[32] == pytest.approx(few[512]) == pytest.approx(512 * 1.4e-9)
    assert few[516] == pytest.approx(few[1024]) == pytest.approx(2 * few[512])
    assert few[1028] == pytest.approx(3 * few[512])


def test_norms_issue_instructions_by_active_warps_unless_bytes_take_longer() -> None:
    rows = 1000 * SMS
    issued = {cols: norm_s(rows, cols, bandwidth_share=1e9, row_ns=80.0, column_ns=1e-9) for cols in (32, 128, 132, 512, 1024)}
    assert issued[32] == pytest.approx(issued[128]) == pytest.approx(1000 * 80e-9)
    assert [issued[cols] / issued[128] for cols in (132, 512, 1024)] == pytest.approx([1.13, 1.39, 1.91])
    moved_s = 2 * rows * 128 * 2 / (4.8e12 * 0.9)
    assert norm_s(rows, 128, bandwidth_share=0.9, row_ns=1e-9, column_ns=1e-9) == pytest.approx(moved_s)


def test_few_long_rows_of_a_norm_are_nearly_twice_as_fast_warm() -> None:
    """49 rows of 42,112 elements: 66.1 us clean, 34.2 warm; 9,000 rows do not stay in the L2."""
    p = {**NORM.starts(), "launch_us": 4.3, "column_ns": 1.4}
    clean, warm = (modelled_s(NORM, norm_case(49, 42112, state), H200, p) for state in (CLEAN, WARM))
    assert clean == pytest.approx(66.1e-6, rel=0.05)
    assert warm == pytest.approx(34.2e-6, rel=0.1)
    lost = [NORM.seconds(norm_case(9000, 42112, state), H200, p) for state in (CLEAN, WARM)]
    assert lost[0] == lost[1]


def norm_case(rows: int, cols: int, cache: str) -> Case:
    return Case(Stream("norm", rows, cols), "torch-rms-norm", cache=cache)


# Copies and element-wise kernels


def copy_s(size: int, implementation: str = "torch-copy") -> float:
    p = {"launch_us": 4.0, "bandwidth_share": 0.9, "large_us": 3.0}
    return COPY.seconds(Case(Stream("copy", 1, size, dtype=DTYPES["fp8"]), implementation), H200, p)


def rest_us(size: int, seconds: float) -> float:
    """Microseconds beyond the bytes at 90 % of the bandwidth."""
    return (seconds - 2 * size / (0.9 * 4.8e12)) * 1e6


@pytest.mark.parametrize(
    ("size", "more_us"),
    [
        (1024, 0.01),
        (1 << 19, 0.25),
        (1000 * 1024 + 2, 0.5),
        (1 << 20, 0.25),
        ((1 << 20) + 2048, 3.25),
        (1 << 30, 0.25 - 0.14 * 62914560 / 0.9 / 4.8e6),  # what stays in the L2
    ],
)
def test_copies_by_words_pages_and_what_they_leave_in_the_l2(size: int, more_us: float) -> None:
    assert rest_us(size, copy_s(size)) == pytest.approx(4 + more_us, abs=0.02)
    assert rest_us(size, copy_s(size, "numba-copy")) <= 4.25, "a kernel, not the driver's"


def test_large_copies_of_whole_pages_are_faster_as_measured() -> None:
    found: dict[bool, list[float]] = {True: [], False: []}
    for path in shipped_records("torch-rows"):
        for _, record in read_records(path):
            size = int(record.shape.get("bytes", 0))
            if record.implementation == "torch-copy" and stream.LARGE_COPY <= size <= 1 << 25:
                found[size % stream.PAGE == 0].append(rest_us(size, record.time_s.median))
    assert min(map(len, found.values())) >= 5
    assert max(found[True]) < min(found[False])
    assert median(found[False]) - median(found[True]) == pytest.approx(2.6, abs=0.4)


def test_bytes_that_one_kernel_hands_to_the_next_cost_less_while_the_l2_keeps_them() -> None:
    p = {"launch_us": 1e-9, "bandwidth_share": 1.0, "column_ns": 1e-9, "row_ns": 1e-9}
    for rows, share in ((128, 0.6), (1 << 16, 1.0)):  # 2 and 1,074 MB handed on
        one, two = (ROWWISE.seconds(Case(Stream("scale", rows, 4096, 2), name), H200, p) for name in ("torch-add", "torch-silu-mul"))
        out = rows * 4096 * 2
        assert two - one == pytest.approx(2 * share * out / 4.8e12, rel=0.05)
