"""Published attention by kernels that go by many names: one kernel is one model, and every row of A100 and H100 is predicted."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from each import each

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.arith import quantile
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.timing.base import Case, find_model
from perfmodel.timing.implementations import find, kernel_name
from perfmodel.timing.models import eager
from perfmodel.timing.predict import BORROWED, CALIBRATED, TimeRequest, predict
from perfmodel.timing.reference_devices import with_parts
from perfmodel.validation.compare import RecordRow, compare_files
from perfmodel.validation.records import held_out, shipped_records

A100_40, A100_80, H100 = "nvidia-a100-sxm-40gb", "nvidia-a100-sxm-80gb", "nvidia-h100-sxm-80gb"
H200, B200 = "nvidia-h200-sxm", "nvidia-b200-sxm"
STANDARD = "torch-standard"
SHAPE = "--n 4096 --d 64 --heads 16 --batch 8"


@cache
def fallbacks():
    return calibrated_devices()


@cache
def rows() -> list[RecordRow]:
    """Attention of papers on A100 and H100, with calibrations to borrow."""
    paths = [path for path in shipped_records("published") if path.parent.name in (A100_40, A100_80, H100)]
    return [row for row in compare_files(paths, find_device, fallbacks) if row.record.workload == "attention"]


def unseen(row: RecordRow) -> bool:
    """No fit sees both passes together, nor what is held out."""
    return row.record.direction == "both" or held_out(row.record)


def errors(hardware: tuple[str, ...], implementation: str) -> list[float]:
    found = [row for row in rows() if row.record.hardware in hardware and row.record.implementation == implementation]
    return [abs(row.error) for row in found if unseen(row)]


def test_every_published_row_is_predicted():
    assert [row.reason for row in rows() if row.prediction is None] == []
    counts = Counter(row.record.hardware for row in rows())
    assert counts[A100_40] + counts[A100_80] == 168
    assert counts[H100] == 216
    assert not any(row.violates or row.prediction.low < row.lower_s * (1 - 1e-12) for row in rows())


A100 = (A100_40, A100_80)
MEDIANS = [
    (A100, STANDARD, 0.15),
    (A100, "megatron", 0.20),
    ((A100_40,), "fa1", 0.15),
    ((A100_80,), "fa1", 0.25),
    (A100, "fa1-triton", 0.25),
    pytest.param(A100, "fa2", 0.05, marks=pytest.mark.xfail(strict=True, reason="narrow heads, lent by Hopper, are 6 % slow")),
    (A100, "xformers", 0.15),
    ((H100,), STANDARD, 0.15),
    ((H100,), "fa1", 0.25),
    ((H100,), "fa2", 0.08),
    ((H100,), "fa3", 0.10),
]


@pytest.mark.parametrize(("hardware", "implementation", "median"), MEDIANS, ids=str)
def test_unseen_errors(hardware, implementation, median):
    found = errors(hardware, implementation)
    assert len(found) >= 10
    assert quantile(found, 0.5) <= median


FIGURE_2 = "attention --n 1024 --d 64 --heads 16 --batch 64 --pass both --dropout 0.1 --hardware nvidia-a100-sxm-40gb --json"


@pytest.mark.parametrize(
    ("more", "printed"), [("--mask --algorithm standard", 41.7e-3), ("--causal --algorithm flash1 --implementation fa1", 7.3e-3)]
)
def test_runtimes_of_figure_2_of_flash_attention(run, more, printed):
    """Dao et al. 2022: neither row is in a fit."""
    times = run(f"{FIGURE_2} {more}").json["results"][-1]["time_s"]
    assert times["low"] <= printed <= times["high"]
    assert times["predicted"] == pytest.approx(printed, rel=0.15)


def test_the_study_of_figure_2_predicts_flash_attention(run):
    assert "flash1 forward + backward, n 1024 d 64 b 64 h 16 causal: predicted" in run("report flashattention-fig2").out


def gains() -> list[float]:
    """Predicted over measured gain of each fused kernel over standard attention, of A100 tables, neither row of which a fit saw."""
    tables: dict[str, dict[str, RecordRow]] = {}
    for row in rows():
        if row.record.hardware in A100 and unseen(row):
            key = json.dumps([row.record.source, row.record.direction, row.record.shape], sort_keys=True)
            tables.setdefault(key, {})[row.record.implementation] = row
    pairs = [
        (own[STANDARD], row)
        for own in tables.values()
        if STANDARD in own
        for name, row in own.items()
        if name not in (STANDARD, "megatron")
    ]
    return [(1 + standard.error) / (1 + fused.error) for standard, fused in pairs]


def test_gains_over_standard_attention_are_those_of_the_tables():
    found = gains()
    assert len(found) >= 40
    assert quantile([abs(gain - 1) for gain in found], 0.5) <= 0.25
    assert 0.8 <= quantile(found, 0.5) <= 1.25


def work(n: int = 4096, d: int = 64, **changes) -> Attention:
    return Attention(batch=8, n=n, kv_len=n, d=d, dv=d, heads=16, kv_heads=16, dtype=DTYPES["fp16"], **changes)


@each("alias", ["fa2", "xformers"])
@each("direction", [FORWARD, BACKWARD])
@each("name", [A100_80, H100, H200, B200])
def test_one_kernel_is_one_model(alias, direction, name):
    device = find_device(name)
    for w in (work(), work(1000, 128), work(causal=True), replace(work(512, 128), kv_heads=4)):
        times = [
            predict(TimeRequest(Case(w, one, direction), "attention", "fp16", device, 0.0, fallbacks)).seconds
            for one in (alias, kernel_name(alias))
        ]
        assert times[0] == times[1]


def test_a_kernel_is_calibrated_under_one_name():
    """Where a model holds what is known of kernels, no further name has parameters of its own."""
    for device in fallbacks():
        for block in device.calibration:
            if find(block.implementation).kernel:
                assert find_model(block.model).from_tables, (device.id, block.implementation)


@pytest.mark.parametrize("name", [A100_80, H100, H200, B200])
def test_standard_and_fused_attention_are_predicted(name, run):
    found = json.loads(run(f"attention {SHAPE} --hardware {name} --json").out)["results"]
    assert [entry["algorithm"] for entry in found] == ["standard", "flash2"]
    for entry in found:
        assert entry["time_s"]["lower"] <= entry["time_s"]["low"] < entry["time_s"]["predicted"] < entry["time_s"]["high"]
    standard, fused = (entry["time_s"]["predicted"] for entry in found)
    assert 2 < standard / fused < 13


def test_a_kernel_leaves_the_other_algorithms_to_the_usual_ones(run):
    found = json.loads(
        run(f"attention {SHAPE} --hardware {A100_80} --algorithm standard --algorithm flash1 --implementation fa1 --json").out
    )
    assert [entry["implementation"] for entry in found["results"]] == [STANDARD, "fa1"]
    outcome = run(f"attention {SHAPE} --hardware {A100_80} --implementation fa1")
    assert outcome.code == 2
    assert "fa1 runs flash1, which is not compared" in outcome.err
    assert "add --algorithm flash1" in outcome.err


def test_parts_come_from_the_nearest_device_that_has_them():
    bare = replace(find_device(A100_80), calibration=[])
    lent = with_parts(bare, "eager-attention", "fp16", fallbacks).calibration
    assert {block.workload for block in lent} == {"matmul", "scale", "softmax", "copy"}
    products = [block.implementation for block in lent if block.workload == "matmul"]
    assert products
    assert "cublas" not in products  # timed in graphs, it starts sooner than a call
    published = with_parts(bare, "eager-published", "fp16", fallbacks).calibration
    assert next(block for block in published if block.workload == "matmul") in find_device(A100_80).calibration
    assert with_parts(bare, "fa2-forward", "fp16", fallbacks) is bare
    own = find_device(H200)
    assert with_parts(own, "eager-attention", "fp16", fallbacks) is own
    case = Case(work(), "torch-eager", FORWARD)
    assert predict(TimeRequest(case, "attention", "fp16", find_device(B200), 0.0, fallbacks)).kind == BORROWED


@pytest.mark.parametrize("hardware", ["nvidia-a100-pcie-40gb", "nvidia-l4"])
def test_parts_are_in_the_format_of_the_whole(hardware):
    """Products of the device in fp32 alone are no part of attention in 16 bits: those come from another device."""
    own = find_device(hardware)
    assert {dtype for block in own.calibration if block.workload in {"matmul", "softmax"} for dtype in block.dtypes} == {"fp32"}
    lent = [block for block in with_parts(own, "eager-attention", "fp16", fallbacks).calibration if block not in own.calibration]
    assert {"matmul", "softmax"} <= {block.workload for block in lent}
    assert all({"fp16", "bf16"} & set(block.dtypes) for block in lent)
    found = predict(TimeRequest(Case(work(), "torch-eager", FORWARD), "attention", "fp16", own, 0.0, fallbacks))
    assert found.kind == BORROWED


def sequence(implementation: str = STANDARD, direction: str = FORWARD, device: str = A100_80, **changes) -> list[str]:
    case = Case(work(**changes), implementation, direction)
    return [part.implementation for _, part in eager.parts(case, find_device(device))]


def test_published_eager_attention_is_the_sequence_of_its_benchmark():
    matmuls, copies = 2 * ["torch-matmul"], 3 * ["torch-scale"]
    assert sequence() == [*matmuls, *copies]
    assert sequence(n=1024) == sequence(device=B200) == [*matmuls, *copies, "torch-softmax"]
    assert sequence(causal=True) == [*matmuls, *copies, "torch-scale", "torch-mask"]
    assert sequence(dropout=0.1) == [*matmuls, "torch-scale", *copies]
    assert sequence(direction=BACKWARD) == [*matmuls, *matmuls, *copies, *copies]
    assert sequence("megatron", dropout=0.1) == [*matmuls, "torch-scale"]
    assert sequence("megatron", BACKWARD) == [*matmuls, *matmuls]


def test_softmax_is_a_pass_of_its_own_where_versions_of_pytorch_differ():
    asked = [(STANDARD, FORWARD), (STANDARD, BACKWARD), ("megatron", FORWARD), ("megatron", BACKWARD)]
    for name, passes in ((A100_80, [2, 6, 2, 3]), (B200, [0, 6, 2, 3])):
        assert [eager.own_passes(Case(work(), *one), find_device(name)) for one in asked] == passes
    assert eager.own_passes(Case(work(1024), STANDARD), find_device(A100_80)) == 0


def test_short_sequences_wait_for_the_host_where_nothing_says_that_the_time_is_of_kernels():
    device, model = with_parts(find_device(A100_80), "eager-published", "fp16", fallbacks), find_model("eager-published")
    p = model.starts()
    times = [model.seconds(Case(work(n), STANDARD, cache=""), device, p) for n in (16, 128, 4096)]
    assert times[0] == pytest.approx(p["host_us"] * 1e-6, rel=0.05)
    assert times[1] < 2 * times[0] < times[2] / 10
    for state in ("clean", "warm"):
        assert model.seconds(Case(work(16), STANDARD, cache=state), device, p) < times[0] / 3


def test_megatron_is_not_predicted_with_a_mask_that_no_row_had():
    """Its kernel would read the mask; the model, fitted without one, gave the same time with and without."""
    plain, device = Attention(4096, 4096, 64, 64, 1, 16, 16), find_device("nvidia-a100-sxm-40gb")
    predict(TimeRequest(Case(plain, "megatron"), "attention", "fp16", device, 0.0, calibrated_devices))
    with pytest.raises(UnavailableError):
        predict(TimeRequest(Case(replace(plain, mask=True), "megatron"), "attention", "fp16", device, 0.0, calibrated_devices))


@pytest.mark.parametrize("name", ["fa3-no-pipelining", "fa3-no-specialization", "fa1-triton"])
def test_a_variant_that_no_row_was_fitted_on_claims_no_more_than_a_borrowed_kernel(name):
    device = find_device("nvidia-h100-sxm-80gb" if name.startswith("fa3") else "nvidia-a100-sxm-40gb")
    cases = [Case(Attention(4096, 4096, 128, 128, 4, 16, 16), one) for one in (name, find(name).like)]
    variant, kernel = (predict(TimeRequest(case, "attention", "fp16", device, 0.0, calibrated_devices)) for case in cases)
    assert (variant.kind, kernel.kind) == (BORROWED, CALIBRATED)
    assert variant.high / variant.low >= kernel.high / kernel.low
