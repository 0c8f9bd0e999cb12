"""``perfmodel roofline``: workloads, records and kernels of Nsight Compute files at the right place, and what a file lacks."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from perfmodel.catalog import find_device
from perfmodel.kernels.matmul import Matmul, evaluate
from perfmodel.program.ncu_csv import CountedKernel
from perfmodel.program.ncu_points import COLLECTED, COMMAND, KernelCount, added, count_of, read_kernels, short_name
from perfmodel.report.charts.roofline_metrics import bound, flag, intensity, share_of_roof
from perfmodel.report.document import from_data
from perfmodel.report.metrics import BOUND_WORDS
from perfmodel.report.roofline_chart import roofline
from perfmodel.report.saved_metrics import of_report
from perfmodel.validation.records import read_records, shipped_records

DATA = Path(__file__).parent / "data"
RECORDED = DATA / "ncu_h200.csv"
"""Kernels of this package on an H200, as ncu wrote them."""
WITH_FLOP = DATA / "ncu_h200_kernels.csv"
"""As COMMAND says, --page raw: nine cases of this package, 14 launches."""
LIBRARIES = DATA / "ncu_h200_libraries.csv"
"""The same of PyTorch: products of 4096 x 4096 matrices in five formats (fp64: 1024), fused attention, an addition."""
H200 = "nvidia-h200-sxm"
LAUNCHED = {
    15: (4 * 16 * 16384**2 * 128, "fp32"),
    20: (4 * 132 * 512**2 * 64, "fp32"),
    53: (4 * 32 * 16384**2 * 128, "fp16"),
    57: (4 * 4 * 16 * (512 * 7680 + 512 * 513 // 2) * 128, "fp16"),
}
"""FLOP of their launches: 4 d per visible score (numba-flash, numba-flash1 at 64, twice numba-flash-mma; the last one is causal)."""


def rows_of(path: Path) -> dict[int, dict[str, float]]:
    """Metrics by launch, read in a way of its own."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("==")]
    found: dict[int, dict[str, float]] = {}
    factor = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "sector": 1}
    for row in csv.DictReader(lines):
        value = float(row["Metric Value"].replace(",", "")) * factor[row["Metric Unit"]]
        found.setdefault(int(row["ID"]), {})[row["Metric Name"]] = value
    return found


def report_of(run: Any, line: str, *more: str) -> Any:
    outcome = run(f"roofline {line} --json", *more)
    assert outcome.code == 0, outcome.err
    return from_data(outcome.json)


def told(launch: int) -> str:
    flops, dtype = LAUNCHED[launch]
    return f"#{launch}={flops}@{dtype}"


# Nsight Compute


def test_kernels_of_a_recording_lie_at_their_intensity_and_rate(run) -> None:
    options = [word for launch in LAUNCHED for word in ("--flops", told(launch))]
    [chart] = report_of(run, f"--ncu {RECORDED} --hardware h200", *options).rooflines
    device, raw = find_device(H200), rows_of(RECORDED)
    assert chart.device == H200
    assert len(chart.points) == len(raw) == 6
    for point, (launch, metrics) in zip(chart.points, raw.items(), strict=True):
        dram = metrics["dram__bytes_read.sum"] + metrics["dram__bytes_write.sum"]
        l2, spent = metrics["l1tex__m_xbar2l1tex_read_bytes.sum"], metrics["gpu__time_duration.sum"]
        assert point.measured.value == pytest.approx(spent)
        assert point.bytes.get("dram") == pytest.approx(dram)
        assert point.bytes.get("l2", 0) == pytest.approx(l2)
        terms = {"dram": dram / 4.8e12, "l2": l2 / 9.7e12}
        if launch in LAUNCHED:
            flops, dtype = LAUNCHED[launch]
            assert point.flops / point.measured.value == pytest.approx(flops / spent)
            assert intensity(point, "dram") == pytest.approx(flops / dram)
            assert intensity(point, "l2") == pytest.approx(flops / l2)
            unit = "vector" if dtype == "fp32" else "tensor"
            terms[unit] = flops / float(device.peaks_of(unit)[dtype].number)
        assert bound(point) == max(terms, key=lambda name: terms[name])
        assert share_of_roof(point) == pytest.approx(max(terms.values()) / spent)
        assert not flag(point)


BANDWIDTH = {"dram": 4.8e12, "l2": 9.7e12, "sram": 33.45e12}
"""Of the H200: datasheet, measured, 128 bytes per clock and SM at 1.98 GHz as its profile rounds it."""


def wide_rows(path: Path) -> list[dict[str, float]]:
    """Counters of a --page raw file, by launch; its second row holds units."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("==")]
    units, *launches = csv.DictReader(lines)
    assert {units[name] for name in ("gpu__time_duration.sum", "dram__bytes_read.sum")} == {"ns", "byte"}
    return [{name: float(row[name].replace(",", "")) for name in COLLECTED} for row in launches]


def test_a_recording_with_flop_counters_places_every_kernel(run) -> None:
    """Without --flops: intensity and rate from the counters alone, read here in a way of its own."""
    report = report_of(run, f"--ncu {WITH_FLOP} --hardware h200")
    [chart] = report.rooflines
    device, raw = find_device(H200), wide_rows(WITH_FLOP)
    assert len(chart.points) == len(raw) == 14
    for point, m in zip(chart.points, raw, strict=True):
        spent = m["gpu__time_duration.sum"] * 1e-9
        vector = sum(m[f"smsp__sass_thread_inst_executed_op_f{op}_pred_on.sum"] * flop for op, flop in (("add", 1), ("mul", 1), ("fma", 2)))
        tensor = m["sm__ops_path_tensor_src_fp16.sum"]
        levels = {
            "dram": m["dram__bytes_read.sum"] + m["dram__bytes_write.sum"],
            "l2": m["l1tex__m_xbar2l1tex_read_bytes.sum"] + m["l1tex__m_l1tex2xbar_write_bytes.sum"],
            "sram": m["smsp__sass_data_bytes_mem_shared.sum"],
        }
        flops, peak = (tensor, device.peaks_of("tensor")["fp16"]) if tensor else (vector, device.peaks_of("vector")["fp32"])
        assert point.flops / point.measured.value == pytest.approx(flops / spent)
        for level, moved in levels.items():
            if flops:
                assert intensity(point, level) == (pytest.approx(flops / moved) if moved else None)
        terms = {level: moved / BANDWIDTH[level] for level, moved in levels.items()}
        terms["tensor" if tensor else "vector"] = flops / float(peak.number)
        assert bound(point) == max(terms, key=lambda name: terms[name])
        assert share_of_roof(point) == pytest.approx(max(terms.values()) / spent)
        assert not flag(point)
        assert any(said.startswith(f"{point.name} is bound by ") for said in report.reasons)


def test_flop_counters_equal_the_counts() -> None:
    """A product's 2 m n k, and 4 d per score of the tiles that are visited, to the FLOP."""
    own = {kernel.name: kernel for kernel in read_kernels(WITH_FLOP)}
    assert own["matmul"].flops["vector", "fp32"] == 2 * 2048**3
    assert own["flash_mma #7"].flops["tensor", "fp16"] == 4 * 2 * 16 * 4096**2 * 128
    visited = sum(128 * (128 * (row + 1)) for row in range(4096 // 128))
    assert own["flash_mma #8"].flops["tensor", "fp16"] == 4 * 2 * 16 * visited * 64
    assert own["build_outputs::standard_outputs"].flops["vector", "fp32"] == 2 * 8 * 2048**2 * 64
    found = {dtype: flop for one in read_kernels(LIBRARIES) for (unit, dtype), flop in one.flops.items() if unit == "tensor" and flop}
    assert found == {**dict.fromkeys(("fp16", "tf32", "fp8"), 2 * 4096**3), "fp64": 2 * 1024**3, "bf16": 4 * 2 * 16 * 4096**2 * 128}


def test_shared_memory_that_only_wgmma_reads_is_missing_not_small(run) -> None:
    kernels = [one for one in read_kernels(LIBRARIES) if one.name.startswith(("nvjet", "pytorch_flash"))]
    assert [("sram" in one.bytes, any("wgmma" in word for word in one.missing)) for one in kernels] == [(False, True)] * 2 + [
        (True, False),
        (False, True),
    ]
    report = report_of(run, f"--ncu {LIBRARIES} --hardware h200")
    assert any("wgmma and bulk copies" in note for note in report.notes)
    assert any("one read of the L2 fed several SMs" in said for said in report.reasons)


def test_what_a_file_lacks_is_told_with_the_command(run) -> None:
    report = report_of(run, f"--ncu {RECORDED} --hardware h200")
    [missing] = [note for note in report.notes if note.startswith("Not in the file")]
    assert "FLOP (6 of 6 kernels)" in missing
    assert "bytes from SMs to the L2" in missing
    assert COMMAND in missing
    assert any("MemoryWorkloadAnalysis" in note and "--page raw" in note for note in report.notes)
    assert all(metric in COMMAND for metric in COLLECTED)
    assert run("roofline --ncu-command").out == COMMAND + "\n"
    both = run("roofline --ncu-command --json")
    assert (both.code, both.out) == (2, "")
    assert "give it alone" in both.err


def test_a_count_that_cannot_be_is_flagged_in_words(run) -> None:
    report = report_of(run, f"--ncu {RECORDED} --hardware h200", "--flops", "#15=999TFLOP@fp32")
    assert any("ABOVE ITS ROOF" in said and "flash #15" in said for said in report.reasons)


def test_flops_go_to_the_kernel_of_that_name_first(run) -> None:
    report = report_of(run, f"--ncu {RECORDED} --hardware h200", "--flops", "flash=1e9", "--flops", "mma=2e9@fp16")
    flops = {point.name: point.flops for chart in report.rooflines for point in chart.points}
    assert flops == {
        "flash #0": 10**9,
        "flash #15": 10**9,
        "build_fill::fill": 0,
        "flash1": 0,
        "flash_mma #53": 2 * 10**9,
        "flash_mma #57": 2 * 10**9,
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--ncu x.csv", "say so with --hardware"),
        ("--ncu x.csv --hardware h200", "x.csv: No such file"),
        (f"--ncu {RECORDED} --hardware h200 --hardware a100-sxm-80gb", "the profile is of one device"),
        (f"--ncu {RECORDED} --hardware h200 --flops flash", "names no kernel"),
        (f"--ncu {RECORDED} --hardware h200 --flops fash=1e9", "no kernel is called 'fash'\n  did you mean"),
        (f"--ncu {RECORDED} --hardware h200 --flops flash=1e9@fp17", "no format is called 'fp17'"),
        (f"--ncu {RECORDED} --hardware h200 --flops flash=much", "is not a number of FLOP"),
        ("--flops flash=1e9", "--flops without --ncu"),
        (f"--ncu {DATA / 'hardware_facts.json'} --hardware h200", "this is not from ncu --csv"),
    ],
)
def test_wrong_profiles(run, options: str, said: str) -> None:
    outcome = run(f"roofline {options}")
    assert outcome.code in (1, 2)
    assert said in outcome.err


VECTOR = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
TENSOR = "sm__ops_path_tensor_src_{}.sum"
DRAM = {"dram__bytes_read.sum": 6e6, "dram__bytes_write.sum": 2e6}
L2 = {"l1tex__m_xbar2l1tex_read_bytes.sum": 3e7, "l1tex__m_l1tex2xbar_write_bytes.sum": 1e7}
TIME = {"gpu__time_duration.sum": 1e-4}


def counted(**metrics: float) -> KernelCount:
    return count_of(CountedKernel(0, "kernel", 1, metrics))


def test_flop_of_instructions_and_of_the_tensor_unit() -> None:
    metrics = {VECTOR.format(op): count for op, count in (("fadd", 10), ("fmul", 20), ("ffma", 30), ("hfma", 4), ("dadd", 1))}
    found = counted(**TIME, **DRAM, **L2, **metrics, **{TENSOR.format("bf16_dst_fp32"): 1000.0, TENSOR.format("int8"): 7.0})
    assert found.flops == {("vector", "fp32"): 10 + 20 + 2 * 30, ("vector", "fp16"): 4 * 4, ("vector", "fp64"): 1, ("tensor", "bf16"): 1000}
    assert found.bytes == {"dram": 8e6, "l2": 4e7}
    assert found.missing == ()


def test_counters_that_hold_each_other_count_once() -> None:
    metrics = {TENSOR.format(name): value for name, value in (("fp16", 9.0), ("fp16_dst_fp32", 5.0), ("fp16_dst_fp16", 4.0))}
    metrics |= {TENSOR.format("tf32_dst_fp32_sparsity_off"): 3.0, TENSOR.format("tf32_dst_fp32_sparsity_on"): 2.0}
    assert counted(**TIME, **metrics).flops == {("tensor", "fp16"): 9, ("tensor", "tf32"): 5}
    del metrics[TENSOR.format("fp16")]
    assert counted(**TIME, **metrics).flops["tensor", "fp16"] == 9


def test_rates_of_the_roofline_sections_are_counts_too() -> None:
    ffma = VECTOR.format("ffma").removesuffix(".sum")
    metrics = {
        **TIME,
        "smsp__cycles_elapsed.avg.per_second": 1.5e9,
        "sm__cycles_elapsed.avg": 150_000.0,
        VECTOR.format("fadd") + ".per_cycle_elapsed": 100.0,
        f"derived__{ffma}_x2": 4000.0,
        TENSOR.format("fp16") + ".per_cycle_elapsed": 2000.0,
        "dram__bytes.sum.per_second": 8e10,
    }
    found = counted(**metrics)
    cycles = 1.5e9 * 1e-4
    assert found.flops == {("vector", "fp32"): pytest.approx(cycles * (100 + 4000)), ("tensor", "fp16"): pytest.approx(2000 * 150_000)}
    assert found.bytes == {"dram": pytest.approx(8e6)}
    assert found.missing == ("bytes between L2 and SMs",)


def test_what_is_missing_of_a_kernel() -> None:
    assert counted().missing == ("duration", "DRAM bytes", "bytes between L2 and SMs", "FLOP")
    half = counted(
        **TIME, **DRAM, **{VECTOR.format("ffma"): 5.0, "sm__inst_executed_pipe_tensor.sum": 3.0, "l1tex__m_xbar2l1tex_read_bytes.sum": 1.0}
    )
    assert half.missing == ("bytes from SMs to the L2 (L2 bytes are reads alone)", "FLOP of the tensor unit, which ran")


def test_many_launches_are_added_up_by_name() -> None:
    ones = [counted(**TIME, **DRAM), counted(**TIME, **DRAM, **L2)]
    both = added("kernel", ones)
    assert (both.name, both.runs, both.time_s) == ("kernel x 2", (0, 0), pytest.approx(2e-4))
    assert both.bytes == {"dram": 16e6}
    assert [(k.name, len(k.runs)) for k in read_kernels(RECORDED, most=3)] == [
        ("flash x 2", 2),
        ("build_fill::fill", 1),
        ("flash1", 1),
        ("flash_mma x 2", 2),
    ]


def test_names_of_kernels_are_short() -> None:
    assert short_name("void cutlass::Kernel2<" + "x" * 200 + ">(T1::Params)") == "cutlass::Kernel2<" + "x" * 200 + ">"
    assert short_name("void (anonymous namespace)::softmax<float, 4>(float*)") == "{}::softmax<float, 4>"


def test_a_profile_in_a_study_is_found_beside_it(run, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_bytes(RECORDED.read_bytes())
    text = "study:\n  title: mine\n  sections:\n    - {kind: roofline, devices: [h200], ncu: {file: mine.csv, flops: {flash1: 8.9GFLOP}}}\n"
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    report = from_data(run(f"roofline {tmp_path / 'mine.yaml'} --json").json)
    assert "mine.csv" in report.provenance.inputs
    assert len(report.rooflines[0].points) == 6


def without(path: Path, unwanted: str, rows: int | None = None) -> str:
    """``path`` without columns that have ``unwanted`` in their name, and with its first ``rows`` rows alone."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("==")]
    found = list(csv.reader(lines))[:rows]
    kept = [place for place, name in enumerate(found[0]) if not unwanted or unwanted not in name]
    return "".join(",".join(f'"{row[place]}"' for place in kept) + "\n" for row in found)


def test_a_file_without_a_kernel_is_told(run, tmp_path: Path) -> None:
    file = tmp_path / "header.csv"
    file.write_text(without(WITH_FLOP, "", rows=2), encoding="utf-8")
    outcome = run(f"roofline --ncu {file} --hardware h200")
    assert (outcome.code, outcome.out) == (1, "")
    assert "no kernel in the file" in outcome.err
    assert "--ncu-command" in outcome.err


def test_without_counters_of_the_vector_unit_no_roof_is_certain(run, tmp_path: Path) -> None:
    file = tmp_path / "tensor.csv"
    file.write_text(without(WITH_FLOP, "thread_inst_executed_op"), encoding="utf-8")
    report = report_of(run, f"--ncu {file} --hardware h200")
    assert any(note.startswith("Not in the file: FLOP of the vector unit (14 of 14 kernels)") for note in report.notes)
    tensor = [point for point in report.rooflines[0].points if point.flops]
    assert [point.name for point in tensor] == ["flash_mma #7", "flash_mma #8"]
    assert {(p.dtype, p.unit) for p in report.rooflines[0].points if not p.flops} == {("", "")}
    assert not any(" is bound by " in said for said in report.reasons)
    assert any(said.startswith("flash_mma #7, of which not every FLOP was counted, seems to be bound by ") for said in report.reasons)
    assert any(said.startswith("flash #0, of which only bytes were counted, seems to be bound by ") for said in report.reasons)
    assert "12 of 14 kernels have no FLOP in the file" in "\n".join(report.verdict)


# Workloads and records


def test_workloads_of_options(run) -> None:
    report = report_of(
        run, "--hardware h200", "--attention", "n=4096 d=64 heads=16 batch=8 algorithm=standard+flash2", "--matmul", "512x512x64 dtype=bf16"
    )
    [chart] = report.rooflines
    names = [point.name for point in chart.points]
    assert names == ["standard, n 4096 d 64 b 8 h 16 fp16", "flash2, n 4096 d 64 b 8 h 16 fp16", "matmul 512 x 512 x 64 bf16"]
    cost = evaluate(Matmul(512, 512, 64), find_device(H200)).total
    assert chart.points[2].roofline_s == cost.roofline_s
    assert chart.points[2].bytes["dram"] == cost.dram.total
    assert all(name in " ".join(report.reasons) for name in names)
    assert report.provenance.command.startswith("perfmodel roofline --attention 'n=4096 d=64")


def test_a_phase_of_a_model_is_a_point_per_kernel(run) -> None:
    report = report_of(run, "--hardware h200", "--model", "llama-3-8b decode batch=8 kv_len=2048 dtype=bf16")
    points = report.rooflines[0].points
    assert {"QKV projection", "attention", "LM head"} <= {point.name for point in points}
    assert sum(point.share for point in points) == pytest.approx(1)
    entry = run("model llama-3-8b --phase decode --batch 8 --kv-len 2048 --dtype bf16 --hardware h200 --json").json
    assert sum(point.predicted.value for point in points) == pytest.approx(entry["totals"]["time_s"]["predicted"])
    assert {op["name"]: op["time_s"]["roofline"] for op in entry["ops"]} == {point.name: point.roofline_s for point in points}
    assert "of the time is in" in report.reasons[0]


@pytest.mark.parametrize("device", ["h200", "b200", "a100-sxm-80gb", "rtx-4090", "mi300x"])
@pytest.mark.parametrize("dtype", ["fp16", "fp8"])
def test_one_limiter_of_a_product_and_no_meter_above_its_roof(run, device: str, dtype: str) -> None:
    for size in (1024, 4096, 8192):
        line = f"matmul -m {size} -n {size} -k {size} --dtype {dtype} --hardware {device}"
        outcome = run(f"{line} --json")
        if outcome.code:
            continue
        [entry], screen = outcome.json["results"], run(line).out
        assert all(int(share) <= 100 for share in re.findall(r"[█·]{10,}\s+(\d+)%", screen)), screen
        assert entry["time_s"]["roofline"] <= entry["time_s"]["predicted"] * (1 + 5e-4)
        limit = max(entry["time_s"]["terms"], key=entry["time_s"]["terms"].get)
        assert entry["bound"] == limit
        assert [
            one
            for one in screen.splitlines()
            if "< limits" in one and not one.startswith((BOUND_WORDS[limit].removeprefix("the "), "power"))
        ] == []


def test_no_kernel_of_a_step_is_predicted_above_its_roof(run) -> None:
    for step in ("prefill n=2048", "decode batch=8 kv_len=2048"):
        report = report_of(run, "--hardware h200", "--model", f"llama-3-8b {step} dtype=bf16")
        assert max(share_of_roof(point) for point in report.rooflines[0].points) < 1.0005
        assert "ABOVE" not in report.reasons[0]


def test_what_does_not_fit_cannot_run(run) -> None:
    report = report_of(run, "--hardware a100-sxm-80gb", "--model", "llama-3-70b decode batch=8 kv_len=2048")
    memory = run("model llama-3-70b --phase decode --batch 8 --kv-len 2048 --hardware a100-sxm-80gb --json").json["memory"]
    assert memory["fits"] is False
    assert report.reasons[0].startswith(
        "llama-3-70b decode kv 2048 b 8 CANNOT RUN: it needs 146.5 GB of memory and NVIDIA A100 SXM 80 GB has"
    )
    assert all(point.note.startswith("CANNOT RUN: ") for point in report.rooflines[0].points)
    fits = report_of(run, "--hardware h200", "--model", "llama-3-8b decode batch=8", "--matmul", "512x512x64")
    assert "CANNOT RUN" not in json.dumps([fits.reasons, [point.note for point in fits.rooflines[0].points]])
    large = report_of(run, "--hardware a100-sxm-80gb", "--matmul", "200000x200000x1000 dtype=bf16")
    assert "CANNOT RUN" not in large.reasons[0]
    larger = report_of(run, "--hardware a100-sxm-80gb", "--matmul", "210000x210000x1000 dtype=bf16")
    assert "CANNOT RUN" in larger.reasons[0]


def test_points_tell_the_kernel_that_is_predicted(run) -> None:
    options = ["--attention", "n=4096 d=64 heads=16 batch=8 algorithm=flash2 dtype=bf16"]
    for name in ("torch-sdpa-flash", "torch-sdpa-cudnn"):
        [point] = report_of(run, f"--hardware h200 --implementation {name}", *options).rooflines[0].points
        assert point.note.startswith(f"predicted for {name}, calibrated here: ")
    points = report_of(run, "--hardware h200", "--model", "llama-3-8b decode batch=8").rooflines[0].points
    assert all("predicted for " in point.note for point in points if point.predicted)


def test_devices_share_the_level_that_is_shown_first(run) -> None:
    asked = ("--attention", "n=512 d=64 heads=16 batch=8")
    alone = [report_of(run, f"--hardware {name}", *asked).rooflines[0].level for name in ("h200", "a100-sxm-80gb")]
    both = [chart.level for chart in report_of(run, "--hardware h200 --hardware a100-sxm-80gb", *asked).rooflines]
    assert len(set(alone)) == 2
    assert len(set(both)) == 1
    records = ("--records", "shipped hardware=h200 implementation=torch-sdpa-flash pass=forward most=4")
    merged = report_of(run, "--hardware h200 --hardware a100-sxm-80gb", *asked, *records).rooflines
    assert len({chart.level for chart in merged}) == 1


def test_collectives_are_left_out_and_counted(run, tmp_path: Path) -> None:
    path = shipped_records("public-collectives")[0]
    lines = [raw for raw, _ in read_records(path)][:3]
    matmul = {
        **{"workload": "matmul", "implementation": "torch-matmul", "hardware": lines[0]["hardware"], "dtype": "bf16", "pass": "forward"},
        **{"shape": {"m": 4096, "n": 4096, "k": 4096}, "time_s": {"median": 2e-4, "p10": 2e-4, "p90": 2e-4}, "cache": "cold"},
    }
    file = tmp_path / "both.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in [*lines, matmul]), encoding="utf-8")
    report = report_of(run, "", "--records", str(file))
    assert [point.flops for point in report.rooflines[0].points] == [2 * 4096**3]
    assert any(note.startswith("3 records are not shown: ") for note in report.notes)
    file.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    assert "3 records are not shown: " in report_of(run, "", "--records", str(file), "--require", "0").verdict[0]


def test_unknown_flop_have_no_format(run) -> None:
    report = report_of(run, f"--ncu {RECORDED} --hardware h200", "--flops", "#15=1e12@fp32")
    [chart] = report.rooflines
    assert {(point.dtype, point.unit) for point in chart.points if point.name != "flash #15"} == {("", "")}
    assert chart.caption.startswith("FLOP unknown: collect ")
    assert "sm__ops_path_tensor_" in chart.caption
    assert {one.key for one in of_report(report) if one.unit == "FLOP"} == {"flash #15"}
    assert any("5 of 6 kernels have no FLOP" in said for said in report.verdict)


def test_records_of_a_file_lie_beside_workloads(run, tmp_path: Path) -> None:
    record = {
        "workload": "matmul",
        "implementation": "torch-matmul",
        "hardware": H200,
        "dtype": "bf16",
        "pass": "forward",
        "shape": {"m": 4096, "n": 4096, "k": 4096},
        "time_s": {"median": 2.1e-4, "p10": 2.0e-4, "p90": 2.2e-4},
        "cache": "cold",
    }
    (tmp_path / "mine.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    report = report_of(run, "--hardware h200", "--matmul", "512x512x64", "--records", str(tmp_path / "mine.jsonl"))
    [chart] = report.rooflines
    assert [point.number for point in chart.points] == [1, 2]
    assert chart.points[1].measured.value == 2.1e-4
    assert report.provenance.inputs.keys() == {"mine.jsonl"}


def test_hardware_chooses_among_records(run) -> None:
    records = ("--records", str(DATA / "records.jsonl"))
    assert len(report_of(run, "", *records).rooflines) > 4
    [chart] = report_of(run, "--hardware h200", *records).rooflines
    assert chart.device == H200
    both = report_of(run, "--hardware h200 --hardware a100-sxm-80gb --hardware t4", *records)
    assert [one.device for one in both.rooflines] == [H200, "nvidia-a100-sxm-80gb"]
    assert "No record in " in both.notes[0]
    assert both.notes[0].endswith(" is of nvidia-t4.")
    most = report_of(run, "--hardware h200 --hardware a100-sxm-80gb", "--records", "shipped implementation=torch-sdpa-flash most=4")
    assert sum(len(one.points) for one in most.rooflines) == 4
    outcome = run("roofline --hardware t4", *records)
    assert (outcome.code, outcome.out) == (2, "")
    assert "is of nvidia-t4\n  its records are of nvidia-h200-sxm, " in outcome.err


def test_a_picture_opens_at_the_roof_that_is_passed(run) -> None:
    """A point above its roof lies above a ceiling only at the level of that roof."""
    [chart] = report_of(run, f"--ncu {LIBRARIES} --hardware h200").rooflines
    above = [point for point in chart.points if flag(point)]
    assert [point.number for point in above] == [6, 14]
    assert chart.level == "l2"
    assert all(point.flops / point.measured.value > BANDWIDTH[chart.level] * intensity(point, chart.level) for point in above)
    others = [point for point in chart.points if not flag(point)]
    assert roofline(find_device(H200), others).level == "dram"


def test_the_rooflines_of_a_study(run) -> None:
    report = report_of(run, "standard-vs-flash")
    assert {chart.kind for chart in report.charts} == {"roofline"}
    assert run("roofline training-memory").code == 2
    assert "a study names its own" in run("roofline standard-vs-flash --hardware h200").err


def test_a_baseline_draws_arrows(run, tmp_path: Path) -> None:
    saved = tmp_path / "before.json"
    options = ("--matmul", "512x512x64", "--attention", "n=64 d=64 algorithm=flash2")
    assert run(f"roofline --hardware h200 -o {saved}", *options).code == 0
    document = json.loads(saved.read_text(encoding="utf-8"))
    point = document["charts"][0]["points"][0]
    point["predicted"]["value"] *= 2
    saved.write_text(json.dumps(document), encoding="utf-8")
    report = report_of(run, f"--hardware h200 --baseline {saved}", *options)
    now = report.rooflines[0].points[0]
    assert now.before.time_s == pytest.approx(2 * now.predicted.value)
    assert now.before.name == "before"
    assert report.verdict[0].startswith("this report is predicted 1.5x faster than before (")
    assert report.verdict[0].endswith(": flash2 2x, matmul 512 x 512 x 64 1x.")
    assert report.reasons[0].startswith("this report against before: 1 FASTER, 1 SAME of 2 predicted times")
    assert run(f"roofline --hardware h200 --baseline {saved} -o {tmp_path / 'x.svg'}", *options).code == 0
    assert ">baseline<" in (tmp_path / "x.svg").read_text(encoding="utf-8")
