"""cuDNN's fused attention, by PyTorch and by its own API.

Closed source. On Hopper, forward, a block keeps 128 queries and visits tiles of 128 keys, one block a multiprocessor, by wgmma beside the
exponentials; tiles and grids are as profiled. Kernels are compiled for head dims 64, 128, 192 and 256. Causal blocks start with a mask and
wait longer; without a causal mask, keys past the end are masked in every tile. On Blackwell the kernels are presumably TensorRT-LLM's.

Backward, a block keeps 128 keys, or 64 over head dim 128, and visits tiles of 64 queries; key tiles start in multiples of 128 keys. Over
head dim 128 one stage of small tiles leaves its loads unhidden, tile by tile. Kernels before and after it sum O dO and convert dQ; with
grouped heads two more sum dK and dV. On Blackwell tiles of 128 x 128 are supposed.

Published benchmarks call its own API on the same buffers, nearly all of one size. They do not tell the cost of a launch or of kernels
beside the main one, which are taken from PyTorch's calls.

Source: grids, registers and times of cuDNN 9's kernels on an H200 by PyTorch's profiler; flashinfer-ai/flashinfer @fb28d7242.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.timing.base import Case, find_model, never, plain_attention
from perfmodel.timing.models._attention_grid import (
    ASYNCHRONOUS,
    PING_PONG,
    TCGEN05,
    WGMMA,
    AttentionLaunch,
    AttentionWork,
    Stage,
    blackwell_launch,
    covers_backward,
    dense,
    matrix_rows,
    page,
)
from perfmodel.timing.models.decode import CUDNN as DECODE

COMPILED = (64, 128, 192, 256)  # known
PUBLISHED = ("cudnn-attention", "cudnn-attention-deterministic", "cudnn-attention-mxfp8", "cudnn-attention-mxfp8-deterministic")


def launch(case: Case, device: Device) -> AttentionLaunch:
    """Launch of cuDNN's kernels for Hopper and for Blackwell; UnavailableError for other devices."""
    w: Attention = case.workload
    rows = matrix_rows(device)
    if rows < WGMMA or (rows == TCGEN05 and case.direction == BACKWARD and case.implementation not in PUBLISHED):
        raise UnavailableError(f"cuDNN's attention kernels for compute capability {device.compute_capability} are not known")
    if case.direction == FORWARD and rows == TCGEN05:
        return blackwell_launch(case)
    width = next((dim for dim in COMPILED if max(w.d, w.dv) <= dim), COMPILED[-1])
    if case.direction == FORWARD:
        return AttentionLaunch(128, 128, WGMMA, ASYNCHRONOUS, width=width)
    side = 4 if w.group > 1 else 2
    if rows == TCGEN05:
        return AttentionLaunch(128, 128, TCGEN05, PING_PONG, width=width, side_kernels=side)
    bc = 128 if width <= 128 else 64
    return AttentionLaunch(64, bc, WGMMA, ASYNCHRONOUS, width=width, side_kernels=side, paired=128 // bc)


def stage(case: Case, work: AttentionWork) -> Stage:
    """Terms of Hopper's kernels: forward for masks on the diagonal and past the end, backward for wide heads."""
    w, launch = case.workload, work.launch
    if case.direction == BACKWARD:
        return Stage(other={"wide": launch.bc == 64})
    masks = launch.rows == WGMMA  # what TensorRT-LLM's do for masks does not show
    odd = masks and not w.causal and bool(w.n % launch.br or w.kv_len % launch.bc)
    return Stage(other={"padded": odd}, block={"causal": masks and w.causal})


def known(case: Case, p: Mapping[str, float]) -> Mapping[str, float]:
    """Parameters that published benchmarks do not tell are those of PyTorch's calls. Matmuls take no less than their instruction needs."""
    return {**find_model(f"cudnn-{case.direction}").starts(), **p, "matmul": max(1.0, p["matmul"])}


def covers_forward(case: Case) -> bool:
    """Forward over several queries, more than decoding takes, dense, with d = d_v of at most 256."""
    return dense(case, FORWARD) and case.workload.n > 1 and not DECODE.covers(case)


def covers_published(case: Case) -> bool:
    """One pass of dense attention over several queries, of head dims up to 256.

    Not the windowed backward pass in fp8: its times (cuDNN 9.22 on a GB200) show that it computes all causal tiles, in or out of the
    window.
    """
    w = case.workload
    if not plain_attention(case, "sparsity", "dropout", "mask") or w.n == 1 or max(w.d, w.dv) > COMPILED[-1]:
        return False
    return not (case.direction == BACKWARD and w.window is not None and w.dtype.size == 1)


_SOURCE = "kernels as profiled; FlashAttention-2 (Dao 2023, Alg. 1 and 2); list scheduling, Graham 1966"
_NAMES = ("torch-sdpa-cudnn",)
_LISTED = (
    page("cudnn-forward", launch, covers_forward, _SOURCE, _NAMES, stage, knows_warm=never),
    page("cudnn-backward", launch, covers_backward, _SOURCE, _NAMES, stage, knows_warm=never),
    page("cudnn-published", launch, covers_published, _SOURCE, PUBLISHED, stage, known, again=True),
)
MODELS = {model.name: model for model in _LISTED}
