"""The explanation of one number: its formula, the numbers in it, and their sources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.units import format_si, format_time
from perfmodel.report.document import Report, Table
from perfmodel.report.op_common import Sources

SAME = {
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
    matches = [(group, _meant(group["steps"], name)) for group in groups]
    if not any(steps for _, steps in matches):
        names = list(dict.fromkeys(_bare(step["name"]) for group in groups for step in group["steps"]))
        plain = {_plain(known_name) for known_name in names}
        words = [word for word, meant in SAME.items() if plain & {*meant}]
        raise UsageError(f"--explain: no number here is called {name!r}", suggest(name, [*names, *words], "see them with --explain all"))
    titles = [table for table in report.tables if table.columns[-1:] == ["formula = with values = value"]]
    sources, verdict, tables, objects = Sources(), [], [], []
    for (group, meant), table in zip(matches, titles, strict=True):
        if not meant:
            continue
        listed = _with_parts(group["steps"], meant)
        verdict += [f"{_group(group)}{step['name']} = {_value(step)}" for step in meant]
        tables.append(_table(table.title, listed, sources))
        objects.append({**group, "steps": listed})
    notes = [*sources.notes(), "--explain NAME of a number in a formula shows that one; --explain all shows every number."]
    empty: dict[str, Any] = {field: [] for field in ("meters", "figures", "brief", "reasons", "charts", "data_tables")}
    data = {**report.data, "explanation": objects}
    return replace(report, verdict=verdict[:3], tables=tables, notes=notes, data=data, **empty)


def _meant(steps: Sequence[Step], name: str) -> list[Step]:
    """The ``steps`` that ``name`` means: the one with that whole name, else those with that name or an alias (``SAME``)."""
    exact = [step for step in steps if step["name"] == name]
    matches = [_called(steps, alias) for alias in (_plain(name), *SAME.get(_plain(name), ()))]
    return exact or [step for steps in matches for step in steps]


def _called(steps: Sequence[Step], name: str) -> list[Step]:
    """The ``steps`` with that plain name; the sum over kernels if there is one."""
    matching = [step for step in steps if _plain(_bare(step["name"])) == name]
    return [step for step in matching if not step["name"].startswith("[")] or matching


def _bare(name: str) -> str:
    """The name of a number without its kernel."""
    return re.sub(r"^(?:\[[^\]]*\] |total )", "", name)


def _plain(name: str) -> str:
    """``name`` in small letters, as words."""
    return " ".join(re.findall(r"[\w/]+", name.lower()))


def _with_parts(steps: Sequence[Step], meant: Iterable[Step]) -> list[Step]:
    """Each of ``meant``, followed by the numbers in its formula."""
    by_name = {step["name"]: step for step in steps}
    names = sorted(by_name, key=len, reverse=True)
    pattern = re.compile("|".join(rf"(?<![\w]){re.escape(name)}(?![\w])" for name in names)) if names else re.compile("$^")
    found: dict[str, Step] = {}
    for step in meant:
        found[step["name"]] = step
        inside = pattern.findall(step["formula"])
        found |= {name: by_name[name] for name in inside if name in by_name}
    return list(found.values())


def _table(title: str, steps: Sequence[Step], sources: Sources) -> Table:
    """Table with a row per step: name, value, meaning and source; below it, the formula in names and in numbers."""
    rows = []
    for step in steps:
        meaning = re.sub(r"^(?:s|B|bytes|Hz|W|J)(?:,|$| (?=of|that|at))", "", step["meaning"]).strip()  # without its unit
        words = f", {meaning}" if meaning else ""
        rows.append([f"{step['name']} = {_value(step)}{words} {sources.cite(step['source'])}"])
        formulas = [step["formula"], *([step["numbers"]] if step["numbers"] != str(step["value"]) else [])]
        rows += [[f"  = {text}"] for text in formulas if text]
    return Table(title, [""], rows, "l")


_UNIT = re.compile(r"(?:matmul )?(?:(FLOP/B|FLOP/s|B/s|FLOP|B|bytes)\b|(s|Hz|W|J)(?=,|$| of| that| at))")
"""Pattern of the unit with which the meaning of a step begins."""
_NAMED = {"s": r"(roofline|lower bound|without overlap|predicted|term \w+)$", "B": r"bytes$", "FLOP": r"^FLOP"}
"""Patterns of names by unit, for steps whose meaning only says how they are summed."""


def _value(step: Step) -> str:
    """The value of ``step``, with its unit if meaning or name tell it."""
    value, written = step["value"], _UNIT.match(step["meaning"])
    if not isinstance(value, (int, float)):
        return str(value)
    if written:
        unit = "B" if written[1] == "bytes" else written[1] or written[2]
    else:
        unit = next((unit for unit, words in _NAMED.items() if re.search(words, _bare(step["name"]))), "")
    if unit:
        return format_time(value) if unit == "s" else format_si(value, unit)
    return f"{value:,}" if isinstance(value, int) and abs(value) < 10**15 else f"{value:.6g}"


def _group(group: dict[str, Any]) -> str:
    """Phrase that says which result the number belongs to."""
    names = [str(value) for key, value in group.items() if key in ("algorithm", "pass", "phase", "id")]
    return f"{' '.join(names)}: " if names else ""
