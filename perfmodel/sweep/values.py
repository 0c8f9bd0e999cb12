"""Values of an axis: ``64``, ``64,128``, ``512:131072:x2``, ``1:100:+3``, ``16KiB:256KiB:x2``, ``fp16,bf16``, ``all``, ``heads / 4``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count, takewhile
from typing import Any

from perfmodel.core.dtypes import canonical
from perfmodel.core.errors import DataError, UsageError, suggest
from perfmodel.core.question import is_format
from perfmodel.core.units import parse as parse_quantity
from perfmodel.core.units import parse_number
from perfmodel.sweep.base import SweepInput

MOST_VALUES = 10**7
"""Limit per axis: each value takes 8 bytes as long as the sweep runs."""
MOST_CHARACTERS = 100
"""Limit per number or range: the time to match a pattern grows with the square of the length."""

_NUMBER = r"[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?(?:\s*(?:[KMGT]i|[kKMGT])(?![A-Za-z]))?"
_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*((?:[kKMGT]i?|[KMGT]i)?B|[kmgt]?i?b|[KMGT]IB)?\s*")
_RANGE = re.compile(rf"(?P<first>[^:]+):(?P<last>[^:]+?)(?::\s*(?P<how>[x+])\s*(?P<step>{_NUMBER}\s*(?:[A-Za-z]+)?)\s*)?")
_FLAGS = {"true": (True,), "yes": (True,), "false": (False,), "no": (False,), "both": (False, True)}
_HOW = "give a number, a list such as 64,128, or a range such as 512:131072:x2 or 1:100:+3"


def is_expression(axis: SweepInput, raw: Any) -> bool:
    """Whether ``raw`` derives the axis from others instead of listing its values."""
    if axis.choice or not isinstance(raw, str) or raw.strip() == "":
        return False
    return not all(len(item) <= MOST_CHARACTERS and (_RANGE.fullmatch(item) or _QUANTITY.fullmatch(item)) for item in raw.split(","))


def values_of(axis: SweepInput, raw: Any) -> Sequence[Any]:
    """Values that ``raw`` lists, in its order, each once; UsageError names the option. A single range stays one.

    >>> n = SweepInput("n", "")
    >>> values_of(n, "512:4096:x2"), values_of(n, "1:10:+4,64"), values_of(n, [3, 3, 5])
    ([512, 1024, 2048, 4096], [1, 5, 9, 64], [3, 5])
    """
    values: dict[Any, None] = {}
    items = list(_items(raw))
    for item in items:
        listed = _listed(axis, item)
        if isinstance(listed, range) and len(items) == 1 and not axis.choice:
            return listed
        values |= dict.fromkeys(listed)
        if len(values) > MOST_VALUES:
            raise UsageError(f"{axis.option}: more than {MOST_VALUES:,} values", "use a larger step, or another axis")
    if not values:
        raise UsageError(f"{axis.option}: no values", _HOW)
    return list(values)


def _items(raw: Any) -> Iterable[Any]:
    raw = scalar(raw)
    if isinstance(raw, str):
        return [item.strip() for item in raw.split(",")]
    if isinstance(raw, (bytes, Mapping)) or not hasattr(raw, "__iter__"):
        return [raw]
    parts = [scalar(part) for part in raw]
    return [item for part in parts for item in (_items(part) if isinstance(part, str) else [part])]


def scalar(value: Any) -> Any:
    """A NumPy scalar as a Python number; other values unchanged."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def _listed(axis: SweepInput, item: Any) -> Iterable[Any]:
    if axis.kind == "flag":
        return _flags(axis, item)
    if axis.kind == "name":
        return _names(axis, item)
    if isinstance(item, str) and len(item) > MOST_CHARACTERS:
        raise UsageError(f"{axis.option}: {item[:40]!r}... is longer than any number", _HOW)
    match = _RANGE.fullmatch(item) if isinstance(item, str) else None
    return [checked(axis, _number(axis, item))] if match is None else _range(axis, match)


def _flags(one: SweepInput, item: Any) -> Iterable[bool]:
    if str(item).lower() not in _FLAGS:
        raise UsageError(f"{one.option} is {item!r}", "give true, false or both")
    return _FLAGS[str(item).lower()]


def _names(axis: SweepInput, item: Any) -> Iterable[str]:
    if not isinstance(item, str) or not item:
        raise UsageError(f"{axis.option} is {item!r}", "give a name")
    if item == "all" and axis.names is not None:
        return axis.names()
    if axis.canonical is not None:
        return [axis.canonical(item)]
    item = canonical(item) if is_format(axis.name) else item
    if axis.names is not None and item not in axis.names():
        raise UsageError(f"{axis.option}: unknown {axis.name} {item!r}", suggest(item, [*axis.names(), "all"]))
    return [item]


def _number(axis: SweepInput, item: Any) -> int | float:
    """The number that ``item`` states: an int where it is whole; a size with its unit in bytes."""
    if isinstance(item, (int, float)) and not isinstance(item, bool):
        return item
    if not isinstance(item, (str, bool, bytes)):
        with suppress(OverflowError, TypeError, ValueError):  # a number of another library
            return int(item) if item == int(item) else float(item)
    match = _QUANTITY.fullmatch(item) if isinstance(item, str) else None
    if match is None:
        raise UsageError(f"{axis.option}: {item[:40] if isinstance(item, str) else item!r} is no number", _HOW)
    if (axis.kind == "size") != (match[2] is not None):
        fix = "give a size such as 163KiB" if axis.kind == "size" else _HOW
        raise UsageError(f"{axis.option}: {item[:40]!r} {'has no unit' if axis.kind == 'size' else 'has a unit'}", fix)
    try:
        return parse_quantity(f"{match[1]} {match[2]}", "B") if match[2] else _plain(match[1])
    except DataError as error:
        raise UsageError(f"{axis.option}: {error.message}", "give a size such as 163KiB") from None


def _plain(digits: str) -> int | float:
    return parse_number(digits) if digits[-1].isalpha() else int(digits) if digits.replace("_", "").isdigit() else float(digits)


def checked(axis: SweepInput, value: int | float) -> int | float:
    """``value``, if ``axis`` may have it; UsageError names the option."""
    whole = axis.kind in ("whole", "size")
    inside = axis.least <= value <= axis.most and (axis.below is None or value < axis.below)
    if not inside or (whole and value != int(value)):
        what, most = "a whole number" if whole else "a number", f"{axis.most:g}" if axis.most < MOST_VALUES else f"{axis.most:.0e}"
        upto = f"to {most}" if axis.below is None else f"up to, not including, {axis.below:g}"
        raise UsageError(f"{axis.option} is {value}", f"give {what} from {axis.least:g} {upto}")
    return int(value) if whole else value


def _range(axis: SweepInput, match: re.Match[str]) -> Iterable[int | float]:
    first, last = (checked(axis, _number(axis, match[end].strip())) for end in ("first", "last"))
    text, times = (match["step"] or "1").strip(), match["how"] == "x"
    sized = axis.kind == "size" and match["how"] == "+"
    if not sized and re.fullmatch(_NUMBER, text) is None:
        raise UsageError(f"{axis.option}: {text[:40]!r} is no {'factor' if times else 'step'}", _HOW)
    step = _number(axis, text) if sized else _plain(text)
    if first > last or step <= (1 if times else 0):
        raise UsageError(f"{axis.option}: the range {match[0]!r} is empty or endless", "write it like 512:131072:x2 or 1:100:+3")
    return _multiplied(axis, first, last, step) if times else _added(axis, first, last, step)


def _added(one: SweepInput, first: int | float, last: int | float, step: int | float) -> Iterable[int | float]:
    number = int((last - first) // step) + 1
    if number > MOST_VALUES:
        raise UsageError(f"{one.option}: {number:,} values", f"an axis has at most {MOST_VALUES:,}: use a larger step")
    if isinstance(first, int) and isinstance(step, int):
        return range(first, first + number * step, step)
    return [checked(one, first + index * step) for index in range(number)]


def _multiplied(axis: SweepInput, first: int | float, last: int | float, factor: int | float) -> Iterable[int | float]:
    """Values of a range of factors. Whole numbers stay whole: a fraction is rounded."""
    if first <= 0:
        raise UsageError(f"{axis.option}: a range of factors cannot begin at {first}", "begin above zero")
    steps = math.log(last / first) / math.log(factor) + 1
    if steps > MOST_VALUES:
        raise UsageError(f"{axis.option}: {steps:,.0f} steps", f"an axis has at most {MOST_VALUES:,}: use a larger factor")
    exact = (first * factor**index for index in count())
    values = (value if axis.kind == "number" or isinstance(value, int) else round(value) for value in exact)
    return dict.fromkeys(checked(axis, value) for value in takewhile(lambda value: value <= last, values))
