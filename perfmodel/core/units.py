"""Physical units, the only place that knows prefixes, and quantities: numbers of a profile with unit and source.

Everything else computes in base units: B, FLOP/s, B/s, Hz, s, W.
``80 GB`` is decimal, ``80 GiB`` binary, as SI and IEC define them; the two are never mixed. So are plain numbers: ``8k`` is 8,000,
``8Ki`` 8,192.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal
from typing import Annotated, Any, ClassVar, Literal

from perfmodel.core.errors import DataError
from perfmodel.core.frozen import dataclass

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_SMALL = {"m": Decimal("1e-3"), "u": Decimal("1e-6"), "n": Decimal("1e-9"), "p": Decimal("1e-12")}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_NUMBER = r"\s*([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)\s*"
_COUNT = re.compile(_NUMBER + r"([kKMGT]?|[KMGT]i)\s*")
_QUANTITY = re.compile(_NUMBER + r"(\S*)\s*")
_BYTES = re.compile(r"(?:[kKMGTP]i?)?B|[kmgtp]?i?b|[KMGTP]?I?B")
BASES = ("FLOP/s", "OP/s", "B/s", "B", "Hz", "s", "W")
MAX_LENGTH = 200
_EXACT = Context(prec=MAX_LENGTH + 40)
"""Decimal arithmetic in which a number of at most ``MAX_LENGTH`` digits times a prefix is exact."""
LARGEST = 10**30
"""Numbers above this, or nonzero ones below its inverse, are refused as mistakes; products of the others fit a float."""
_SMALLEST = Decimal("1e-30")
"""Inverse of ``LARGEST``."""

NUMBER_FIX = "write it like 8192, 8k (8,000), 8Ki (8,192) or 1e6"
"""Fix in messages about a plain number."""


def parse_number(text: str) -> int | float:
    """A number without a unit, as people write it: an exact ``int`` where it is whole.

    >>> parse_number("8k"), parse_number("8Ki"), parse_number("1e6"), parse_number("131,072"), parse_number("0.1")
    (8000, 8192, 1000000, 131072, 0.1)

    Raises DataError for anything else, a sign and a unit among it.
    """
    match = _COUNT.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if match is None:
        raise DataError(f"{text[:40]!r} is not a number", NUMBER_FIX)
    number, prefix = match.groups()
    value = _EXACT.multiply(Decimal(number.replace(",", "")), {"K": 1000, **_DECIMAL, **_BINARY}[prefix])
    return int(value) if value == value.to_integral_value() else float(value)


def parse(text: str, base: str) -> int | float:
    """Number of base units in ``text``.

    An exact ``int`` where the value is whole, else ``float``; bytes are rounded, so that what is printed to four digits can be given.

    >>> parse("4.8 TB/s", "B/s")
    4800000000000
    >>> parse("227 KiB", "B")
    232448
    >>> parse("79.26 GiB", "B"), parse("131,072 B", "B"), parse("80gb", "B")
    (85104776970, 131072, 80000000000)
    >>> parse("2.5 us", "s")
    2.5e-06

    Raises DataError for a missing or different unit, a negative value or one beyond ``LARGEST``.
    """
    if len(text) > MAX_LENGTH:
        raise DataError(f"{text[:40]!r}... is longer than any number with a unit", f"write it like {example(base)!r}")
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise DataError(f"{text!r} is not a number with a unit", f"write it like {example(base)!r}")
    number, unit = match.groups()
    factor = _factor(_as_written(unit) if base == "B" else unit, base)
    if factor is None:
        raise DataError(f"{text!r} is not in {base}", f"write it like {example(base)!r}")
    value = _EXACT.multiply(Decimal(number.replace(",", "")), factor)
    if value and not _SMALLEST <= value <= LARGEST:
        raise DataError(f"{text!r} is out of range", f"units of {base} go from {1 / LARGEST:.0e} to {LARGEST:.0e}")
    if value == value.to_integral_value():
        return int(value)
    if base == "B" and unit != base and value >= 1:
        return round(value)
    if base == "B":
        raise DataError(f"{text!r} is not a whole number of bytes")
    return float(value)


def parse_any(text: str) -> int | float:
    """Number of base units in ``text``, whichever unit it is in.

    >>> parse_any("1830 MHz")
    1830000000
    """
    for base in BASES:
        if text.endswith(base):
            return parse(text, base)
    if text.endswith("b"):
        return parse(text, "B")
    raise DataError(f"{text!r} has no known unit", f"known: {', '.join(BASES)}")


def _as_written(unit: str) -> str:
    """A unit of bytes with the usual capitals: ``KB`` and ``kb`` become ``kB``."""
    if _BYTES.fullmatch(unit) is None:
        return unit
    small = unit.lower()
    binary = "i" if "i" in small else ""
    prefix = "" if small in ("b", "ib") else unit[0].upper()
    if prefix == "K" and not binary:
        prefix = "k"
    return f"{prefix}{binary}B"


def _factor(unit: str, base: str) -> Decimal | int | None:
    if not unit.endswith(base):
        return None
    prefix = unit[: len(unit) - len(base)]
    if prefix in _BINARY and base in ("B", "B/s"):
        return _BINARY[prefix]
    if prefix in _SMALL and base == "s":
        return _SMALL[prefix]
    if prefix in _DECIMAL and not (base == "s" and prefix):
        return _DECIMAL[prefix]
    return None


def example(base: str) -> str:
    """A quantity in ``base`` as it is written, for messages."""
    return {"B": "80 GB", "B/s": "4.8 TB/s", "Hz": "1980 MHz", "s": "2.5 us", "W": "700 W"}.get(base, f"312 T{base}")


def _scaled(value: float, prefixes: tuple[tuple[str, float], ...], unit: str, digits: int) -> str:
    for prefix, factor in prefixes:
        if abs(value) >= factor * (1 - 0.5 * 10**-digits):  # what rounds up to the factor takes its prefix
            scaled = value / factor
            text = f"{scaled:,.0f}" if 10**digits <= abs(scaled) < 10**9 else f"{scaled:.{digits}g}"
            return f"{text} {prefix}{unit}".strip()
    return f"{value:.{digits}g} {unit}".strip()


_UP = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
_DOWN = (("", 1.0), ("m", 1e-3), ("u", 1e-6), ("n", 1e-9), ("p", 1e-12))


def format_si(value: float, unit: str = "", digits: int = 4) -> str:
    """``value`` base units with a decimal prefix.

    >>> format_si(4362076160, "B")
    '4.362 GB'
    """
    return _scaled(value, _UP, unit, digits)


def format_count(count: int) -> str:
    """``count`` with every digit, up to 10^15.

    >>> format_count(68157440)
    '68,157,440'
    """
    return f"{count:,}" if count < 10**15 else f"{count:.6g}"


def format_time(seconds: float, digits: int = 4) -> str:
    """``seconds`` with a decimal prefix.

    >>> format_time(0.0017620060), format_time(6.44e-10)
    ('1.762 ms', '644 ps')
    """
    return "0 s" if seconds == 0 else _scaled(seconds, _DOWN, "s", digits)


def format_binary(size: int, digits: int = 4) -> str:
    """``size`` in bytes with a binary prefix.

    >>> format_binary(166912)
    '163 KiB'
    """
    for prefix in ("Ti", "Gi", "Mi", "Ki"):
        if size >= _BINARY[prefix]:
            return f"{size / _BINARY[prefix]:.{digits}g} {prefix}B"
    return f"{size} B"


# Quantities of profiles


class ProfilePart:
    """A part of a profile; unknown keys are errors."""

    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "allow_inf_nan": False}


@dataclass(frozen=True)
class Quantity(ProfilePart):
    """``number`` is ``value`` in base units; ``per_clk`` the operations per clock and multiprocessor behind a peak.

    ``measured_on``: the device with the same chip on which it was measured; it is scaled to this device's clock. ``kind`` is ``estimated``
    only where a prediction completes a profile from a reference device, never in a file.
    """

    value: str | int
    kind: Literal["datasheet", "derived", "measured", "estimated"]
    source: str
    number: float | int
    note: str | None = None
    per_clk: int | None = None
    measured_on: str | None = None


class _In:
    """Marks a Quantity with the unit it is written in; validation adds ``number``. Pydantic is imported only then."""

    def __init__(self, base: str) -> None:
        self.base = base

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(self._with_number, handler(source))

    def _with_number(self, raw: Any) -> Any:
        if not isinstance(raw, dict) or "value" not in raw:
            raise ValueError("expected a mapping with value, kind and source")
        if "number" in raw:
            raise ValueError("'number' is computed from 'value'; leave it out")
        return {**raw, "number": _convert(raw["value"], self.base)}


def _convert(value: Any, base: str) -> int | float:
    if not base:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{value!r} is not a whole number of at least 1")
        return value
    if not isinstance(value, str):
        raise ValueError(f"{value!r} has no unit; write it like {example(base)!r}")
    try:
        number = parse(value, base)
    except DataError as error:
        raise ValueError(f"{error.message}; {error.fix}") from None
    if number <= 0:
        raise ValueError(f"{value!r} is not positive; leave out what is unknown")
    return number


Count = Annotated[Quantity, _In("")]
Size = Annotated[Quantity, _In("B")]
Bandwidth = Annotated[Quantity, _In("B/s")]
Frequency = Annotated[Quantity, _In("Hz")]
Rate = Annotated[Quantity, _In("FLOP/s")]
OpRate = Annotated[Quantity, _In("OP/s")]
Duration = Annotated[Quantity, _In("s")]
Power = Annotated[Quantity, _In("W")]
