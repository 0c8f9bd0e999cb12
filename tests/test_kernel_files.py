"""Files of kernels without operators: Nsight Compute, Nsight Systems and rocprof, found by their header."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from perfmodel.core.errors import DataError
from perfmodel.program.kernel_files import ATTENTION, COLLECTIVE, COPY, ELEMENTS, OTHER, PRODUCT, FileKernel, kind_of, read_kernel_profile
from perfmodel.program.profile import ProgramProfile

DATA = Path(__file__).with_name("data")
NSYS, NSYS_ROWS, V3, V3_ROWS, COUNTERS, V1 = (
    *(part for tool in ("nsys", "rocprofv3") for part in re.split(r"(?<=\n)", (DATA / f"kernels_{tool}.csv").read_text(), maxsplit=1)),
    *((DATA / f"kernels_{tool}.csv").read_text() for tool in ("counters", "rocprof")),
)
"""Small files of each tool, with headers as the tools write them: head and rows of two, the whole of two."""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "kernels.csv"
    path.write_text(text)
    return path


def kernels(tmp_path: Path, text: str) -> tuple[ProgramProfile, list[FileKernel]]:
    profile = read_kernel_profile(written(tmp_path, text))
    assert profile is not None
    return profile, [kernel for kernel in profile.kernels if isinstance(kernel, FileKernel)]


def test_nsight_systems_gives_times_sizes_and_the_busiest_gpu(tmp_path: Path) -> None:
    profile, found = kernels(tmp_path, f"\nNOTICE: exported, before\nProcessing [a.sqlite]...\n{NSYS}{NSYS_ROWS}")
    assert (profile.device, profile.gpus, profile.tool) == ("NVIDIA H200", 2, "nsys stats")
    assert [kernel.name for kernel in found] == ["flash::flash_fwd_kernel<128>", "sm90_xmma_gemm_bf16", "[CUDA memcpy Device-to-Device]"]
    assert [(kernel.grid, kernel.block, kernel.moved) for kernel in found[::2]] == [((8, 2, 1), (128, 1, 1), 0), ((), (), 2_500_000)]
    assert profile.span_s == pytest.approx(1000e-9)
    assert profile.busy_s == pytest.approx(800e-9)  # the copy overlaps the product


def test_units_of_nsight_systems_are_those_of_its_header(tmp_path: Path) -> None:
    in_us = NSYS.replace("(ns)", "(us)").replace("(MB)", "(KiB)")
    _, found = kernels(tmp_path, in_us + NSYS_ROWS)
    assert (found[0].seconds, found[2].moved) == (pytest.approx(400e-6), 2560)
    with pytest.raises(DataError, match="unit of time"):
        read_kernel_profile(written(tmp_path, NSYS.replace("Duration (ns)", "Duration (weeks)") + NSYS_ROWS))


def test_grids_of_rocprof_are_counted_in_threads(tmp_path: Path) -> None:
    profile, found = kernels(tmp_path, V3 + V3_ROWS)
    assert [(kernel.name, kernel.grid, kernel.block) for kernel in found] == [
        ("Cijk_Ailk", (4, 2, 1), (256, 1, 1)),
        ("k", (1, 1, 1), (64, 1, 1)),
    ]
    assert profile.waits == pytest.approx({"host": 0.0, "launch": 500e-9})


@pytest.mark.parametrize(("text", "moved"), [(COUNTERS, [4096, 6144]), (V1, [4096])])
def test_counters_of_rocprof_are_kibibytes_of_memory(tmp_path: Path, text: str, moved: list[int]) -> None:
    _, found = kernels(tmp_path, text)
    assert [kernel.counts.bytes["dram"] for kernel in found] == moved
    assert [kernel.seconds for kernel in found] == pytest.approx([1e-6] * len(found))
    assert found[0].name == "add"


@pytest.mark.parametrize("name", ["ncu_long.csv", "ncu_wide.csv"])
def test_nsight_compute_has_counters_and_no_start_times(run: Any, name: str) -> None:
    outcome = run("", "trace", str(DATA / name), "--hardware", "h200", "--json")
    data = json.loads(outcome.out)
    assert (data["schema"], data["tool"]) == ("perfmodel.trace/1", "ncu --csv")
    unknown = ("span_s", "busy_s", "idle_share", "predicted_s", "known_share", "lower_s")
    assert {data[key] for key in unknown} == {None}
    copied = next(row for row in data["operators"] if row["name"] == "copy")
    assert (copied["grid"], copied["block"], copied["kind"]) == ([16384, 1, 1], [256, 1, 1], COPY)
    assert copied["bytes_per_s"] == pytest.approx(copied["dram_bytes"] / copied["measured_s"])
    assert copied["roof_share"] == pytest.approx(copied["roof_s"] / copied["measured_s"])
    assert data["measured_s"] == pytest.approx(sum(row["measured_s"] for row in data["operators"]))
    assert data["measured_s"] == pytest.approx(sum(row["measured_s"] for row in data["kinds"]))


def test_what_is_not_known_is_said_and_refused(run: Any, tmp_path: Path) -> None:
    path = str(written(tmp_path, NSYS + NSYS_ROWS))
    outcome = run("", "trace", path)
    assert "the GPU is busy 80% and idle 200 ns" in outcome.out
    assert "attention 44%" in outcome.out
    assert "record_shapes=True" in outcome.out
    assert "nothing is predicted" in run("", "trace", path, "--on", "b200").err
    profile = str(DATA / "traces" / "bert-small-h100.json.gz")
    assert "--compare" in run("", "trace", path, "--compare", profile).err
    compared = json.loads(run("", "trace", path, "--compare", path, "--json").out)
    assert {change["change"] for change in compared["changes"]} == {"SAME"}
    events = tmp_path / "step.trace.json"
    assert run("", "trace", path, "-o", str(events)).code == 0
    assert [event["name"] for event in json.loads(events.read_text())["traceEvents"]][-1] == "[CUDA memcpy Device-to-Device]"


def test_whatever_is_broken_is_one_message_with_its_line(tmp_path: Path) -> None:
    for text, said in (
        (NSYS, "only a header"),
        (NSYS + NSYS_ROWS.replace("400", "-400"), "line 2: Duration .ns. is '-400'"),
        (NSYS + NSYS_ROWS.replace("1600", "nan"), "line 3: Start .ns. is 'nan'"),
        (NSYS + NSYS_ROWS.replace("1600", "9" * 400), "line 3: Start"),
        (NSYS + NSYS_ROWS[:40], "line 2: .* cells, the header has 20"),
        (NSYS + NSYS_ROWS[:60], "line 2: a kernel without a name"),
        (V3 + V3_ROWS.replace("9000", "4000"), "line 2: End_Timestamp is 4000, before Start_Timestamp, 5000"),
        (V3 + V3_ROWS.replace("9000", "5000").replace("9600", "9500"), "no kernel has a duration"),
        (V3 + V3_ROWS.replace("256,1,1", "many,1,1"), "line 2: Workgroup_Size_X is 'many'"),
        (V1.replace("BeginNs", "DispatchNs"), "line 1: no columns BeginNs and EndNs"),
        (NSYS + '"' + "a" * (1 << 21), "line 2: longer than"),
    ):
        with pytest.raises(DataError, match=said):
            read_kernel_profile(written(tmp_path, text))
    (tmp_path / "kernels.csv").write_bytes(NSYS.encode() + b"\xff\xfe")
    with pytest.raises(DataError, match="line 2: byte 0 is not UTF-8"):
        read_kernel_profile(tmp_path / "kernels.csv")


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "<html></html>", '{"traceEvents": []}\n' + NSYS + NSYS_ROWS])
def test_what_has_no_such_header_is_left_to_other_readers(tmp_path: Path, text: str) -> None:
    assert read_kernel_profile(written(tmp_path, text)) is None


def test_kinds_are_told_by_names_of_libraries() -> None:
    names = {
        PRODUCT: [
            "sm90_xmma_gemm_bf16bf16",
            "nvjet_sm90_tst_256x128",
            "cutlass::Kernel2<cutlass_80_simt_sgemm>",
            "Cijk_Ailk_Bljk_HHS_BH_MT64",
        ],
        ATTENTION: ["cutlass::device_kernel<flash::FlashAttnFwdSm90<int>>", "fmha_cutlassF_bf16_aligned", "paged_attention_v2_kernel"],
        ELEMENTS: [
            "at::native::vectorized_elementwise_kernel<4, at::native::direct_copy_kernel_cuda>",
            "triton_red_fused_add_3",
            "rms_norm_kernel",
        ],
        COPY: [
            "[CUDA memcpy Host-to-Device]",
            "__amd_rocclr_copyBuffer",
            "at::native::{}::CatArrayBatchedCopy<int>",
            "reshape_and_cache_flash",
        ],
        COLLECTIVE: ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "vllm::cross_device_reduce_1stage<int>"],
        OTHER: ["my_solver"],
    }
    assert {name: kind_of(name) for group in names.values() for name in group} == {
        name: kind for kind, group in names.items() for name in group
    }
