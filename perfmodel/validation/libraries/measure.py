"""Time cases and make records of them; a case that cannot run or computes something else is reported, not recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields
from typing import Any, cast

from perfmodel.core.errors import PerfmodelError, UnavailableError
from perfmodel.core.workload import FORWARD
from perfmodel.validation.libraries.base import LibraryCase, Torch, load_torch
from perfmodel.validation.libraries.registry import find
from perfmodel.validation.libraries.timer import Stopping, Timer, seconds
from perfmodel.validation.records import Record, Seconds

TOLERANCE = {"forward": 0.02, "backward": 0.03}
"""Relative error against float64 of kernels that round scores or results to 16 bits; a wrong kernel is off by far more."""

DIGITS = 4
"""Significant digits of a recorded time: 1e-4 is below the noise of any run."""

KEPT_BYTES = 48 << 30
"""Memory that torch may hold back between cases before it is handed back to the driver."""


def measure(
    cases: Iterable[LibraryCase],
    hardware: str,
    progress: Callable[[LibraryCase], None] = lambda case: None,
    on_record: Callable[[Record], None] = lambda record: None,
    on_skip: Callable[[LibraryCase, str], None] | None = None,
    stopping: Stopping | None = None,
) -> list[Record]:
    """A record per case, in order. ``on_record`` gets each at once, ``progress`` each case before it starts.

    ``on_skip`` gets a case that did not run, and why; without it the first such case raises UnavailableError.
    """
    torch = load_torch()
    timer = Timer(torch, stopping or Stopping())
    found = []
    for case in cases:
        progress(case)
        try:
            record = _measured(case, hardware, torch, timer)
        except (PerfmodelError, RuntimeError) as error:  # torch raises RuntimeError where no kernel fits, or memory is short
            reason = str(error).strip().split("\n", 1)[0]
            if on_skip is None:
                raise UnavailableError(f"{case.workload}/{case.implementation} {dict(case.shape)}: {reason}") from error
            on_skip(case, reason)
            continue
        finally:
            if torch.cuda.memory_reserved() > KEPT_BYTES:
                torch.cuda.empty_cache()
        found.append(record)
        on_record(record)
    return found


def _measured(case: LibraryCase, hardware: str, torch: Torch, timer: Timer) -> Record:
    prepared = find(case).prepare(case, torch)
    with torch.no_grad() if case.direction == FORWARD else torch.enable_grad():
        error = prepared.error(prepared.run())
        if not error <= TOLERANCE[case.direction]:
            raise UnavailableError(f"its relative error against float64 is {error:.2g}")
        clocks: list[int] = []
        times = timer.times(prepared.run, case.cold, lambda: _sample_clock(torch, clocks))
    version = str(torch.__version__).split("+", 1)[0]
    environment: dict[str, Any] = {"torch": torch.__version__, "runs": len(times), "relative_error": float(f"{error:.2g}")}
    if clocks:
        environment["sm_mhz"] = sorted(clocks)[len(clocks) // 2]
    return Record(
        workload=case.workload,
        implementation=case.implementation,
        hardware=hardware,
        dtype=case.dtype,
        shape=dict(case.shape),
        time_s=seconds(times),
        direction=cast(Any, case.direction),  # find() has checked it
        cache="cold" if case.cold else "warm",
        environment=environment,
        source="; ".join(filter(None, (f"torch {version}", "B row-major" if case.row_major else "", case.role))),
    )


def _sample_clock(torch: Torch, clocks: list[int]) -> None:
    """Append the SM clock in MHz, if the machine's management library is there to ask."""
    with suppress(Exception):  # that library's own errors, which have no name where it is missing
        clocks.append(torch.cuda.clock_rate())


def as_line(record: Record) -> str:
    """The record as a line of JSON, without its empty fields, times rounded to DIGITS."""
    names = {field: key for key, field in Record.FIELDS.items()}
    entries: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Seconds):
            value = {key: float(f"{number:.{DIGITS}g}") for key, number in _times(value).items()}
        if value not in ({}, "", None):
            entries[names.get(field.name, field.name)] = value
    return json.dumps(entries, separators=(",", ":")) + "\n"


def _times(value: Seconds) -> dict[str, float]:
    given = {"median": value.median, "p10": value.p10, "p90": value.p90}
    return {key: number for key, number in given.items() if number is not None}
