"""Chains for ``perfmodel remat`` from a number of layers or lists of costs and sizes, and the parsing of these options.

``device_chain`` builds chains from layers of known shape.
"""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.core.dtypes import Dtype
from perfmodel.core.errors import DataError, UsageError
from perfmodel.core.frozen import dataclass
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

    ``tensors``: tensors with known FLOP. ``device``: device of the times. ``basis``: sentences on the sources of numbers.
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
    values, has_unit = dict[str, list[Number]](), {"cost": False, "size": False}
    for name, (text, base) in options.items():
        if text is not None:
            values[name], has_unit[name] = quantities(name, text, base)
    for name, reference in (("backward", "cost"), ("interior", "size")):
        if name in values and has_unit[name] != has_unit[reference]:
            raise UsageError(f"--{name} is not in the unit of --{reference}", "give both with a unit or without")
    length = check_length(length_of(layers, [len(listed_values) for listed_values in values.values()]))
    per_layer = {"cost": [1] * length, "size": [1] * length, "interior": [0] * length}
    per_layer |= {name: spread(name, listed_values, length) for name, listed_values in values.items()}
    per_layer.setdefault("backward", [2 * forward for forward in per_layer["cost"]])
    fields = zip(*(per_layer[name] for name in ("cost", "backward", "size", "interior")), strict=True)
    chain = Chain(tuple(ChainLayer(*layer_fields) for layer_fields in fields), per_layer["size"][0])
    return Source(chain, f"{length:,} layer{'s' * (length > 1)}", has_unit["size"], has_unit["cost"])


def length_of(layers: int | None, lengths: list[int]) -> int:
    """``layers`` if given, else the length of the longest list; UsageError if that is 1."""
    if layers is not None:
        return layers
    longest = max(lengths, default=1)
    if longest == 1:
        raise UsageError("--layers is missing", "such as: perfmodel remat --layers 10 --checkpoints 5")
    return longest


# Parsing of the options


def quantities(option: str, text: str, base: str) -> tuple[list[Number], bool]:
    """Numbers separated by commas, and whether they have a unit: all with one of ``base``, or none. UsageError names the option.

    >>> quantities("size", "32MB,64MB", "B"), quantities("cost", "1,2.5,1", "s")
    (([32000000, 64000000], True), ([1, 2.5, 1], False))
    """
    try:
        values = [_quantity(part.strip(), base) for part in text.split(",")]
    except DataError as error:
        raise UsageError(f"--{option}: {error.message}", error.fix or f"such as --{option} 1,2,3") from None
    if len({unit for _, unit in values}) > 1:
        raise UsageError(f"--{option} {text}: some have a unit and some have none", "write all of them the same way")
    if not all(value > 0 for value, _ in values):
        raise UsageError(f"--{option} {text}: a value is 0", "give numbers above 0")
    return [value for value, _ in values], values[0][1]


def _quantity(text: str, base: str) -> tuple[Number, bool]:
    """The number in ``text`` and whether it has a unit; with one, in base units of ``base``. DataError beyond ``LARGEST_SIZE``."""
    try:
        value, unit = parse_number(text), False
    except DataError:
        value, unit = parse(text, base), True
    if value > LARGEST_SIZE:
        raise DataError(f"{text} is out of range", f"give a number from 0 to {LARGEST_SIZE:.0e}")
    return value, unit


def layer_numbers(option: str, text: str) -> tuple[int, ...]:
    """Layers separated by commas. UsageError names the option.

    >>> layer_numbers("checkpoints", "2,5")
    (2, 5)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--{option} is {text!r}", f"give layers, which count from 0, such as --{option} 2,5") from None
