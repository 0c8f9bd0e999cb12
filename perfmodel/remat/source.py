"""Chains for ``perfmodel remat`` from a number of layers or lists of costs and sizes, and the parsing of those options.

``device_chain`` builds chains from layers of known shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfmodel.core.arith import Number
from perfmodel.core.dtypes import Dtype
from perfmodel.core.errors import DataError, UsageError
from perfmodel.core.hardware import Device
from perfmodel.core.units import parse, parse_number
from perfmodel.core.workload import LARGEST_SIZE
from perfmodel.remat.chain import Chain, ChainLayer, check_length, spread


@dataclass(frozen=True, slots=True)
class Tensor:
    """``count`` equal tensors: each has ``size`` bytes and takes ``flops`` FLOP, or ``seconds`` at the roof of its kernel, to compute."""

    name: str
    size: Number
    flops: Number
    seconds: float
    count: int = 1


@dataclass(frozen=True, slots=True)
class Source:
    """A chain with its title. ``sized``: sizes are bytes, not units; ``timed``: costs are seconds, not units.

    ``tensors``: those whose FLOP are known. ``device``: the one that the times are for. ``basis``: sentences on where numbers are from.
    """

    chain: Chain
    title: str
    sized: bool = False
    timed: bool = False
    device: Device | None = None
    dtype: Dtype | None = None
    tensors: tuple[Tensor, ...] = ()
    basis: tuple[str, ...] = ()


def listed(layers: int | None, cost: str | None, backward: str | None, size: str | None, interior: str | None) -> Source:
    """The source of a chain of ``layers`` layers, or as many as the longest list has values.

    Unless given: cost 1, backward twice the cost, size 1, interior 0. UsageError for lists of different lengths or mixed units.
    """
    options = {"cost": (cost, "s"), "backward": (backward, "s"), "size": (size, "B"), "interior": (interior, "B")}
    read = {name: quantities(name, text, base) for name, (text, base) in options.items() if text is not None}
    length = check_length(length_of(layers, [len(values) for values, _ in read.values()]))
    (costs, timed), (sizes, sized) = read.get("cost", ([1], False)), read.get("size", ([1], False))
    forward, outputs = spread("cost", costs, length), spread("size", sizes, length)
    back = spread("backward", read["backward"][0], length) if "backward" in read else [2 * each for each in forward]
    inside = spread("interior", read["interior"][0] if "interior" in read else [0], length)
    for name, other, unit in (("backward", "cost", timed), ("interior", "size", sized)):
        if name in read and read[name][1] != unit:
            raise UsageError(f"--{name} is not in the unit of --{other}", "give both with a unit or without")
    chain = Chain(tuple(ChainLayer(*fields) for fields in zip(forward, back, outputs, inside, strict=True)), outputs[0])
    return Source(chain, f"{length:,} layer{'s' * (length > 1)}", sized, timed)


def length_of(layers: int | None, lengths: list[int]) -> int:
    """``layers`` if given, else the length of the longest list; UsageError if that is 1."""
    if layers is not None:
        return layers
    longest = max(lengths, default=1)
    if longest == 1:
        raise UsageError("--layers is missing", "such as: perfmodel remat --layers 10 --checkpoints 5")
    return longest


# Parsing of the options


def quantity(value: Any, base: str, where: str) -> tuple[Number, bool]:
    """The number in ``value`` and whether it has a unit; with one, in base units of ``base``. DataError names ``where``.

    >>> quantity("32 MB", "B", "size"), quantity(3, "B", "size"), quantity("2.5", "s", "cost")
    ((32000000, True), (3, False), (2.5, False))
    """
    if isinstance(value, str):
        text = value.strip()
        number = _plain(text)
        try:
            result, unit = (number, False) if number is not None else (parse(text, base or "s"), True)
        except DataError as error:
            raise DataError(f"{where}: {error.message}", error.fix) from None
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        result, unit = value, False
    else:
        raise DataError(f"{where}: {value!r} is no number")
    if unit and not base:
        raise DataError(f"{where}: {value!r} has a unit", "give a plain number")
    if not 0 <= result <= LARGEST_SIZE:
        raise DataError(f"{where}: {value} is out of range", f"give a number from 0 to {LARGEST_SIZE:.0e}")
    return result, unit


def _plain(text: str) -> Number | None:
    for kind in (int, float, parse_number):
        try:
            return kind(text)
        except (ValueError, DataError):
            continue
    return None


def quantities(option: str, text: str, base: str) -> tuple[list[Number], bool]:
    """Numbers separated by commas, all with a unit of ``base`` or all without. UsageError names the option.

    >>> quantities("size", "32MB,64MB", "B"), quantities("cost", "1,2,1", "s")
    (([32000000, 64000000], True), ([1, 2, 1], False))
    """
    try:
        values = [quantity(part, base, f"--{option}") for part in text.split(",")]
    except DataError as error:
        raise UsageError(error.message, error.fix or f"such as --{option} 1,2,3") from None
    if len({unit for _, unit in values}) > 1:
        raise UsageError(f"--{option} {text}: some have a unit and some have none", "write all of them the same way")
    if not all(value > 0 for value, _ in values):
        raise UsageError(f"--{option} {text}: a value is 0", "give numbers above 0")
    return [value for value, _ in values], values[0][1]


def layer_numbers(option: str, text: str) -> tuple[int, ...]:
    """Layers separated by commas. UsageError names the option.

    >>> layer_numbers("checkpoints", "2,5")
    (2, 5)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--{option} is {text!r}", f"give layers, which count from 0, such as --{option} 2,5") from None
