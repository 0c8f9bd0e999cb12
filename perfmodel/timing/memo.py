"""What a model knows of a case on a device before any parameter is: worked out once, however often a fit asks."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from perfmodel.hardware import Device
from perfmodel.timing.base import Case

Known = TypeVar("Known")
MOST_KEPT = 8192
"""Cases per function; more than the records of all devices together."""


def once_per_case(work_out: Callable[[Case, Device], Known]) -> Callable[[Case, Device], Known]:
    """``work_out(case, device)`` with a memo by the identity of both: looking one up costs no hash of a workload.

    For functions of nothing else; errors are not kept. The memo holds its cases, so that no identity comes twice.
    """
    kept: dict[tuple[int, int], tuple[Case, Device, Known]] = {}

    @wraps(work_out)
    def known(case: Case, device: Device) -> Known:
        key = id(case), id(device)
        if key not in kept:
            found = work_out(case, device)
            if len(kept) >= MOST_KEPT:
                kept.clear()
            kept[key] = case, device, found
        return kept[key][2]

    return known
