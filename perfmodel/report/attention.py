"""The report of an attention comparison: which algorithm is faster and why, one table per pass, and what was asked for besides."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from perfmodel.core.cost import Kernel
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate
from perfmodel.core.units import format_binary, format_si
from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.kernels.attention.evaluate import BOTH, COMPULSORY_SOURCE, THETA_SOURCE, AttentionResult, compulsory_elements, theta
from perfmodel.kernels.attention.evaluate import memory as memory_of
from perfmodel.kernels.attention.request import Comparison
from perfmodel.report.answer import ROOFS_EVEN, fit, headline, launching, sentence, small, starting, too_few, traffic_chart
from perfmodel.report.charts.schema import BarChart, Chart, Interval
from perfmodel.report.document import Figure, Report, Table
from perfmodel.report.kernel_time import KernelTime, with_measured
from perfmodel.report.metrics import BOUND_WORDS, Metric, as_json, as_rows, as_table, bound_by, of_cost, of_memory, outside, words_for
from perfmodel.report.op_common import guessed, head, note, unknown_rates, whose, with_steps
from perfmodel.report.power import power_note
from perfmodel.report.speedup import Side, against, alone, compared, ends, ratio, ratio_notes, times
from perfmodel.timing.base import Case
from perfmodel.timing.predict import Prediction
from perfmodel.timing.select_kernel import Predictions

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
"""Rows that a screen shows, under names that leave room for two algorithms in 80 columns."""
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
    """``comparison`` as a Report; its data follows the schema perfmodel.attention/1.

    ``predictions``: times to show beside bound and roof, ``unpredicted`` why others are missing. ``explained``: with every
    formula. ``crossover``: with the sizes at which tiling pays. ``pictures``: with its roofline and its bytes.
    ``measured_s``: a time to judge, of the algorithm that the answer is about.
    """
    found = _Answer(comparison, predictions or {})
    reasons, main = _reasons(found), found.time(found.main)
    plain = Report(
        _title(comparison),
        _headline(found),
        _tables(found),
        [*_notes(comparison), *_time_notes(found, [*unpredicted, *ratio_notes(reasons)])],
        data(found),
        charts=_charts(found) if pictures else [],
        meters=main.meters,
        metered=main.metered,
        figures=_figures(found),
        brief=_tables(found, BRIEF, main.crowded_out)[-1:],
        reasons=reasons,
    )
    plain = _with_sram_sizes(plain, comparison) if comparison.sram_sizes else plain
    plain = _with_crossovers(plain, comparison) if crossover else plain
    plain = with_measured(plain, measured_s, main.cost, main.predicted)
    return _with_formulas(plain, found) if explained else plain


@dataclass(frozen=True)
class _Answer:
    """A comparison with its predicted times."""

    comparison: Comparison
    predictions: Predictions

    def prediction(self, result: AttentionResult) -> Prediction | None:
        return self.predictions.get((result.algorithm.name, result.direction))

    @cached_property
    def _times(self) -> dict[tuple[str, str], KernelTime]:
        device, dtype, found = self.comparison.device, self.comparison.workload.dtype, {}
        for one in self.comparison.results:
            name, known = one.algorithm.name, self.prediction(one)
            least, causes = None if known else _least(one, device), self._causes(one, known)
            time = KernelTime(one.total, device, dtype, one.memory_bytes, known, name, causes, least, "visible FLOP")
            found[name, one.direction] = time
        return found

    def time(self, result: AttentionResult) -> KernelTime:
        """Time of ``result``, with what takes time beside work and traffic."""
        return self._times[result.algorithm.name, result.direction]

    def _causes(self, result: AttentionResult, known: Prediction | None) -> list[str]:
        """The start of the kernel that is predicted, else launches, and too few blocks of it."""
        device = self.comparison.device
        if known is None:
            return _beyond_roof(result, device)
        if result.passes:
            return []
        from perfmodel.timing.launched import kernels_of

        try:
            kernels, _ = kernels_of(Case(self.comparison.workload, known.calibration.implementation, result.direction), device)
        except PerfmodelError:
            return starting(known)
        blocks = [int(kernel.launch.blocks) for kernel in kernels if kernel.flops and kernel.launch]
        return [*starting(known), *(too_few(blocks[0], device) if len(blocks) == 1 else [])]

    @cached_property
    def main(self) -> AttentionResult:
        """The result that the answer is about: the fastest beside standard attention, by predictions where there are some."""
        results = self.comparison.shown()
        others = [result for result in results if result.algorithm.name != "standard"] or results
        same = [result for result in others if result.algorithm.name != "block-sparse"] or others  # that one computes something else

        def order(result: AttentionResult) -> tuple[bool, Any]:
            known = self.prediction(result)
            return known is None, known.seconds if known else result.total.roofline_s

        return min(same, key=order)

    @cached_property
    def reference(self) -> AttentionResult | None:
        """Standard attention, where it is compared with another."""
        found = self.comparison.standard(self.comparison.direction)
        return None if found is self.main else found

    def side(self, result: AttentionResult) -> Side:
        """``result`` as one of two that are compared."""
        return self.time(result).side(left_out=left_out(result, self.comparison.device))

    @cached_property
    def faster(self) -> str:
        """How the main result compares with standard attention; empty without it."""
        return compared(self.side(self.reference), self.side(self.main)) if self.reference else ""

    def speedup(self, result: AttentionResult) -> Interval | None:
        """Predicted time of standard attention over that of ``result``; None for itself and where one of the two is not predicted."""
        standard, new = self.comparison.standard(result.direction), self.time(result).predicted
        old = self.time(standard).predicted if standard else None
        return None if result is standard or old is None or new is None else ratio(old, new)


def _title(comparison: Comparison) -> str:
    w = comparison.workload
    shape = [f"n {w.n}"] + [f"kv-len {w.kv_len}"] * (w.kv_len != w.n) + [f"d {w.d}"] + [f"dv {w.dv}"] * (w.dv != w.d)
    heads = [f"batch {w.batch}", f"heads {w.heads}"] + [f"kv-heads {w.kv_heads}"] * (w.kv_heads != w.heads)
    flags = {
        "causal": w.causal,
        f"window {w.window}": w.window is not None,
        f"blocks {w.sparsity.name if w.sparsity else ''}": w.sparsity is not None,
        f"splits {w.splits}": w.splits is not None,
        "packed": w.packed,
        "additive mask": w.mask,
        "masked_fill": w.masked_fill,
        f"dropout {w.dropout:g}": w.dropout > 0,
    }
    options = [text for text, holds in flags.items() if holds]
    passes = " + ".join(comparison.passes())
    return f"Attention {passes}: {', '.join([*heads, *shape, w.dtype.name, *options])} on {comparison.device.name}"


# JSON


def data(found: _Answer) -> dict[str, Any]:
    """The object of schema perfmodel.attention/1."""
    comparison = found.comparison
    w = comparison.workload
    sizes = {name: getattr(w, name) for name in ("batch", "heads", "kv_heads", "n", "kv_len", "d", "dv")}
    flags = ("causal", "window", "splits", "mask", "masked_fill", "dropout", "unfused_scale", "printed_backward", "packed")
    options = {name: getattr(w, name) for name in flags} | {"sparsity": None if w.sparsity is None else w.sparsity.name}
    options |= {"block_q": comparison.block_q, "block_kv": comparison.block_kv}
    options |= {"pass": comparison.direction, "algorithms": list(dict.fromkeys(result.algorithm.name for result in comparison.results))}
    inputs = {**sizes, "dtype": w.dtype.name, **options, "sram_bytes": comparison.sram_bytes, "cache": "cold"}
    return {
        **head("attention", inputs, comparison.device),
        "results": [_result(result, found) for result in comparison.results],
        "io_lower_bound": as_json(_io_lower_bound(comparison)),
        "ratios": _ratios(found),
    }


def _result(result: AttentionResult, found: _Answer) -> dict[str, Any]:
    return {
        "algorithm": result.algorithm.name,
        "pass": result.direction,
        **whose(found.prediction(result), result.implementation),
        "traffic_of": result.implementation or result.algorithm.name,
        **as_json(_metrics(result, found)),
        "tile": _tile(result),
        "kernels": [_kernel(part, kernel, cost, found.comparison) for part in result.parts for kernel, cost in part.kernels],
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


def _ratios(found: _Answer) -> dict[str, Any]:
    """Standard over each other algorithm, per pass: above 1 the other one moves or takes less."""
    ratios: dict[str, Any] = {}
    for result in found.comparison.results:
        reference = found.comparison.standard(result.direction)
        if reference is not None and reference is not result:
            known, old, new = found.speedup(result), reference.total, result.total
            ratios.setdefault(result.algorithm.name, {})[result.direction] = {
                "accesses": (old.reads + old.writes) / (new.reads + new.writes),
                "sram_bytes": old.sram.total / new.sram.total,
                "dram_bytes": old.dram.total / new.dram.total,
                "executed_flops": old.executed_flops / new.executed_flops,
                "lower": old.lower_s / new.lower_s,
                "roofline": old.roofline_s / new.roofline_s,
                "predicted": None if known is None else {"value": known.value, "low": known.low, "high": known.high},
            }
    return ratios


# Metrics and tables


def _metrics(result: AttentionResult, found: _Answer) -> list[Metric]:
    return found.time(result).metrics(LABELS | words_for(found.comparison.device), result.extra_memory_bytes)


def _io_lower_bound(comparison: Comparison) -> list[Metric]:
    w, passes = comparison.workload, comparison.passes()
    least = sum(compulsory_elements(w, direction) for direction in passes)
    known = comparison.sram_bytes is not None and FORWARD in passes
    bound = theta(w, (comparison.sram_bytes or 0) // w.dtype.size) if known else None
    found = [
        Metric("compulsory", least, unit="elements", source=f"compulsory: {COMPULSORY_SOURCE}; theta: {THETA_SOURCE}"),
        Metric("compulsory_bytes", least * w.dtype.size),
        Metric("theta", None),
    ]
    if bound is not None:
        value = Metric("theta.value_without_constant", bound.value_without_constant, unit="elements")
        found[-1:] = [Metric("theta.class", bound.io_class), Metric("theta.regime", bound.regime), value, Metric("theta.pass", FORWARD)]
    for result in comparison.shown():
        # block-sparse computes something else than what the bounds are about
        moved = None if result.algorithm.name == "block-sparse" else result.total.reads + result.total.writes
        key = f"distance.{result.algorithm.name}"
        found.append(Metric(f"{key}.compulsory", moved and moved / least, unit="ratio"))
        distance = moved / bound.value_without_constant if moved and bound and result.direction == FORWARD else None
        found.append(Metric(f"{key}.theta", distance, unit="ratio"))
    return found


def _tables(found: _Answer, labels: Mapping[str, str] | None = None, without: Collection[str] = ()) -> list[Table]:
    """One table per pass, and one of their sum: a column per algorithm."""
    comparison, tables = found.comparison, []
    shown = [*comparison.passes(), BOTH] if comparison.direction == BOTH else [comparison.direction]
    for direction in shown:
        title = {BOTH: "forward + backward"}.get(direction, direction) if len(shown) > 1 else ""
        columns = {result.algorithm.name: _column(result, found) for result in comparison.results if result.direction == direction}
        tables.append(as_table(title, columns, "" if title else direction, labels=labels, without=without))
    return tables


def _column(result: AttentionResult, found: _Answer) -> list[Metric]:
    tile, reference, known = result.tile, found.comparison.standard(result.direction), found.speedup(result)
    gain = None if reference is None else reference.total.roofline_s / result.total.roofline_s
    return [
        Metric("", None if tile is None else f"{tile.br} x {tile.bc}", "tile B_r x B_c", "text"),
        *_metrics(result, found),
        *found.time(result).rates,
        Metric("", gain, "speedup, by the ratio of roofs", "ratio"),
        Metric("", known and f"{times(known.value)}{ends(known)}", "speedup, predicted", "text"),
    ]


# Headline, reasons and figures


def _headline(found: _Answer) -> list[str]:
    """Whether it fits and which is faster; at what rate; what limits it: of the main result, against standard attention."""
    main, reference, device, name = found.main, found.reference, found.comparison.device, found.main.algorithm.name
    fits, _, size = fit(main.memory_bytes, device).partition(":")
    if reference is None or fits == "does not fit":
        first = f"{fits}: {name}{' takes' * (fits == 'fits')}{size.replace(',', '')}" if fits else ""
    elif device.fits(reference.memory_bytes) is False:
        first = f"only {name} fits; {found.faster.replace(f'{name} is', 'it is', 1)}"
    else:
        first = f"{fits}; {found.faster}" if fits else found.faster
    time, standard = found.time(main), found.comparison.standard(main.direction)
    eager = standard is not None and found.prediction(standard) is None and EAGER in left_out(standard, device)
    return headline(first, time.rate, time.limit and time.limit + "; left out: standard's eager softmax" * eager)


def _reasons(found: _Answer) -> list[str]:
    """One sentence per algorithm, against standard attention where it is among them: by predictions, else by roofs."""
    results, reference = found.comparison.shown(), found.comparison.standard(found.comparison.direction)
    slow = [time for time in map(found.time, results) if time.name != found.main.algorithm.name and time.predicted]
    limits = [f"{time.name}: {small(time.limit)}." for time in slow if time.seconds > time.cost.no_overlap_s]
    sides = list(map(found.side, results))
    if reference is None or len(results) == 1:
        said = [f"{alone(side)}; bound" if side.time else f"{side.name} is bound" for side in sides]
        return [*(f"{side} by {bound_by(result.total)}." for side, result in zip(said, results, strict=True)), *limits]
    fits = found.comparison.device.fits(reference.memory_bytes)
    unfit = [f"standard does not fit: it needs {format_si(reference.memory_bytes, 'B')}."] if fits is False else []
    first = sides[results.index(reference)]
    pairs = [(side, result) for side, result in zip(sides, results, strict=True) if result is not reference]
    return [*unfit, *(f"{against(first, side)}. {_at_roofs(reference, result)}" for side, result in pairs), *limits]


def _at_roofs(reference: AttentionResult, result: AttentionResult) -> str:
    """What bounds the two at their roofs, and why one of these is lower."""
    old, new = reference.total, result.total
    gain, fewer, same = old.roofline_s / new.roofline_s, _moved(reference, result), old.bound == new.bound
    skipped, wasted = old.executed_flops / new.executed_flops, new.executed_flops / new.flops
    if abs(gain - 1) <= ROOFS_EVEN:
        why = "both wait for the same resource" if same else f"{fewer}, which buys no time here"
    elif gain > 1:
        stays = old.bound in ("dram", "l2") and _fewer(reference, result) > 1 + ROOFS_EVEN
        reasons = [f"its scores stay on the chip, so it moves {fewer}"] * stays
        reasons += [f"it skips tiles that nobody sees and computes {skipped:.3g}x less"] * (skipped > 1 + ROOFS_EVEN)
        why = " and ".join(reasons) or f"one fused kernel overlaps what {len(reference.kernels)} kernels do in turn"
    elif new.bound in ("dram", "l2"):
        why = f"re-reading tiles, it moves {fewer}"
    else:
        extra = f", {wasted:.3g}x the FLOP of the visible scores (padding, masked parts, recomputation)" * (wasted > 1 + ROOFS_EVEN)
        why = f"{fewer}, but it is held back by {BOUND_WORDS.get(new.bound or '', 'its work')}{extra}"
    return f"At their roofs standard is bound by {bound_by(old)}, {result.algorithm.name} by {bound_by(new)}: {why}."


def _fewer(reference: AttentionResult, result: AttentionResult) -> float:
    """Bytes of ``reference`` over those of ``result``, at the level that bounds ``reference``, DRAM where none does."""
    old, new = ((one.total.sram if reference.total.bound == "l2" else one.total.dram) for one in (reference, result))
    return float(old.total / new.total)


def _moved(reference: AttentionResult, result: AttentionResult) -> str:
    """How many times fewer or more bytes ``result`` moves, and where."""
    level, fewer = "through the L2" if reference.total.bound == "l2" else "over DRAM", _fewer(reference, result)
    if abs(fewer - 1) <= ROOFS_EVEN:
        return f"as many bytes {level}"
    return f"{fewer:.3g}x fewer bytes {level}" if fewer > 1 else f"{1 / fewer:.3g}x more bytes {level}"


def left_out(result: AttentionResult, device: Device) -> tuple[str, ...]:
    """What the roof of ``result`` leaves out although it dominates, in words; empty if nothing does."""
    causes, name = " and ".join(_beyond_roof(result, device)), result.algorithm.name
    return (f"{name}: {causes}",) if causes else (EAGER,) * (name == "standard")


def _beyond_roof(result: AttentionResult, device: Device) -> list[str]:
    """Causes for which ``result`` takes longer than its roof: launches, too few blocks."""
    return [*launching(len(result.kernels), float(result.total.roofline_s), device), *too_few(blocks_of(result), device)]


def blocks_of(result: AttentionResult) -> int:
    """Thread blocks of its largest launch, 0 where that is unknown."""
    return max((int(kernel.launch.blocks) for kernel, _ in result.kernels if kernel.launch), default=0)


def _least(result: AttentionResult, device: Device) -> Interval | None:
    """The least time of an unpredicted result whose blocks leave multiprocessors idle; None if they do not, or nobody knows."""
    blocks, count = blocks_of(result), device.multiprocessors
    if count is None or not too_few(blocks, device):
        return None
    slower = count.number / blocks
    return Interval(max(float(term) * (1 if name == "dram" else slower) for name, term in result.total.terms.items()))


def _figures(found: _Answer) -> list[Figure]:
    """The figures of the main result, with its speedup over standard attention."""
    figures, gain = found.time(found.main).figures, found.speedup(found.main)
    if gain is not None:
        figures.insert(2, Figure("speedup over standard", f"{times(gain.value)}{ends(gain)}"))
    return figures


# Charts and notes


def _charts(found: _Answer) -> list[Chart]:
    """Times beside roofs, the rooflines of time and energy, and the bytes that each algorithm moves; a caption says what is seen."""
    from perfmodel.report.roofline_chart import energy_roofline, point, roofline

    shown, device, dtype = list(map(found.time, found.comparison.shown())), found.comparison.device, found.comparison.workload.dtype
    points = [
        point(number, one.name, one.cost, device, dtype.name, dtype.matmul_unit, one.prediction, group=one.name)
        for number, one in enumerate(shown, 1)
    ]
    faster, fewer, bounds = "", "", dict[str, list[str]]()
    if found.reference is not None:
        faster = sentence(found.faster)
        fewer = sentence(f"{found.main.algorithm.name} moves {_moved(found.reference, found.main)} than standard")
    for one in shown:
        bounds.setdefault(BOUND_WORDS.get(one.cost.bound or "", "nothing known"), []).append(one.name)
    bound = "; ".join(f"{', '.join(names)} by {resource}" for resource, names in bounds.items())
    times = [one.bar(one.name) for one in shown]
    return [
        BarChart("Predicted time of each algorithm, and how much of it is its roof", "s", times, caption=faster),
        roofline(device, points, caption=f"Bound at the roof: {bound}."),
        traffic_chart([(one.name, one.cost.sram, one.cost.dram) for one in shown], fewer, outside(device)),
        *energy_roofline(device, dtype, [(one.name, one.cost, one.prediction) for one in shown]),
    ]


def _notes(comparison: Comparison) -> list[str]:
    """What counts and bounds rest on."""
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
    """How far accesses are from the bounds on them."""
    found, device = as_json(_io_lower_bound(comparison)), comparison.device
    far = ", ".join(f"{name} {distance['compulsory']:.3g}x" for name, distance in found["distance"].items() if distance["compulsory"])
    given = " with O given" if BACKWARD in comparison.passes() else ""
    least = format_si(found["compulsory_bytes"], "B")
    notes = [f"No exact algorithm{given} moves less than {least} ({COMPULSORY_SOURCE}); accesses over it: {far}."]
    if device.cache_bytes is None:
        without = "DRAM traffic is counted as if nothing were cached, bounds as if all were"
        notes.append(f"The profile of {device.id} has no L2 size: {without}.")
    if found["theta"]:
        constants = ", ".join(f"{name} {one['theta']:.3g}x" for name, one in found["distance"].items() if one["theta"] is not None)
        known = f"; accesses over it: {constants}" if constants else ""
        notes.append(f"Lower bound of the forward pass: Theta({found['theta']['class']}), {found['theta']['regime']}{known}.")
    return notes


def _time_notes(found: _Answer, others: Sequence[str]) -> list[str]:
    """Notes on predicted times: their kernels, ``others``, those below their roofs or guessed, and their clock."""
    known = found.predictions.values()
    notes = [*(note(" ".join(what), one) for what, one in found.predictions.items()), *others]
    for result in found.comparison.results:
        notes += found.time(result).below_roof_note(f"{result.algorithm.name} {result.direction}")
    return [*notes, *guessed(known), *power_note(next((one.power for one in known if one.power is not None), None))]


# What is asked for besides


def _with_sram_sizes(plain: Report, comparison: Comparison) -> Report:
    """``plain`` and what each SRAM size buys."""
    from perfmodel.kernels.attention.crossover import sram_sweep

    entries, first = [], dict[str, Estimate | None]()
    for point in sram_sweep(comparison):
        name, tile = point.algorithm.name, point.result and point.result.tile
        reference = first.setdefault(name, None if point.result is None else point.result.total)
        cost = point.result.total if point.result is not None and tile is not None else None
        entries.append(
            [
                Metric("algorithm", name, "algorithm", "text"),
                Metric("sram_bytes", point.sram_bytes),
                Metric("", format_binary(point.sram_bytes), "SRAM M"),
                Metric("tile", tile and {"br": tile.br, "bc": tile.bc}),
                Metric("", f"{tile.br} x {tile.bc}" if tile else "no tile fits", "tile that moves least"),
                Metric("accesses_bytes", cost and cost.access_bytes, "accesses", "B"),
                Metric("", cost and (1 - cost.access_bytes / reference.access_bytes if reference else 0.0), "saved", "error"),
                Metric("roofline_s", cost and cost.roofline_s, "roofline", "s"),
            ]
        )
    return _with(plain, "sram_sweep", "what SRAM buys, forward", entries)


def _with_crossovers(plain: Report, comparison: Comparison) -> Report:
    """``plain`` and the sizes at which tiling pays."""
    from perfmodel.kernels.attention.crossover import crossovers

    entries = [
        [
            Metric("algorithm", one.algorithm.name, "algorithm", "text"),
            Metric("measure", one.measure, "by", "text"),
            Metric("wins_here", one.wins_here),
            Metric("", "yes" if one.wins_here else "no", "pays here", "text"),
            Metric("first_n", one.first_n, "from N"),
            Metric("last_d", one.last_d, "up to d"),
            Metric("first_sram_bytes", one.first_sram_bytes, "from M", after=" B"),
            Metric("law", one.law),
            Metric("last_d_by_law", one.last_d_by_law),
            Metric("", f"{one.last_d_by_law:.1f}, {one.law}" if one.law and one.last_d_by_law else "", "leading terms: up to d", "text"),
        ]
        for one in crossovers(comparison)
    ]
    return _with(plain, "crossover", "where tiling pays, forward, the other sizes held", entries, "leading terms: up to d")


def _with(plain: Report, key: str, title: str, entries: Sequence[Sequence[Metric]], full: str = "") -> Report:
    """``plain`` with one line per entry, in a table and in the JSON object. ``full``: the label of a column that a screen leaves out."""
    table, short = as_rows(title, entries), as_rows(title, [[one for one in entry if one.label != full] for entry in entries])
    data = {**plain.data, key: list(map(as_json, entries))}
    return replace(plain, tables=[*plain.tables, table], brief=[short, *plain.brief], data=data)


def _with_formulas(plain: Report, found: _Answer) -> Report:
    """``plain`` and every number of every pass as its formula, with its source."""
    from perfmodel.kernels.attention.evaluate import explain
    from perfmodel.timing.explain import explain_power, explain_time

    comparison, parts = found.comparison, []
    algorithms = {result.algorithm.name: result.algorithm for result in comparison.results}
    for result in comparison.results:
        if result.direction != BOTH:  # the sum of two passes needs no formula of its own
            one, direction, known = result.algorithm, result.direction, found.prediction(result)
            title = f"{one.name} {direction}: {one.title}; accesses grow as Theta({one.io_class})"
            steps = explain(result, comparison.workload, comparison.device, comparison.sram_bytes)
            parts.append((title, {"algorithm": one.name, "pass": direction}, [*steps, *explain_time(known), *explain_power(known)]))
    summed = ["Forward + backward: each number is the sum of the two passes."] * (comparison.direction == BOTH)
    vector = [f"{one.name}, vector operations: {one.vector_work}." for one in algorithms.values()]
    return with_steps(replace(plain, notes=[*plain.notes, *summed, *vector]), parts)
