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
from perfmodel.timing.models import norms, softmax, streams
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
SMS, CLOCK = 132, 1.98e9
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


def test_a_block_alone_takes_more_cycles_than_two_that_hide_each_others_waits() -> None:
    p = {"register_cycles": 0.45, "single_cycles": 0.7, "block_cycles": 800.0}
    alone, many = (softmax_s(rows, 8192, **p) for rows in (SMS, 10 * SMS))
    assert alone == pytest.approx(0.7 * 8192 / CLOCK)
    assert many - alone == pytest.approx(9 * (800 + 0.7 * 8192) / CLOCK)
    halves = [softmax_s(rows, 4096, **p) for rows in (SMS, SMS + SMS // 2)]  # two at once: no whole rounds
    assert halves[0] == pytest.approx(0.7 * 4096 / CLOCK)
    assert halves[1] - halves[0] == pytest.approx(0.5 * (800 + 0.45 * 4096) / CLOCK)


def test_rows_beyond_registers_wait_for_a_slot() -> None:
    """Two blocks of 1,024 threads on a multiprocessor: many rows take their share of all slots, few the time of one."""
    one, many = (softmax_s(rows, 16384, row_us=10.0) for rows in (1, 200 * SMS))
    assert one == pytest.approx(10e-6, rel=1e-4)
    assert many == pytest.approx(100 * 10e-6, rel=1e-4)


def test_two_rows_of_a_warp_take_the_latency_of_both() -> None:
    one, two = (softmax_s(8, cols, column_ns=4.0) for cols in (256, 128))
    assert one == pytest.approx(256 * 4e-9, rel=0.01)
    assert two == pytest.approx(one, rel=0.01)


def test_rows_that_a_warp_spills_take_so_much_longer() -> None:
    fits, spills = (softmax_s(1 << 20, cols, element_cycles=0.15, spill=1.4) / cols for cols in (1024, 2048))
    assert spills == pytest.approx(1.4 * fits)


def norm_s(rows: int, cols: int, cache: str = CLEAN, **given: float) -> float:
    return of_model(NORM, Case(Stream("norm", rows, cols), "torch-rms-norm", cache=cache), **{"warp_share": FREE, **given})


def test_norms_are_as_slow_as_steps_of_their_threads() -> None:
    """Rows of 32 to 512 elements alike, then by 512; by element, 512 threads once and 256 once."""
    few = {cols: norm_s(1, cols, step_us=0.7, element_step_us=0.4) for cols in (32, 512, 516, 1024, 1028, 1025)}
    assert few[32] == pytest.approx(few[512]) == pytest.approx(0.7e-6)
    assert few[516] == pytest.approx(few[1024]) == pytest.approx(2 * few[512])
    assert few[1028] == pytest.approx(3 * few[512])
    assert few[1025] == pytest.approx((3 + 5) * 0.4e-6)


def test_norms_issue_instructions_by_active_warps_unless_bytes_take_longer() -> None:
    rows = 1000 * SMS
    issued = {cols: norm_s(rows, cols, row_ns=80.0, warp_share=0.13) for cols in (32, 128, 132, 512, 1024)}
    assert issued[32] == pytest.approx(issued[128]) == pytest.approx(1000 * 80e-9)
    assert [issued[cols] / issued[128] for cols in (132, 512, 1024)] == pytest.approx([1.13, 1.39, 1.91])
    assert norm_s(rows, 128, bandwidth_share=0.9) == pytest.approx(2 * rows * 128 * 2 / (4.8e12 * 0.9))


def test_rows_by_element_take_a_second_kernel_and_their_own_instructions() -> None:
    p = {"launch_us": 4.0, "second_us": 3.0, "element_row_ns": 600.0, "element_ns": 0.5}
    assert norm_s(132, 264, **p) == pytest.approx(4e-6)
    assert norm_s(132, 265, **p) == pytest.approx(7e-6 + (600 + 265 * 0.5) * 1e-9)


def test_few_long_rows_of_a_norm_are_nearly_twice_as_fast_warm() -> None:
    """49 rows of 42,112 elements: 66.1 us clean, 34.2 warm; 9,000 rows do not stay in the L2."""
    block = next(one for one in find_device("h200").calibration if one.implementation == "torch-rms-norm")
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


def test_a_long_kernel_leaves_a_share_of_the_l2_to_be_written_later() -> None:
    whole, less = (copy_us(1 << 30, bandwidth_share=0.9, kept_share=kept) for kept in (FREE, 0.14))
    assert whole - less == pytest.approx(0.14 * 62914560 / 0.9 / 4.8e6)
    short = [copy_us(1 << 16, bandwidth_share=0.9, kept_share=kept) for kept in (FREE, 0.14)]
    assert short[0] == pytest.approx(short[1], rel=0.01)


def test_large_copies_of_whole_pages_are_faster_as_measured() -> None:
    found: dict[bool, list[float]] = {True: [], False: []}
    for path in shipped_records("torch-rows"):
        for _, record in read_records(path):
            size = int(record.shape.get("bytes", 0))
            if record.implementation == "torch-copy" and streams.LARGE_COPY <= size <= 1 << 25:
                found[size % streams.PAGE == 0].append((record.time_s.median - 2 * size / (0.9 * 4.8e12)) * 1e6)
    assert min(map(len, found.values())) >= 5
    assert max(found[True]) < min(found[False])
    assert median(found[False]) - median(found[True]) == pytest.approx(2.6, abs=0.4)


def test_a_call_of_several_kernels_launches_each_and_hands_tensors_on() -> None:
    w = Stream("scale", 1 << 16, 4096, 2)
    one, two = (of_model(STREAM, Case(w, name), launch_us=3.0, bandwidth_share=1.0) for name in ("torch-add", "torch-silu-mul"))
    assert two - one == pytest.approx(3e-6 + 2 * w.write_bytes / 4.8e12, rel=1e-3)


def test_only_an_operand_that_is_broadcast_takes_divisions() -> None:
    masked, whole = (
        of_model(STREAM, Case(Stream("scale", 8192, 1024, shared=n), "torch-mask"), element_cycles=0.6) for n in (1 << 20, 1 << 23)
    )
    assert masked == pytest.approx(0.6 * (1 << 23) / SMS / CLOCK, rel=1e-3)
    assert whole < 1e-9
