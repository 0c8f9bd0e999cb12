"""C = A B in fp32 without shared memory: numba-matmul-naive, one thread per element of C.

A warp walks k: one element of A, which stays in L1, and 32 neighbours of B, which come from L2 every time, for neighbouring
blocks share a row of A and not a column of B. L2 delivers to each multiprocessor at one rate; a last, partly filled round of
blocks takes as long as a full one. Source: the kernel's loop; profiled loads from L2 are 4 m n k bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.arith import ceil_div
from perfmodel.core.hardware import Device
from perfmodel.timing.base import Case, Model, Parameter, numbers_of
from perfmodel.timing.models.numba_matmul import covers
from perfmodel.timing.models.register_tiles import FLOAT_BYTES, instruction_costs, launches_seconds

THREADS = 256
"""Per block, along a row of C."""

PARAMETERS = (Parameter("l2_bytes_per_clock", "from L2, to one multiprocessor", 15.0),)
KNOWN = ("THREADS",)


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds; UnavailableError without a calibration of numba-flash, or a number that it needs."""
    w = case.workload
    threads = case.launch.get("threads", THREADS)
    blocks = ceil_div(w.n, threads) * w.m
    launch = launches_seconds(1, device, instruction_costs(device))
    sms, clock = numbers_of(device, "multiprocessors", "highest clock")
    return float(launch + ceil_div(blocks, int(sms)) * threads * w.k * FLOAT_BYTES / p["l2_bytes_per_clock"] / clock)


MODEL = Model(
    "numba-matmul-naive", PARAMETERS, covers, seconds, "bytes of B from L2", implementations=("numba-matmul-naive",), composite=True
)
