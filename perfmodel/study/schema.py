"""A study, its file, its sections (each a question with a Report), and the scope in which they are computed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import cache, partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from pydantic import PlainValidator, TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, core_schema

from perfmodel import __version__
from perfmodel.catalog import calibrated_devices, config_names, data_folder, find_device, load_config
from perfmodel.core.checks import sha256
from perfmodel.core.errors import DataError, PerfmodelError, UsageError, suggest
from perfmodel.core.files import read_yaml
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.plugins import module_names
from perfmodel.core.question import typed
from perfmodel.core.trace import FormulaStep
from perfmodel.report.charts.schema import RooflinePoint
from perfmodel.report.document import Formula, ProfileUse, Provenance, Report
from perfmodel.report.provenance import profile_use
from perfmodel.report.roofline_chart import formulas
from perfmodel.report.saved import Number
from perfmodel.study import kinds
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.validation.records import Record, read_records

STUDY = "study"
Place = tuple[str | int, ...]


class Options:
    """Base class of all parts of a study file; the error for an unknown field names the nearest one."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.no_info_before_validator_function(partial(checked, cls), handler(source))


def checked(model: type[Any], raw: Any) -> Any:
    """``raw`` with the field names of ``model``; a ValidationError names an unknown field."""
    if not isinstance(raw, Mapping):
        return raw
    field_of_option = getattr(model, "OPTION_NAMES", {})
    field_names = {field.name for field in fields(model)}
    option_names = field_names - set(field_of_option.values()) | set(field_of_option)
    for key in raw:
        if key not in field_names | option_names:
            raise _problem((key,), f"unknown field; {suggest(str(key), sorted(option_names))}", raw)
    return typed(model, {str(field_of_option.get(key, key)): value for key, value in raw.items()})


def _problem(place: Place, message: str, raw: Any) -> ValidationError:
    """A validation error at ``place``, which pydantic reports with those of the whole document."""
    problem = PydanticCustomError("study", "{message}", {"message": message})
    return ValidationError.from_exception_data("study", [InitErrorDetails(type=problem, loc=place, input=raw)])


def kind_names() -> list[str]:
    """Names of the kinds of sections, from their files."""
    return [name.replace("_", "-") for name in module_names(kinds.__path__)]


def read_section(raw: Any) -> Any:
    """The section in ``raw``, an object with ``build(scope)``. A ValidationError names a wrong field, or the nearest kind."""
    if not isinstance(raw, dict) or not isinstance(raw.get("kind"), str):
        raise _problem((), f"a section is a mapping with a kind: {', '.join(kind_names())}", raw)
    kind = raw["kind"]
    if kind not in kind_names():
        raise _problem(("kind",), f"no kind of section is called {kind!r}; {suggest(kind, kind_names())}", raw)
    section = import_module(f"{kinds.__name__}.{kind.replace('-', '_')}").SECTION
    return TypeAdapter(section).validate_python({key: value for key, value in raw.items() if key != "kind"})


@dataclass(frozen=True, slots=True)
class Study(Options):
    """A study. ``question``: the question that the report answers, by default its title. ``notes``: sources and assumptions."""

    title: str
    sections: list[Annotated[Any, PlainValidator(read_section)]]
    notes: list[str] | None = None
    question: str = ""


@dataclass(frozen=True, slots=True)
class StudyFile:
    """A study, and the file that it was read from, if any."""

    study: Study
    path: Path | None = None

    def placed(self, section: int, error: PerfmodelError) -> PerfmodelError:
        """``error`` of that section with file, line and, if its message tells, the field."""
        if self.path is None:
            return error
        raw, lines = read_yaml(self.path)
        message = _OPTION_PREFIX.sub("", error.message).removeprefix("--")
        place = blamed((STUDY, "sections", section), raw, lines, message)
        message = message.removeprefix(f"{place[-1]}: ").removeprefix("hardware: ")
        return DataError(f"{self.path}, line {lines.get(place, 1)}: {'.'.join(map(str, place))}: {message}", error.fix)


_OPTION_PREFIX = re.compile(r"^--(?:attention|matmul|model): ")


def blamed(section: Place, raw: Any, places: Iterable[Place], message: str) -> Place:
    """The field of ``section`` that ``message`` is about: the message has its name and value, else its value, else its name."""
    name = re.split(r"[ :]", message, maxsplit=1)[0].replace("-", "_")
    words = set(re.findall(r"[\w.+-]+", message))
    quoted = {*re.findall(r"'([^']*)'", message), message.split(": ", maxsplit=1)[0]}
    inside = [place for place in places if place[: len(section)] == section and len(place) > len(section)]
    texts = {place: _text_at(raw, place) for place in inside}
    with_name = [place for place in inside if place[-1] == name]
    with_name_and_value = [place for place in with_name if texts[place] in words]
    with_value = [place for place in inside if texts[place] in quoted]
    return [*with_name_and_value, *with_value, *with_name, section][0]


def _text_at(raw: Any, place: Place) -> str:
    """The value at ``place`` as text; ``None`` for a mapping or a list."""
    for key in place:
        raw = raw[key]
    return str(None if isinstance(raw, (dict, list)) else raw)


def study_from(raw: Mapping[str, Any]) -> Study:
    """The study in ``raw``."""
    study: Study = TypeAdapter(Study).validate_python(raw)
    return study


def study_names() -> list[str]:
    """Names of the shipped studies, sorted."""
    return config_names(STUDY)


def read_study(name: str) -> StudyFile:
    """The study called ``name``, shipped or the path of a YAML file."""
    path = Path(name)
    if not name.endswith((".yaml", ".yml")):
        if name not in study_names():
            raise UsageError(f"no study is called {name!r}", f"{suggest(name, study_names())}; or give a path ending in .yaml or .json")
        path = data_folder("configs") / f"{name}.yaml"
    return StudyFile(load_config(str(path), STUDY, Study), path)


XY = list[tuple[Number, Number]]
MOST_FORMULAS = 220
"""Most formulas of a report: each takes about 160 B of a page and 300 B of JSON."""


def merged(parts: Sequence[Report], title: str = "") -> Report:
    """Several reports, such as one per device, as one: their lists are joined."""
    list_names = [field.name for field in fields(Report) if field.default_factory is list or field.name in ("verdict", "tables")]
    lists: dict[str, Any] = {name: [item for part in parts for item in getattr(part, name)] for name in list_names}
    metered = [part.metered for part in parts if part.meters]
    return Report(title, metered=metered[0] if metered else "predicted time", **lists)


@dataclass(slots=True)
class Scope:
    """The scope of a study: where it finds files, and the profiles, inputs and point numbers it has used so far.

    ``folder``: folder of the study's file, which paths are relative to. ``fallbacks``: devices to borrow calibrations from.
    """

    folder: Path | None = None
    fallbacks: FallbackDevices = field(default_factory=lambda: cache(calibrated_devices))
    profiles: dict[str, ProfileUse] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    explained: dict[str, int] = field(default_factory=dict)
    _devices: dict[str, Device] = field(default_factory=dict)
    recorded: dict[Path, list[tuple[dict[str, Any], Record]]] = field(default_factory=dict)

    def device(self, name: str) -> Device:
        """The device called ``name``, or the profile at that path."""
        path = self._path_beside(name) if name.endswith((".yaml", ".yml")) else None
        if name not in self._devices:
            self._devices[name] = find_device(name if path is None else str(path))
        device = self._devices[name]
        self.profiles.setdefault(device.id, profile_use(device, path))
        return device

    def devices(self, names: Sequence[str]) -> list[Device]:
        """The devices called ``names``, without repetition."""
        return list({device.id: device for device in map(self.device, names)}.values())

    def some_devices(self, names: Sequence[str]) -> list[Device]:
        """The devices called ``names``; UsageError if there are none."""
        if not names:
            raise UsageError("devices is missing", "name at least one, such as h200")
        return self.devices(names)

    def file(self, name: str) -> Path:
        """Path of an input file: beside the study if it is there, else in the working directory."""
        path = self._path_beside(name)
        if path.is_file():
            self.inputs[path.name] = sha256(path)
        return path

    def _path_beside(self, name: str) -> Path:
        path = None if self.folder is None else self.folder / name
        return path if path is not None and path.exists() else Path(name)

    def records(self, path: Path) -> list[tuple[dict[str, Any], Record]]:
        """Measurement records of ``path``, read once."""
        if path not in self.recorded:
            self.recorded[path] = list(read_records(path))
        return self.recorded[path]

    def provenance(self, call: str) -> Provenance:
        """The provenance of a report that ``call`` made."""
        return Provenance(call, __version__, list(self.profiles.values()), self.inputs)

    def explain(self, series: str, group: str, steps: Callable[[], Iterable[FormulaStep]]) -> list[Formula]:
        """Formulas of all numbers of an answer, once per ``series`` as others differ only in numbers; at most MOST_FORMULAS in all."""
        so_far = sum(self.explained.values())
        if series in self.explained or so_far >= MOST_FORMULAS:
            return []
        of_series = formulas(group, steps())
        if so_far + len(of_series) > MOST_FORMULAS:
            return []
        self.explained[series] = len(of_series)
        return of_series

    def numbered(self, points: Sequence[RooflinePoint]) -> list[RooflinePoint]:
        """``points`` with the next free numbers of the report."""
        return [replace(point, number=next(self.numbers)) for point in points]


def on(device: Device, several: bool, title: str = "") -> str:
    """Prefix of a sentence: the section's title and, if there are several devices, the device."""
    words = [title] * bool(title) + [device.name] * several
    return f"{', '.join(words)}: " if words else ""
