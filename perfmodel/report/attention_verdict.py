"""What an attention report says in words: which algorithm is faster, at what rate, what limits it, and why."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Device
from perfmodel.core.units import format_si, format_time
from perfmodel.kernels.attention.evaluate import AttentionResult
from perfmodel.kernels.attention.request import Comparison
from perfmodel.report.against import ROOFS_EVEN, Side, against, alone, idle_and_launch, launching, ratio
from perfmodel.report.answer import compared, fit, limits, meters_of, rate_and_share, rate_of, sentence, starting, too_few
from perfmodel.report.charts.schema import Interval
from perfmodel.report.metrics import BOUND_WORDS, bound_by, seconds
from perfmodel.timing.base import Case
from perfmodel.timing.select_kernel import Predictions

EAGER = "an eager softmax of standard, which stays far from its roof"


def main_result(comparison: Comparison, predictions: Predictions) -> AttentionResult:
    """The result that the answer is about: the fastest beside standard attention, by predictions where there are some."""
    results = comparison.shown()
    others = [result for result in results if result.algorithm.name != "standard"] or results
    same = [result for result in others if result.algorithm.name != "block-sparse"] or others  # that one computes something else
    known = {result.algorithm.name: predictions.get((result.algorithm.name, result.direction)) for result in same}
    times = {
        result.algorithm.name: (one is None, one.seconds if one else result.total.roofline_s)
        for result in same
        for one in [known[result.algorithm.name]]
    }
    return min(same, key=lambda result: times[result.algorithm.name])


def verdict(comparison: Comparison, predictions: Predictions) -> list[str]:
    """Whether it fits and which is faster; at what rate; what limits it: of the main result, against standard attention."""
    main, reference, device = main_result(comparison, predictions), comparison.standard(comparison.direction), comparison.device
    known = seconds(predictions.get((main.algorithm.name, main.direction)))
    rate = f"{rate_of(main.total, known, device, comparison.workload.dtype, main.memory_bytes)}."
    idle, least = too_few(blocks_of(main), device), least_of_few(main, device)
    if known is None and idle and least is not None:
        share = rate_and_share(main.total, least, device, comparison.workload.dtype)
        rate = f"Not predicted; at least {format_time(least.value, 3)}, with {idle[0]}: at most {share}."
    limit = _limit(main, comparison, predictions)
    first = _fits(main, None if reference is main else reference, comparison, predictions)
    return [*[sentence(first)] * bool(first), rate, *[f"{limit}{_softmax(reference, device, predictions)}."] * bool(limit)]


def _limit(result: AttentionResult, comparison: Comparison, predictions: Predictions) -> str:
    """What limits ``result``, in words."""
    known = seconds(predictions.get((result.algorithm.name, result.direction)))
    return limits(meters_of(result.total, known), causes(result, comparison, predictions), known is None, result.total.unknown)


def _slow(results: Sequence[AttentionResult], comparison: Comparison, predictions: Predictions) -> list[str]:
    """Sentences on what limits those of ``results`` that are predicted to take longer than all their resources one after another."""
    times = [(result, predictions.get((result.algorithm.name, result.direction))) for result in results]
    over = [result for result, known in times if known is not None and known.seconds > result.total.no_overlap_s]
    return [f"{result.algorithm.name} is limited by {_limit(result, comparison, predictions)}." for result in over]


def _softmax(reference: AttentionResult | None, device: Device, predictions: Predictions) -> str:
    """What the roof of standard attention leaves out of its time, where it has no other."""
    if reference is None or (reference.algorithm.name, reference.direction) in predictions or EAGER not in left_out(reference, device):
        return ""
    return "; left out: standard's eager softmax"


def _fits(main: AttentionResult, reference: AttentionResult | None, comparison: Comparison, predictions: Predictions) -> str:
    """Whether ``main`` fits, and how it compares to ``reference``, if there is one; of one that does not fit only that."""
    device, name = comparison.device, main.algorithm.name
    fits, _, size = fit(main.memory_bytes, device).partition(":")
    if reference is None or fits == "does not fit":
        return f"{fits}: {name}{' takes' * (fits == 'fits')}{size.replace(',', '')}" if fits else ""
    faster = compared(*(side(result, comparison, predictions) for result in (reference, main)))
    if device.fits(reference.memory_bytes) is False:
        return f"only {name} fits; {faster.replace(f'{name} is', 'it is', 1)}"
    return f"{fits}; {faster}" if fits else faster


def causes(result: AttentionResult, comparison: Comparison, predictions: Predictions) -> list[str]:
    """What takes time beside work and traffic: the start of the kernel that is predicted, else launches, and too few blocks of it."""
    known = predictions.get((result.algorithm.name, result.direction))
    if known is None:
        launched = launching(len(result.kernels), float(result.total.roofline_s), comparison.device)
        return [*launched, *too_few(blocks_of(result), comparison.device)]
    if result.passes:
        return []
    from perfmodel.timing.launched import kernels_of

    case = Case(comparison.workload, known.calibration.implementation, result.direction)
    try:
        kernels, _ = kernels_of(case, comparison.device)
    except PerfmodelError:
        return starting(known)
    blocks = [int(kernel.launch.blocks) for kernel in kernels if kernel.flops and kernel.launch]
    return [*starting(known), *(too_few(blocks[0], comparison.device) if len(blocks) == 1 else [])]


def predicted_ratio(result: AttentionResult, predictions: Predictions) -> Interval | None:
    """Predicted time of standard attention over its own; None for standard itself and where one of the two is not predicted."""
    name = result.algorithm.name
    old, new = (seconds(predictions.get((one, result.direction))) for one in ("standard", name))
    return None if name == "standard" or old is None or new is None else ratio(old, new)


def reasons(comparison: Comparison, predictions: Predictions) -> list[str]:
    """One sentence per algorithm, against standard attention where it is among them: by predictions, else by roofs."""
    results, reference = comparison.shown(), comparison.standard(comparison.direction)
    sides = [side(result, comparison, predictions) for result in results]
    slow = _slow([result for result in results if result is not main_result(comparison, predictions)], comparison, predictions)
    if reference is None or len(results) == 1:
        known = [f"{alone(side)}; bound" if side.time else f"{side.name} is bound" for side in sides]
        return [*(f"{side} by {bound_by(result.total)}." for side, result in zip(known, results, strict=True)), *slow]
    fits = comparison.device.fits(reference.memory_bytes)
    small = [f"standard does not fit: it needs {format_si(reference.memory_bytes, 'B')}."] if fits is False else []
    first = sides[results.index(reference)]
    pairs = [(side, result) for side, result in zip(sides, results, strict=True) if result is not reference]
    said = [f"{against(first, side)}. {_roofs(reference, result)}" for side, result in pairs]
    return [*small, *said, *slow]


def side(result: AttentionResult, comparison: Comparison, predictions: Predictions) -> Side:
    """``result`` as one of two that are held against each other."""
    known = predictions.get((result.algorithm.name, result.direction))
    by = "" if known is None else known.calibration.implementation
    left = left_out(result, comparison.device)
    return Side(result.algorithm.name, float(result.total.roofline_s), seconds(known), by=by, left_out=left)


def left_out(result: AttentionResult, device: Device) -> tuple[str, ...]:
    """What the roof of ``result`` leaves out although it dominates, in words."""
    name = result.algorithm.name
    found = idle_and_launch(name, len(result.kernels), blocks_of(result), float(result.total.roofline_s), device)
    return tuple(found or [EAGER] * (name == "standard"))


def least_of_few(result: AttentionResult, device: Device) -> Interval | None:
    """The least time of an unpredicted result whose blocks leave multiprocessors idle; None if they do not, or nobody knows."""
    blocks, count = blocks_of(result), device.multiprocessors
    if count is None or not too_few(blocks, device):
        return None
    slower = count.number / blocks
    return Interval(max(float(term) * (1 if name == "dram" else slower) for name, term in result.total.terms.items()))


def blocks_of(result: AttentionResult) -> int:
    """Thread blocks of its largest launch, 0 where that is unknown."""
    return max((int(kernel.launch.blocks) for kernel, _ in result.kernels if kernel.launch), default=0)


def _roofs(reference: AttentionResult, result: AttentionResult) -> str:
    """What bounds the two at their roofs, and why one of these is lower."""
    gain = reference.total.roofline_s / result.total.roofline_s
    if abs(gain - 1) <= ROOFS_EVEN:
        same = reference.total.bound == result.total.bound
        why = "both wait for the same resource" if same else f"{moved(reference, result)}, which buys no time here"
    else:
        why = _why_faster(reference, result) if gain > 1 else _why_slower(reference, result)
    return f"At their roofs standard is bound by {bound_by(reference.total)}, {result.algorithm.name} by {bound_by(result.total)}: {why}."


def _why_faster(reference: AttentionResult, result: AttentionResult) -> str:
    reasons = []
    if reference.total.bound in ("dram", "l2") and _fewer(reference, result) > 1 + ROOFS_EVEN:
        reasons.append(f"its scores stay on the chip, so it moves {moved(reference, result)}")
    skipped = reference.total.executed_flops / result.total.executed_flops
    if skipped > 1 + ROOFS_EVEN:
        reasons.append(f"it skips tiles that nobody sees and computes {skipped:.3g}x less")
    return " and ".join(reasons) or f"one fused kernel overlaps what {len(reference.kernels)} kernels do in turn"


def _why_slower(reference: AttentionResult, result: AttentionResult) -> str:
    wasted = result.total.executed_flops / result.total.flops
    if result.total.bound in ("dram", "l2"):
        return f"re-reading tiles, it moves {moved(reference, result)}"
    extra = f", {wasted:.3g}x the FLOP of the visible scores (padding, masked parts, recomputation)" if wasted > 1 + ROOFS_EVEN else ""
    return f"{moved(reference, result)}, but it is held back by {BOUND_WORDS.get(result.total.bound or '', 'its work')}{extra}"


def _fewer(reference: AttentionResult, result: AttentionResult) -> float:
    """Bytes of ``reference`` over those of ``result``, at the level that bounds ``reference``, DRAM where none does."""
    if reference.total.bound == "l2":
        return float(reference.total.sram.total / result.total.sram.total)
    return float(reference.total.dram.total / result.total.dram.total)


def moved(reference: AttentionResult, result: AttentionResult) -> str:
    """How many times fewer or more bytes ``result`` moves, and where."""
    level, fewer = "through the L2" if reference.total.bound == "l2" else "over DRAM", _fewer(reference, result)
    if abs(fewer - 1) <= ROOFS_EVEN:
        return f"as many bytes {level}"
    return f"{fewer:.3g}x fewer bytes {level}" if fewer > 1 else f"{1 / fewer:.3g}x more bytes {level}"
