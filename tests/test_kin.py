"""Who lends to whom, what a profile lacks, and that no device is refused a prediction for a kernel that another has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from perfmodel.catalog import calibrated_devices, device_ids, find_device
from perfmodel.core.architectures import MFMA, MMA_SYNC, TCGEN05, WGMMA, traits_of, transferable, wide_matrix
from perfmodel.core.device_scaling import completed, number
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import DataError, UnavailableError
from perfmodel.core.hardware import Clocks, Device
from perfmodel.core.sanity import validated
from perfmodel.core.workload import BACKWARD, FORWARD, Attention, Stream
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import Case, find_model, model_of
from perfmodel.timing.case_bounds import lower_bound_s
from perfmodel.timing.implementations import algorithm_of
from perfmodel.timing.intervals import estimate_errors, estimates_error, widened
from perfmodel.timing.launched import plan_of
from perfmodel.timing.models import decode
from perfmodel.timing.models.pooled import POOLED, fits
from perfmodel.timing.predict import BORROWED, Prediction, TimeRequest, predict
from perfmodel.timing.reference_devices import nearest
from perfmodel.timing.select_kernel import select_kernel
from perfmodel.timing.transfer import in_words, with_needed_estimates
from perfmodel.validation.calibrate import points
from perfmodel.validation.records import read_records, shipped_records
from tools.refresh import pooled as refresh_pooled
from tools.scores import hidden_facts

EVERY = [find_device(name) for name in device_ids()]
H200, H100, A100, B200 = (find_device(f"nvidia-{name}") for name in ("h200-sxm", "h100-sxm-80gb", "a100-sxm-80gb", "b200-sxm"))
L4, T4, WHOLE, GEFORCE = (find_device(f"nvidia-{name}") for name in ("l4", "t4", "b300-sxm", "rtx-5090"))
B300 = replace(WHOLE, clocks=Clocks(tensor=WHOLE.clocks.tensor), memory=[level for level in WHOLE.memory if level.level != "l2"])
"""Without the highest clock and the L2."""
MI300, XEON, GAUDI, ARC = (find_device(name) for name in ("mi300x", "intel-xeon-8480plus", "gaudi3", "arc-pro-b60"))


# Who lends


def test_traits_are_those_of_the_instruction_set() -> None:
    found = {device.id: traits_of(device).matrix for device in (T4, A100, L4, H200, B200, B300, GEFORCE, MI300)}
    assert list(found.values()) == [MMA_SYNC, MMA_SYNC, MMA_SYNC, WGMMA, TCGEN05, TCGEN05, MMA_SYNC, MFMA]
    assert [traits_of(device).copies for device in (T4, A100, L4, H200, GEFORCE)] == [0, 1, 1, 2, 2]
    assert [traits_of(device).l2_parts for device in (T4, A100, L4, H200, B200, GEFORCE)] == [1, 2, 1, 2, 2, 1]
    assert [wide_matrix(device) for device in (A100, L4, H200, B200, GEFORCE, MI300)] == [False, False, True, True, False, False]


def test_lenders_run_kernels_alike() -> None:
    listed = [A100, H200, B200]
    assert nearest(L4, listed) is A100, "mma.sync and cp.async, though 8.9 is nearer to 9.0"
    assert nearest(GEFORCE, listed) is A100, "no tcgen05 in spite of its name"
    assert nearest(T4, listed) is A100
    assert nearest(B300, listed) is B200
    assert nearest(find_device("nvidia-rtx-3090"), [A100, L4]) is L4, "one L2"
    assert nearest(find_device("mi355x"), [find_device("mi210"), MI300]) is MI300


def test_no_cpu_or_accelerator_borrows_of_its_makers_gpus() -> None:
    assert nearest(find_device("amd-epyc-9654"), [MI300]) is None
    assert not transferable(XEON, ARC)
    assert not transferable(GAUDI, ARC)
    assert transferable(GAUDI, find_device("gaudi2"))
    assert transferable(find_device("tpu-v4"), find_device("tpu-v6e"))


def test_kernels_are_those_of_the_architecture() -> None:
    w = Attention(2048, 2048, 128, 128, dtype=DTYPES["bf16"]).check()
    few = Case(Attention(1, 2048, 128, 128, dtype=DTYPES["bf16"]).check(), "vllm-flash-attn")
    for device in (L4, GEFORCE):
        split = plan_of(Case(w, "vllm-flash-attn"), device)
        assert split._replace(resident=2) == plan_of(Case(w, "vllm-flash-attn"), A100), "FlashAttention-2, with less SRAM"
        assert model_of(few, device) is model_of(few, A100) is decode.FA2
        assert plan_of(Case(w, "triton-attention"), device).rows == 32
    assert decode.fa2_paged(few.workload, GEFORCE, 82).tiles == 16, "128 keys of 2,048 each"
    with pytest.raises(UnavailableError, match="no asynchronous copies"):
        plan_of(Case(w, "torch-sdpa-flash"), T4)
    with pytest.raises(UnavailableError, match="no decode kernel of vllm-flash-attn"):
        decode.FA2.seconds(few, T4, decode.FA2.starts())


# What a profile lacks


def test_estimates_are_scaled_by_hardware() -> None:
    """B300: 75 TFLOP/s of 148 x 256 a clock run at 1,979.5 MHz; an H200 with 66 SMs has half the exponentials of one with 132."""
    made, facts = completed(B300, B200)
    assert number(made, "clocks.vector") == pytest.approx(75e12 / (148 * 256))
    assert number(made, "clocks.max") == number(made, "clocks.vector")
    assert number(made, "memory.l2.capacity") == number(B200, "memory.l2.capacity")
    assert made.sources["reference"] == "estimated from nvidia-b200-sxm"
    assert {"clocks.vector", "memory.l2.capacity"} <= set(facts)
    half = replace(H200, multiprocessors=replace(H200.multiprocessors, number=66, value=66), peaks=replace(H200.peaks, exp=None))  # type: ignore[type-var]
    exps = completed(half, H100)[0].peaks.exp
    assert exps is not None
    assert H100.peaks.exp is not None
    assert (exps.kind, exps.source, exps.number) == ("estimated", "reference", pytest.approx(H100.peaks.exp.number / 2))
    assert completed(H200, H200) == (H200, [])


def test_only_what_the_model_reads_is_named() -> None:
    def seconds(device: Device) -> float:
        if device.clocks.max is None:
            raise UnavailableError("no clock")
        return 1e12 / device.clocks.max.number

    found, facts = with_needed_estimates(B300, B200, seconds)
    assert in_words(facts, B200) == "clock estimated from nvidia-b200-sxm"
    assert found.clocks.max is not None
    assert found.level("l2") is None
    assert with_needed_estimates(B300, B200, lambda device: 1.0) == (B300, [])
    wide = widened((0.5, 2.0), estimates_error(facts))
    assert wide[0] < 0.5
    assert wide[1] > 2.0
    assert wide[0] * wide[1] == pytest.approx(1)


def test_what_is_estimated_is_said_and_moves_no_bound() -> None:
    case = Case(Attention(1, 4096, 128, 128, 8, 32, 8, DTYPES["bf16"]).check(), "vllm-flash-attn")
    lower = lower_bound_s(case, B300)
    found = predict(TimeRequest(case, "attention", "bf16", B300, lower, calibrated_devices))
    assert found.kind == BORROWED
    assert found.guess in found.provenance
    assert "clock" in found.guess
    assert found.guess.endswith(B200.id)
    assert lower_bound_s(case, B300) == lower
    assert B300.clocks.max is None
    whole = predict(TimeRequest(case, "attention", "bf16", find_device("gb300"), lower, calibrated_devices))
    assert not whole.guess
    assert whole.high / whole.seconds < found.high / found.seconds


def test_no_profile_says_estimated() -> None:
    """A file that claims an estimate is told so."""
    from perfmodel.catalog import data_folder
    from perfmodel.core.files import read_yaml

    raw = read_yaml(data_folder("hardware_specs") / "nvidia-l4.yaml")[0]
    raw["tdp"]["kind"] = "estimated"
    with pytest.raises(DataError, match="tdp: kind is 'estimated'"):
        validated(raw)


# A prediction for every device


def cases(device: Device) -> Iterator[tuple[str, Case, str]]:
    """Kind, case and the algorithm that runs it, of every workload that any device is calibrated for, in formats that ``device`` has."""
    known = [name for name in ("bf16", "fp16", "fp32") if name in device.peaks_of("tensor") | device.peaks_of("vector")]
    half = DTYPES[known[0]]
    prompt = Attention(2048, 2048, 128, 128, 2, 16, 16, half, causal=True).check()
    step = Attention(1, 4096, 128, 128, 16, 32, 8, half, packed=True).check()
    yield from (("attention", Case(prompt, "", direction), "flash2") for direction in (FORWARD, BACKWARD))
    yield "attention", Case(step, ""), "flash2"
    yield from (("attention", Case(prompt, "", direction), "standard") for direction in (FORWARD, BACKWARD))
    yield from (("matmul", Case(Matmul(1024, 4096, 2048, dtype=DTYPES[name]), ""), "") for name in {half.name, "fp32"} & set(known))
    yield from ((op, Case(Stream(op, 4096, 4096, dtype=half), ""), "") for op in ("softmax", "norm", "scale"))


def predicted(device: Device, kind: str, case: Case, runs: str) -> Prediction:
    bounded = replace(case, implementation="torch-eager") if runs == "standard" else case
    lower = lower_bound_s(bounded, device)
    request = TimeRequest(case, kind, case.workload.dtype.name, device, lower, calibrated_devices)
    return select_kernel(request, lambda name: not runs or algorithm_of(name) == runs)


def sound(device: Device, found: Prediction, lower: float) -> None:
    assert lower <= found.low <= found.seconds <= found.high < float("inf"), (device.id, found)
    assert found.provenance


@pytest.mark.parametrize("device", EVERY, ids=lambda device: device.id)
def test_no_device_is_refused_a_prediction(device: Device) -> None:
    assert device.dram.bandwidth is not None
    for kind, case, runs in cases(device):
        if kind == "attention" and case.workload.dtype.size > 2:
            continue  # no device has fused kernels in fp32
        found = predicted(device, kind, case, runs)
        sound(device, found, lower_bound_s(replace(case, implementation="torch-eager") if runs == "standard" else case, device))


@pytest.mark.slow
@pytest.mark.parametrize("state", ["clean", "dirty", "warm"])
@pytest.mark.parametrize("scale", [1, 3, 8])
def test_no_device_is_refused_a_prediction_of_any_size(scale: int, state: str) -> None:
    for device in EVERY:
        for kind, case, runs in cases(device):
            w = case.workload
            larger = replace(w, batch=scale * w.batch) if not isinstance(w, Stream) else replace(w, rows=scale * w.rows + 1)
            if kind != "attention" or w.dtype.size == 2:
                asked = replace(case, workload=larger, cache=state)
                bounded = replace(asked, implementation="torch-eager") if runs == "standard" else asked
                sound(device, predicted(device, kind, asked, runs), lower_bound_s(bounded, device))


@pytest.mark.parametrize("device", [H100, B200, find_device("gb200")], ids=lambda device: device.id)
@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_no_kernel_is_shown_that_another_beats_beyond_both_intervals(device: Device, direction: str) -> None:
    """Of those that the device or one that multiplies alike was timed with: nobody trains on Blackwell with FlashAttention-2."""
    w = Attention(8192, 8192, 128, 128, 1, 32, 32, DTYPES["bf16"]).check()
    shown = predicted(device, "attention", Case(w, "", direction), "flash2")
    for name in ("torch-sdpa-flash", "torch-sdpa-cudnn", "cudnn-attention", "vllm-flash-attn"):
        try:
            other = predicted(device, "attention", Case(w, name, direction), "flash2")
        except UnavailableError:
            continue
        alike = other.reference is None or traits_of(other.reference).matrix == traits_of(device).matrix
        assert not alike or other.high >= shown.low, (name, other.seconds, shown.calibration.implementation, shown.seconds)


def test_a_borrowed_kernel_before_a_calibrated_one_is_said(run) -> None:  # type: ignore[no-untyped-def]
    line = "attention --n 8192 --d 128 --heads 32 --pass backward --hardware b200"
    said = "Predicted for cudnn-attention, which is borrowed; torch-sdpa-flash, which is calibrated here, takes"
    assert said in " ".join(run(line).out.split())
    assert "which is borrowed;" not in run(f"{line} --implementation torch-sdpa-flash").out


def test_without_kin_devices_are_pooled() -> None:
    """From the profile alone: what its microbenchmarks change is tested with them."""
    gaudi = replace(GAUDI, microbenchmarks=[])
    case = Case(Matmul(4096, 4096, 4096, dtype=DTYPES["bf16"]), "")
    found = select_kernel(TimeRequest(case, "matmul", "bf16", gaudi, 0.0, calibrated_devices))
    block = fits()["matmul/forward/tensor"]
    assert found.calibration is block
    assert found.provenance == f"pooled over {block.versions}; no kernel of this maker is calibrated"
    p = block.parameters
    compute, traffic = 2 * 4096**3 / 1835e12 / p["compute_share"], 3 * 4096**2 * 2 / 3670e9 / p["bandwidth_share"]
    joined = (compute ** p["overlap"] + traffic ** p["overlap"]) ** (1 / p["overlap"])
    assert found.seconds == pytest.approx(p["launch_us"] * 1e-6 + joined)
    assert (found.low, found.high) == pytest.approx((found.seconds * block.low, found.seconds * block.high))


def test_a_maker_without_the_kernel_is_told_so() -> None:
    """CUDA kernels by name stay refused elsewhere, PyTorch's operations do not; what no device runs is predicted nowhere."""
    w = Attention(2048, 2048, 128, 128, dtype=DTYPES["bf16"]).check()
    with pytest.raises(UnavailableError, match="no calibration of attention/torch-sdpa-flash"):
        select_kernel(TimeRequest(Case(w, "torch-sdpa-flash"), "attention", "bf16", GAUDI, 0.0, calibrated_devices))
    rows = Case(Stream("softmax", 4096, 4096, dtype=DTYPES["bf16"]), "torch-softmax")
    assert select_kernel(TimeRequest(rows, "softmax", "bf16", GAUDI, 0.0, calibrated_devices)).calibration.model == POOLED
    small = Matmul(64, 64, 64, dtype=DTYPES["bf16"])
    for name, words in (("", "no implementation of matmul in bf16"), ("torch-matmul", "no calibration of matmul/torch-matmul")):
        with pytest.raises(UnavailableError, match=words):
            select_kernel(TimeRequest(Case(small, name), "matmul", "bf16", GAUDI, 0.0))


def test_the_shipped_fits_are_complete() -> None:
    """One per workload and pass that devices are calibrated for, with the model's parameters and an interval around one."""
    wanted = {"attention/forward", "attention/forward/decode", "attention/backward", "attention/forward/standard", "softmax/forward"}
    wanted |= {"matmul/forward/tensor", "matmul/forward/vector", "norm/forward", "scale/forward", "attention/backward/standard"}
    assert wanted <= set(fits())
    for block in fits().values():
        assert set(block.parameters) == set(find_model(POOLED).starts())
        assert 0 < block.low < 1 < block.high
        assert block.low * block.high == pytest.approx(1, abs=1e-3)


def test_a_pooled_fit_is_judged_by_devices_it_does_not_see() -> None:
    """Two makers weigh alike: 80 % of their points lie within the half width before the factor for two devices, sqrt(1.5)."""
    errors = {"amd-one": [0.1] * 4, "nvidia-one": [0.2] * 40}
    assert refresh_pooled.half_width(errors) == pytest.approx(0.2 * 1.5**0.5)
    assert refresh_pooled.half_width({"amd-one": [0.1, 0.3], "nvidia-one": [0.2] * 8}) == pytest.approx(0.3 * 1.5**0.5)


@pytest.mark.slow
def test_estimates_move_times_as_much_as_intervals_widen() -> None:
    """What ``estimates.json`` says is what hidden numbers move, within a factor of two and 5 %."""
    records = [record for path in shipped_records() for _, record in read_records(path) if not record.implementation.startswith("numba-")]
    kept = [point for own in points(records[::8], {one.id: one for one in EVERY}).values() for point in own]
    mean = hidden_facts.spreads(kept, EVERY)
    for name, moves in mean.items():
        assert moves <= 2 * estimate_errors()[name] + 0.05, (name, json.dumps(mean))


@pytest.mark.parametrize("name", ["nvidia-l40s", "nvidia-h100-pcie-80gb", "nvidia-gb200", "nvidia-t4"])
def test_a_borrowed_product_is_one_kernel_alone_and_in_a_model(run, name: str) -> None:
    alone = run(f"matmul -m 4096 -n 4096 -k 4096 --hardware {name} --json").json["results"][0]
    ops = run(f"model llama-3-8b --phase prefill --n 4096 --hardware {name} --json").json["ops"]
    [row] = [one for one in ops if one["name"] == "output projection"]
    assert (row["implementation"], row["prediction"]["provenance"]) == (alone["implementation"], alone["prediction"]["provenance"])
    assert row["time_s"]["predicted"] / row["count"] == pytest.approx(alone["time_s"]["predicted"], abs=5e-6)  # a launch behind another
