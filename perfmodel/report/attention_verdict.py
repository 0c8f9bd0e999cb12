"""An attention comparison in sentences: what bounds what, which is faster at the roof, and why."""

from __future__ import annotations

from perfmodel.attention.evaluate import Result
from perfmodel.attention.request import Comparison
from perfmodel.report.counts import BOUND_WORDS
from perfmodel.units import format_si, format_time


def verdict(comparison: Comparison) -> list[str]:
    """One sentence per algorithm, against standard attention where it is among them."""
    results = comparison.shown()
    reference = comparison.standard(comparison.direction)
    if reference is None:
        return [f"{result.algorithm.name} is bound by {_bound_by(result)}." for result in results]
    if len(results) == 1:
        return [f"standard is bound by {_bound_by(reference)}."]
    fits = comparison.fits(reference.memory_bytes)
    small = [f"standard does not fit: it needs {format_si(reference.memory_bytes, 'B')}."] if fits is False else []
    return small + [_against(reference, result) for result in results if result is not reference]


def _bound_by(result: Result) -> str:
    cost = result.total
    if cost.bound is None:
        return "nothing the profile knows"
    term, roof = format_time(cost.terms[cost.bound]), format_time(cost.roofline_s)
    return f"{BOUND_WORDS[cost.bound]} ({term})" if term == roof else f"{BOUND_WORDS[cost.bound]} ({term} of {roof})"


TIE = 0.02
"""Roofs this close are called even."""


def _against(reference: Result, result: Result) -> str:
    """What bounds the two, which is faster at the roof, and why."""
    name, gain = result.algorithm.name, reference.total.roofline_s / result.total.roofline_s
    head = f"standard is bound by {_bound_by(reference)}, {name} by {_bound_by(result)}."
    if abs(gain - 1) <= TIE:
        return f"{head} The two are even: {_why_even(reference, result)}."
    if gain > 1:
        return f"{head} {name} wins {gain:.3g}x: {_why_faster(reference, result)}."
    return f"{head} {name} does not win ({gain:.3g}x): {_why_slower(reference, result)}."


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
