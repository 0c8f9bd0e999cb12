"""Checks of input: each function returns the value of an option or a file, or raises an error that says what to give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from perfmodel.core.arith import Number
from perfmodel.core.dtypes import DTYPES, Dtype, dtype_named
from perfmodel.core.errors import DataError, UsageError
from perfmodel.core.hardware import UNITS, Device
from perfmodel.core.units import parse
from perfmodel.core.workload import LARGEST_SIZE


def positive_int(option: str, value: Number, least: int = 1) -> None:
    """UsageError unless ``least`` <= ``value`` <= 10^15."""
    if not least <= value <= LARGEST_SIZE:
        problem = f"is {value}" if value < least else "is too large"
        raise UsageError(f"--{option} {problem}", f"give a whole number from {least} to {LARGEST_SIZE:.0e}")


def quantity(option: str, text: str, unit: str, example: str) -> float:
    """The positive number that ``text`` states, in ``unit``. A UsageError shows ``example`` as the way to write it.

    >>> quantity("tpot", "30ms", "s", "500ms")
    0.03
    """
    number = float(_parsed(option, text, unit, example))
    if number <= 0:
        raise UsageError(f"--{option} is {text}", f"give more than zero, such as {example}")
    return number


def _parsed(option: str, text: str, unit: str, example: str) -> int | float:
    try:
        return parse(text, unit)
    except DataError as error:
        raise UsageError(f"--{option}: {error.message}", f"write it like {example}") from None


def measured_s(text: str | None) -> float | None:
    """The value of ``--measured`` in seconds; None if it is not given."""
    return None if text is None else quantity("measured", text, "s", "3.2ms")


def size_bytes(option: str, text: str, least: int = 1) -> int:
    """Bytes that ``text`` states; UsageError below ``least``.

    >>> size_bytes("sram", "48KiB")
    49152
    """
    size = int(_parsed(option, text, "B", "48KiB"))
    if not least <= size <= LARGEST_SIZE:
        raise UsageError(f"--{option} is {text}", f"give a size from {least} B to {LARGEST_SIZE:.0e} B, such as 48KiB")
    return size


def power_limit(text: str, device: Device) -> float:
    """Watts that ``text`` states; UsageError above the device's own limit."""
    watts = float(_parsed("power-limit", text, "W", "500W"))
    if watts <= 0:
        raise UsageError(f"--power-limit is {text}", "give watts above zero, such as 500W")
    if device.tdp is not None and watts > device.tdp.number:
        raise UsageError(f"--power-limit is {text}, and {device.id} takes {device.tdp.number:g} W at most", "give less, or leave it out")
    return watts


MOST_SRAM = 1 << 30
"""Largest SRAM per block in bytes that a sweep takes, far above that of any device."""


def flop_count(option: str, text: str) -> int:
    """FLOP that ``text`` states, as a plain number or with prefix and unit.

    >>> flop_count("flops", "137.4 GFLOP"), flop_count("flops", "1e9")
    (137400000000, 1000000000)
    """
    fix = "write it like 137.4GFLOP or 1.374e11"
    as_rate = f"{text.strip()}/s" if text.strip().endswith("FLOP") else f"{text} FLOP/s"
    try:
        count = parse(as_rate, "FLOP/s")
    except DataError:
        raise UsageError(f"--{option}: {text!r} is not a number of FLOP", fix) from None
    if not isinstance(count, int) or not 1 <= count <= LARGEST_SIZE**2:
        raise UsageError(f"--{option} is {text}", f"give a whole number of FLOP from 1 to {LARGEST_SIZE**2:.0e}; {fix}")
    return count


def default_dtype(device: Device, first: str = "fp16") -> str:
    """Name of the dtype where none is given: ``first``, or the other 16-bit format if the device multiplies only in that."""
    formats = {name for unit in UNITS for name in device.products_of(unit)}
    other = "bf16" if first == "fp16" else "fp16"
    return other if other in formats and first not in formats else first


def dtype_on(name: str | None, device: Device, default: str = "", known: Mapping[str, Dtype] = DTYPES) -> Dtype:
    """The dtype called ``name`` (by default ``default``, else ``default_dtype``), with the unit of ``device`` that multiplies in it.

    ``known``: the formats to choose from.

    UsageError for an unknown name, UnavailableError if the device has no peak for it.
    """
    dtype = dtype_named(name if name is not None else default or default_dtype(device), known)
    return dtype._replace(matmul_unit=device.matmul_unit(dtype.name, dtype.matmul_unit))


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """``path`` opened for reading. A pipe or a device is refused, because reading it may never end."""
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: not a regular file", "write what it holds to a file first")
        with path.open("rb") as file:
            yield file
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def read_text(path: Path, most: int, fix: str, encoding: str = "utf-8") -> str:
    """Text of ``path``; DataError with ``fix`` if it is larger than ``most`` B."""
    with opened(path) as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise DataError(f"{path}: larger than {most:,} B", fix)
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8") from None


def sha256(path: Path) -> str:
    """SHA-256 digest of the file, read piece by piece."""
    import hashlib

    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
