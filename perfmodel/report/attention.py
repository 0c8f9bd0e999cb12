"""The report of an attention comparison: sentences, one table per pass, and the JSON object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from perfmodel import __version__
from perfmodel.attention.evaluate import BOTH, Result, io_bytes
from perfmodel.attention.request import Comparison
from perfmodel.bounds import COMPULSORY_SOURCE, THETA_SOURCE, compulsory_elements, theta
from perfmodel.cost import Kernel, memory_bytes
from perfmodel.report.counts import BOUND_WORDS, counts, intensity
from perfmodel.report.document import Report, Table
from perfmodel.roofline import Estimate
from perfmodel.units import format_binary, format_count, format_si, format_time
from perfmodel.workload import BACKWARD, FORWARD


def report(comparison: Comparison, *, explained: bool = False, crossover: bool = False) -> Report:
    """``comparison`` as a Report; its data follows the schema perfmodel.attention/1.

    ``explained``: with every formula. ``crossover``: with the sizes at which tiling stops paying.
    """
    found = Report(_title(comparison), _verdict(comparison), _tables(comparison), _notes(comparison), data(comparison))
    if comparison.sram_sizes:
        found = _with_sram_sweep(found, comparison)
    if crossover:
        found = _with_crossovers(found, comparison)
    return _explained(found, comparison) if explained else found


def _with_sram_sweep(plain: Report, comparison: Comparison) -> Report:
    from perfmodel.attention.sram_sweep import sram_sweep

    points = sram_sweep(comparison)
    rows, objects = [], []
    for point in points:
        result = point.result
        first = next(p.result for p in points if p.algorithm is point.algorithm)
        name, size = point.algorithm.name, format_binary(point.sram_bytes)
        fields: dict[str, Any] = {
            "algorithm": name,
            "sram_bytes": point.sram_bytes,
            "tile": None,
            "accesses_bytes": None,
            "roofline_s": None,
        }
        cells = [name, size, "no tile fits", "-", "-", "-"]
        if result is not None and result.tile is not None:
            moved = result.total.access_bytes
            saved = 0.0 if first is None else 1 - moved / first.total.access_bytes
            tile = f"{result.tile.br} x {result.tile.bc}"
            cells = [name, size, tile, format_si(moved, "B"), f"{saved:+.1%}", format_time(result.total.roofline_s)]
            fields |= {"tile": {"br": result.tile.br, "bc": result.tile.bc}, "accesses_bytes": moved, "roofline_s": result.total.roofline_s}
        rows.append(cells)
        objects.append(fields)
    columns = ["algorithm", "SRAM M", "tile that moves least", "accesses", "saved", "roofline"]
    table = Table("what SRAM buys, forward", columns, rows, "lrrrrr")
    return replace(plain, tables=[*plain.tables, table], data={**plain.data, "sram_sweep": objects})


def _with_crossovers(plain: Report, comparison: Comparison) -> Report:
    from perfmodel.attention.crossover import crossovers

    rows, objects = [], []
    for border in crossovers(comparison):
        law = f"{border.last_d_by_law:.1f}, {border.law}" if border.law and border.last_d_by_law else ""
        sizes = {"first_n": border.first_n, "last_d": border.last_d, "first_sram_bytes": border.first_sram_bytes}
        smallest = "-" if border.first_sram_bytes is None else f"{border.first_sram_bytes:,} B"
        here = "yes" if border.wins_here else "no"
        rows.append([border.algorithm.name, border.measure, here, _border(border.first_n), _border(border.last_d), smallest, law])
        names = {"algorithm": border.algorithm.name, "measure": border.measure, "wins_here": border.wins_here}
        objects.append({**names, **sizes, "law": border.law, "last_d_by_law": border.last_d_by_law})
    columns = ["algorithm", "by", "wins here", "from N", "up to d", "from M", "leading terms: up to d"]
    table = Table("where tiling stops paying, forward, the other sizes held", columns, rows, "lllrrrl")
    return replace(plain, tables=[*plain.tables, table], data={**plain.data, "crossover": objects})


def _border(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _explained(plain: Report, comparison: Comparison) -> Report:
    from perfmodel.attention.explain import explain
    from perfmodel.report.steps import Sources, steps_data, steps_table

    sources, tables, objects = Sources(), list(plain.tables), []
    for result in comparison.results:
        if result.direction != BOTH:  # the sum of two passes needs no formula of its own
            steps = explain(result, comparison.workload, comparison.device)
            algorithm = result.algorithm
            title = f"{algorithm.name} {result.direction}: {algorithm.title}; accesses grow as Theta({algorithm.io_class})"
            tables.append(steps_table(title, steps, sources))
            objects.append({"algorithm": algorithm.name, "pass": result.direction, "steps": steps_data(steps)})
    vector = [
        f"{a.name}, vector operations: {a.vector_work}." for a in {r.algorithm.name: r.algorithm for r in comparison.results}.values()
    ]
    notes = [*plain.notes, *vector, *sources.notes()]
    return replace(plain, tables=tables, notes=notes, data={**plain.data, "explanation": objects})


# The JSON object


def data(comparison: Comparison) -> dict[str, Any]:
    """The object of schema perfmodel.attention/1."""
    w, device = comparison.workload, comparison.device
    sizes = {name: getattr(w, name) for name in ("batch", "heads", "kv_heads", "n", "kv_len", "d", "dv")}
    options = {name: getattr(w, name) for name in ("causal", "window", "mask", "dropout", "unfused_scale", "printed_backward", "packed")}
    asked = {"pass": comparison.direction, "algorithms": list(dict.fromkeys(result.algorithm.name for result in comparison.results))}
    inputs = {**sizes, "dtype": w.dtype.name, **options, **asked, "sram_bytes": comparison.sram_bytes, "cache": "cold"}
    return {
        "schema": "perfmodel.attention/1",
        "version": __version__,
        "inputs": inputs,
        "hardware": {"id": device.id, "name": device.name},
        "results": [_result(result, comparison) for result in comparison.results],
        "io_lower_bound": _io_lower_bound(comparison),
        "ratios": _ratios(comparison),
    }


def _result(result: Result, comparison: Comparison) -> dict[str, Any]:
    memory = {"memory_bytes": result.memory_bytes, "extra_memory_bytes": result.extra_memory_bytes, "fits": _fits(result, comparison)}
    head = {"algorithm": result.algorithm.name, "pass": result.direction, "implementation": None}
    kernels = [_kernel(part, kernel, cost, comparison) for part in result.parts for kernel, cost in part.kernels]
    return {**head, **counts(result.total), **memory, "tile": _tile(result), "kernels": kernels}


def _kernel(result: Result, kernel: Kernel, cost: Estimate, comparison: Comparison) -> dict[str, Any]:
    head = {"name": kernel.name, "algorithm": result.algorithm.name, "pass": result.direction, "implementation": None}
    size = memory_bytes([kernel])
    extra = size - io_bytes([kernel], comparison.workload)
    memory = {"memory_bytes": size, "extra_memory_bytes": extra, "fits": _fits_in(size, comparison)}
    return {**head, **counts(cost), **memory, "tile": _tile(result) if kernel.launch else None}


def _tile(result: Result) -> dict[str, Any] | None:
    return None if result.tile is None else {"br": result.tile.br, "bc": result.tile.bc, "origin": result.tile.origin}


def _fits(result: Result, comparison: Comparison) -> bool | None:
    return _fits_in(result.memory_bytes, comparison)


def _fits_in(size: int, comparison: Comparison) -> bool | None:
    capacity = comparison.device.dram.capacity
    return None if capacity is None else size <= capacity.number


def _passes(comparison: Comparison) -> list[str]:
    return [FORWARD, BACKWARD] if comparison.direction == BOTH else [comparison.direction]


def _io_lower_bound(comparison: Comparison) -> dict[str, Any]:
    w = comparison.workload
    compulsory = sum(compulsory_elements(w, direction) for direction in _passes(comparison))
    found = None
    if comparison.sram_bytes is not None and FORWARD in _passes(comparison):
        found = theta(w, comparison.sram_bytes // w.dtype.size)
    bound = None
    if found is not None:
        bound = {"class": found.io_class, "regime": found.regime, "value_without_constant": found.value_without_constant, "pass": FORWARD}
    source = f"compulsory: {COMPULSORY_SOURCE}; theta: {THETA_SOURCE}"
    distances = {result.algorithm.name: _distance(result, compulsory, bound) for result in _shown(comparison)}
    bytes_moved = compulsory * w.dtype.size
    return {"compulsory": compulsory, "compulsory_bytes": bytes_moved, "theta": bound, "distance": distances, "source": source}


def _shown(comparison: Comparison) -> list[Result]:
    """Results of the pass that was asked for, the sum where it was both."""
    return [result for result in comparison.results if result.direction == comparison.direction]


def _distance(result: Result, compulsory: int, bound: dict[str, Any] | None) -> dict[str, float | None]:
    """Accesses over the bounds: 1 is the compulsory traffic; over theta (forward alone) the constant that the class hides."""
    moved = result.total.reads + result.total.writes
    forward = bound is not None and result.direction == FORWARD
    return {"compulsory": moved / compulsory, "theta": moved / bound["value_without_constant"] if bound and forward else None}


def _ratios(comparison: Comparison) -> dict[str, Any]:
    """Standard over each other algorithm, per pass: above 1 the other one moves or takes less."""
    ratios: dict[str, Any] = {}
    for result in comparison.results:
        reference = _standard(comparison, result.direction)
        if reference is not None and reference is not result:
            ratios.setdefault(result.algorithm.name, {})[result.direction] = {
                "accesses": (reference.total.reads + reference.total.writes) / (result.total.reads + result.total.writes),
                "sram_bytes": reference.total.sram.total / result.total.sram.total,
                "dram_bytes": reference.total.dram.total / result.total.dram.total,
                "executed_flops": reference.total.executed_flops / result.total.executed_flops,
                "lower": reference.total.lower_s / result.total.lower_s,
                "roofline": reference.total.roofline_s / result.total.roofline_s,
            }
    return ratios


def _standard(comparison: Comparison, direction: str) -> Result | None:
    found = (result for result in comparison.results if result.algorithm.name == "standard" and result.direction == direction)
    return next(found, None)


# Words


def _title(comparison: Comparison) -> str:
    w = comparison.workload
    shape = [f"n {w.n}"] + [f"kv-len {w.kv_len}"] * (w.kv_len != w.n) + [f"d {w.d}"] + [f"dv {w.dv}"] * (w.dv != w.d)
    heads = [f"batch {w.batch}", f"heads {w.heads}"] + [f"kv-heads {w.kv_heads}"] * (w.kv_heads != w.heads)
    options = (
        ["causal"] * w.causal
        + [f"window {w.window}"] * (w.window is not None)
        + ["packed"] * w.packed
        + ["mask"] * w.mask
        + [f"dropout {w.dropout:g}"] * (w.dropout > 0)
    )
    return f"Attention {comparison.direction}: {', '.join([*heads, *shape, w.dtype.name, *options])} on {comparison.device.name}"


def _verdict(comparison: Comparison) -> list[str]:
    results = _shown(comparison)
    reference = _standard(comparison, comparison.direction)
    if reference is None:
        return [f"{result.algorithm.name} is bound by {_bound_by(result)}." for result in results]
    if len(results) == 1:
        return [f"standard is bound by {_bound_by(reference)}."]
    small = [f"standard does not fit: it needs {format_si(reference.memory_bytes, 'B')}."] if _fits(reference, comparison) is False else []
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
        reasons.append(f"it skips masked tiles and computes {skipped:.3g}x less")
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


_Cell = Callable[[Result, Comparison], str]


def _tile_cell(result: Result, comparison: Comparison) -> str:
    return "-" if result.tile is None else f"{result.tile.br} x {result.tile.bc}"


def _gain_cell(result: Result, comparison: Comparison) -> str:
    reference = _standard(comparison, result.direction)
    return "-" if reference is None else f"{reference.total.roofline_s / result.total.roofline_s:.3g}x"


def _intensity_cell(level: str) -> _Cell:
    def cell(result: Result, comparison: Comparison) -> str:
        value = intensity(result.total, level)
        return "-" if value is None else f"{value:.4g} FLOP/B"

    return cell


_ROWS: dict[str, _Cell] = {
    "tile B_r x B_c": _tile_cell,
    "FLOP, visible scores": lambda r, c: format_si(r.total.flops, "FLOP"),
    "FLOP, executed": lambda r, c: format_si(r.total.executed_flops, "FLOP"),
    "vector operations": lambda r, c: format_si(r.total.work.vector, "FLOP"),
    "exponentials": lambda r, c: format_si(r.total.work.sfu),
    "HBM accesses, two-level model": lambda r, c: f"{format_count(r.total.reads + r.total.writes)} elements",
    "  in bytes": lambda r, c: format_si(r.total.access_bytes, "B"),
    "  zero fill besides": lambda r, c: format_si(r.total.zero_fill_bytes, "B"),
    "SRAM traffic": lambda r, c: format_si(r.total.sram.total, "B"),
    "DRAM traffic": lambda r, c: format_si(r.total.dram.total, "B"),
    "arithmetic intensity, SRAM": _intensity_cell("sram"),
    "arithmetic intensity, DRAM": _intensity_cell("dram"),
    "memory": lambda r, c: format_si(r.memory_bytes, "B") + ("" if _fits(r, c) is not False else " (does not fit)"),
    "  beyond inputs and outputs": lambda r, c: format_si(r.extra_memory_bytes, "B"),
    "lower bound, cold L2": lambda r, c: format_time(r.total.lower_s),
    "roofline": lambda r, c: format_time(r.total.roofline_s),
    "  without overlap": lambda r, c: format_time(r.total.no_overlap_s),
    "bound by": lambda r, c: r.total.bound or "-",
    "standard / this, roofline": _gain_cell,
}


def _tables(comparison: Comparison) -> list[Table]:
    shown = [*_passes(comparison), BOTH] if comparison.direction == BOTH else [comparison.direction]
    tables = []
    for direction in shown:
        results = [result for result in comparison.results if result.direction == direction]
        rows = [[label, *(cell(result, comparison) for result in results)] for label, cell in _ROWS.items()]
        title = {BOTH: "forward + backward"}.get(direction, direction) if len(shown) > 1 else ""
        tables.append(Table(title, ["" if title else direction, *(result.algorithm.name for result in results)], rows))
    return tables


def _notes(comparison: Comparison) -> list[str]:
    results, device = comparison.results, comparison.device
    notes = ["Totals over batch and heads; a multiply-add counts 2 FLOP."]
    for result in results:
        if result.tile is not None and result.algorithm.tiling is not None:
            held = result.algorithm.tiling.resident[result.direction]
            tile = f"tile {result.tile.br} x {result.tile.bc} ({result.tile.origin})"
            notes.append(f"{result.algorithm.name} {result.direction}: {tile}, {held} in SRAM.")
    if comparison.sram_bytes is not None:
        notes.append(f"M = {format_binary(comparison.sram_bytes)} of SRAM per block.")
    io_bound = _io_lower_bound(comparison)
    far = ", ".join(f"{name} {distance['compulsory']:.3g}x" for name, distance in io_bound["distance"].items())
    least = format_si(io_bound["compulsory_bytes"], "B")
    given = " with O given" if BACKWARD in _passes(comparison) else ""
    notes.append(f"No exact algorithm{given} moves less than {least} ({COMPULSORY_SOURCE}); accesses are {far} of it.")
    if device.cache_bytes is None:
        notes.append(
            f"The profile of {device.id} has no L2 size: DRAM traffic is counted as if nothing were cached, bounds as if all were."
        )
    if io_bound["theta"]:
        constants = ", ".join(f"{n} {d['theta']:.3g}" for n, d in io_bound["distance"].items() if d["theta"] is not None)
        known = f" here {constants} times it" if constants else ""
        notes.append(f"Lower bound of the forward pass: Theta({io_bound['theta']['class']}), {io_bound['theta']['regime']};{known}.")
    if any(result.total.group_sum for result in results):
        notes.append("Unpacked: each query head stores its own dK, dV; adding them up over a group is not counted.")
    for name in sorted(frozenset().union(*(result.total.unknown for result in results))):
        notes.append(f"The profile of {device.id} has no rate for {BOUND_WORDS[name]}: that term is left out of the roof.")
    return notes
