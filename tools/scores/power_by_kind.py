"""Clock, watts and time of kernels that run for seconds, each kind predicted by a fit that saw no kernel of it.

Steps are in no fit. The clock's exponent and the draw of a moment are those of the shipped fit. Numbers of ``perfmodel/timing/chosen.json``
were chosen on half of the rows, told apart by a hash of the shape; the scores here are of the others, drawn rows among them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.arith import quantile
from perfmodel.core.hardware import Device, PowerFit
from perfmodel.core.power import SUSTAINED, Power, PowerState
from perfmodel.timing.power import KINDS, UNCOUNTED, Activity
from perfmodel.transformer.step_power import of_row
from perfmodel.validation.bounds import case_of
from perfmodel.validation.records import Record, held_out, read_records, shipped_records
from tools.power_fit import OPERAND_BYTES, PowerPoint, absolute, limited, power_errors, power_fit, power_point, with_formats

DEVICE = "nvidia-h200-sxm"
STEP = "transformer"


class Row(NamedTuple):
    """A record, what it does alone after a pause, and, of a kernel, the point that a fit takes."""

    record: Record
    alone: tuple[Activity, ...]
    point: PowerPoint | None = None


def kind_of(record: Record) -> str:
    """Kind of ``record``, left out as a whole: products by format, attention by pass, decode by library."""
    if record.workload == STEP:
        return f"{record.shape['phase']} steps"
    if record.workload == "matmul":
        return "products, 16 bits" if record.dtype in ("fp16", "bf16") else f"products, {record.dtype}"
    if record.workload != "attention":
        return {"scale": "element-wise", "norm": "norms", "copy": "copies"}.get(record.workload, record.workload)
    library = record.implementation.rpartition("-")[2]
    if "eager" in record.implementation:
        return "eager attention"
    if record.shape["n"] == 1:
        return f"decode, {library}"
    return "attention forward" if record.direction == "forward" else "attention backward"


def seen(record: Record) -> bool:
    """Whether numbers may have been chosen on ``record``."""
    text = json.dumps([record.workload, record.implementation, record.dtype, record.direction, sorted(record.shape.items())])
    return not held_out(record) and int(hashlib.sha256(text.encode()).hexdigest(), 16) % 2 == 0


@cache
def rows() -> tuple[Row, ...]:
    """Kernels and steps of the device that ran for seconds."""
    device, found = find_device(DEVICE), []
    for record in (one for path in shipped_records() if path.name.startswith("sustained") for _, one in read_records(path)):
        if record.workload == STEP:
            whole = case_of(record).workload.on(device, cache(calibrated_devices))
            factor = float(record.environment["burst_s"]) / whole.seconds
            found.append(Row(record, tuple(of_row(row, device, factor) for row in whole.rows if row.seconds > 0)))
        elif (point := power_point(record, device)) is not None:
            found.append(Row(record, (point.alone,), point))
    return tuple(found)


@cache
def fit_without(kind: str) -> PowerFit:
    """The fit to all points that fits may see, except those of ``kind``."""
    shipped = shipped_fit()
    own = [row.point for row in rows() if row.point is not None and not held_out(row.record) and kind_of(row.record) != kind]
    fit = power_fit(own, shipped.clock_exponent, shipped.burst_over_limit)
    plain = dict.fromkeys((one for one in KINDS if one not in UNCOUNTED), min(fit.busy_w.values()))
    return with_formats(replace(fit, busy_w=plain | fit.busy_w), OPERAND_BYTES)


def shipped_fit() -> PowerFit:
    """The fit in the profile."""
    fit = find_device(DEVICE).power
    assert fit is not None
    return fit


def state(row: Row, fit: PowerFit) -> PowerState:
    """How ``row`` is predicted to run for seconds by ``fit``, from its measured time alone."""
    device: Device = replace(find_device(DEVICE), power=fit)
    return Power(device).state([one.demand(fit) for one in row.alone], SUSTAINED)


@cache
def pairs(without: bool) -> tuple[tuple[Record, PowerState], ...]:
    """Each record with its state, by a fit ``without`` its kind or by the shipped one."""
    return tuple((row.record, state(row, fit_without(kind_of(row.record)) if without else shipped_fit())) for row in rows())


def errors(without: bool, kind: str = "", unseen: bool = True) -> dict[str, list[float]]:
    """Errors of ``clock`` (of rows that power limits, measured or predicted), ``watts`` and ``seconds``; of all kinds without ``kind``."""
    device = find_device(DEVICE)
    own = [pair for pair in pairs(without) if kind in ("", kind_of(pair[0])) and not (unseen and seen(pair[0]))]
    slowed = [(record, state) for record, state in own if limited(record, device) or limited(replace(record, sm_hz=state.sm_hz), device)]
    found = power_errors(own)
    return {"clock": power_errors(slowed).clock, "watts": found.watts, "seconds": found.seconds}


def table_rows() -> list[list[str]]:
    """A line per kind and one of all: rows, those that power limits; size and bias of each error, left out and not."""
    lines = []
    for kind in (*sorted({kind_of(row.record) for row in rows()}), ""):
        both = [errors(without, kind, unseen=False) for without in (True, False)]
        cells = [
            f"{absolute(found[what]):.1%}, {quantile(found[what], 0.5):+.1%}" if found[what] else "-" for found in both for what in found
        ]
        lines.append([kind or "all", f"{len(both[0]['watts'])}, {len(both[0]['clock'])}", *cells])
    return lines
