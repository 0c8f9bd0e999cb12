"""Find and read data files: device profiles, workload configurations and models. The only module that reads YAML.

Input files are data from anywhere: size, depth, aliases and duplicate keys are checked before a value is built.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from perfmodel.core.checks import read_text
from perfmodel.core.errors import DataError, UsageError, suggest

if TYPE_CHECKING:
    from pydantic import ValidationError

    from perfmodel.core.hardware import Device
    from perfmodel.transformer.spec import ModelSpec
    from perfmodel.transformer.training.step.system import System

MAX_BYTES = 1 << 20
MAX_DEPTH = 20
_PACKAGE = Path(__file__).parent

_Model = TypeVar("_Model")
_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null")}
_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*|0b[01]+|0x[0-9a-fA-F]+)$"),
    "tag:yaml.org,2002:float": re.compile(
        r"(?:[-+]?(?:[0-9]+(?:_[0-9]+)*\.[0-9]*|\.[0-9]+)(?:[eE][-+][0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
}
"""What a number looks like. YAML 1.1 would also read 1:30 as 90, in base 60, 020 as 16 and 5__1 as 51: here they are text."""


def _resolvers() -> dict[str, list[tuple[str, Any]]]:
    """By the first character of a text: how its kind is told."""
    usual = _BaseLoader.yaml_implicit_resolvers
    return {first: [(tag, _NUMBERS.get(tag, how)) for tag, how in known] for first, known in usual.items()}


_Loader: Any = type("Loader", (_BaseLoader,), {"yaml_implicit_resolvers": _resolvers()})


def data_folder(name: str) -> Path:
    """``hardware_specs`` or ``configs``: inside an installed package, beside it in a source tree."""
    inside = _PACKAGE / "_data" / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


# Reading YAML


def read_yaml(path: Path) -> tuple[Any, dict[tuple[str | int, ...], int]]:
    """The document in ``path`` and the line on which each of its values stands, by the path to it."""
    text = _read_text(path)
    if _nesting(text) > 4 * MAX_DEPTH:  # the C parser recurses: refuse before it overflows the stack
        raise DataError(f"{path}: nested deeper than {MAX_DEPTH} levels")
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        lines: dict[tuple[str | int, ...], int] = {}
        return (None if node is None else _build(loader, node, (), lines, set())), lines
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise DataError(f"{path}, line {line}: {error.problem}", "mend the YAML there") from None
    except yaml.YAMLError as error:
        raise DataError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    finally:
        loader.dispose()


def _read_text(path: Path) -> str:
    return read_text(path, MAX_BYTES, "this is no profile or configuration; those take a few KiB")


def _nesting(text: str) -> int:
    """An upper estimate of how deep ``text`` nests on one line or in brackets, without parsing it."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(depth - 1, 0)
        deepest = max(deepest, depth)
    stacked = max((len(run) // 2 for run in re.findall(r"(?:[-?:][ \t]+){8,}", text)), default=0)
    return max(deepest, stacked)


def _build(loader: Any, node: Any, place: tuple[str | int, ...], lines: dict[tuple[str | int, ...], int], seen: set[int]) -> Any:
    """Plain Python values of ``node``; refuses aliases, duplicate keys and deep nesting."""
    lines[place] = node.start_mark.line + 1
    problem = None
    if id(node) in seen:
        problem = "aliases (*name) are not allowed; write the value out"
    elif len(place) > MAX_DEPTH:
        problem = f"nested deeper than {MAX_DEPTH} levels"
    elif node.tag not in _TAGS:
        problem = f"tag {node.tag!r} is not allowed; quote the value if it is text"
    if problem:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        try:
            return loader.construct_object(node)
        except ValueError as error:
            raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from None
    if isinstance(node, yaml.SequenceNode):
        return [_build(loader, item, (*place, index), lines, seen) for index, item in enumerate(node.value)]
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node) if isinstance(key_node, yaml.ScalarNode) else None
        if not isinstance(key, str):
            raise yaml.MarkedYAMLError(problem="a key must be plain text", problem_mark=key_node.start_mark)
        if key in mapping:
            raise yaml.MarkedYAMLError(problem=f"key {key!r} appears twice", problem_mark=key_node.start_mark)
        mapping[key] = _build(loader, value_node, (*place, key), lines, seen)
    return mapping


def _validated(path: Path, section: tuple[str, ...], validate: Callable[[Any], _Model]) -> _Model:
    """The mapping under ``section`` of ``path``, validated; DataError names file, line, field and what was expected."""
    from pydantic import ValidationError

    raw, lines = read_yaml(path)
    for key in section:
        raw = raw.get(key) if isinstance(raw, dict) else None
    if not isinstance(raw, dict):
        what = f"no mapping {'.'.join(section)!r} in it" if section else "empty or not a mapping of keys to values"
        raise DataError(f"{path}: {what}")
    try:
        return validate(raw)
    except ValidationError as error:
        raise DataError(_first_problem(path, section, error, lines)) from None
    except DataError as error:
        raise DataError(f"{path}: {error.message}", error.fix) from None


def _first_problem(path: Path, section: tuple[str, ...], error: ValidationError, lines: dict[tuple[str | int, ...], int]) -> str:
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    first = next((one for one in problems if one["type"] in _UNKNOWN), problems[0])  # a name misspelt is also one that is missing
    place = (*section, *first["loc"])
    known = place
    while known and known not in lines:
        known = known[:-1]
    text = _WORDS.get(first["type"], first["msg"].removeprefix("Value error, "))
    field = ".".join(map(str, place))
    message = f"{path}, line {lines.get(known, 1)}: {field + ': ' if field else ''}{text[:1].lower()}{text[1:]}"
    return message if len(problems) == 1 else f"{message} (and {len(problems) - 1} more)"


_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
_WORDS = {
    "unexpected_keyword_argument": "unknown field; take it out or mend its name",
    "missing": "this field is required",
}


# Device profiles


def device_ids() -> list[str]:
    """Ids of the shipped profiles, sorted."""
    return sorted(path.stem for path in data_folder("hardware_specs").glob("*.yaml"))


def find_device(name: str) -> Device:
    """The device that ``name`` means: an id, whole hyphen-separated words of exactly one id, or a path to a profile."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return load_device(Path(name))
    ids = device_ids()
    words = sorted({*ids, *"-".join(ids).split("-")})
    found = _meant(name, ids, "--hardware: ", "device", "a profile, ending in .yaml", words, "see 'perfmodel hardware list'")
    return _shipped_device(data_folder("hardware_specs") / f"{found}.yaml")


def _meant(
    name: str, known: list[str], option: str, kind: str, file: str, words: list[str] | None = None, otherwise: str | None = None
) -> str:
    """The one of ``known`` that ``name`` means: itself, or the only one with all its hyphen-separated words.

    UsageError begins with ``option`` and suggests the nearest of ``words``, else says ``otherwise``, or to give the path of a ``file``.
    """
    wanted = re.sub(r"[\s_]+", "-", name.strip().lower())
    matches = [wanted] if wanted in known else [one for one in known if set(wanted.split("-")) <= set(one.split("-"))]
    if not matches or not wanted:
        hint = suggest(wanted, words or known, otherwise)
        raise UsageError(f"{option}no {kind} is called {name!r}", f"{hint}; or give the path of {file}")
    if len(matches) > 1:
        raise UsageError(f"{option}{name!r} could be any of {len(matches)} {kind}s", f"say which: {', '.join(matches)}")
    return matches[0]


def _trusted(path: Path, built: Callable[[Any], _Model], checked: Callable[[Path], _Model]) -> _Model:
    """The content of a shipped file as ``built``, which checks nothing; ``checked`` where someone has edited it, to say what is wrong."""
    try:
        return built(read_yaml(path)[0])
    except (AttributeError, DataError, KeyError, TypeError):
        return checked(path)


def calibrated_devices() -> list[Device]:
    """The shipped devices whose profiles carry calibrations."""
    paths = sorted(data_folder("hardware_specs").glob("*.yaml"))
    return [_shipped_device(path) for path in paths if _is_calibrated(path, path.stat().st_mtime_ns)]


@cache
def _is_calibrated(path: Path, changed: int) -> bool:
    return "\ncalibration:" in path.read_text(encoding="utf-8")


def load_device(path: Path) -> Device:
    """The profile in ``path``, validated, its calibrations too."""
    from perfmodel.core.sanity import validated

    device = _validated(path, (), validated)
    if device.calibration:
        from perfmodel.timing.base import check_calibrations

        try:
            check_calibrations(device)
        except DataError as error:
            raise DataError(f"{path}: {error.message}", error.fix) from None
    return device


def _shipped_device(path: Path) -> Device:
    return _read_once(path, path.stat().st_mtime_ns)


@cache
def _read_once(path: Path, changed: int) -> Device:
    """The profile in ``path``; ``changed``: when it was, so that an edited one is read again."""
    from perfmodel.core.hardware import trusted

    return _trusted(path, trusted, load_device)


# Configurations


def config_names(section: str = "attention") -> list[str]:
    """Names of the shipped configurations that have this section, sorted."""
    paths = data_folder("configs").glob("*.yaml")
    return sorted(path.stem for path in paths if f"\n{section}:" in "\n" + path.read_text(encoding="utf-8"))


def load_config(name: str, section: str, model: type[_Model]) -> _Model:
    """The ``section`` of a shipped configuration, or of the YAML file at path ``name``, as ``model``."""
    path = Path(name)
    if not name.endswith((".yaml", ".yml")) and "/" not in name:
        path = data_folder("configs") / f"{name}.yaml"
        if name not in config_names(section):
            raise UsageError(
                f"--config: no configuration is called {name!r}", f"{suggest(name, config_names(section))}; or give a path ending in .yaml"
            )
    from pydantic import TypeAdapter

    renamed = getattr(model, "OPTION_NAMES", {})  # options whose names are Python keywords

    def validate(raw: dict[str, Any]) -> _Model:
        return TypeAdapter(model).validate_python({renamed.get(key, key): value for key, value in raw.items()})

    return _validated(path, (section,), validate)


# Models


def read_json(path: Path) -> Any:
    """The JSON document in ``path``; DataError for one that is too large, too deep, ambiguous or no JSON."""
    text = _read_text(path)
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno}: {error.msg[:1].lower()}{error.msg[1:]}", "mend the JSON there") from None
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def parse_json(text: str, **options: Any) -> Any:
    """The JSON document ``text``; ValueError for one that nests too deep, names a key twice, or has a number of thousands of digits."""
    if _nesting(text) > 4 * MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return json.loads(text, object_pairs_hook=_mapping, **options)


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"key {Counter(key for key, _ in pairs).most_common(1)[0][0]!r} appears twice")
    return found


def model_names() -> list[str]:
    """Names of the shipped models, sorted."""
    return sorted(path.stem for path in data_folder("configs").glob("models/*.yaml"))


def find_model(name: str) -> ModelSpec:
    """The model that ``name`` means: a name, whole hyphen-separated words of exactly one, or the path of a config.json."""
    if name.endswith((".json", ".yaml", ".yml")) or "/" in name:
        return load_model(Path(name))
    from perfmodel.transformer.hf import spec

    found = _meant(name, model_names(), "", "model", "a config.json")
    path = data_folder("configs") / "models" / f"{found}.yaml"
    return _trusted(path, lambda raw: spec(raw["config"], found, raw["source"]), load_model)


def load_model(path: Path) -> ModelSpec:
    """The model in ``path``: a config.json, a folder with one, or YAML with the same fields under ``config``."""
    from perfmodel.transformer.hf import parse

    path = path / "config.json" if os.path.isdir(path) else path  # unlike Path.is_dir, False for names that are too long
    raw, name, source = None, path.parent.resolve().name if path.stem == "config" else path.stem, str(path)
    if not os.path.lexists(path):
        raise DataError(f"{path}: No such file", "give the path of a config.json, or a model's name, such as llama-3-8b")
    if path.suffix == ".json":
        raw, beside = read_json(path), path.with_name("hf_quant_config.json")
        if isinstance(raw, dict) and "quantization_config" not in raw and path.stem == "config" and beside.is_file():
            raw["quantization_config"] = read_json(beside)
    else:
        document = read_yaml(path)[0]
        if not isinstance(document, dict) or not isinstance(document.get("config"), dict):
            raise DataError(f"{path}: no mapping 'config' in it", "put the fields of a config.json under 'config:'")
        raw, source = document["config"], document.get("source", source)
        if not isinstance(source, str):
            raise DataError(f"{path}: source is {source!r:.40}, not text", "quote it")
    try:
        return parse(raw, name, source)
    except DataError as error:
        raise DataError(f"{path}: {error.message}", error.fix) from None


# Systems


def system_names() -> list[str]:
    """Names of the shipped systems, sorted."""
    return sorted(path.stem for path in data_folder("configs").glob("systems/*.yaml"))


def find_system(name: str) -> System:
    """The system that ``name`` means: a name, whole hyphen-separated words of exactly one, or the path of a file."""
    from perfmodel.transformer.training.step.system import trusted, validated

    def checked(path: Path) -> System:
        return _validated(path, (), validated)

    if name.endswith((".yaml", ".yml")) or "/" in name:
        return checked(Path(name))
    found = _meant(name, system_names(), "--system: ", "system", "a file, ending in .yaml")
    return _trusted(data_folder("configs") / "systems" / f"{found}.yaml", trusted, checked)


def system_of(device: str) -> System | None:
    """The shipped system of devices with this id; None if there is none."""
    return next((found for name in system_names() if (found := find_system(name)).device == device), None)
