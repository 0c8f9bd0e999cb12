"""Triton's fused attention, tutorial 06, as published benchmarks time it, and the same by Triton's TileIR backend.

A program keeps 128 queries of a head, first rows first, and visits tiles of 64 keys, which the autotuner prefers. One block per
multiprocessor is assumed. Before Hopper its four warps have 32 rows each. Backward by TileIR, a program keeps keys.

Benchmarks time a few shapes of nearly one size, with the same buffers again and again: the cost of a launch and of kernels beside the main
one remain unknown, and are taken from the other kernels.

Source: triton-lang/triton, python/tutorials/06-fused-attention.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.hardware import Device
from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.timing.base import Case, find_model
from perfmodel.timing.models._attention_grid import ASYNCHRONOUS, IN_TURN, WGMMA, AttentionLaunch, dense, matrix_rows, page


def launch(case: Case, device: Device) -> AttentionLaunch:
    """Launch with tiles of 128 queries by 64 keys on every device."""
    rows = max(32, matrix_rows(device))
    return AttentionLaunch(128, 64, rows, ASYNCHRONOUS if rows >= WGMMA else IN_TURN)


def known(case: Case, p: Mapping[str, float]) -> Mapping[str, float]:
    """Parameters that benchmarks do not tell are FlashAttention-2 backward's; matmuls take no less than their instruction needs."""
    return {**find_model("fa2-backward").starts(), **p, "matmul": max(1.0, p["matmul"])}


def covers(case: Case) -> bool:
    """One pass of dense attention over several queries with d = d_v of at most 256."""
    return (dense(case, FORWARD) or dense(case, BACKWARD)) and case.workload.n > 1


MODEL = page(
    "triton-attention",
    launch,
    covers,
    "Triton's tutorial 06; FlashAttention-2 (Dao 2023, Alg. 1 and 2); list scheduling, Graham 1966",
    ("triton-attention", "triton-tileir"),
    known=known,
    again=True,
)
