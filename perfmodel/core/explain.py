"""Explanations: the formula of every count, time and derived number, from running the same functions on traced numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from perfmodel.core.cost import Access, Kernel
from perfmodel.core.dtypes import Dtype
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate, estimate, rates_of, total
from perfmodel.core.trace import FormulaStep, Trace

_Workload = TypeVar("_Workload", bound=Any)

ROOF_SOURCE = "roofline model, Williams, Waterman & Patterson 2009"
L2_SOURCE = "L2 model, assumptions in perfmodel/core/cache.py"
_L2_NAMES = ("slots", "W", "waves", "scans", "lost", "drifted", "missed", "passing", "L2", "caches", "DRAM")
WALK_SOURCE = "tile walk in closed form, perfmodel/kernels/attention/walk.py"
_WALK_NAMES = ("E", "T_r", "T_c", "tiles", "C", "R", "rows", "keys", "g")
_ROOF_NAMES = ("needed", "compulsory", "term", "lower", "roofline", "without", "intensity")


def explain_kernels(trace: Trace, kernels: Sequence[Kernel], device: Device, dtype: Dtype) -> list[Kernel]:
    """Add every number of ``kernels`` (built from traced numbers) to ``trace``, per kernel and in total.

    Returns the kernels with named counts, from which a caller can derive more.
    """
    labels = [f"[{kernel.name}] " if len(kernels) > 1 else "" for kernel in kernels]
    named = [_named_accesses(trace, kernel, label) for kernel, label in zip(kernels, labels, strict=True)]
    rates = rates_of(device, dtype, trace)
    costs = [estimate(kernel, device, rates, label) for kernel, label in zip(named, labels, strict=True)]
    _name_totals(trace, total(costs), "total " if len(kernels) > 1 else "")
    return named


def with_symbols(trace: Trace, workload: _Workload, symbols: Mapping[str, tuple[str, str]]) -> _Workload:
    """``workload`` with its fields as inputs of ``trace``. ``symbols``: field -> (symbol, meaning)."""
    values = {name: getattr(workload, name) for name in symbols}
    traced: dict[str, Any] = {
        name: trace.symbol(symbols[name][0], value, symbols[name][1], "given") for name, value in values.items() if value is not None
    }
    return replace(workload, **traced)


def sourced(trace: Trace, source: str) -> list[FormulaStep]:
    """The steps of ``trace``. One without a source gets that of the L2 model, tile walk or roofline by its name, else ``source``."""
    return [step._replace(source=step.source or _source(step, source)) for step in trace.steps.values()]


def _source(step: FormulaStep, given: str) -> str:
    first = step.name.removeprefix("total ").rsplit("] ", 1)[-1].split()[0]
    if first in _L2_NAMES:
        return L2_SOURCE
    if first in _WALK_NAMES:
        return WALK_SOURCE
    return ROOF_SOURCE if first in _ROOF_NAMES else given


def _named_accesses(trace: Trace, kernel: Kernel, label: str) -> Kernel:
    """``kernel`` with a name for every count, so that sums over tensors stay readable."""
    uses: Counter[str] = Counter()

    def named(access: Access) -> Access:
        kind = access.kind.replace("_", " ")
        name = label + (f"{kind} of parts" if access.tensor == kind else f"{access.tensor} {kind}")
        uses[name] += 1
        if uses[name] > 1:
            name += f" {uses[name]}"
        return named_access(trace, access, name)

    return kernel._replace(accesses=tuple(map(named, kernel.accesses)))


def named_access(trace: Trace, access: Access, name: str, source: str = "") -> Access:
    """``access`` with its elements as ``name`` in ``trace``, and its distinct elements as a second name if their formula differs."""
    elements = trace.define(name, f"elements of {access.element_size} B", access.elements, source)
    footprint = elements
    if getattr(access.footprint, "formula", None) != getattr(access.elements, "formula", None):
        footprint = trace.define(f"{name}, distinct", "elements, each counted once", access.footprint, source)
    return access._replace(elements=elements, footprint=footprint)


def _name_totals(trace: Trace, cost: Estimate, label: str) -> None:
    """Names the sums over kernels, and what is derived from them."""
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
            trace.define(label + name, "s, of all kernels as one workload" if name == "lower bound" else "sum over kernels", value)
    trace.define(f"{label}accesses", "elements, two-level model", cost.reads + cost.writes)
    for level, traffic in (("SRAM", cost.sram), ("DRAM", cost.dram)):
        if traffic.total > 0:
            trace.define(f"{label}intensity {level}", "FLOP/B", cost.intensity(traffic))
