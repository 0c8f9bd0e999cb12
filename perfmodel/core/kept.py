"""Results kept by the identity of what they are of."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

Of = ParamSpec("Of")
Known = TypeVar("Known")
MOST_KEPT = 8192
"""Results per function; more than the records of all devices together."""


def kept_by_identity(work_out: Callable[Of, Known]) -> Callable[Of, Known]:
    """``work_out`` with a memo by the identity of its positional arguments: looking one up costs no hash of a workload or a device.

    For functions of nothing else; errors are not kept. The memo holds the arguments, so that no identity comes twice.
    """
    kept: dict[tuple[int, ...], tuple[tuple[Any, ...], Known]] = {}

    @wraps(work_out)
    def known(*of: Of.args, **named: Of.kwargs) -> Known:
        key = tuple(map(id, of))
        found = kept.get(key)
        if found is None:
            found = of, work_out(*of, **named)
            if len(kept) >= MOST_KEPT:
                kept.clear()
            kept[key] = found
        return found[1]

    return known
