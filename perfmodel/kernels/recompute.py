"""Store a tensor and read it back, or compute it again: whichever takes less at the roof.

Storing costs one write and a read per use at memory bandwidth. Recomputing costs ``flops`` per use at the peak of the unit
that runs the dtype; the inputs are taken to be at hand. The two meet at a break-even number of FLOP per byte.
"""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.core.checks import positive_int
from perfmodel.core.dtypes import Dtype
from perfmodel.core.explain import ROOF_SOURCE
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import rates_of
from perfmodel.core.trace import FormulaStep, Trace

SOURCE = "store: one write and a read per use over bandwidth; recompute: FLOP per use over peak"


@dataclass(frozen=True, slots=True)
class Recompute:
    """A tensor of ``size`` bytes that ``flops`` FLOP produce, needed ``times`` times later."""

    size: Number
    flops: Number
    dtype: Dtype
    times: Number = 1

    def check(self) -> Recompute:
        """This workload, if every value has a meaning; else UsageError names the option and the fix."""
        positive_int("times", self.times)
        return self


def stored_bytes(w: Recompute) -> Number:
    """Bytes moved if the tensor is stored: written once, read at each use.

    >>> from perfmodel.core.dtypes import DTYPES
    >>> stored_bytes(Recompute(1000, 1, DTYPES["fp16"], times=3))
    4000
    """
    return w.size * (1 + w.times)


def store_s(w: Recompute, bandwidth: Number) -> Number:
    """Seconds to store and read back at ``bandwidth`` B/s."""
    return stored_bytes(w) / bandwidth


def recompute_s(w: Recompute, peak: Number) -> Number:
    """Seconds to compute the tensor at each use at ``peak`` FLOP/s."""
    return w.times * w.flops / peak


def break_even(w: Recompute, peak: Number, bandwidth: Number) -> Number:
    """FLOP per byte of the tensor at which both take the same time: (1 + uses) / uses times the ridge point.

    >>> from perfmodel.core.dtypes import DTYPES
    >>> round(break_even(Recompute(1, 1, DTYPES["fp16"]), 312e12, 2039.04e9), 1)
    306.0
    """
    return (1 + w.times) / w.times * peak / bandwidth


@dataclass(frozen=True, slots=True)
class Level:
    """Storing at one memory level. ``fits``: the tensor fits its capacity; None where that is unknown."""

    name: str
    fits: bool | None
    bandwidth: float | None
    store_s: float | None
    break_even: float | None


@dataclass(frozen=True, slots=True)
class RecomputeResult:
    """Storing compared with recomputing. ``levels``: DRAM, and the L2 if there is one. ``best``: the fastest level that the tensor fits."""

    workload: Recompute
    device: Device
    peak: float
    recompute_s: float
    levels: list[Level]

    @property
    def intensity(self) -> float:
        """FLOP per byte of the tensor."""
        return float(self.workload.flops / self.workload.size)

    @property
    def best(self) -> Level:
        """The level with the shortest known time among those that the tensor fits; else DRAM."""
        candidates = [level for level in self.levels[1:] if level.fits and level.store_s is not None]
        return min([self.levels[0], *candidates], key=lambda level: level.store_s or 0.0)

    @property
    def recomputes(self) -> bool:
        """Whether computing again is faster than the best level."""
        return self.recompute_s < (self.best.store_s or 0.0)


def evaluate(w: Recompute, device: Device) -> RecomputeResult:
    """Seconds to store and to recompute on ``device``. UnavailableError if it has no peak for the dtype or no DRAM bandwidth."""
    rates, levels = rates_of(device, w.dtype), []
    for level, bandwidth in ((device.dram, rates.dram), (device.level("l2"), rates.l2)):
        if level is not None:
            fits = None if level.capacity is None else bool(w.size <= level.capacity.number)
            if bandwidth is None:
                levels.append(Level(level.level, fits, None, None, None))
            else:
                even = float(break_even(w, rates.matmul, bandwidth))
                levels.append(Level(level.level, fits, float(bandwidth), float(store_s(w, bandwidth)), even))
    return RecomputeResult(w, device, float(rates.matmul), float(recompute_s(w, rates.matmul)), levels)


def explain(result: RecomputeResult) -> list[FormulaStep]:
    """The formula of every number of ``result``, as steps."""
    trace, w = Trace(), result.workload
    traced = Recompute(
        trace.symbol("S", w.size, "B of the tensor", "given"),
        trace.symbol("F", w.flops, "FLOP to compute it", "given"),
        w.dtype,
        trace.symbol("u", w.times, "uses", "given"),
    )
    rates = rates_of(result.device, w.dtype, trace)
    trace.define("intensity", "FLOP per byte of the tensor", traced.flops / traced.size, ROOF_SOURCE)
    trace.define("stored bytes", "B written and read", stored_bytes(traced), SOURCE)
    trace.define("recompute", "s", recompute_s(traced, rates.matmul), SOURCE)
    for level, bandwidth in (("DRAM", rates.dram), ("L2", rates.l2)):
        if bandwidth is not None:
            trace.define(f"store, {level}", "s", store_s(traced, bandwidth), SOURCE)
            trace.define(f"break-even, {level}", "FLOP/B", break_even(traced, rates.matmul, bandwidth), SOURCE)
    return list(trace.steps.values())
