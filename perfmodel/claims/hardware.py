"""Claims about devices: peaks, bandwidths, ridge points, and what an SM holds."""

from __future__ import annotations

from perfmodel.arith import Number
from perfmodel.claims.base import FLASH, INCOMPLETE, LECTURE, RELABELLED, Claim, Figure, Reading
from perfmodel.claims.devices import (
    A100_40,
    FP16,
    HBM_SIZE,
    L1_BYTES,
    PCIE_80,
    RIDGE_PCIE,
    SMS,
    SRAM_RATE,
    SRAM_SIZE,
    SXM_80,
    dram_bandwidth,
    peak,
)
from perfmodel.claims.formulas import ridge_point
from perfmodel.dtypes import DTYPES
from perfmodel.ops.matmul import Matmul, flops, minimum_elements, minimum_intensity
from perfmodel.ops.occupancy import Multiprocessor, most_threads


def _on_chip(sms: Number, l1: Number) -> Number:
    return sms * l1


def _matmul_seconds_ratio(rows: Number, columns: Number, depth: Number, flops_per_s: Number, bandwidth: Number) -> Number:
    """Seconds at peak over seconds at the DRAM bandwidth, minimum traffic."""
    w = Matmul(rows, columns, depth)
    return (flops(w) / flops_per_s) / (minimum_elements(w) * w.dtype.size / bandwidth)


def _fp32_intensity(n: Number) -> Number:
    return minimum_intensity(Matmul(n, n, n, dtype=DTYPES["fp32"]))


def _fp32_edge(flops_per_s: Number, bandwidth: Number) -> Number:
    """n at which a square fp32 matmul, n/6 FLOP/B, meets the ridge point."""
    return 6 * ridge_point(flops_per_s, bandwidth)


def _printed(name: str, text: str, unit: str, reading: Reading) -> Figure:
    """A number of the datasheet beside the profile's."""
    return Figure(name, lambda value: value, text, unit, at={"value": reading})


CLAIMS = (
    Claim(
        "S009",
        LECTURE,
        "An A100's SRAM is about 3x smaller than its HBM, but an order of magnitude faster.",
        why="Three orders of magnitude smaller, not three times; the speed is right, 19.5 TB/s against 1.56.",
        inputs={"sms": SMS, "l1": L1_BYTES, "hbm": HBM_SIZE, "bandwidth": dram_bandwidth(A100_40), "sram_rate": SRAM_RATE},
        figures=(
            Figure("HBM over SRAM, size", lambda hbm, sms, l1: hbm / _on_chip(sms, l1), "3 x", "x"),
            Figure("SRAM over HBM, bandwidth", lambda sram_rate, bandwidth: sram_rate / bandwidth, "10 x", "x", relation=">="),
        ),
    ),
    Claim(
        "S010",
        f"{LECTURE}, on inference with an A100",
        "Weight matmuls are compute bound only from 208 tokens at a time.",
        why="At 16 bit a weight matmul of B tokens has about B FLOP/B, so this is the ridge point at 1.5 TB/s; the A100's variants differ.",
        inputs={"flops_per_s": FP16, "bandwidth": 1.5e12},
        figures=(
            Figure("ridge point at 1.5 TB/s", ridge_point, "208 FLOP/B", "FLOP/B"),
            Figure("SXM 40 GB", ridge_point, unit="FLOP/B", at={"bandwidth": dram_bandwidth(A100_40)}),
            Figure("PCIe 80 GB", ridge_point, unit="FLOP/B", at={"bandwidth": dram_bandwidth(PCIE_80)}),
            Figure("SXM 80 GB", ridge_point, unit="FLOP/B", at={"bandwidth": dram_bandwidth(SXM_80)}),
        ),
        uses=(ridge_point,),
    ),
    Claim(
        "S011",
        f"{LECTURE}, after the NVIDIA A100 datasheet",
        "Peaks and bandwidths of the A100 80 GB, dense and with 2:4 sparsity.",
        why="The doubled values beside them count 2:4 structured sparsity and are no dense peaks.",
        figures=(
            _printed("fp64", "9.7 TFLOP/s", "FLOP/s", peak(SXM_80, "fp64", "vector")),
            _printed("fp64 tensor", "19.5 TFLOP/s", "FLOP/s", peak(SXM_80, "fp64")),
            _printed("fp32", "19.5 TFLOP/s", "FLOP/s", peak(SXM_80, "fp32", "vector")),
            _printed("tf32", "156 TFLOP/s", "FLOP/s", peak(SXM_80, "tf32")),
            _printed("fp16, bf16", "312 TFLOP/s", "FLOP/s", peak(SXM_80, "fp16")),
            _printed("int8", "624 TOP/s", "OP/s", Reading(SXM_80, "OP/s, int8", lambda found: found.peaks.tensor_int.get("int8"))),
            _printed("PCIe", "1935 GB/s", "B/s", dram_bandwidth(PCIE_80)),
            _printed("SXM", "2039 GB/s", "B/s", dram_bandwidth(SXM_80)),
        ),
    ),
    Claim(
        "S012",
        LECTURE,
        "An A100 computes about 300 FLOP/s and its HBM moves about 2 TB/s.",
        why="A factor of 10^12 is missing: 312 TFLOP/s. The bandwidth is right for the 80 GB part.",
        inputs={"flops_per_s": peak(SXM_80, "fp16"), "bandwidth": dram_bandwidth(SXM_80)},
        figures=(
            Figure("fp16 peak", lambda flops_per_s: flops_per_s, "300 FLOP/s", "FLOP/s"),
            Figure("HBM bandwidth", lambda bandwidth: bandwidth, "2 TB/s", "B/s"),
        ),
    ),
    Claim(
        "S013",
        LECTURE,
        "The A100's ratio of peak compute to bandwidth is 161.",
        why="That of the PCIe 80 GB part: 312 TFLOP/s over 1935 GB/s. SXM: 153.0 with 80 GB, 200.6 with 40 GB.",
        inputs=RIDGE_PCIE,
        figures=(
            Figure("PCIe 80 GB", ridge_point, "161 FLOP/B", "FLOP/B"),
            Figure("SXM 80 GB", ridge_point, unit="FLOP/B", at={"bandwidth": dram_bandwidth(SXM_80)}),
            Figure("SXM 40 GB", ridge_point, unit="FLOP/B", at={"bandwidth": dram_bandwidth(A100_40)}),
        ),
        uses=(ridge_point,),
    ),
    Claim(
        "S014",
        f"{LECTURE}; roofline model, Williams et al. 2009",
        "A kernel is compute bound if its arithmetic intensity exceeds peak FLOP/s over bandwidth, else memory bound.",
        claimed="C/W decides",
        why="Shown on the two matmuls of NVIDIA's guide: 2731 FLOP/B lies above the ridge point, 124 below.",
        inputs={"rows": 8192, "columns": 8192, "depth": 8192, **RIDGE_PCIE},
        figures=(
            Figure("compute over memory time, n = 8192", _matmul_seconds_ratio, "1 x", "x", relation=">"),
            Figure("compute over memory time, n = 128", _matmul_seconds_ratio, "1 x", "x", relation="<", at={"columns": 128}),
        ),
        uses=(flops, minimum_elements),
    ),
    Claim(
        "S023",
        LECTURE,
        "The most active threads are SMs x blocks per SM x threads per block.",
        claimed="the product of the three limits",
        why="An SM never holds its most blocks at their largest: its limit is 2048 threads, so 108 x 2048.",
        inputs={
            "sms": SMS,
            "threads": Reading(A100_40, "threads per SM", lambda found: found.limits.max_threads_per_multiprocessor),
            "blocks": Reading(A100_40, "blocks per SM", lambda found: found.limits.max_blocks_per_multiprocessor),
            "per_block": Reading(A100_40, "threads per block", lambda found: found.limits.max_threads_per_block),
        },
        figures=(
            Figure(
                "threads of an A100",
                lambda sms, threads, blocks, per_block: most_threads(Multiprocessor(sms, threads=threads, blocks=blocks), per_block),
                lambda sms, blocks, per_block: sms * blocks * per_block,
                "threads",
            ),
        ),
        uses=(most_threads,),
    ),
    Claim(
        "S025",
        LECTURE,
        "Tensor cores multiply 16 x 16 tiles.",
        claimed="16 x 16",
        declared=INCOMPLETE,
        why="The shape is the instruction's: wmma 16 x 16 x 16, mma.sync m16n8k16, wgmma m64nNk16 on Hopper.",
    ),
    Claim(
        "S036",
        LECTURE,
        "One SM of an A100 has 20 to 40 MB of SRAM.",
        claimed="20 to 40 MB",
        why="That is the whole chip: 108 SMs x 192 KiB, beside 40 MB of L2. One SM has 192 KiB, 164 of them shared memory at most.",
        inputs={"sms": SMS, "l1": L1_BYTES, "shared": SRAM_SIZE},
        figures=(
            Figure("shared memory of one SM", lambda shared: shared, "20 MB", "B", relation=">="),
            Figure("L1 of all SMs", _on_chip, unit="B"),
        ),
    ),
    Claim(
        "S054",
        "lecture notes on transformer inference",
        "Each of the A100's 108 cores has 192 KB of SRAM with a bandwidth of 19 TB/s.",
        why="192 KB are per SM, 19 TB/s the sum over all of them: 128 B per clock and SM.",
        inputs={"sms": SMS, "sram_rate": SRAM_RATE},
        figures=(
            Figure("SRAM bandwidth per SM", lambda sram_rate, sms: sram_rate / sms, "19 TB/s", "B/s"),
            Figure("of the chip", lambda sram_rate: sram_rate, unit="B/s"),
        ),
    ),
    Claim(
        "S058",
        "lecture notes on transformer inference",
        "Each GPU core has SRAM of its own, and blocks of work are dispatched to cores.",
        declared=RELABELLED,
        why="The core is an SM here: L1 and shared memory belong to one SM, L2 is shared by all.",
    ),
    Claim(
        "S080",
        FLASH,
        "An A100 has 108 SMs with 192 KB each, around 20 MB of SRAM.",
        claimed="around 20 MB",
        why="20.25 MiB, 21.2 MB: 192 KB are 192 KiB.",
        inputs={"sms": SMS, "l1": L1_BYTES},
        figures=(Figure("SRAM", _on_chip, "20 MiB", "B"),),
    ),
    Claim(
        "S081",
        "lecture notes on FlashAttention",
        "The byte count of the roofline is called a number of memory accesses.",
        declared=RELABELLED,
        why="Intensity divides by bytes; accesses are elements, and differ from bytes by their size.",
    ),
    Claim(
        "S082",
        "lecture notes on FlashAttention; roofline example of a square fp32 matmul",
        "On an A100 40 GB, a square fp32 matmul is memory bound for N < 74.",
        claimed="74",
        why="Holds for the 1.6 TB/s it assumes. The 40 GB part has 1,555 GB/s: memory bound up to 75; with TF32 up to 601.",
        inputs={"flops_per_s": peak(A100_40, "fp32", "vector"), "bandwidth": 1.6e12, "n": 74},
        figures=(
            Figure("N = 74, against the ridge", _fp32_intensity, ridge_point, "FLOP/B", relation=">="),
            Figure("N = 73, against the ridge", _fp32_intensity, ridge_point, "FLOP/B", relation="<", at={"n": 73}),
            Figure("N at the ridge", _fp32_edge),
            Figure("N at 1,555 GB/s", _fp32_edge, at={"bandwidth": dram_bandwidth(A100_40)}),
            Figure("N with TF32", _fp32_edge, at={"flops_per_s": peak(A100_40, "tf32"), "bandwidth": dram_bandwidth(A100_40)}),
        ),
        uses=(minimum_intensity, ridge_point),
    ),
)
