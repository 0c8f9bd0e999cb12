"""Sizes and costs as people write them: plain numbers, or numbers with a unit."""

from __future__ import annotations

from typing import Any

from perfmodel.core.arith import Number
from perfmodel.core.errors import DataError, UsageError
from perfmodel.core.units import parse
from perfmodel.core.workload import LARGEST_SIZE


def quantity(value: Any, base: str, where: str) -> tuple[Number, bool]:
    """The number in ``value``, in base units if it has a unit of ``base``, and whether it has one. DataError names ``where``.

    >>> quantity("32 MB", "B", "size"), quantity(3, "B", "size"), quantity("2.5", "s", "cost")
    ((32000000, True), (3, False), (2.5, False))
    """
    if isinstance(value, str):
        text = value.strip()
        number = _plain(text)
        try:
            found, unit = (number, False) if number is not None else (parse(text, base or "s"), True)
        except DataError as error:
            raise DataError(f"{where}: {error.message}", error.fix) from None
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        found, unit = value, False
    else:
        raise DataError(f"{where}: {value!r} is no number")
    if unit and not base:
        raise DataError(f"{where}: {value!r} has a unit", "give a plain number")
    if not 0 <= found <= LARGEST_SIZE:
        raise DataError(f"{where}: {value} is out of range", f"give a number from 0 to {LARGEST_SIZE:.0e}")
    return found, unit


def _plain(text: str) -> Number | None:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def quantities(option: str, text: str, base: str) -> tuple[list[Number], bool]:
    """Numbers separated by commas, all with a unit of ``base`` or all without. UsageError names the option.

    >>> quantities("size", "32MB,64MB", "B"), quantities("cost", "1,2,1", "s")
    (([32000000, 64000000], True), ([1, 2, 1], False))
    """
    try:
        found = [quantity(part, base, f"--{option}") for part in text.split(",")]
    except DataError as error:
        raise UsageError(error.message, error.fix or f"such as --{option} 1,2,3") from None
    if len({unit for _, unit in found}) > 1:
        raise UsageError(f"--{option} {text}: some have a unit and some have none", "write all of them the same way")
    if not all(value > 0 for value, _ in found):
        raise UsageError(f"--{option} {text}: nothing is free", "give numbers above 0")
    return [value for value, _ in found], found[0][1]


def layer_numbers(option: str, text: str) -> tuple[int, ...]:
    """Layers separated by commas. UsageError names the option.

    >>> layer_numbers("checkpoints", "2,5")
    (2, 5)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--{option} is {text!r}", f"give layers, which count from 0, such as --{option} 2,5") from None
