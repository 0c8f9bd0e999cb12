"""Results kept by the identity, or by a key, of what they are of."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
MOST_KEPT = 8192
"""Results per function; more than the records of all devices together."""


def cached_by_identity(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """``function`` with a memo by the identity of its arguments: looking one up costs no hash of a workload or a device.

    For functions of nothing else; errors are not kept. The memo holds the arguments, so that no identity comes twice. TypeError for an
    argument given by name: one question would have two keys, or two questions one.
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
    """A memo by ``key`` of the arguments: all of them that the result depends on. A result whose key is None is not kept."""

    def kept(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
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

    return kept
