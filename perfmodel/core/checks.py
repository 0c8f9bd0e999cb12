"""Input that is checked: values of options and files, whose errors say what to give."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.arith import Number
from perfmodel.core.dtypes import Dtype, dtype_named
from perfmodel.core.errors import DataError, UsageError
from perfmodel.core.hardware import Device
from perfmodel.core.units import parse
from perfmodel.core.workload import LARGEST_SIZE


def positive_int(option: str, value: Number, least: int = 1) -> None:
    """Fail unless ``least`` <= ``value`` <= 10^15."""
    if not least <= value <= LARGEST_SIZE:
        found = f"is {value}" if value < least else "is too large"
        raise UsageError(f"--{option} {found}", f"give a whole number from {least} to {LARGEST_SIZE:.0e}")


def size_bytes(option: str, text: str, least: int = 1) -> int:
    """Bytes in ``text``.

    >>> size_bytes("sram", "48KiB")
    49152
    """
    try:
        size = int(parse(text, "B"))
    except DataError as error:
        raise UsageError(f"--{option}: {error.message}", "write it like 48KiB") from None
    if not least <= size <= LARGEST_SIZE:
        raise UsageError(f"--{option} is {text}", f"give a size from {least} B to {LARGEST_SIZE:.0e} B, such as 48KiB")
    return size


def flop_count(option: str, text: str) -> int:
    """FLOP in ``text``: a plain number, or one with a prefix and the unit.

    >>> flop_count("flops", "137.4 GFLOP"), flop_count("flops", "1e9")
    (137400000000, 1000000000)
    """
    fix = "write it like 137.4GFLOP or 1.374e11"
    try:
        count = parse(f"{text.strip()}/s" if text.strip().endswith("FLOP") else f"{text} FLOP/s", "FLOP/s")
    except DataError:
        raise UsageError(f"--{option}: {text!r} is not a number of FLOP", fix) from None
    if not isinstance(count, int) or not 1 <= count <= LARGEST_SIZE**2:
        raise UsageError(f"--{option} is {text}", f"give a whole number of FLOP from 1 to {LARGEST_SIZE**2:.0e}; {fix}")
    return count


def dtype_on(name: str | None, device: Device, default: str = "fp16") -> Dtype:
    """The dtype called ``name`` with the unit of ``device`` that multiplies in it.

    UsageError for an unknown name, UnavailableError if the device has no peak for it.
    """
    dtype = dtype_named(default if name is None else name)
    return replace(dtype, matmul_unit=device.matmul_unit(dtype.name, dtype.matmul_unit))
