"""FlashAttention 1: K and V outermost, one block for each head.

A block keeps 256 keys (128 for head dims over 64, or up to 128 keys), visits 16 queries at a time, and does all tiles of its head. For
fewer heads than multiprocessors, later versions split a head into as many parts as fill the device (num_splits_heuristic_fwd). Dropout
draws a random number for each score, which takes about as long as its exponential.

The few published measurements were timed from the host, call after call: a kernel that is shorter than the host's time per call
(``host_us``) waits for the host. They determine ``host_us`` and ``matmul``; all other parameters are those of FlashAttention-2's forward
kernel, which came from it.

Source: Dao-AILab/flash-attention at v1.0.9, csrc/flash_attn (fmha_fprop_fp16_kernel.sm80.cu); Dao et al. 2022.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.hardware import Device
from perfmodel.core.workload import Attention
from perfmodel.timing.base import ALONE, Case, find_model, plain_attention
from perfmodel.timing.models._attention_grid import AttentionLaunch, AttentionWork, Stage, multiprocessors_of, page

RANDOM = 0.75  # tuned
"""Time of dropout's random number, in exponentials."""


def launch(case: Case, device: Device) -> AttentionLaunch:
    """Launch with a block per head, or per part of a head if there are fewer heads than multiprocessors."""
    w: Attention = case.workload
    keys = 256 if w.d <= 64 and w.kv_len > 128 else 128
    return AttentionLaunch(keys, keys, resident=2, by_head=bool(w.query_heads >= multiprocessors_of(device)))


def stage(case: Case, work: AttentionWork) -> Stage:
    """Term of dropout's random numbers."""
    return Stage(other={"dropout": RANDOM * bool(case.workload.dropout)})


def known(case: Case, p: Mapping[str, float]) -> Mapping[str, float]:
    """All parameters: the fitted ``matmul``, a ``softmax`` in proportion to it, and the others of FlashAttention-2's forward kernel."""
    fa2 = find_model("fa2-forward").starts()
    return {**fa2, "matmul": p["matmul"], "softmax": p["matmul"] * fa2["softmax"] / fa2["matmul"], "dropout": 1.0}


def covers(case: Case) -> bool:
    """One pass over several queries with or without dropout, dense, no window, with d = d_v."""
    w = case.workload
    return plain_attention(case, "mask", "window", "sparsity") and w.d == w.dv and w.n > 1


MODEL = page(
    "fa1",
    launch,
    covers,
    "FlashAttention (Dao et al. 2022) and its kernels' source",
    ("fa1", "fa1-triton"),
    stage,
    known,
    assumes=ALONE,
    from_tables=True,
)
