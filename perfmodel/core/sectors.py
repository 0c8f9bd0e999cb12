"""What a warp's load moves: the 32-byte sectors that a strided access touches."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.core.arith import Number, ceil_div, minimum
from perfmodel.core.checks import whole
from perfmodel.core.errors import UnavailableError, UsageError
from perfmodel.core.hardware import Device
from perfmodel.core.trace import Trace, named

SECTOR_SOURCE = "CUDA C++ Best Practices Guide, coalesced access to global memory: 32-byte transactions"
SECTOR_BYTES = 32
"""Bytes of the smallest transfer between an SM and the L2 on NVIDIA devices."""

ELEMENT_SIZES = (1, 2, 4, 8, 16)
"""Bytes that one thread loads at once."""


@dataclass(frozen=True, slots=True)
class Access:
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
    return named("sectors", "32-byte sectors per request", minimum(last_byte // SECTOR_BYTES + 1, warp))


def sectors_needed(stride: Number, element_bytes: Number, warp: Number = 32) -> Number:
    """Sectors that the distinct bytes of a request fill if they lie side by side; a stride of 0 reads one element.

    >>> sectors_needed(1, 4), sectors_needed(0, 4)
    (4, 1)
    """
    distinct = 1 + (warp - 1) * minimum(stride, 1)
    return named("sectors needed", "if the elements lay side by side", ceil_div(distinct * element_bytes, SECTOR_BYTES))


def sector_efficiency(stride: Number, element_bytes: Number, warp: Number = 32) -> Number:
    """Distinct bytes used over bytes moved by one request.

    >>> sector_efficiency(1, 4), sector_efficiency(32, 4)
    (1.0, 0.125)
    """
    distinct = (1 + (warp - 1) * minimum(stride, 1)) * element_bytes
    return distinct / (sectors_per_request(stride, element_bytes, warp) * SECTOR_BYTES)


def check_access(access: Access, device: Device) -> None:
    """UsageError for an access that no thread makes, UnavailableError where sectors are not known."""
    whole("stride", access.stride, 0)
    if access.element_bytes not in ELEMENT_SIZES:
        listed = ", ".join(map(str, ELEMENT_SIZES))
        raise UsageError(f"--element-bytes is {access.element_bytes}", f"a thread loads {listed} bytes at once")
    if device.vendor != "NVIDIA":
        raise UnavailableError(
            f"{device.id}: the bytes of its smallest transfer are not known", "sectors are known for NVIDIA devices only"
        )


def explain_access(trace: Trace, access: Access, warp: Number) -> None:
    """Put every number of ``access`` into ``trace``."""
    stride = trace.symbol("stride", access.stride, "elements between neighbouring threads", "given")
    size = trace.symbol("element", access.element_bytes, "B", "given")
    sectors_per_request(stride, size, warp)
    sectors_needed(stride, size, warp)
    trace.define("efficiency", "bytes used over bytes moved", sector_efficiency(stride, size, warp))
