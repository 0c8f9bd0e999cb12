"""A case and what was measured of it, as a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfmodel.validation.cases import KernelCase
from perfmodel.validation.libraries import Torch, version_of
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
    environment = {"torch": torch.__version__, "runs": len(found.times), **found.environment}
    software = "; ".join(filter(None, (version_of(torch), found.software)))
    return case.record(hardware, Seconds.of(found.times), software, memory=found.memory, environment=environment)
