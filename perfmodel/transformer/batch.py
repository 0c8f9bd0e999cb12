"""Throughput and latency of decode against the batch: what fills the step, where more batch stops paying, where memory ends."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfmodel.core.roofline import rates_of
from perfmodel.timing.predict import FallbackDevices
from perfmodel.transformer.estimate import PassEstimate, all_ops, pass_needs, run_pass
from perfmodel.transformer.op import CACHE, WEIGHTS, total_bytes
from perfmodel.transformer.op_time import op_estimate, scaled
from perfmodel.transformer.parallel import layout
from perfmodel.transformer.step import DECODE, Request

WEIGHTS_PART, CACHE_PART, COMPUTE_PART = "weights", "KV cache", "compute"
PAYS = 2**0.5
"""A batch twice as large pays if it brings at least this factor in tokens/s: half, in logarithms, of what it can bring."""
UNKNOWN_CAPACITY = 1024
"""Largest batch shown where the profile has no DRAM capacity, or nothing fits."""
LARGEST = 2**20


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """One batch. ``parts``: seconds of weights and KV cache at DRAM bandwidth, and of arithmetic at the highest clock."""

    batch: int
    step: PassEstimate
    parts: dict[str, float]
    memory: int
    fits: bool | None

    @property
    def tokens_per_s(self) -> float:
        """Over all sequences."""
        return self.batch / self.step.seconds

    @property
    def bound(self) -> str:
        """The largest part."""
        return max(self.parts, key=lambda name: self.parts[name])


@dataclass(frozen=True, slots=True)
class Curve:
    """``knee``: the batch from which doubling it brings less than ``PAYS`` in the bound's tokens/s; None beyond memory."""

    request: Request
    points: Sequence[BatchPoint]
    knee: int | None
    max_batch: int | None


def curve(request: Request, fallbacks: FallbackDevices = tuple) -> Curve:
    """Decode at ``request.kv_len`` for batches 1, 2, 4, ... up to what fits, the knee and the largest batch among them."""
    r = replace(request, phase=DECODE).check()
    held = layout(r.model, r.step(DECODE), r.device)
    most = held.max_batch or UNKNOWN_CAPACITY
    found = knee(r, most)
    batches = sorted({*(2**i for i in range(min(most, LARGEST).bit_length())), most, *([found] if found else [])})
    return Curve(r, [point(replace(r, batch=batch), fallbacks) for batch in batches], found, held.max_batch)


def point(r: Request, fallbacks: FallbackDevices) -> BatchPoint:
    """One batch."""
    step = r.step(DECODE)
    one, rates = run_pass(r.model, step, r.device, fallbacks, r.in_graph(DECODE)), rates_of(r.device, r.dtype)
    ops = [row.op for row in one.rows]
    parts = {
        WEIGHTS_PART: float(total_bytes(ops, WEIGHTS) / rates.dram),
        CACHE_PART: float(total_bytes(ops, CACHE) / rates.dram),
        COMPUTE_PART: float(one.cost.needs.work_s),
    }
    memory = layout(r.model, step, r.device)
    return BatchPoint(r.batch, one, parts, memory.total, memory.fits)


def bound_s(r: Request, batch: int) -> float:
    """The lower bound of a decode step with that batch."""
    step = replace(r, batch=batch).step(DECODE)
    rows = [(op, scaled(op_estimate(op, r.device), op.count)) for op in all_ops(r.model, step)]
    return float(pass_needs(rows, step.split.pp).cold_s)


def knee(r: Request, most: int) -> int | None:
    """The smallest batch, up to ``most``, beyond which doubling never pays; None if it still does there.

    Doubling may pay again after it did not: a small batch of a mixture touches more experts the larger it is.
    """

    def pays(batch: int) -> bool:
        return 2 * bound_s(r, batch) / bound_s(r, 2 * batch) >= PAYS

    if pays(most):
        return None
    low, high = 0, most  # low pays, or is none; high does not
    for batch in sorted((2**i for i in range(most.bit_length())), reverse=True):
        if pays(batch):
            low = batch
            break
        high = batch
    return bisect_left(range(high), True, lo=low + 1, key=lambda batch: not pays(batch))
