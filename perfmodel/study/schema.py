"""A study file: a title and sections, each of a kind that has a module of its own in ``kinds``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

from perfmodel.catalog import config_names, data_folder, load_config, read_yaml
from perfmodel.core.errors import DataError, PerfmodelError, UsageError, suggest
from perfmodel.core.plugins import module_names
from perfmodel.study import kinds
from perfmodel.study.base import Part, Scope
from perfmodel.study.fields import Fields, problem, read

STUDY = "study"


class Section(Protocol):
    """What a kind's ``Section`` can do: compute itself."""

    def build(self, scope: Scope) -> Part:
        """Charts, tables and sentences."""


def kind_names() -> list[str]:
    """Kinds of sections, by the names of their files."""
    return [name.replace("_", "-") for name in module_names(kinds.__path__)]


def read_section(raw: Any) -> Section:
    """The section in ``raw``; pydantic's ValidationError names a wrong field, or the nearest kind."""
    if not isinstance(raw, dict) or not isinstance(raw.get("kind"), str):
        raise problem((), f"a section is a mapping with a kind: {', '.join(kind_names())}", raw)
    kind = raw["kind"]
    if kind not in kind_names():
        raise problem(("kind",), f"no kind of section is called {kind!r}; {suggest(kind, kind_names())}", raw)
    module = import_module(f"{kinds.__name__}.{kind.replace('-', '_')}")
    section: Section = read(module.Section, {key: value for key, value in raw.items() if key != "kind"})
    return section


class _Sections:
    """Marks an item of ``sections``: its kind decides how it is read."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(read_section)


@dataclass(frozen=True, slots=True)
class Study:
    """``notes``: what a reader must know besides: sources, assumptions."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    title: str
    sections: list[Annotated[Any, _Sections()]]
    notes: list[str] | None = None


@dataclass(frozen=True, slots=True)
class StudyFile:
    """A study with where it was read from."""

    study: Study
    name: str
    path: Path

    def told(self, place: int, error: PerfmodelError) -> DataError:
        """``error`` of section ``place`` with file, line and, where its words tell it, the field."""
        raw, lines = read_yaml(self.path)
        said = _KIND.sub("", error.message).removeprefix("--")
        field = blamed((STUDY, "sections", place), raw, lines, said)
        said = said.removeprefix(f"{field[-1]}: ").removeprefix("hardware: ")
        return DataError(f"{self.path}, line {lines.get(field, 1)}: {'.'.join(map(str, field))}: {said}", error.fix)


_KIND = re.compile(r"^--(?:attention|matmul|model): ")
Place = tuple[str | int, ...]


def blamed(section: Place, raw: Any, places: Iterable[Place], said: str) -> Place:
    """The field of ``section`` that ``said`` is about: by its name and value, else by a value that it quotes, else by its name."""
    name, words = re.split(r"[ :]", said, maxsplit=1)[0].replace("-", "_"), set(re.findall(r"[\w.+-]+", said))
    quoted = {*re.findall(r"'([^']*)'", said), said.split(": ", maxsplit=1)[0]}
    inside = [place for place in places if place[: len(section)] == section and len(place) > len(section)]
    values = {place: value for place in inside if not isinstance(value := _at(raw, place), (dict, list))}
    tests: list[Callable[[Place], bool]] = [
        lambda place: place[-1] == name and str(values.get(place)) in words,
        lambda place: str(values.get(place)) in quoted,
        lambda place: place[-1] == name,
    ]
    return next((place for test in tests for place in inside if test(place)), section)


def _at(raw: Any, place: Place) -> Any:
    for key in place:
        raw = raw[key]
    return raw


def study_names() -> list[str]:
    """Names of the shipped studies, sorted."""
    return config_names(STUDY)


def read_study(name: str) -> StudyFile:
    """The study shipped under ``name``, or in the YAML file at that path."""
    path = Path(name)
    if not name.endswith((".yaml", ".yml")):
        if name not in study_names():
            raise UsageError(f"no study is called {name!r}", f"{suggest(name, study_names())}; or give a path ending in .yaml or .json")
        path = data_folder("configs") / f"{name}.yaml"
    marked: Any = Annotated[Study, Fields(Study)]
    return StudyFile(load_config(str(path), STUDY, marked), path.stem, path)
