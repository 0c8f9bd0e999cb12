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
from perfmodel.errors import UsageError, suggest
from perfmodel.sweep.base import Workload

WORKLOADS = ("attention", "matmul", "kv-cache", "model")


@cache
def workload_named(name: str) -> Workload:
    """The kind of workload called ``name``; only its own module is loaded."""
    if name not in WORKLOADS:
        raise UsageError(f"there is no sweep over {name!r}", suggest(name, list(WORKLOADS)))
    found: Workload = import_module(f"perfmodel.sweep.{name.replace('-', '_')}").WORKLOAD
    return found


@dataclass(frozen=True, slots=True)
class Study:
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


@dataclass(frozen=True, slots=True)
class StudyFile:
    """The ``sweep:`` section of a YAML file. It names columns and values, never code."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    OPTION_NAMES: ClassVar[dict[str, str]] = {}

    axes: dict[str, bool | int | float | str | list[bool | int | float | str]]
    workload: str = "attention"
    where: list[str] | str = field(default_factory=list)
    columns: list[str] | None = None
    minimize: str | None = None
    subject_to: list[str] | str = field(default_factory=list)
    pareto: list[str] | None = None
    top: int = 10


def read_study(name: str) -> StudyFile:
    """The study in a YAML file, or shipped under ``name``."""
    from perfmodel.catalog import data_folder, load_config

    path = Path(name)
    if not name.endswith((".yaml", ".yml")):
        shipped = {path.stem: path for path in sorted((data_folder("configs") / "sweeps").glob("*.yaml"))}
        if name not in shipped:
            known = [*WORKLOADS, *shipped]
            raise UsageError(f"no study or workload is called {name!r}", f"{suggest(name, known)}; or give a path ending in .yaml")
        path = shipped[name]
    return load_config(str(path), "sweep", StudyFile)


def listed(value: list[str] | str | None) -> tuple[str, ...]:
    """One text or several as several."""
    return (value,) if isinstance(value, str) else tuple(value or ())
