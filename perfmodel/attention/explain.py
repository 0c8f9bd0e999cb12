"""Each number of a result as its formula, by running the same functions on traced numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from perfmodel.attention.base import INPUTS_AND_OUTPUTS
from perfmodel.attention.evaluate import Result
from perfmodel.bounds import COMPULSORY_SOURCE, compulsory_elements
from perfmodel.cost import Access, Kernel, Tile, memory_bytes
from perfmodel.hardware import Device
from perfmodel.roofline import Estimate, estimate, total, traced_rates
from perfmodel.trace import Step, Trace
from perfmodel.workload import FORWARD, Attention

_SYMBOLS = {
    "batch": ("B", "batch"),
    "heads": ("H", "query heads"),
    "kv_heads": ("H_kv", "KV heads"),
    "n": ("N_q", "query length"),
    "kv_len": ("N_k", "key length"),
    "d": ("d", "head dim of Q and K"),
    "dv": ("d_v", "head dim of V and O"),
    "window": ("W_k", "keys of the sliding window"),
}

ROOF_SOURCE = "roofline model, Williams, Waterman & Patterson 2009"
L2_SOURCE = "L2 model, assumptions in perfmodel/cache.py"
MEMORY_SOURCE = "every tensor of the pass allocated at once"
_L2_NAMES = ("slots", "W", "waves", "scans", "lost", "drifted", "missed", "L2", "caches", "DRAM")
_ROOF_NAMES = ("term", "lower", "roofline", "without", "intensity")


def explain(result: Result, w: Attention, device: Device) -> list[Step]:
    """How every number of ``result`` (one pass) comes about; each step rests on earlier ones."""
    trace = Trace()
    given = {name: getattr(w, name) for name in _SYMBOLS if getattr(w, name) is not None}
    symbols: dict[str, Any] = {name: trace.symbol(_SYMBOLS[name][0], value, _SYMBOLS[name][1], "given") for name, value in given.items()}
    traced = replace(w, **symbols)
    tile, algorithm = _traced_tile(trace, result.tile), result.algorithm
    kernels = (algorithm.forward if result.direction == FORWARD else algorithm.backward)(traced, tile)
    labels = [f"[{kernel.name}] " if len(kernels) > 1 else "" for kernel in kernels]
    kernels = [_named_accesses(trace, kernel, label) for kernel, label in zip(kernels, labels, strict=True)]
    rates = traced_rates(trace, device, w.dtype)
    costs = [estimate(kernel, device, rates, label) for kernel, label in zip(kernels, labels, strict=True)]
    _name_totals(trace, total(costs), "total " if len(kernels) > 1 else "")
    trace.define("memory", "bytes", memory_bytes(kernels), MEMORY_SOURCE)
    trace.define("extra memory", "bytes beyond inputs and outputs", memory_bytes(kernels, INPUTS_AND_OUTPUTS), MEMORY_SOURCE)
    compulsory = compulsory_elements(traced, result.direction)
    trace.define("compulsory", "elements that any exact algorithm moves", compulsory, COMPULSORY_SOURCE)
    return [replace(step, source=step.source or _source(step, algorithm.source)) for step in trace.steps.values()]


def _traced_tile(trace: Trace, tile: Tile | None) -> Tile:
    if tile is None:
        return Tile(1, 1)
    edges: dict[str, Any] = {
        "br": trace.symbol("B_r", tile.br, "tile rows", tile.origin),
        "bc": trace.symbol("B_c", tile.bc, "tile columns", tile.origin),
    }
    return replace(tile, **edges)


def _source(step: Step, algorithm_source: str) -> str:
    first = step.name.removeprefix("total ").rsplit("] ", 1)[-1].split()[0]
    if first in _L2_NAMES:
        return L2_SOURCE
    return ROOF_SOURCE if first in _ROOF_NAMES else algorithm_source


def _named_accesses(trace: Trace, kernel: Kernel, label: str) -> Kernel:
    """``kernel`` with every count a name of its own, so that sums over tensors stay readable."""
    seen: Counter[str] = Counter()

    def named(access: Access) -> Access:
        kind = access.kind.replace("_", " ")
        name = label + (f"{kind} of parts" if access.tensor == kind else f"{access.tensor} {kind}")
        seen[name] += 1
        name += f" {seen[name]}" if seen[name] > 1 else ""
        elements = trace.define(name, f"elements of {access.element_size} B", access.elements)
        same = getattr(access.footprint, "formula", None) == getattr(access.elements, "formula", None)
        footprint = elements if same else trace.define(f"{name}, distinct", "elements, each counted once", access.footprint)
        return replace(access, elements=elements, footprint=footprint)

    return replace(kernel, accesses=tuple(map(named, kernel.accesses)))


def _name_totals(trace: Trace, cost: Estimate, label: str) -> None:
    """Sums over kernels, and what is derived from them."""
    sums = {
        "FLOP, visible": cost.flops,
        "FLOP, executed": cost.executed_flops,
        **{f"work {unit}": amount for unit, amount in cost.work.items()},
        "reads": cost.reads,
        "writes": cost.writes,
        "zero fill": cost.zero_fill,
        "zero fill bytes": cost.zero_fill_bytes,
        "group sum": cost.group_sum,
        "SRAM read bytes": cost.sram.read,
        "SRAM write bytes": cost.sram.write,
        "DRAM read bytes": cost.dram.read,
        "DRAM write bytes": cost.dram.write,
        **{f"term {unit}": seconds for unit, seconds in cost.terms.items()},
        "lower bound": cost.lower_s,
        "roofline": cost.roofline_s,
        "without overlap": cost.no_overlap_s,
    }
    if label:
        for name, value in sums.items():
            trace.define(label + name, "sum over kernels", value)
    trace.define(f"{label}accesses", "elements, two-level model", cost.reads + cost.writes)
    for level, traffic in (("SRAM", cost.sram), ("DRAM", cost.dram)):
        if traffic.total > 0:
            trace.define(f"{label}intensity {level}", "FLOP/B", cost.intensity(traffic))
