"""Memoization of functions by the identity of their arguments, or by a key; lists that are read at the first use."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, wraps
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
MOST_KEPT = 8192
"""Results kept per function: more than the records of all devices together."""


def cached_by_identity(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """``function`` memoized by the identity of its arguments, so that no workload or device is hashed.

    The result must depend on these arguments alone. Errors are not kept. The memo holds the arguments, so that no identity is reused.
    Keyword arguments raise TypeError, because they are not part of the key.
    """
    results: dict[tuple[int, ...], tuple[tuple[Any, ...], Result]] = {}

    @wraps(function)
    def cached(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        if named:
            raise TypeError(f"{getattr(function, '__name__', function)} takes no argument by name: {', '.join(named)}")
        key = tuple(map(id, arguments))
        entry = results.get(key)
        if entry is None:
            entry = arguments, function(*arguments, **named)
            if len(results) >= MOST_KEPT:
                results.clear()
            results[key] = entry
        return entry[1]

    return cached


def cached_by(key: Callable[..., Hashable]) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """A decorator that memoizes by ``key`` of the arguments, on which the result must depend alone. With key None nothing is kept."""

    def memoized(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        results: dict[Hashable, Result] = {}

        @wraps(function)
        def cached(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
            place = key(*arguments, **named)
            if place is None:
                return function(*arguments, **named)
            result = results.get(place)
            if result is None:
                if len(results) >= MOST_KEPT:
                    results.clear()
                result = results[place] = function(*arguments, **named)
            return result

        return cached

    return memoized


class LazyList(Sequence[Result]):
    """A sequence whose items come from ``read``, called at the first use. It equals a list of the same items."""

    def __init__(self, read: Callable[[], list[Result]]) -> None:
        self.read = read

    @cached_property
    def items(self) -> list[Result]:
        """The items that ``read`` gave."""
        return self.read()

    def __getitem__(self, place: Any) -> Any:
        return self.items[place]

    def __len__(self) -> int:
        return len(self.items)

    def __eq__(self, other: object) -> bool:
        return self.items == (other.items if isinstance(other, LazyList) else other)

    __hash__ = None  # type: ignore[assignment]
