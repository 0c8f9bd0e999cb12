"""FlexAttention, PyTorch's attention with masks from a function, as torch.compile builds it with Inductor's default tiles on Hopper.

Forward, a program keeps br queries of a head and visits tiles of bc keys; tiles differ by head dim, which is padded to a power of two. A
mask is kept in blocks of 128 queries by 128 keys: a program visits every tile of a block with an unmasked score. Programs start row tile
by row tile of a head, then of the next sequence. Triton loads tiles of K and V two ahead of the one in work.

Backward, one kernel has programs for tiles of keys, which compute dK and dV of a KV head (four matmuls) from one query head after the
other, and programs for tiles of queries, which compute dQ (three matmuls). A kernel before computes row sums of O dO.

Bounds are checked in each tile where blocks of the mask do not divide the lengths, and for each element where 16 does not.

Source: pytorch v2.11 torch/_inductor/template_heuristics/triton.py (default tiles), torch/_inductor/kernel/flex (grids, templates).
"""

from __future__ import annotations

from perfmodel.core import architectures
from perfmodel.core.architectures import traits_of
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.timing.base import Case, Model
from perfmodel.timing.models._attention_grid import ASYNCHRONOUS, WGMMA, AttentionLaunch, AttentionWork, Stage, dense, page, resident_blocks

MASK_BLOCK, VECTOR = 128, 16  # known
"""Side of a block of the mask; divisor of a length with which Triton checks bounds once for as many elements."""
STAGES = 3  # known
"""Tiles of K and of V in shared memory."""
TILES = {64: (128, 128, 4), 128: (128, 64, 8), 256: (64, 32, 4)}  # known
SMALL, TALL = (64, 64, 4), (128, 64, 8)  # known
"""Queries and keys of a tile, and warps: forward by head dim, ``SMALL`` for all others; backward ``TALL`` from head dim 64 to 128."""


def kernel_of(d: int, direction: str) -> str:
    """The kernel with parameters of its own that runs head dim ``d``."""
    if d > 128:
        return "wide"
    if direction == BACKWARD:
        return "narrow" if d < 64 else "64" if d == 64 else "128"
    return str(d) if d in TILES else "narrow"


def tile_of(d: int, direction: str) -> tuple[int, int, int]:
    """Queries and keys of a tile, and warps of a program."""
    if direction == BACKWARD:
        return TALL if 64 <= d <= 128 else SMALL
    return TILES.get(d, SMALL)


def launch(case: Case, device: Device) -> AttentionLaunch:
    """Launch of the main kernel; UnavailableError on devices other than Hopper, whose tiles differ."""
    if traits_of(device).matrix != architectures.WGMMA:
        raise UnavailableError(f"{case.implementation} is known on Hopper alone; Inductor takes other tiles on {device.id}")
    w, backward = case.workload, case.direction == BACKWARD
    br, bc, warps = tile_of(w.d, case.direction)
    width = 1 << (w.d - 1).bit_length()
    resident = resident_blocks(device, br, bc, 32 * warps, w, w.dtype.size * width * (br + 2 * STAGES * bc))
    plan = AttentionLaunch(br, bc, WGMMA, ASYNCHRONOUS, resident, 32 * warps, width, mask_block=MASK_BLOCK)
    return plan._replace(dq_apart=True, side_kernels=1, fill=STAGES - 1) if backward else plan


def stage(case: Case, work: AttentionWork) -> Stage:
    """Terms for masks, bounds, and tiles that need more registers than there are."""
    w, launch = case.workload, work.launch
    odd, ragged = (any(length % size for length in (w.n, w.kv_len)) for size in (MASK_BLOCK, VECTOR))
    other, block = {"masks": w.causal, "odd": odd, "ragged": ragged}, {"causal": w.causal}
    if case.direction == FORWARD and w.d == 64:
        block["spilled"] = other["spilled"] = w.causal and ragged
    if case.direction == FORWARD and w.d > 128:
        other["short"] = launch.bc == 32
    return Stage(other=other, block=block)


def _page(direction: str, kernel: str) -> Model:
    def covers(case: Case) -> bool:
        w = case.workload
        return dense(case, direction) and w.n >= MASK_BLOCK and kernel_of(w.d, direction) == kernel

    name = f"flex-{kernel}" if direction == FORWARD else f"flex-backward-{kernel}"
    return page(name, launch, covers, "pytorch torch/_inductor/kernel/flex; list scheduling, Graham 1966", ("torch-flex",), stage)


KERNELS = ("narrow", "64", "128", "wide")
MODELS = {model.name: model for model in (_page(direction, kernel) for direction in (FORWARD, BACKWARD) for kernel in KERNELS)}
