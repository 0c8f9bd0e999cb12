"""An attention comparison in sentences: which is faster, by how much, what bounds each at its roof, and why."""

from __future__ import annotations

from perfmodel.core.hardware import Device
from perfmodel.core.units import format_si
from perfmodel.kernels.attention.evaluate import Result
from perfmodel.kernels.attention.request import Comparison
from perfmodel.report.against import ROOFS_EVEN, Side, against, alone, idle_and_launch, ratio
from perfmodel.report.charts.schema import Interval
from perfmodel.report.metrics import BOUND_WORDS, bound_by, seconds
from perfmodel.timing.select_kernel import Predictions

EAGER = "an eager softmax of standard, which stays far from its roof"


def verdict(comparison: Comparison, predictions: Predictions) -> list[str]:
    """One sentence per algorithm, against standard attention where it is among them: by predictions, else by roofs."""
    results = comparison.shown()
    sides = [_side(result, comparison, predictions) for result in results]
    reference = comparison.standard(comparison.direction)
    if reference is None or len(results) == 1:
        return [_alone(side, result) for side, result in zip(sides, results, strict=True)]
    fits = comparison.device.fits(reference.memory_bytes)
    small = [f"standard does not fit: it needs {format_si(reference.memory_bytes, 'B')}."] if fits is False else []
    first = sides[results.index(reference)]
    pairs = [(side, result) for side, result in zip(sides, results, strict=True) if result is not reference]
    return small + [f"{against(first, side)}. {_roofs(reference, result)}" for side, result in pairs]


def ratio_of(predictions: Predictions, name: str, direction: str) -> Interval | None:
    """Predicted time of standard attention over that of ``name``; None unless both are predicted."""
    known = [predictions.get((one, direction)) for one in ("standard", name)]
    both = [seconds(one) for one in known if one is not None]
    return ratio(*both) if len(both) == 2 else None


def _side(result: Result, comparison: Comparison, predictions: Predictions) -> Side:
    known = predictions.get((result.algorithm.name, result.direction))
    name, roof = result.algorithm.name, float(result.total.roofline_s)
    time = None if known is None else seconds(known)
    by = "" if known is None else known.calibration.implementation
    return Side(name, roof, time, by=by, left_out=left_out(result, comparison.device))


def left_out(result: Result, device: Device) -> tuple[str, ...]:
    """What the roof of ``result`` leaves out although it dominates, in words."""
    name = result.algorithm.name
    blocks = max((int(kernel.launch.blocks) for kernel, _ in result.kernels if kernel.launch), default=0)
    found = idle_and_launch(name, len(result.kernels), blocks, float(result.total.roofline_s), device)
    return tuple(found or [EAGER] * (name == "standard"))


def _alone(side: Side, result: Result) -> str:
    told = f"{alone(side)}; bound" if side.time else f"{side.name} is bound"
    return f"{told} by {bound_by(result.total)}."


TIE = ROOFS_EVEN
"""Amounts this close, relative, are called equal."""


def _roofs(reference: Result, result: Result) -> str:
    """What bounds the two at their roofs, and why one of these is lower."""
    name, gain = result.algorithm.name, reference.total.roofline_s / result.total.roofline_s
    head = f"At their roofs standard is bound by {bound_by(reference.total)}, {name} by {bound_by(result.total)}"
    if abs(gain - 1) <= TIE:
        return f"{head}: {_why_even(reference, result)}."
    return f"{head}: {_why_faster(reference, result) if gain > 1 else _why_slower(reference, result)}."


def _why_even(reference: Result, result: Result) -> str:
    same = reference.total.bound == result.total.bound
    return "both wait for the same resource" if same else f"{_moved(reference, result)}, which buys no time here"


def _why_faster(reference: Result, result: Result) -> str:
    reasons = []
    if reference.total.bound in ("dram", "l2") and _fewer(reference, result) > 1 + TIE:
        reasons.append(f"its scores stay on the chip, so it moves {_moved(reference, result)}")
    skipped = reference.total.executed_flops / result.total.executed_flops
    if skipped > 1 + TIE:
        reasons.append(f"it skips tiles that nobody sees and computes {skipped:.3g}x less")
    return " and ".join(reasons) or f"one fused kernel overlaps what {len(reference.kernels)} kernels do in turn"


def _why_slower(reference: Result, result: Result) -> str:
    wasted = result.total.executed_flops / result.total.flops
    if result.total.bound in ("dram", "l2"):
        return f"re-reading tiles, it moves {_moved(reference, result)}"
    extra = f", {wasted:.3g}x the FLOP of the visible scores (padding, masked parts, recomputation)" if wasted > 1 + TIE else ""
    return f"{_moved(reference, result)}, but it is held back by {BOUND_WORDS.get(result.total.bound or '', 'its work')}{extra}"


def _fewer(reference: Result, result: Result) -> float:
    """Bytes of ``reference`` over those of ``result``, at the level that bounds ``reference``, DRAM where none does."""
    if reference.total.bound == "l2":
        return float(reference.total.sram.total / result.total.sram.total)
    return float(reference.total.dram.total / result.total.dram.total)


def _moved(reference: Result, result: Result) -> str:
    level = "through the L2" if reference.total.bound == "l2" else "over DRAM"
    fewer = _fewer(reference, result)
    if abs(fewer - 1) <= TIE:
        return f"as many bytes {level}"
    return f"{fewer:.3g}x fewer bytes {level}" if fewer > 1 else f"{1 / fewer:.3g}x more bytes {level}"
