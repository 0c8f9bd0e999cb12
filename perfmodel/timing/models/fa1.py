"""FlashAttention 1: K and V outermost, one block for each head.

A block keeps 256 keys of head dim 64 or less, else 128, and visits 16 queries at a time; it does all tiles of its head. For fewer heads
than multiprocessors, later versions split a head into as many parts as fill the device (num_splits_heuristic_fwd). Dropout draws a random
number for each score, which takes about as long as its exponential.

Its few published rows were timed from the host, call after call: a kernel that takes less than the host needs for a call waits for it,
``host_us``. They tell that and ``matmul``; all else is as in FlashAttention-2's forward kernel, which came from it.

Source: Dao-AILab/flash-attention at v1.0.9, csrc/flash_attn (fmha_fprop_fp16_kernel.sm80.cu); Dao et al. 2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot

from perfmodel.core.hardware import Device
from perfmodel.core.workload import Attention
from perfmodel.timing.base import Case, Model, find_model, plain_attention
from perfmodel.timing.models._attention_grid import AttentionLaunch, multiprocessors_of, work_of

RANDOM = 0.75  # tuned
"""A random number of dropout, in the time of an exponential."""


def launch(case: Case, device: Device) -> AttentionLaunch:
    """Launch with a block for each head, or for parts of heads where these are fewer than multiprocessors."""
    w: Attention = case.workload
    edge = 256 if w.d <= 64 and w.kv_len > 128 else 128
    return AttentionLaunch(edge, edge, resident=2, by_head=bool(w.query_heads >= multiprocessors_of(device)))


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call as the host sees it."""
    parameters = find_model("fa2-forward").starts()
    parameters = {**parameters, "matmul": p["matmul"], "softmax": p["matmul"] * parameters["softmax"] / parameters["matmul"]}
    work = work_of(case, device, launch)
    other = 1 + RANDOM * bool(case.workload.dropout)
    kernel = work.seconds(parameters, work.grid.cycles(work.tile_cycles(parameters, other=other), parameters["block_cycles"]))
    return kernel if case.cache else hypot(p["host_us"] * 1e-6, kernel)


def covers(case: Case) -> bool:
    """One pass over several queries with or without dropout, dense, no window, with d = d_v."""
    w = case.workload
    return plain_attention(case, "mask", "window", "sparsity") and w.d == w.dv and w.n > 1


MODEL = Model(
    "fa1",
    "attention",
    covers,
    seconds,
    "FlashAttention (Dao et al. 2022) and its kernels' source",
    implementations=("fa1", "fa1-triton"),
    launch=launch,
    from_tables=True,
)
