"""A case and what was measured of it, as a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from perfmodel.timing.base import CLEAN
from perfmodel.validation.cases import KernelCase
from perfmodel.validation.libraries import Torch
from perfmodel.validation.records import Record, Seconds

BOTH = "both"
"""The pass of these cases: forward and backward."""


@dataclass(frozen=True, slots=True)
class Measured:
    """``times``: seconds of each run. ``memory``: bytes. ``environment``: what else a reader may want to know."""

    times: Sequence[float]
    memory: dict[str, float]
    environment: dict[str, Any] = field(default_factory=dict)
    software: str = ""


Measure = Callable[[KernelCase, Torch], Measured]


def record_of(case: KernelCase, found: Measured, hardware: str, torch: Torch) -> Record:
    """The record of one case; its source ends in the case's role."""
    version = str(torch.__version__).split("+", 1)[0]
    return Record(
        workload=case.workload,
        implementation=case.implementation,
        hardware=hardware,
        dtype=case.dtype,
        shape=dict(case.shape),
        time_s=Seconds.of(found.times),
        direction=cast(Any, case.direction),
        cache=cast(Any, "cold" if case.cache == CLEAN else case.cache),
        memory=found.memory,
        environment={"torch": torch.__version__, "runs": len(found.times), **found.environment},
        source="; ".join(filter(None, (f"torch {version}", found.software, case.role))),
    )
