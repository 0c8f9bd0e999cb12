"""The report of an attention comparison: which algorithm is faster and why, a table per pass, and extras that were asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from perfmodel.core.cost import Kernel
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate
from perfmodel.core.units import format_binary, format_si
from perfmodel.core.workload import BACKWARD, FORWARD, VIEWS
from perfmodel.kernels.attention.evaluate import BOTH, COMPULSORY_SOURCE, THETA_SOURCE, AttentionResult, compulsory_elements, explain, theta
from perfmodel.kernels.attention.evaluate import memory as memory_of
from perfmodel.kernels.attention.request import Comparison
from perfmodel.report.answer import ROOFS_EVEN, few_blocks, fit_phrase, headline, lower_first, sentence, slow_launches, slow_start
from perfmodel.report.document import Figure, Report, Table
from perfmodel.report.kernel_time import KernelTime, with_measured
from perfmodel.report.metrics import BOUND_WORDS, Metric, as_json, as_rows, as_table, bound_by, of_cost, of_memory, outside, words_for
from perfmodel.report.op_common import guess_notes, head, note, prediction_keys, unknown_rates, with_steps
from perfmodel.report.power import power_note
from perfmodel.report.saved import Interval
from perfmodel.report.speedup import Side, faster_sentence, interval_text, ratio, ratio_notes, ratio_text, side_clause, verdict_sentence
from perfmodel.timing.base import Case
from perfmodel.timing.predict import Prediction
from perfmodel.timing.select_kernel import Predictions

if TYPE_CHECKING:
    from perfmodel.report.charts.schema import Chart

LABELS = {"flops": "FLOP, visible scores", "accesses.total": "accesses without a cache"}
BRIEF = {
    "time_s.predicted": "predicted",
    "speedup, predicted": "speedup",
    "rate": "rate, predicted",
    "of_peak": "  of the peak",
    "time_s.sustained": "run for seconds",
    "sustained.energy_j": "energy",
    "time_s.roofline": "roofline",
    "bound": "bound by",
    "traffic.dram.bytes": "DRAM traffic",
    "memory_bytes": "memory footprint",
}
"""Rows of the short table, with labels short enough for two algorithms in 80 columns."""
EAGER = "an eager softmax of standard, which stays far from its roof"


def report(
    comparison: Comparison,
    *,
    predictions: Predictions | None = None,
    unpredicted: Sequence[str] = (),
    explained: bool = False,
    crossover: bool = False,
    pictures: bool = False,
    measured_s: float | None = None,
) -> Report:
    """``comparison`` as a Report with data of schema perfmodel.attention/1. ``unpredicted``: why ``predictions`` are missing.

    ``crossover`` adds the sizes at which tiling pays.
    """
    answer = _Answer(comparison, predictions or {})
    reasons = _reasons(answer)
    main = answer.time(answer.main)
    plain = Report(
        _title(comparison),
        _headline(answer),
        _tables(answer),
        [*_notes(comparison), *_time_notes(answer, [*unpredicted, *ratio_notes(reasons)])],
        data(answer),
        charts=_charts(answer) if pictures else [],
        meters=main.meters,
        metered=main.metered,
        figures=_figures(answer),
        brief=_tables(answer, BRIEF, main.rows_left_out)[-1:],
        reasons=reasons,
    )
    if comparison.sram_sizes:
        plain = _with_sram_sizes(plain, comparison)
    if crossover:
        plain = _with_crossovers(plain, comparison)
    plain = with_measured(plain, measured_s, main.cost, main.predicted)
    return _with_formulas(plain, answer) if explained else plain


@dataclass(frozen=True)
class _Answer:
    """A comparison with its predicted times."""

    comparison: Comparison
    predictions: Predictions

    def prediction(self, result: AttentionResult) -> Prediction | None:
        return self.predictions.get((result.algorithm.name, result.direction))

    @cached_property
    def _times(self) -> dict[tuple[str, str], KernelTime]:
        device, dtype = self.comparison.device, self.comparison.workload.dtype
        times = {}
        for result in self.comparison.results:
            name, prediction = result.algorithm.name, self.prediction(result)
            least = None if prediction else _least(result, device)
            causes = self._causes(result, prediction)
            time = KernelTime(result.total, device, dtype, result.memory_bytes, prediction, name, causes, least, "visible FLOP")
            times[name, result.direction] = time
        return times

    def time(self, result: AttentionResult) -> KernelTime:
        """The time of ``result``, with causes outside the roof."""
        return self._times[result.algorithm.name, result.direction]

    def _causes(self, result: AttentionResult, prediction: Prediction | None) -> list[str]:
        """Causes of its time: the start of a predicted kernel or else launches, and too few blocks."""
        device = self.comparison.device
        if prediction is None:
            return _beyond_roof(result, device)
        if result.passes:
            return []
        from perfmodel.timing.launched import kernels_of

        try:
            kernels, _ = kernels_of(Case(self.comparison.workload, prediction.calibration.implementation, result.direction), device)
        except PerfmodelError:
            return slow_start(prediction)
        blocks = [int(kernel.launch.blocks) for kernel in kernels if kernel.flops and kernel.launch]
        causes = slow_start(prediction)
        if len(blocks) == 1:
            causes += few_blocks(blocks[0], device)
        return causes

    @cached_property
    def main(self) -> AttentionResult:
        """The main result: the fastest one other than standard attention, by predictions if there are some."""
        results = self.comparison.shown()
        tiled = [result for result in results if result.algorithm.name != "standard"] or results
        comparable = [result for result in tiled if result.algorithm.name != "block-sparse"] or tiled  # which computes other scores

        def order(result: AttentionResult) -> tuple[bool, Any]:
            prediction = self.prediction(result)
            return prediction is None, prediction.seconds if prediction else result.total.roofline_s

        return min(comparable, key=order)

    @cached_property
    def reference(self) -> AttentionResult | None:
        """The result of standard attention if it is compared with another, else None."""
        standard = self.comparison.standard(self.comparison.direction)
        return None if standard is self.main else standard

    def side(self, result: AttentionResult) -> Side:
        """``result`` as one side of a comparison."""
        return self.time(result).side(left_out=left_out(result, self.comparison.device))

    @cached_property
    def faster(self) -> str:
        """Sentence on the main result against standard attention; empty without that."""
        return faster_sentence(self.side(self.reference), self.side(self.main)) if self.reference else ""

    def speedup(self, result: AttentionResult) -> Interval | None:
        """Predicted time of standard attention over that of ``result``; None for itself, or if one of the two is not predicted."""
        standard = self.comparison.standard(result.direction)
        if standard is None or standard is result:
            return None
        standard_time, time = self.time(standard).predicted, self.time(result).predicted
        return ratio(standard_time, time) if standard_time and time else None


def _title(comparison: Comparison) -> str:
    w = comparison.workload
    words_and_conditions = {
        f"batch {w.batch}": True,
        f"heads {w.heads}": True,
        f"kv-heads {w.kv_heads}": w.kv_heads != w.heads,
        f"n {w.n}": True,
        f"kv-len {w.kv_len}": w.kv_len != w.n,
        f"d {w.d}": True,
        f"dv {w.dv}": w.dv != w.d,
        w.dtype.name: True,
        "causal": w.causal,
        f"window {w.window}": w.window is not None,
        f"blocks {w.sparsity.name if w.sparsity else ''}": w.sparsity is not None,
        f"splits {w.splits}": w.splits is not None,
        "packed": w.packed,
        "additive mask": w.mask,
        "masked_fill": w.masked_fill,
        f"dropout {w.dropout:g}": w.dropout > 0,
        f"operands {w.layout}": w.layout != VIEWS,
    }
    words = ", ".join(text for text, is_said in words_and_conditions.items() if is_said)
    return f"Attention {' + '.join(comparison.passes())}: {words} on {comparison.device.name}"


# JSON


def data(answer: _Answer) -> dict[str, Any]:
    """The object of schema perfmodel.attention/1."""
    comparison = answer.comparison
    w = comparison.workload
    flags = ("causal", "window", "splits", "mask", "masked_fill", "dropout", "unfused_scale", "printed_backward", "packed")
    inputs = {
        **{name: getattr(w, name) for name in ("batch", "heads", "kv_heads", "n", "kv_len", "d", "dv")},
        "dtype": w.dtype.name,
        **{name: getattr(w, name) for name in flags},
        "sparsity": None if w.sparsity is None else w.sparsity.name,
        "block_q": comparison.block_q,
        "block_kv": comparison.block_kv,
        "pass": comparison.direction,
        "algorithms": list(dict.fromkeys(result.algorithm.name for result in comparison.results)),
        "sram_bytes": comparison.sram_bytes,
        "cache": "cold",
    }
    if w.layout != VIEWS:
        inputs["layout"] = w.layout
    return {
        **head("attention", inputs, comparison.device),
        "results": [_result(result, answer) for result in comparison.results],
        "io_lower_bound": as_json(_io_lower_bound(comparison)),
        "ratios": _ratios(answer),
    }


def _result(result: AttentionResult, answer: _Answer) -> dict[str, Any]:
    return {
        "algorithm": result.algorithm.name,
        "pass": result.direction,
        **prediction_keys(answer.prediction(result), result.implementation),
        "traffic_of": result.implementation or result.algorithm.name,
        **as_json(_metrics(result, answer)),
        "tile": _tile(result),
        "kernels": [_kernel(part, kernel, cost, answer.comparison) for part in result.parts for kernel, cost in part.kernels],
    }


def _kernel(result: AttentionResult, kernel: Kernel, cost: Estimate, comparison: Comparison) -> dict[str, Any]:
    size, extra = memory_of([kernel], comparison.workload)
    return {
        **{"name": kernel.name, "algorithm": result.algorithm.name, "pass": result.direction, "implementation": result.implementation},
        **as_json([*of_cost(cost), *of_memory(size, comparison.device, extra)]),
        "tile": _tile(result) if kernel.launch else None,
    }


def _tile(result: AttentionResult) -> dict[str, Any] | None:
    return None if result.tile is None else {"br": result.tile.br, "bc": result.tile.bc, "origin": result.tile.origin}


def _ratios(answer: _Answer) -> dict[str, Any]:
    """Ratios of standard attention to each other algorithm per pass; above 1 the other moves or takes less."""
    ratios: dict[str, Any] = {}
    for result in answer.comparison.results:
        reference = answer.comparison.standard(result.direction)
        if reference is not None and reference is not result:
            gain, old, new = answer.speedup(result), reference.total, result.total
            ratios.setdefault(result.algorithm.name, {})[result.direction] = {
                "accesses": (old.reads + old.writes) / (new.reads + new.writes),
                "sram_bytes": old.sram.total / new.sram.total,
                "dram_bytes": old.dram.total / new.dram.total,
                "executed_flops": old.executed_flops / new.executed_flops,
                "lower": old.lower_s / new.lower_s,
                "roofline": old.roofline_s / new.roofline_s,
                "predicted": None if gain is None else {"value": gain.value, "low": gain.low, "high": gain.high},
            }
    return ratios


# Metrics and tables


def _metrics(result: AttentionResult, answer: _Answer) -> list[Metric]:
    return answer.time(result).metrics(LABELS | words_for(answer.comparison.device), result.extra_memory_bytes)


def _io_lower_bound(comparison: Comparison) -> list[Metric]:
    """Metrics of the lower bounds of accesses, and of how far each algorithm is from them."""
    w, passes = comparison.workload, comparison.passes()
    compulsory = sum(compulsory_elements(w, direction) for direction in passes)
    metrics = [
        Metric("compulsory", compulsory, unit="elements", source=f"compulsory: {COMPULSORY_SOURCE}; theta: {THETA_SOURCE}"),
        Metric("compulsory_bytes", compulsory * w.dtype.size),
    ]
    bound = None
    if comparison.sram_bytes is not None and FORWARD in passes:
        bound = theta(w, comparison.sram_bytes // w.dtype.size)
    if bound is None:
        metrics.append(Metric("theta", None))
    else:
        metrics += [
            Metric("theta.class", bound.io_class),
            Metric("theta.regime", bound.regime),
            Metric("theta.value_without_constant", bound.value_without_constant, unit="elements"),
            Metric("theta.pass", FORWARD),
        ]
    for result in comparison.shown():
        over_compulsory = over_theta = None
        if result.algorithm.name != "block-sparse":  # which computes something else than what the bounds are about
            moved = result.total.reads + result.total.writes
            over_compulsory = moved / compulsory
            if bound is not None and result.direction == FORWARD:
                over_theta = moved / bound.value_without_constant
        metrics.append(Metric(f"distance.{result.algorithm.name}.compulsory", over_compulsory, unit="ratio"))
        metrics.append(Metric(f"distance.{result.algorithm.name}.theta", over_theta, unit="ratio"))
    return metrics


def _tables(answer: _Answer, labels: Mapping[str, str] | None = None, without: Collection[str] = ()) -> list[Table]:
    """A table per pass and one for the sum, with a column per algorithm."""
    comparison, tables = answer.comparison, []
    passes = [*comparison.passes(), BOTH] if comparison.direction == BOTH else [comparison.direction]
    for direction in passes:
        title = ""
        if len(passes) > 1:
            title = "forward + backward" if direction == BOTH else direction
        columns = {result.algorithm.name: _column(result, answer) for result in comparison.results if result.direction == direction}
        tables.append(as_table(title, columns, "" if title else direction, labels=labels, without=without))
    return tables


def _column(result: AttentionResult, answer: _Answer) -> list[Metric]:
    tile, reference, speedup = result.tile, answer.comparison.standard(result.direction), answer.speedup(result)
    gain = None if reference is None else reference.total.roofline_s / result.total.roofline_s
    return [
        Metric("", None if tile is None else f"{tile.br} x {tile.bc}", "tile B_r x B_c", "text"),
        *_metrics(result, answer),
        *answer.time(result).rates,
        Metric("", gain, "speedup, by the ratio of roofs", "ratio"),
        Metric("", speedup and f"{ratio_text(speedup.value)}{interval_text(speedup)}", "speedup, predicted", "text"),
    ]


# Headline, reasons and figures


def _headline(answer: _Answer) -> list[str]:
    """The headline on the main result: whether it fits, its gain over standard attention, its rate, what limits it."""
    main, reference, device = answer.main, answer.reference, answer.comparison.device
    name = main.algorithm.name
    fits, _, size = fit_phrase(main.memory_bytes, device).partition(":")
    if not fits:
        first = answer.faster
    elif fits == "does not fit":
        first = f"{fits}: {name}{size.replace(',', '')}"
    elif reference is None:
        first = f"{fits}: {name} takes{size.replace(',', '')}"
    elif device.fits(reference.memory_bytes) is False:
        first = f"only {name} fits; {answer.faster.replace(f'{name} is', 'it is', 1)}"
    else:
        first = f"{fits}; {answer.faster}"
    time, standard = answer.time(main), answer.comparison.standard(main.direction)
    limit = time.limit
    if limit and standard is not None and answer.prediction(standard) is None and EAGER in left_out(standard, device):
        limit += "; left out: standard's eager softmax"
    return headline(first, time.rate, limit)


def _reasons(answer: _Answer) -> list[str]:
    """A sentence per algorithm, by predictions or else by roofs; against standard attention if that is present."""
    results, reference = answer.comparison.shown(), answer.comparison.standard(answer.comparison.direction)
    sentences = []
    if reference is None or len(results) == 1:
        for result in results:
            side = answer.side(result)
            subject = f"{side_clause(side)}; bound" if side.time else f"{side.name} is bound"
            sentences.append(f"{subject} by {bound_by(result.total)}.")
    else:
        if answer.comparison.device.fits(reference.memory_bytes) is False:
            sentences.append(f"standard does not fit: it needs {format_si(reference.memory_bytes, 'B')}.")
        for result in results:
            if result is not reference:
                verdict = verdict_sentence(answer.side(reference), answer.side(result))
                sentences.append(f"{verdict}. {_at_roofs(reference, result)}")
    others = [time for time in map(answer.time, results) if time.name != answer.main.algorithm.name]
    slow = [time for time in others if time.predicted and time.seconds > time.cost.no_overlap_s]
    return [*sentences, *(f"{time.name}: {lower_first(time.limit)}." for time in slow)]


def _at_roofs(reference: AttentionResult, result: AttentionResult) -> str:
    """Sentence on what bounds the two at their roofs, and why one roof is lower."""
    old, new = reference.total, result.total
    gain = old.roofline_s / new.roofline_s
    moved = _moved(reference, result)
    if abs(gain - 1) <= ROOFS_EVEN:
        why = "both wait for the same resource" if old.bound == new.bound else f"{moved}, which buys no time here"
    elif gain > 1:
        reasons = []
        if old.bound in ("dram", "l2") and _fewer(reference, result) > 1 + ROOFS_EVEN:
            reasons.append(f"its scores stay on the chip, so it moves {moved}")
        skipped = old.executed_flops / new.executed_flops
        if skipped > 1 + ROOFS_EVEN:
            reasons.append(f"it skips tiles that nobody sees and computes {skipped:.3g}x less")
        why = " and ".join(reasons) or f"one fused kernel overlaps what {len(reference.kernels)} kernels do in turn"
    elif new.bound in ("dram", "l2"):
        why = f"re-reading tiles, it moves {moved}"
    else:
        why = f"{moved}, but it is held back by {BOUND_WORDS.get(new.bound or '', 'its work')}"
        wasted = new.executed_flops / new.flops
        if wasted > 1 + ROOFS_EVEN:
            why += f", {wasted:.3g}x the FLOP of the visible scores (padding, masked parts, recomputation)"
    return f"At their roofs standard is bound by {bound_by(old)}, {result.algorithm.name} by {bound_by(new)}: {why}."


def _fewer(reference: AttentionResult, result: AttentionResult) -> float:
    """Bytes of ``reference`` over those of ``result`` at the level that bounds ``reference``, or else DRAM."""
    if reference.total.bound == "l2":
        return float(reference.total.sram.total / result.total.sram.total)
    return float(reference.total.dram.total / result.total.dram.total)


def _moved(reference: AttentionResult, result: AttentionResult) -> str:
    """Phrase on how many times fewer or more bytes ``result`` moves, and at which level."""
    level, fewer = "through the L2" if reference.total.bound == "l2" else "over DRAM", _fewer(reference, result)
    if abs(fewer - 1) <= ROOFS_EVEN:
        return f"as many bytes {level}"
    return f"{fewer:.3g}x fewer bytes {level}" if fewer > 1 else f"{1 / fewer:.3g}x more bytes {level}"


def left_out(result: AttentionResult, device: Device) -> tuple[str, ...]:
    """Phrases on what the roof of ``result`` leaves out although it dominates."""
    causes, name = " and ".join(_beyond_roof(result, device)), result.algorithm.name
    if causes:
        return (f"{name}: {causes}",)
    return (EAGER,) if name == "standard" else ()


def _beyond_roof(result: AttentionResult, device: Device) -> list[str]:
    """Causes that make ``result`` slower than its roof: launches, too few blocks."""
    return [*slow_launches(len(result.kernels), float(result.total.roofline_s), device), *few_blocks(blocks_of(result), device)]


def blocks_of(result: AttentionResult) -> int:
    """Thread blocks of its largest launch; 0 if unknown."""
    return max((int(kernel.launch.blocks) for kernel, _ in result.kernels if kernel.launch), default=0)


def _least(result: AttentionResult, device: Device) -> Interval | None:
    """Least time in seconds of an unpredicted result whose blocks leave multiprocessors idle; None if they do not, or that is unknown."""
    blocks, count = blocks_of(result), device.multiprocessors
    if count is None or not few_blocks(blocks, device):
        return None
    slower = count.number / blocks  # all resources but DRAM belong to multiprocessors
    return Interval(max(float(term) if name == "dram" else float(term) * slower for name, term in result.total.terms.items()))


def _figures(answer: _Answer) -> list[Figure]:
    """Figures of the main result, with its speedup over standard attention."""
    figures, gain = answer.time(answer.main).figures, answer.speedup(answer.main)
    if gain is not None:
        figures.insert(2, Figure("speedup over standard", f"{ratio_text(gain.value)}{interval_text(gain)}"))
    return figures


# Charts and notes


def _charts(answer: _Answer) -> list[Chart]:
    """Charts of times beside roofs, of the rooflines of time and energy, and of bytes; captions say what is seen."""
    from perfmodel.report.charts.schema import BarChart, time_bar, traffic_chart
    from perfmodel.report.roofline_chart import energy_roofline, point, roofline

    device, dtype = answer.comparison.device, answer.comparison.workload.dtype
    shown = list(map(answer.time, answer.comparison.shown()))
    points, names_by_bound = [], dict[str, list[str]]()
    for number, time in enumerate(shown, 1):
        points.append(point(number, time.name, time.cost, device, dtype.name, dtype.matmul_unit, time.prediction, group=time.name))
        names_by_bound.setdefault(BOUND_WORDS.get(time.cost.bound or "", "nothing known"), []).append(time.name)
    bound = "; ".join(f"{', '.join(names)} by {resource}" for resource, names in names_by_bound.items())
    faster = fewer = ""
    if answer.reference is not None:
        faster = sentence(answer.faster)
        fewer = sentence(f"{answer.main.algorithm.name} moves {_moved(answer.reference, answer.main)} than standard")
    times = [time_bar(time.name, float(time.cost.roofline_s), time.predicted) for time in shown]
    return [
        BarChart("Predicted time of each algorithm, and how much of it is its roof", "s", times, caption=faster),
        roofline(device, points, caption=f"Bound at the roof: {bound}."),
        traffic_chart([(time.name, time.cost.sram, time.cost.dram) for time in shown], fewer, outside(device)),
        *energy_roofline(device, dtype, [(time.name, time.cost, time.prediction) for time in shown]),
    ]


def _notes(comparison: Comparison) -> list[str]:
    """Notes on assumptions of counts and bounds."""
    results, device = comparison.results, comparison.device
    notes = ["Totals over batch and heads; a multiply-add counts 2 FLOP."]
    for result in results:
        if result.tile is not None and result.algorithm.tiling is not None:
            resident = result.algorithm.tiling.resident[result.direction]
            tile = f"tile {result.tile.br} x {result.tile.bc} ({result.tile.origin})"
            notes.append(f"{result.algorithm.name} {result.direction}: {tile}, {resident} in SRAM.")
    if comparison.sram_bytes is not None:
        notes.append(f"M = {format_binary(comparison.sram_bytes)} of SRAM per block.")
    notes += _io_notes(comparison)
    if any(result.total.group_sum for result in results):
        notes.append("Unpacked: each query head stores its own dK, dV; adding them up over a group is not counted.")
    for result in results:
        count = blocks_of(result)
        if result.direction != BOTH and device.multiprocessors is not None and 0 < count < device.multiprocessors.number:
            idle = f"{count:,} block{'s' * (count > 1)} for {device.multiprocessors.number} multiprocessors"
            notes.append(f"{result.algorithm.name} {result.direction} has {idle}; the roof does not count the idle ones.")
    return [*notes, *unknown_rates([result.total for result in results], device)]


def _io_notes(comparison: Comparison) -> list[str]:
    """Notes on how far accesses are from their lower bounds."""
    bound, device = as_json(_io_lower_bound(comparison)), comparison.device
    far = ", ".join(f"{name} {distance['compulsory']:.3g}x" for name, distance in bound["distance"].items() if distance["compulsory"])
    with_output = " with O given" if BACKWARD in comparison.passes() else ""
    compulsory = format_si(bound["compulsory_bytes"], "B")
    notes = [f"No exact algorithm{with_output} moves less than {compulsory} ({COMPULSORY_SOURCE}); accesses over it: {far}."]
    if device.cache_bytes is None:
        without = "DRAM traffic is counted as if nothing were cached, bounds as if all were"
        notes.append(f"The profile of {device.id} has no L2 size: {without}.")
    if bound["theta"]:
        constants = ", ".join(f"{name} {entry['theta']:.3g}x" for name, entry in bound["distance"].items() if entry["theta"] is not None)
        over_bound = f"; accesses over it: {constants}" if constants else ""
        notes.append(f"Lower bound of the forward pass: Theta({bound['theta']['class']}), {bound['theta']['regime']}{over_bound}.")
    return notes


def _time_notes(answer: _Answer, other_notes: Sequence[str]) -> list[str]:
    """Notes on predicted times: kernels, ``other_notes``, times below roofs, guesses, and the clock."""
    predictions = answer.predictions.values()
    notes = [*(note(" ".join(names), prediction) for names, prediction in answer.predictions.items()), *other_notes]
    for result in answer.comparison.results:
        notes += answer.time(result).below_roof_note(f"{result.algorithm.name} {result.direction}")
    powers = (prediction.power for prediction in predictions if prediction.power is not None)
    return [*notes, *guess_notes(predictions), *power_note(next(powers, None))]


# What is asked for besides


def _with_sram_sizes(plain: Report, comparison: Comparison) -> Report:
    """``plain`` with accesses for each SRAM size."""
    from perfmodel.kernels.attention.crossover import sram_sweep

    entries, at_first_size = [], dict[str, Estimate | None]()
    for point in sram_sweep(comparison):
        name = point.algorithm.name
        tile = point.result.tile if point.result else None
        reference = at_first_size.setdefault(name, point.result.total if point.result else None)
        cost = point.result.total if point.result and tile else None
        saved = None
        if cost:
            saved = 1 - cost.access_bytes / reference.access_bytes if reference else 0.0
        entries.append(
            [
                Metric("algorithm", name, "algorithm", "text"),
                Metric("sram_bytes", point.sram_bytes),
                Metric("", format_binary(point.sram_bytes), "SRAM M"),
                Metric("tile", tile and {"br": tile.br, "bc": tile.bc}),
                Metric("", f"{tile.br} x {tile.bc}" if tile else "no tile fits", "tile that moves least"),
                Metric("accesses_bytes", cost and cost.access_bytes, "accesses", "B"),
                Metric("", saved, "saved", "error"),
                Metric("roofline_s", cost and cost.roofline_s, "roofline", "s"),
            ]
        )
    return _with(plain, "sram_sweep", "what SRAM buys, forward", entries)


def _with_crossovers(plain: Report, comparison: Comparison) -> Report:
    """``plain`` with the sizes at which tiling pays."""
    from perfmodel.kernels.attention.crossover import crossovers

    entries = [
        [
            Metric("algorithm", border.algorithm.name, "algorithm", "text"),
            Metric("measure", border.measure, "by", "text"),
            Metric("wins_here", border.wins_here),
            Metric("", "yes" if border.wins_here else "no", "pays here", "text"),
            Metric("first_n", border.first_n, "from N"),
            Metric("last_d", border.last_d, "up to d"),
            Metric("first_sram_bytes", border.first_sram_bytes, "from M", after=" B"),
            Metric("law", border.law),
            Metric("last_d_by_law", border.last_d_by_law),
            Metric("", f"{border.last_d_by_law:.1f}, {border.law}" if border.last_d_by_law else "", "leading terms: up to d", "text"),
        ]
        for border in crossovers(comparison)
    ]
    return _with(plain, "crossover", "where tiling pays, forward, the other sizes held", entries, "leading terms: up to d")


def _with(plain: Report, key: str, title: str, entries: Sequence[Sequence[Metric]], full: str = "") -> Report:
    """``plain`` with a row per entry, in a table and in the JSON object. ``full``: label of a column only for the full table."""
    short_entries = [[metric for metric in entry if metric.label != full] for entry in entries]
    tables, brief = [*plain.tables, as_rows(title, entries)], [as_rows(title, short_entries), *plain.brief]
    return replace(plain, tables=tables, brief=brief, data={**plain.data, key: list(map(as_json, entries))})


def _with_formulas(plain: Report, answer: _Answer) -> Report:
    """``plain`` with formula and source of every number of every pass."""
    from perfmodel.timing.explain import explain_power, explain_time

    comparison, parts = answer.comparison, []
    notes = list(plain.notes)
    if comparison.direction == BOTH:
        notes.append("Forward + backward: each number is the sum of the two passes.")
    algorithms = {result.algorithm.name: result.algorithm for result in comparison.results}
    notes += [f"{algorithm.name}, vector operations: {algorithm.vector_work}." for algorithm in algorithms.values()]
    for result in comparison.results:
        if result.direction != BOTH:  # the sum of two passes needs no formula of its own
            algorithm, direction, prediction = result.algorithm, result.direction, answer.prediction(result)
            title = f"{algorithm.name} {direction}: {algorithm.title}; accesses grow as Theta({algorithm.io_class})"
            steps = explain(result, comparison.workload, comparison.device, comparison.sram_bytes)
            names = {"algorithm": algorithm.name, "pass": direction}
            parts.append((title, names, [*steps, *explain_time(prediction), *explain_power(prediction)]))
    return with_steps(replace(plain, notes=notes), parts)
