"""The explanation of one number: its formula, the numbers in it, and their sources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.units import format_si, format_time
from perfmodel.report.document import Report, Table
from perfmodel.report.op_common import STEPS_COLUMN, Sources

ALIASES = {
    "time": ("predicted", "step"),
    "predicted": ("step",),
    "rate predicted": ("predicted", "flop visible"),
    "l2 traffic": ("sram read bytes", "sram write bytes"),
    "sram traffic": ("sram read bytes", "sram write bytes"),
    "dram traffic": ("dram read bytes", "dram write bytes"),
    "arithmetic intensity dram": ("intensity dram",),
    "arithmetic intensity l2": ("intensity sram",),
    "arithmetic intensity sram": ("intensity sram",),
    "flop": ("flop visible",),
    "flop visible scores": ("flop visible",),
    "flops": ("flop visible",),
    "executed flops": ("flop executed",),
    "lower bound cold l2": ("lower bound",),
    "accesses without a cache": ("accesses",),
    "bytes without a cache": ("sram read bytes", "sram write bytes"),
    "accesses two level model": ("accesses",),
    "hbm accesses two level model": ("accesses",),
    "exponentials": ("work sfu",),
    "vector operations": ("work vector",),
    "bound": ("roofline",),
    "bound by": ("roofline",),
    "roof": ("roofline",),
    "beyond inputs and outputs": ("extra memory",),
    "step time": ("step",),
    "time of a step": ("step",),
    "run for seconds": ("time run for seconds",),
    "power": ("power run for seconds",),
    "clock": ("clock run for seconds",),
    "energy": ("energy per call",),
}
"""Names of numbers in explanations by the labels and words that reports use for them."""

Step = dict[str, Any]


def only(report: Report, name: str) -> Report:
    """``report`` with only the number called ``name``, its formula and the numbers in that; UsageError names the nearest ones.

    The number is the sum over kernels, unless the name is that of a single kernel.
    """
    groups: list[dict[str, Any]] = report.data.get("explanation", [])
    step_tables = [table for table in report.tables if table.columns[-1:] == [STEPS_COLUMN]]
    sources, verdict, tables, objects = Sources(), list[str](), list[Table](), list[dict[str, Any]]()
    for group, table in zip(groups, step_tables, strict=True):
        steps = _steps_named(name, group["steps"])
        if steps:
            listed = _with_parts(group["steps"], steps)
            verdict += [f"{_group(group)}{step['name']} = {_value(step)}" for step in steps]
            tables.append(_table(table.title, listed, sources))
            objects.append({**group, "steps": listed})
    if not objects:
        names = dict.fromkeys(_bare(step["name"]) for group in groups for step in group["steps"])
        plain_names = set(map(_plain, names))
        aliases = [alias for alias, originals in ALIASES.items() if not plain_names.isdisjoint(originals)]
        raise UsageError(f"--explain: no number here is called {name!r}", suggest(name, [*names, *aliases], "see them with --explain all"))
    notes = [*sources.notes(), "--explain NAME of a number in a formula shows that one; --explain all shows every number."]
    empty: dict[str, Any] = {field: [] for field in ("meters", "figures", "brief", "reasons", "charts", "data_tables")}
    data = {**report.data, "explanation": objects}
    return replace(report, verdict=verdict[:3], tables=tables, notes=notes, data=data, **empty)


def _steps_named(name: str, steps: Sequence[Step]) -> list[Step]:
    """The ``steps`` that ``name`` means: the one with that whole name, else those with that name or one that it is an alias of."""
    exact = [step for step in steps if step["name"] == name]
    if exact:
        return exact
    plain = _plain(name)
    named = []
    for original in (plain, *ALIASES.get(plain, ())):
        named += _steps_with_plain_name(original, steps)
    return named


def _steps_with_plain_name(name: str, steps: Sequence[Step]) -> list[Step]:
    """The ``steps`` with that plain name; only the sum over kernels if there is one."""
    matching = [step for step in steps if _plain(_bare(step["name"])) == name]
    sums = [step for step in matching if not step["name"].startswith("[")]
    return sums or matching


def _bare(name: str) -> str:
    """The name of a number without its kernel."""
    return re.sub(r"^(?:\[[^\]]*\] |total )", "", name)


def _plain(name: str) -> str:
    """``name`` in small letters, as words."""
    return " ".join(re.findall(r"[\w/]+", name.lower()))


def _with_parts(steps: Sequence[Step], meant: Iterable[Step]) -> list[Step]:
    """Each of ``meant``, followed by the numbers in its formula."""
    by_name = {step["name"]: step for step in steps}
    longest_first = sorted(by_name, key=len, reverse=True)
    pattern = re.compile("|".join(rf"(?<![\w]){re.escape(name)}(?![\w])" for name in longest_first))
    listed: dict[str, Step] = {}
    for step in meant:
        listed[step["name"]] = step
        for name in pattern.findall(step["formula"]):
            listed[name] = by_name[name]
    return list(listed.values())


def _table(title: str, steps: Sequence[Step], sources: Sources) -> Table:
    """Table with a row per step: name, value, meaning and source; below it, the formula in names and in numbers."""
    rows = []
    for step in steps:
        meaning = re.sub(r"^(?:s|B|bytes|Hz|W|J)(?:,|$| (?=of|that|at))", "", step["meaning"]).strip()  # without its unit
        words = f", {meaning}" if meaning else ""
        rows.append([f"{step['name']} = {_value(step)}{words} {sources.cite(step['source'])}"])
        formulas = [step["formula"]]
        if step["numbers"] != str(step["value"]):
            formulas.append(step["numbers"])
        rows += [[f"  = {text}"] for text in formulas if text]
    return Table(title, [""], rows, "l")


_UNIT = re.compile(r"(?:matmul )?(?:(FLOP/B|FLOP/s|B/s|FLOP|B|bytes)\b|(s|Hz|W|J)(?=,|$| of| that| at))")
"""Pattern of the unit with which the meaning of a step begins."""
_NAMES_BY_UNIT = {"s": r"(roofline|lower bound|without overlap|predicted|term \w+)$", "B": r"bytes$", "FLOP": r"^FLOP"}
"""Patterns of names by unit, for steps whose meaning only says how they are summed."""


def _value(step: Step) -> str:
    """The value of ``step``, with its unit if meaning or name tell it."""
    value = step["value"]
    if not isinstance(value, (int, float)):
        return str(value)
    unit = _unit(step)
    if unit:
        return format_time(value) if unit == "s" else format_si(value, unit)
    return f"{value:,}" if isinstance(value, int) and abs(value) < 10**15 else f"{value:.6g}"


def _unit(step: Step) -> str:
    """The unit of ``step`` by its meaning or its name; empty if neither tells it."""
    stated = _UNIT.match(step["meaning"])
    if stated:
        unit = stated[1] or stated[2]
        return "B" if unit == "bytes" else unit
    for unit, pattern in _NAMES_BY_UNIT.items():
        if re.search(pattern, _bare(step["name"])):
            return unit
    return ""


def _group(group: dict[str, Any]) -> str:
    """Phrase that says which result the number belongs to."""
    names = [str(value) for key, value in group.items() if key in ("algorithm", "pass", "phase", "id")]
    return f"{' '.join(names)}: " if names else ""
