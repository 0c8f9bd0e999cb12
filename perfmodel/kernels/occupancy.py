"""Occupancy of a device by a thread block, and the 32-byte sectors that a strided load of a warp touches."""

from __future__ import annotations

from perfmodel.core.arith import Number, ceil_div, minimum
from perfmodel.core.checks import positive_int
from perfmodel.core.errors import UnavailableError, UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.occupancy import (
    LIMIT_WORDS,
    SOURCE,
    Multiprocessor,
    Occupancy,
    ThreadBlock,
    block_limits,
    mark,
    most_threads,
    multiprocessor,
    occupancy,
    warps_per_block,
)
from perfmodel.core.trace import FormulaStep, Trace, label

SECTOR_SOURCE = "CUDA C++ Best Practices Guide, coalesced access to global memory: 32-byte transactions"
SECTOR_BYTES = 32
"""Bytes of the smallest transfer between an SM and the L2 on NVIDIA devices."""
ELEMENT_SIZES = (1, 2, 4, 8, 16)
"""Bytes that one thread loads at once."""


@dataclass(frozen=True, slots=True)
class StridedLoad:
    """One load of a warp: thread i takes element i * ``stride`` of ``element_bytes``."""

    stride: int
    element_bytes: int


def sectors_per_request(stride: Number, element_bytes: Number, warp: Number = 32) -> Number:
    """32-byte sectors that one load of a warp touches, thread i reading element i * ``stride`` of an aligned array.

    Assumes elements of 1, 2, 4, 8 or 16 B, so that none straddles a sector. Steps of up to a sector leave no sector out;
    longer ones touch one each.

    >>> [sectors_per_request(stride, 4) for stride in (0, 1, 2, 8, 32)]
    [1, 4, 8, 32, 32]
    """
    last_byte = (warp - 1) * stride * element_bytes + element_bytes - 1
    return label("sectors", "32-byte sectors per request", minimum(last_byte // SECTOR_BYTES + 1, warp))


def sectors_needed(stride: Number, element_bytes: Number, warp: Number = 32) -> Number:
    """Sectors that the distinct bytes of a request fill if they lie side by side; a stride of 0 reads one element.

    >>> sectors_needed(1, 4), sectors_needed(0, 4)
    (4, 1)
    """
    distinct = 1 + (warp - 1) * minimum(stride, 1)
    return label("sectors needed", "if the elements lay side by side", ceil_div(distinct * element_bytes, SECTOR_BYTES))


def sector_efficiency(stride: Number, element_bytes: Number, warp: Number = 32) -> Number:
    """Distinct bytes used over bytes moved by one request.

    >>> sector_efficiency(1, 4), sector_efficiency(32, 4)
    (1.0, 0.125)
    """
    distinct = (1 + (warp - 1) * minimum(stride, 1)) * element_bytes
    return distinct / (sectors_per_request(stride, element_bytes, warp) * SECTOR_BYTES)


@dataclass(frozen=True, slots=True)
class Filling:
    """Occupancy of a device by a block. ``access``: a load of a warp, None if the question has none."""

    device: Device
    block: ThreadBlock
    sm: Multiprocessor
    occupancy: Occupancy
    most_threads: int | None
    access: StridedLoad | None


def evaluate(block: ThreadBlock, device: Device, access: StridedLoad | None = None) -> Filling:
    """Occupancy of ``device`` by ``block``, and traffic of ``access``.

    UsageError names an option that no block on ``device`` can have; UnavailableError if the profile knows no limits, or
    its sectors are not NVIDIA's.
    """
    sm = multiprocessor(device)
    if sm.count is None or not block_limits(ThreadBlock(1, 1, 1), sm):
        raise UnavailableError(f"{device.id} has no multiprocessor limits in its profile", "choose a GPU, such as --hardware h200")
    _check(block, access, device)
    filled, per_block = occupancy(block, sm), device.limits.max_threads_per_block
    if filled.blocks < 1:
        raise _no_room(block, sm, filled)
    return Filling(device, block, sm, filled, most_threads(sm, None if per_block is None else int(per_block.number)), access)


def _check(block: ThreadBlock, access: StridedLoad | None, device: Device) -> None:
    """UsageError for a block or an access that ``device`` cannot run, UnavailableError if its sectors are unknown."""
    positive_int("threads", block.threads)
    if block.registers is not None:
        positive_int("registers", block.registers)
    sram, limits = device.level("sram"), device.limits
    for option, value, highest in (
        ("threads", block.threads, limits.max_threads_per_block),
        ("registers", block.registers, limits.max_registers_per_thread),
        ("sram", block.sram_bytes, sram.per_block if sram else None),
    ):
        if value is not None and highest is not None and value > highest.number:
            unit = " B" if option == "sram" else ""
            raise UsageError(
                f"--{option} is {value}{unit}, more than a block on {device.id} can have", f"give at most {highest.number}{unit}"
            )
    if access is None:
        return
    positive_int("stride", access.stride, 0)
    if access.element_bytes not in ELEMENT_SIZES:
        listed = ", ".join(map(str, ELEMENT_SIZES))
        raise UsageError(f"--element-bytes is {access.element_bytes}", f"a thread loads {listed} bytes at once")
    if device.vendor != "NVIDIA":
        raise UnavailableError(
            f"{device.id}: the bytes of its smallest transfer are not known", "sectors are known for NVIDIA devices only"
        )


def _no_room(block: ThreadBlock, sm: Multiprocessor, filled: Occupancy) -> UsageError:
    """Error of a launch that fails because a block needs more than a whole multiprocessor has."""
    words = " and ".join(LIMIT_WORDS[name] for name in filled.limited_by)
    fix = "give fewer --threads or a smaller --sram"
    if "registers" in filled.limited_by and sm.registers is not None:
        per_warp = sm.registers // sm.partitions // -(-warps_per_block(block, sm) // sm.partitions)
        fitting = per_warp // sm.register_unit * sm.register_unit // sm.warp
        fix = f"give at most --registers {fitting} with {block.threads} threads"
    return UsageError(f"one block does not fit a multiprocessor: too few {words}", fix)


def explain(result: Filling) -> list[FormulaStep]:
    """The formula of every number of ``result``, as steps; a step uses the results of earlier ones."""
    trace, block, device = Trace(), result.block, result.device
    registers = None if block.registers is None else trace.symbol("registers", block.registers, "per thread", "given")
    threads = trace.symbol("threads", block.threads, "threads per block", "given")
    sram = trace.symbol("SRAM", block.sram_bytes, "B of shared memory per block", "given")
    sm = multiprocessor(device, trace)
    filled = occupancy(ThreadBlock(threads, registers, sram), sm)
    if sm.threads is not None:
        trace.define("occupancy", "active warps over the most that a multiprocessor holds", filled.warps / (sm.threads // sm.warp))
    if sm.count is not None:
        trace.define("blocks on the device", "active at once", sm.count * filled.blocks)
        trace.define("threads on the device", "active at once", sm.count * filled.threads)
    quantity = device.limits.max_threads_per_block
    per_block = None
    if quantity is not None:
        per_block = trace.symbol("Th_block", int(quantity.number), "threads per block, at most", device.origin(quantity))
    most_threads(sm, per_block)
    mark(trace, SOURCE)
    if result.access is not None:
        stride = trace.symbol("stride", result.access.stride, "elements between neighbouring threads", "given")
        size = trace.symbol("element", result.access.element_bytes, "B", "given")
        sectors_per_request(stride, size, sm.warp)
        sectors_needed(stride, size, sm.warp)
        trace.define("efficiency", "bytes used over bytes moved", sector_efficiency(stride, size, sm.warp))
        mark(trace, SECTOR_SOURCE)
    return list(trace.steps.values())
