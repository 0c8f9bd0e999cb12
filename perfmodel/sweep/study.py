"""A sweep study: workload, axes, constraints and search, from a YAML file, the command line or Python."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from perfmodel import __version__
from perfmodel.core.errors import DataError, UsageError, suggest
from perfmodel.core.frozen import dataclass
from perfmodel.sweep.base import SweepWorkload

_MODULES = {"attention": "attention", "matmul": "kernels", "kv-cache": "model", "model": "model", "serve": "serving"}
"""Modules of this folder by workload; the module's constant is the workload's name in capitals."""
WORKLOADS = tuple(_MODULES)
MOST_TOP = 10_000
"""Most rows of a search."""


@cache
def workload_named(name: str) -> SweepWorkload:
    """The kind of workload called ``name``; loads the module of that kind only."""
    if name not in _MODULES:
        raise UsageError(f"there is no sweep over {name!r}", suggest(str(name), list(WORKLOADS)))
    workload: SweepWorkload = getattr(import_module(f"perfmodel.sweep.{_MODULES[name]}"), name.replace("-", "_").upper())
    return workload


Texts = list[str] | tuple[str, ...] | str


@dataclass(frozen=True, slots=True)
class SweepStudy:
    """The settings of a sweep, and the ``sweep:`` section of a YAML file, which holds names and values, never code.

    ``axes``: values of inputs as written. ``where``: constraints on inputs and columns; ``subject_to`` is added to it. ``columns``: None
    for the default ones. ``minimize``, ``maximize``: the column whose ``top`` rows with the least or largest values are wanted; ``pareto``:
    two columns in which less or more is better.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    workload: str = "attention"
    axes: Mapping[str, Any] = field(default_factory=dict)
    where: Texts = ()
    columns: Texts | None = None
    minimize: str | None = None
    maximize: str | None = None
    subject_to: Texts = ()
    pareto: Texts | None = None
    top: int = 10

    def __post_init__(self) -> None:
        """Turns single strings into tuples (one constraint, or column names separated by commas), and adds ``subject_to`` to ``where``."""
        where, subject_to = ((text,) if isinstance(text, str) else tuple(text) for text in (self.where, self.subject_to))
        object.__setattr__(self, "where", where + subject_to)
        object.__setattr__(self, "subject_to", ())
        for name in ("columns", "pareto"):
            names = getattr(self, name)
            if names is not None:
                listed = names.split(",") if isinstance(names, str) else names
                object.__setattr__(self, name, tuple(text.strip() for text in listed))

    def as_json(self) -> dict[str, Any]:
        """Workload, axes, constraints and columns as JSON values; without ``minimize``, ``pareto`` and ``top``."""
        axes = {name: _as_json(raw) for name, raw in self.axes.items()}
        columns = None if self.columns is None else list(self.columns)
        return {"workload": self.workload, "axes": axes, "where": list(self.where), "columns": columns}

    def fingerprint(self) -> str:
        """16 hex digits that identify the study and the version of perfmodel."""
        return hashlib.sha256(json.dumps([__version__, self.as_json()], sort_keys=True).encode()).hexdigest()[:16]

    def complete(self) -> SweepStudy:
        """A copy with full column names, including the columns of ``minimize`` and ``pareto``; UsageError for an invalid search."""
        workload = workload_named(self.workload)

        def full_names(names: Iterable[str], option: str) -> list[str]:
            return [workload.column_named(name, option).name for name in names]

        if self.pareto is not None and len(self.pareto) != 2:
            raise UsageError("--pareto takes two columns", "write it like --pareto time,memory")
        least, most = self._searched("minimize", workload), self._searched("maximize", workload)
        if least and most:
            raise UsageError("--minimize and --maximize look for other rows", "give one of them, or --pareto with both columns")
        pareto = None if self.pareto is None else full_names(self.pareto, "--pareto")
        if not 1 <= self.top <= MOST_TOP:
            raise UsageError(f"--top is {self.top}", f"give a whole number from 1 to {MOST_TOP:,}; for more rows use --where and -o")
        shown = [*workload.shown, workload.objective] if self.columns is None else full_names(self.columns, "--columns")
        searched = [column for column in (*(pareto or ()), least, most) if column is not None]
        columns = tuple(dict.fromkeys([*shown, *searched]))
        return replace(self, columns=columns, minimize=least, maximize=most, pareto=pareto)

    def _searched(self, option: str, workload: SweepWorkload) -> str | None:
        """The full name of the column of ``--minimize`` or ``--maximize``; UsageError if the other direction is better."""
        name = getattr(self, option)
        if name is None:
            return None
        column = workload.column_named(name, f"--{option}")
        if option == "minimize" and column.better > 0:
            raise UsageError(f"--minimize {name}: more of it is better", f"--maximize {name}")
        if option == "maximize" and column.better < 0:
            raise UsageError(f"--maximize {name}: less of it is better", f"--minimize {name}")
        return column.name


def _as_json(raw: Any) -> Any:
    """Values of an axis as JSON values."""
    if isinstance(raw, (str, int, float)):
        return raw
    return raw.tolist() if hasattr(raw, "tolist") else [_as_json(item) for item in raw]


def shipped_studies() -> dict[str, Path]:
    """Paths of the studies shipped with perfmodel, by name."""
    from perfmodel.catalog import data_folder

    return {path.stem: path for path in sorted((data_folder("configs") / "sweeps").glob("*.yaml"))}


def read_study(name: str) -> SweepStudy:
    """The study in the YAML file ``name``, or shipped under that name.

    DataError with file and line for an unknown workload or axis, or invalid values.
    """
    from perfmodel.catalog import load_config
    from perfmodel.core.files import read_yaml

    path, shipped = Path(name), shipped_studies()
    if not name.endswith((".yaml", ".yml")):
        if name not in shipped:
            names = [*WORKLOADS, *shipped]
            raise UsageError(f"no study or workload is called {name!r}", f"{suggest(name, names)}; or give a path ending in .yaml")
        path = shipped[name]
    study, lines = load_config(str(path), "sweep", SweepStudy), read_yaml(path)[1]
    for place, message, fix in _problems(study, ("sweep", "axes") in lines):
        raise DataError(f"{path}, line {lines.get(('sweep', *place), 1)}: {message}", fix)
    return study


def _problems(study: SweepStudy, has_axes: bool) -> Iterator[tuple[tuple[str, ...], str, str | None]]:
    """Errors in a file's workload and axes: place in the file, message and fix of each."""
    from perfmodel.sweep.expression import parse
    from perfmodel.sweep.values import is_expression, values_of

    if not has_axes:
        yield (), "sweep.axes: this field is required", None
    try:
        workload = workload_named(study.workload)
    except UsageError as error:
        yield ("workload",), f"sweep.workload: {error.message}", error.fix
    for name, raw in study.axes.items():
        try:
            [axis] = workload.by_name({name: raw})
            workload.check_names([axis], "sweep.axes.")
            if is_expression(workload.named[axis], raw):
                parse(raw, f"sweep.axes.{name}", workload)
            else:
                values_of(workload.named[axis], raw)
        except UsageError as error:
            yield ("axes", name), error.message.replace(f"--{name.replace('_', '-')}", f"sweep.axes.{name}", 1), error.fix
