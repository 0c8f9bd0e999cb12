"""YAML and JSON from anywhere, read with care. The only module that reads or writes YAML.

Size, depth, aliases and duplicate keys are checked before a value is built.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from perfmodel.core.checks import read_text
from perfmodel.core.errors import DataError

if TYPE_CHECKING:
    from pydantic import ValidationError

_Model = TypeVar("_Model")
MAX_BYTES = 1 << 20
MAX_DEPTH = 20
LARGEST_NUMBER = 1e60
"""Largest number that a file may hold: far above any count, and products of several still fit a float."""
_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null")}
_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*|0b[01]+|0x[0-9a-fA-F]+)$"),
    "tag:yaml.org,2002:float": re.compile(
        r"(?:[-+]?(?:[0-9]+(?:_[0-9]+)*\.[0-9]*|\.[0-9]+)(?:[eE][-+][0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
}
"""Patterns of numbers. YAML 1.1 would also read 1:30 as 90 (base 60), 020 as 16 and 5__1 as 51; here these are text."""


def _resolvers() -> dict[str, list[tuple[str, Any]]]:
    """YAML resolvers by first character, with this module's patterns for numbers."""
    usual = _BaseLoader.yaml_implicit_resolvers
    return {first: [(tag, _NUMBERS.get(tag, how)) for tag, how in resolvers] for first, resolvers in usual.items()}


_Loader: Any = type("Loader", (_BaseLoader,), {"yaml_implicit_resolvers": _resolvers()})


# YAML


def text_of_yaml(value: Any) -> str:
    """``value`` as YAML, each small mapping or list on one line.

    >>> text_of_yaml({"study": {"values": [1, 2]}})
    'study:\\n  values: [1, 2]\\n'
    """
    return str(yaml.safe_dump(value, sort_keys=False, default_flow_style=None, width=140, allow_unicode=True))


def read_yaml(path: Path) -> tuple[Any, dict[tuple[str | int, ...], int]]:
    """The document in ``path``, and the line number of each value by its place in the document."""
    text = _read_text(path)
    if _nesting(text) > 4 * MAX_DEPTH:  # the C parser recurses: refuse before it overflows the stack
        raise DataError(f"{path}: nested deeper than {MAX_DEPTH} levels")
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        lines: dict[tuple[str | int, ...], int] = {}
        return (None if node is None else _build(loader, node, (), lines, set())), lines
    except yaml.MarkedYAMLError as error:
        line, problem = error.problem_mark.line + 1 if error.problem_mark else 1, error.problem or ""
        if "nesting depth" in problem:  # the parser's own limit, since PyYAML 6.0.4
            raise DataError(f"{path}: nested deeper than {MAX_DEPTH} levels") from None
        raise DataError(f"{path}, line {line}: {problem}", "mend the YAML there") from None
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
            return sound(loader.construct_object(node))
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


def validated_section(path: Path, section: tuple[str, ...], validate: Callable[[Any], _Model]) -> _Model:
    """The mapping under ``section`` of ``path``, validated; DataError names file, line, field and what was expected."""
    from pydantic import ValidationError

    raw, lines = read_yaml(path)
    for key in section:
        raw = raw.get(key) if isinstance(raw, dict) else None
    if not isinstance(raw, dict):
        problem = f"no mapping {'.'.join(section)!r} in it" if section else "empty or not a mapping of keys to values"
        raise DataError(f"{path}: {problem}")
    try:
        return validate(raw)
    except ValidationError as error:
        raise DataError(_first_problem(path, section, error, lines)) from None
    except DataError as error:
        line = lines.get((*section, *error.message.split(":")[0].split(" ")[0].split(".")))
        raise DataError(f"{path}{'' if line is None else f', line {line}'}: {error.message}", error.fix) from None


def _first_problem(path: Path, section: tuple[str, ...], error: ValidationError, lines: dict[tuple[str | int, ...], int]) -> str:
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    # a name misspelt is also one that is missing
    first = next((problem for problem in problems if problem["type"] in _UNKNOWN), problems[0])
    place = (*section, *first["loc"])
    known_place = place
    while known_place and known_place not in lines:
        known_place = known_place[:-1]
    text = _WORDS.get(first["type"], first["msg"].removeprefix("Value error, "))
    field = ".".join(map(str, place))
    message = f"{path}, line {lines.get(known_place, 1)}: {field + ': ' if field else ''}{text[:1].lower()}{text[1:]}"
    return message if len(problems) == 1 else f"{message} (and {len(problems) - 1} more)"


_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
_WORDS = {
    "unexpected_keyword_argument": "unknown field; take it out or mend its name",
    "missing": "this field is required",
    **dict.fromkeys(("tuple_type", "list_type"), "this is no list; write it like [a, b]"),
    **dict.fromkeys(("dict_type", "dataclass_type"), "this is no mapping of keys to values"),
}


# JSON


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
    """The JSON document ``text``; ValueError for one that nests too deep, names a key twice, or has a number that is too large."""
    if text.count("[") + text.count("{") > 4 * MAX_DEPTH and _nesting(text) > 4 * MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return json.loads(text, object_pairs_hook=_mapping, **options)


def sound(value: Any) -> Any:
    """``value`` unchanged; ValueError if it is a number too large to compute with."""
    if type(value) in (int, float) and LARGEST_NUMBER < abs(value) < float("inf"):
        raise ValueError(f"a number is above {LARGEST_NUMBER:.0e}")
    return value


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    sound_values = {key: sound(value) for key, value in pairs}
    if len(sound_values) < len(pairs):
        raise ValueError(f"key {Counter(key for key, _ in pairs).most_common(1)[0][0]!r} appears twice")
    return sound_values
