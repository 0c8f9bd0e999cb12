"""Softmax, layer norm and RMS norm over rows as torch.compile builds them: one Triton kernel, fused with a sum before it.

Rows of up to 1,024 elements stay in registers between the reduction and the result. Longer rows are reduced in a loop, step by step, and
read again for the result; from DRAM if the rows of all running programs exceed the L2. Fewer rows of more than 8,192 elements than two per
multiprocessor are split: kernels before the last reduce parts of them. Where 8 does not divide the length of a row, loads are shorter.

Source: PyTorch v2.11, torch/_inductor/codegen/triton.py (persistent reductions), torch/_inductor/runtime/triton_heuristics.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, hypot

from perfmodel.core.arith import ceil_div
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Stream
from perfmodel.timing.base import Case, Model, dram_bandwidth, never, numbers_of
from perfmodel.timing.engine import joined
from perfmodel.timing.models.passes import cycles_per_second
from perfmodel.timing.models.softmax import read_again, resident_blocks

LONGEST_KEPT, LONGEST_WHOLE = 1024, 8192  # known
"""Longest row that stays in registers; longest row that is never split."""
STEP, VECTOR, THREADS = 2048, 8, 512  # known
"""Elements of a step of the loop; elements of a load of 16 bytes; threads of a program."""
NAMES = tuple(f"torch-compile-{step}" for step in ("rms-norm", "add-rms-norm", "layer-norm", "softmax"))


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of the kernel; UnavailableError without DRAM bandwidth, clock or multiprocessors in the profile."""
    w: Stream = case.workload
    [sms] = numbers_of(device, "multiprocessors")
    looped, split = w.cols > LONGEST_KEPT, w.cols > LONGEST_WHOLE and w.rows < 2 * sms
    moved = float(w.read_bytes + w.write_bytes)
    if looped and not split:
        row, slots = w.inputs * w.cols * w.dtype.size, int(sms) * resident_blocks(device, THREADS)
        moved += read_again(device, min(w.rows, slots) * row, 1.0) * w.rows * row
    padded = STEP * ceil_div(w.cols, STEP) if looped else 1 << (w.cols - 1).bit_length()
    cycles = (p["looped_cycles"] if looped else p["element_cycles"]) * (1 + p["ragged"] * (1 - gcd(w.cols, VECTOR) / VECTOR))
    issued_s = w.rows * (p["row_cycles"] + padded * cycles) / cycles_per_second(device)
    first_us = p["step_us"] * w.cols / LONGEST_WHOLE if looped and not split else 0.0
    rows_s = joined(p["overlap"], issued_s, moved / (dram_bandwidth(device) * p["bandwidth_share"]))
    return float((p["launch_us"] + p["split_us"] * split) * 1e-6 + hypot(first_us * 1e-6, rows_s))


MODEL = Model(
    "compiled-rows",
    "compiled-rows",
    lambda case: isinstance(case.workload, Stream) and case.workload.op in ("softmax", "norm") and case.direction == FORWARD,
    seconds,
    "launch + a loop's steps + instructions or bytes, rows read twice",
    knows_warm=never,
    implementations=NAMES,
)
