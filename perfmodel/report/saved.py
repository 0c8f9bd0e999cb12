"""Numbers of saved documents, with their intervals, and what all parts of such a document share."""

from __future__ import annotations

from typing import ClassVar

from perfmodel.core.frozen import dataclass

Number = int | float


class SavedPart:
    """Base class of all parts of a saved document: unknown keys and numbers that are not finite are errors."""

    __slots__ = ()

    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "allow_inf_nan": False}


@dataclass(frozen=True, slots=True)
class Interval(SavedPart):
    """``value`` with ends if they are known: a prediction with its interval, or a median with p10 and p90."""

    value: Number
    low: Number | None = None
    high: Number | None = None
