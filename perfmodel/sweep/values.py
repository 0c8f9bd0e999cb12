"""Values of an axis: ``64``, ``64,128``, ``512:131072:x2``, ``1:100:+3``, ``16KiB:256KiB:x2``, ``fp16,bf16``, ``all``, ``heads / 4``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from perfmodel.core.dtypes import canonical
from perfmodel.core.errors import DataError, UsageError, suggest
from perfmodel.core.question import is_format
from perfmodel.core.units import parse, parse_number
from perfmodel.sweep.base import SweepInput

MOST_VALUES = 10**7
"""Limit per axis: each value takes 8 bytes as long as the sweep runs."""

_RANGE = re.compile(r"(?P<first>[^:]+):(?P<last>[^:]+?)(?::\s*(?P<how>[x+])\s*(?P<step>[0-9][^:]*?)\s*)?")
_FLAGS = {"true": (True,), "yes": (True,), "false": (False,), "no": (False,), "both": (False, True)}
_HOW = "give a number, a list such as 64,128, or a range such as 512:131072:x2 or 1:100:+3"


def is_expression(axis: SweepInput, raw: Any) -> bool:
    """Whether ``raw`` derives the axis from others instead of listing its values."""
    if axis.choice or not isinstance(raw, str) or raw.strip() == "":
        return False
    return not all(_RANGE.fullmatch(item) or _is_value(item.strip()) for item in raw.split(","))


def _is_value(text: str) -> bool:
    """Whether ``text`` is a number, or a size with its unit."""
    for read in (parse_number, lambda text: parse(text, "B")):
        with suppress(DataError):
            read(text)
            return True
    return False


def values_of(axis: SweepInput, raw: Any) -> Sequence[Any]:
    """Values that ``raw`` lists, in its order, each once; UsageError names the option. A single range stays one.

    >>> n = SweepInput("n", "")
    >>> values_of(n, "512:4096:x2"), values_of(n, "1:10:+4,64"), values_of(n, [3, 3, 5])
    ([512, 1024, 2048, 4096], [1, 5, 9, 64], [3, 5])
    """
    values: dict[Any, None] = {}
    items = _items(raw)
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


def _items(raw: Any) -> list[Any]:
    """The items that ``raw`` lists: text separated by commas, one number, or a sequence of these."""
    raw = scalar(raw)
    if isinstance(raw, str):
        return [item.strip() for item in raw.split(",")]
    if isinstance(raw, (bytes, Mapping)) or not hasattr(raw, "__iter__"):
        return [raw]
    items = []
    for part in map(scalar, raw):
        items += _items(part) if isinstance(part, str) else [part]
    return items


def scalar(value: Any) -> Any:
    """A NumPy scalar as a Python number; other values unchanged."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def _listed(axis: SweepInput, item: Any) -> Iterable[Any]:
    """Values of one item."""
    if axis.kind == "flag":
        if str(item).lower() not in _FLAGS:
            raise UsageError(f"{axis.option} is {item!r}", "give true, false or both")
        return _FLAGS[str(item).lower()]
    if axis.kind == "name":
        return _names(axis, item)
    match = _RANGE.fullmatch(item) if isinstance(item, str) else None
    return [checked(axis, _number(axis, item))] if match is None else _range(axis, match)


def _names(axis: SweepInput, item: Any) -> Iterable[str]:
    """Names that one item stands for: all, or one in its canonical form."""
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


def _number(axis: SweepInput, item: Any, what: str = "number", *, size: bool | None = None) -> int | float:
    """The number that ``item`` states, an int where it is whole.

    ``what``: the word for it in an error. ``size``: whether it is a size, which may have a unit and is returned in bytes; by default it
    is if ``axis`` has sizes.
    """
    size = axis.size if size is None else size
    if isinstance(item, str):
        try:
            return parse(item, "B") if size else parse_number(item)
        except DataError as error:
            shown = error.message if size else f"{item[:40]!r} is no {what}"
            raise UsageError(f"{axis.option}: {shown}", "give a size such as 163KiB" if size else _HOW) from None
    if not isinstance(item, (bool, bytes)):
        with suppress(OverflowError, TypeError, ValueError):  # other objects are no numbers, unless another library makes them so
            return int(item) if item == int(item) else float(item)
        if isinstance(item, float):
            return item
    raise UsageError(f"{axis.option}: {item!r} is no {what}", _HOW)


def checked(axis: SweepInput, value: int | float) -> int | float:
    """``value``, if ``axis`` may have it; UsageError names the option."""
    whole = axis.kind == "whole"
    inside = axis.least <= value <= axis.most and (axis.below is None or value < axis.below)
    if not inside or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        if axis.below is not None:
            end = f"up to, not including, {axis.below:g}"
        else:
            end = f"to {axis.most:g}" if axis.most < MOST_VALUES else f"to {axis.most:.0e}"
        raise UsageError(f"{axis.option} is {value}", f"give {kind} from {axis.least:g} {end}")
    return int(value) if whole else value


def _range(axis: SweepInput, match: re.Match[str]) -> Iterable[int | float]:
    """Values of a range. Whole numbers stay whole: if a factor gives a fraction, it is rounded."""
    first, last = (checked(axis, _number(axis, match[end].strip())) for end in ("first", "last"))
    geometric = match["how"] == "x"
    step = _number(axis, match["step"] or "1", "factor" if geometric else "step", size=axis.size and match["how"] == "+")
    if first > last or step <= (1 if geometric else 0):
        raise UsageError(f"{axis.option}: the range {match[0]!r} is empty or endless", "write it like 512:131072:x2 or 1:100:+3")
    if geometric and first <= 0:
        raise UsageError(f"{axis.option}: a range of factors cannot begin at {first}", "begin above zero")
    steps = math.log(last / first) / math.log(step) + 1 if geometric else (last - first) // step + 1
    if steps > MOST_VALUES:
        what = "steps" if geometric else "values"
        raise UsageError(f"{axis.option}: {steps:,.0f} {what}", f"an axis has at most {MOST_VALUES:,}: take larger steps")
    if not geometric and isinstance(first, int) and isinstance(last, int) and isinstance(step, int):
        return range(first, last + 1, step)
    values: dict[int | float, None] = {}  # for their order; rounding may give one twice
    for index in count():
        value = first * step**index if geometric else first + index * step
        if axis.kind != "number" and not isinstance(value, int):
            value = round(value)
        if value > last:
            return values
        values[checked(axis, value)] = None
    return values
