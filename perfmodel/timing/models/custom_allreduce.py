"""All-reduces of serving engines: kernels that read the peers' memory over NVLink, or between two cards over PCIe, without a ring.

One-shot: after a barrier each GPU reads the whole buffer of every peer and adds up. Two-shot: each GPU adds up its part of all buffers, and
after another barrier reads the other sums. In the switch: buffers are copied into memory that the switch knows, a multicast load returns
their sum, and the result is copied back. The engine chooses by architecture, number of GPUs and bytes; above its largest size an engine
calls NCCL, and nothing is predicted here. Source: vLLM, csrc/custom_all_reduce.cuh,
distributed/device_communicators/{all_reduce_utils,custom_all_reduce,symm_mem}.py; SGLang, custom_all_reduce.py and custom_all_reduce_v2.py
in the folder of the same name; TensorRT-LLM, common/customAllReduceUtils.h.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.collectives import ALL_REDUCE, Collective, host_gpus, link_bandwidth
from perfmodel.timing.base import Case, Model, dram_bandwidth

KIB, MIB = 1 << 10, 1 << 20  # known
ONE_SHOT, TWO_SHOT, IN_SWITCH = "one-shot", "two-shot", "in the switch"
PASS_BYTES = 36 * 512 * 16  # known
"""Bytes of the output that a grid works on at once: 36 blocks of 512 threads, 16 B each (vLLM's default, which SGLang took over)."""
COPIED = 4  # known
"""Reads and writes of a byte while a buffer is copied into memory that the switch knows, and back."""

Sizes = Mapping[int, int]
LARGEST = 8 * MIB  # known
"""Bytes of the shared buffer of vLLM and SGLang: an all-reduce is smaller than this."""
VLLM_LARGEST: Mapping[str, Sizes] = {  # known
    "9.0": {2: 8 * MIB, 4: 8 * MIB, 6: MIB // 2, 8: MIB // 4},
    "10.0": {2: 2 * MIB, 4: 2 * MIB, 6: MIB, 8: MIB},
    "10.3": {2: 4 * MIB, 4: 4 * MIB, 6: 8 * MIB, 8: 4 * MIB},
}
"""Bytes below which vLLM's own kernel runs if memory that the switch knows is available; by compute capability and GPUs."""
VLLM_SYMMETRIC: Mapping[str, Sizes] = {  # known
    "9.0": {2: 64 * MIB, 4: 32 * MIB, 6: 64 * MIB, 8: 64 * MIB},
    "10.0": {2: 8 * MIB, 4: 32 * MIB, 6: 128 * MIB, 8: 128 * MIB},
    "10.3": {2: 4 * MIB, 4: 32 * MIB, 6: 32 * MIB, 8: 64 * MIB},
}
"""Bytes below which PyTorch's kernels over such memory run, from there on."""
VLLM_IN_SWITCH: Mapping[str, tuple[int, ...]] = {"9.0": (4, 6, 8), "10.0": (6, 8), "10.3": (6, 8)}  # known
"""Numbers of GPUs for which that kernel adds up in the switch; else it is a two-shot."""
JIT_ONE_SHOT: tuple[Sizes, Sizes] = (  # known
    {2: 16 * MIB, 4: 384 * KIB, 6: 192 * KIB, 8: 160 * KIB},
    {2: 16 * MIB, 4: 2 * MIB, 6: MIB, 8: 720 * KIB},
)
"""Largest one-shot of SGLang's second kernel: up to Hopper, from Blackwell on."""
JIT_LARGEST = 16 * MIB  # known
TRTLLM_ONE_SHOT: tuple[Sizes, Sizes] = ({2: 4 * MIB, 4: 2 * MIB, 8: 256 * KIB}, {2: 4 * MIB, 4: 2 * MIB, 8: MIB})  # known
"""Largest one-shot in TensorRT-LLM's table for rows of 4,096: up to Hopper, from Blackwell on. Beyond, up to 8 MB, it is a two-shot."""
TRTLLM_LARGEST = 4 * MIB  # known
"""Largest size in its table for eight GPUs; above it, NCCL runs."""

BLACKWELL = 10.0  # known
"""Compute capability."""


def blackwell(device: Device) -> bool:
    """Whether the device has compute capability 10.0 or more."""
    return float(device.compute_capability or 0) >= BLACKWELL


def shots_of_vllm(world: int, size: float) -> str:
    """``ONE_SHOT`` or ``TWO_SHOT``, as vLLM's own kernel and SGLang's first one choose among fully connected GPUs."""
    return ONE_SHOT if world == 2 or size < (512 * KIB if world <= 4 else 256 * KIB) else TWO_SHOT


def vllm_way(device: Device, world: int, size: float) -> str | None:
    """Algorithm by which vLLM sums ``size`` bytes; None: NCCL's."""
    capability = device.compute_capability or ""
    if size < VLLM_LARGEST.get(capability, {}).get(world, LARGEST):
        return shots_of_vllm(world, size)
    if size > VLLM_SYMMETRIC.get(capability, {}).get(world, 0):
        return None
    return IN_SWITCH if world in VLLM_IN_SWITCH[capability] else TWO_SHOT


def sglang_way(device: Device, world: int, size: float) -> str | None:
    """Algorithm of SGLang's first kernel for ``size`` bytes; None: NCCL's."""
    return shots_of_vllm(world, size) if size < LARGEST else None


def jit_way(device: Device, world: int, size: float) -> str | None:
    """Algorithm of SGLang's second kernel for ``size`` bytes; None: NCCL's."""
    if size > JIT_LARGEST:
        return None
    return ONE_SHOT if size <= JIT_ONE_SHOT[blackwell(device)][world] else TWO_SHOT


def trtllm_way(device: Device, world: int, size: float) -> str | None:
    """Algorithm by which TensorRT-LLM sums ``size`` bytes, by its table; None: NCCL's."""
    if size > TRTLLM_LARGEST:
        return None
    return ONE_SHOT if size <= TRTLLM_ONE_SHOT[blackwell(device)].get(world, 0) else TWO_SHOT


VLLM = "vllm-allreduce"
WAYS: Mapping[str, Callable[[Device, int, float], str | None]] = {
    VLLM: vllm_way,
    "sglang-allreduce": sglang_way,
    "sglang-allreduce-v2": jit_way,
    "trtllm-allreduce": trtllm_way,
}
"""Choice of the algorithm by implementation; SGLang's second kernel is the default from 0.5.12 on."""
WORLDS = (2, 4, 6, 8)  # known
"""Numbers of GPUs that these kernels are built for, all of one host."""
PCIE_WORLD = 2  # known
"""Most GPUs over PCIe; with more, engines call NCCL. Source: vLLM, custom_all_reduce.py, which SGLang took over."""


def received_bytes(way: str, world: int, size: float) -> float:
    """Bytes that each GPU receives over its links.

    >>> received_bytes(ONE_SHOT, 8, 800.0), received_bytes(TWO_SHOT, 8, 800.0), received_bytes(IN_SWITCH, 8, 800.0)
    (5600.0, 1400.0, 800.0)
    """
    if way == IN_SWITCH:
        return size
    return (world - 1) * size if way == ONE_SHOT else 2 * (world - 1) * size / world


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one all-reduce in a CUDA graph; UnavailableError above the size from which the engine calls NCCL."""
    w: Collective = case.workload
    size, link = float(w.bytes), link_bandwidth(device, w.world)
    most = PCIE_WORLD if device.over_pcie else host_gpus(device)
    way = WAYS[case.implementation](device, w.world, size) if w.world <= most else None
    if way is None:
        raise UnavailableError(f"{case.implementation}: the engine sums {size:,.0f} B among {w.world} GPUs by NCCL")
    received = received_bytes(way, w.world, size)
    rate = link * p["link_share"]
    if way == IN_SWITCH:
        return p["switched_us"] * 1e-6 + received / rate + COPIED * size / dram_bandwidth(device)
    summed_bytes = size if way == ONE_SHOT else size / w.world
    more_passes = max(summed_bytes / PASS_BYTES - 1, 0.0)
    barriers = 1 + p["again_factor"] if way == TWO_SHOT else 1.0
    start_us = p["start_us"] * barriers + p["peer_us"] * (w.world - 1)
    return (start_us + p["pass_us"] * more_passes) * 1e-6 + received / rate


def covers(case: Case) -> bool:
    """All-reduces among 2, 4, 6 or 8 GPUs of one host, up to the size from which the engine calls NCCL."""
    w = case.workload
    return isinstance(w, Collective) and w.op == ALL_REDUCE and w.world in WORLDS and case.direction == FORWARD


MODEL = Model(
    "custom-allreduce",
    "custom-allreduce",
    covers,
    seconds,
    "barriers + what each GPU reads of its peers, or of the switch, over a share of the link",
    assumes="all GPUs start together, in a CUDA graph, one all-reduce behind another on the same buffers",
    few_sizes=True,
    implementations=tuple(WAYS),
)
