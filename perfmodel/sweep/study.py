"""A study: what is asked, as it is written in a file, on the command line or in Python; and the grid that it means."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from perfmodel import __version__
from perfmodel.core.errors import DataError, UsageError, suggest
from perfmodel.sweep.base import SweepInput, SweepWorkload

WORKLOADS = ("attention", "matmul", "kv-cache", "model")


@cache
def workload_named(name: str) -> SweepWorkload:
    """The kind of workload called ``name``; only its own module is loaded."""
    if name not in WORKLOADS:
        raise UsageError(f"there is no sweep over {name!r}", suggest(str(name), list(WORKLOADS)))
    found: SweepWorkload = import_module(f"perfmodel.sweep.{name.replace('-', '_')}").WORKLOAD
    return found


@dataclass(frozen=True, slots=True)
class SweepStudy:
    """``axes``: values of inputs as written. ``where``: constraints on inputs and columns. ``columns``: None for the usual ones."""

    workload: str = "attention"
    axes: Mapping[str, Any] = field(default_factory=dict)
    where: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None

    def told(self) -> dict[str, Any]:
        """The study as JSON can hold it."""
        axes = {name: _plain(raw) for name, raw in self.axes.items()}
        columns = None if self.columns is None else list(self.columns)
        return {"workload": self.workload, "axes": axes, "where": list(self.where), "columns": columns}

    def fingerprint(self) -> str:
        """Short text that differs for different studies, and for different versions of the program."""
        return hashlib.sha256(json.dumps([__version__, self.told()], sort_keys=True).encode()).hexdigest()[:16]


def _plain(raw: Any) -> Any:
    if isinstance(raw, (str, int, float)):
        return raw
    return raw.tolist() if hasattr(raw, "tolist") else [_plain(item) for item in raw]


class AxisValues:
    """What an axis of a file may be, checked by one rule, so that one message names it."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """The rule as pydantic takes it, which is loaded only where a file is read."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(_listed_values)


def _listed_values(raw: Any) -> Any:
    for one in raw if isinstance(raw, list) else [raw]:
        if not isinstance(one, (bool, int, float, str)):
            told = "a list inside it" if isinstance(one, list) else "a mapping" if isinstance(one, dict) else "nothing"
            raise ValueError(f"{told}, where values stand; give a number, a text such as 512:131072:x2, or a list of those")
    if raw == []:
        raise ValueError("an empty list; give a value at least")
    return raw


@dataclass(frozen=True, slots=True)
class SweepFile:
    """The ``sweep:`` section of a YAML file. It names columns and values, never code."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    OPTION_NAMES: ClassVar[dict[str, str]] = {}

    axes: dict[str, AxisValues]
    workload: str = "attention"
    where: list[str] | str = field(default_factory=list)
    columns: list[str] | None = None
    minimize: str | None = None
    subject_to: list[str] | str = field(default_factory=list)
    pareto: list[str] | None = None
    top: int = 10


def shipped_studies() -> dict[str, Path]:
    """Files of the shipped studies, by name."""
    from perfmodel.catalog import data_folder

    return {path.stem: path for path in sorted((data_folder("configs") / "sweeps").glob("*.yaml"))}


def read_study(name: str) -> SweepFile:
    """The study in a YAML file, or shipped under ``name``."""
    from perfmodel.catalog import load_config

    path = Path(name)
    if not name.endswith((".yaml", ".yml")):
        shipped = shipped_studies()
        if name not in shipped:
            known = [*WORKLOADS, *shipped]
            raise UsageError(f"no study or workload is called {name!r}", f"{suggest(name, known)}; or give a path ending in .yaml")
        path = shipped[name]
    file = load_config(str(path), "sweep", SweepFile)
    _check_axes(path, file)
    return file


def _check_axes(path: Path, file: SweepFile) -> None:
    """DataError with file and line for a workload that is none, an axis that it lacks, or values that it cannot have."""
    try:
        workload = workload_named(file.workload)
    except UsageError as error:
        raise _wrong(path, ("workload",), f"sweep.workload: {error.message}", error.fix) from None
    for name, raw in file.axes.items():
        try:
            workload.check_names([name], "sweep.axes.")
            _check_axis(workload.named[name], raw, workload)
        except UsageError as error:
            message = error.message.replace(f"--{name.replace('_', '-')}", f"sweep.axes.{name}", 1)
            raise _wrong(path, ("axes", name), message, error.fix) from None


def _check_axis(one: SweepInput, raw: Any, workload: SweepWorkload) -> None:
    from perfmodel.sweep.expression import parse
    from perfmodel.sweep.values import is_expression, values_of

    if is_expression(one, raw):
        parse(raw, f"sweep.axes.{one.name}", workload.numbers)
    else:
        values_of(one, raw)


def _wrong(path: Path, place: tuple[str, ...], message: str, fix: str | None) -> DataError:
    from perfmodel.core.files import read_yaml

    return DataError(f"{path}, line {read_yaml(path)[1].get(('sweep', *place), 1)}: {message}", fix)


def listed(value: list[str] | str | None) -> tuple[str, ...]:
    """One text or several as several."""
    return (value,) if isinstance(value, str) else tuple(value or ())
