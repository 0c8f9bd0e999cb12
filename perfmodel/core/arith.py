"""Arithmetic for formulas that take ints, NumPy arrays, traced or deferred numbers alike.

Python ints give exact results of any size. NumPy arrays (float64 in sweeps: int64 wraps silently) give element-wise results,
exact as long as every intermediate value stays below 2^53. Traced numbers give the formula beside the value. Deferred
numbers record the operations, to be computed later on arrays. No formula branches on a value: choices are written with
``minimum`` and ``maximum``.

NumPy is imported only once an array arrives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias

from perfmodel.core.trace import call, is_traced, plain, template

Number: TypeAlias = Any
"""An int, a float, a NumPy array of them, a Traced or a Deferred number."""


class Deferred:
    """A number that is known only later; it records the arithmetic and NumPy functions applied to it.

    Plain class, not ABC: isinstance is on the hot path.
    """

    __slots__ = ()

    def apply(self, function: Callable[..., Any], *arguments: Number) -> Number:
        """``function(*arguments)``, computed once the deferred ones are known as arrays."""
        raise NotImplementedError


def deferrable(function: Callable[..., Any], *arguments: Number) -> Number:
    """``function(*arguments)`` over arrays, recorded for later if an argument is deferred."""
    later = next((value for value in arguments if isinstance(value, Deferred)), None)
    return function(*arguments) if later is None else later.apply(function, *arguments)


def _is_scalar(*values: Number) -> bool:
    for value in values:  # noqa: SIM110 - a generator costs more than all of this, and every number passes
        if not isinstance(value, (int, float)):
            return False
    return True


def ceil_div(a: Number, b: Number) -> Number:
    """Smallest integer >= a / b.

    >>> ceil_div(1000, 128)
    8
    """
    if _is_scalar(a, b):
        return -(-a // b)
    if is_traced(a, b):
        return call("ceil", -(-plain(a) // plain(b)), a / b)
    import numpy as np

    return np.ceil(a / b)


def divisors(number: int, most: int | None = None) -> list[int]:
    """Divisors of ``number``, in order, up to ``most``.

    >>> divisors(12), divisors(12, 4)
    ([1, 2, 3, 4, 6, 12], [1, 2, 3, 4])
    """
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    every = sorted({*small, *(number // d for d in small)})
    return [d for d in every if most is None or d <= most]


def floor(x: Number) -> Number:
    """Largest integer <= x, for x >= 0; an int stays an int of any size.

    >>> floor(2.5), floor(10**30)
    (2, 1000000000000000000000000000000)
    """
    if _is_scalar(x):
        return int(x)
    if is_traced(x):
        return call("floor", floor(x.value), x)
    return _floor(x)


def power(x: Number, exponent: int) -> Number:
    """``x`` to a whole ``exponent`` >= 1 by multiplication: ``**`` rounds differently for floats and arrays.

    >>> power(3, 4), power(1.5, 2)
    (81, 2.25)
    """
    return x**exponent if is_traced(x) else reduce(lambda product, _: product * x, range(exponent - 1), x)


def minimum(a: Number, b: Number) -> Number:
    """The smaller of two numbers, element-wise for arrays."""
    if _is_scalar(a, b):
        return min(a, b)
    if is_traced(a, b):
        return call("min", min(plain(a), plain(b)), a, b)
    import numpy as np

    return np.minimum(a, b)


def maximum(a: Number, b: Number) -> Number:
    """The larger of two numbers, element-wise for arrays."""
    if _is_scalar(a, b):
        return max(a, b)
    if is_traced(a, b):
        return call("max", max(plain(a), plain(b)), a, b)
    import numpy as np

    return np.maximum(a, b)


def largest(numbers: Sequence[Number]) -> Number:
    """The largest of several numbers, element-wise for arrays; 0 if there are none."""
    if is_traced(*numbers):
        return call("max", max(map(plain, numbers)), *numbers)
    return reduce(maximum, numbers, 0.0)


def clip(x: Number, low: Number, high: Number) -> Number:
    """``x`` moved into [low, high]; ``high`` wins where low > high."""
    return minimum(maximum(x, low), high)


def floor_sum(n: Number, a: Number, b: Number, m: Number) -> Number:
    """Sum of floor((a*i + b) / m) for i = 0 .. n-1, in O(log m) steps, whatever n is.

    Assumes n >= 0, a >= 0, b >= 0, m >= 1, all integers.
    Source: the Euclid-like recursion for lattice points under a line, Graham, Knuth & Patashnik, Concrete Mathematics,
    section 3.5.

    >>> floor_sum(5, 3, 1, 4), sum((3 * i + 1) // 4 for i in range(5))
    (7, 7)
    """
    if not _is_scalar(n, a, b, m):
        return deferrable(_floor_sum_arrays, n, a, b, m)
    total = 0
    while n > 0:
        total += (a // m) * (n * (n - 1) // 2) + (b // m) * n
        a, b = a % m, b % m
        top = a * n + b
        n, b = top // m, top % m
        a, m = m, a
    return total


def _floor_sum_arrays(n: Number, a: Number, b: Number, m: Number) -> Number:
    import numpy as np

    n, a, b, m = (np.array(x, float) for x in np.broadcast_arrays(n, a, b, m))
    total = np.zeros_like(n)
    while True:
        q, p = _floor(a / m), _floor(b / m)
        a, b = a - q * m, b - p * m
        total += q * _floor(n * (n - 1) / 2) + p * n
        top = a * n + b
        n = _floor(top / m)
        b = top - n * m
        live = n > 0
        if not live.any():
            return total
        # a finished element keeps n = 0 and a harmless divisor, so that it adds nothing more
        a, m = m, np.where(live & (a > 0), a, 1)


def _floor(x: Number) -> Number:
    """Floor of an array. Exact for a / b of integers whose sum is below 2^53: such a quotient never rounds up to an integer."""
    import numpy as np

    return np.floor(x)


def clipped_floor_sum(n: Number, a: Number, b: Number, m: Number, low: Number, high: Number) -> Number:
    """Sum of min(high, max(low, floor((a*i + b) / m))) for i = 0 .. n-1, without a loop over i.

    Assumes n >= 0, a >= 1, m >= 1, 0 <= low <= high, all integers; b may be negative.

    >>> clipped_floor_sum(10, 3, -8, 4, 0, 3)
    13
    >>> sum(min(3, max(0, (3 * i - 8) // 4)) for i in range(10))
    13
    """
    if is_traced(n, a, b, m, low, high):
        value = clipped_floor_sum(*map(plain, (n, a, b, m, low, high)))
        return template("sum[i < {}] clip(floor(({} * i + {}) / ({})), {}, {})", value, n, a, b, m, low, high)
    below = clip(ceil_div(low * m - b, a), 0, n)  # the first i whose floor reaches low
    inside = clip(ceil_div(high * m - b, a), 0, n)  # the first i whose floor reaches high
    start = maximum(a * below + b, 0)  # negative only where below == n, and then the middle is empty
    return low * below + floor_sum(inside - below, a, start, m) + high * (n - inside)


def quantile(values: Sequence[float], share: float) -> float:
    """The quantile ``share`` of ``values``, with linear interpolation.

    >>> quantile([3.0, 1.0, 2.0], 0.5), quantile([1.0, 2.0], 0.1)
    (2.0, 1.1)
    """
    ranked = sorted(values)
    at = share * (len(ranked) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (at - low) * (ranked[high] - ranked[low])
