"""YAML and JSON from anywhere, read with care. The only module that reads or writes YAML.

Size, depth, aliases and duplicate keys are checked before a value is built.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from math import inf, nan
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
TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
LARGEST_NUMBER = 1e60
"""Largest number that a file may hold: far above any count, and products of several still fit a float."""
Lines = dict[tuple[str | int, ...], int]
"""Line number of each value of a document by its place, the keys and indices that lead to it."""
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAGS = {None, "!", *(f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null"))}
_SMALL_WORDS = {
    **{"null": None, ".inf": inf, "+.inf": inf, "-.inf": -inf},
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
}
_CONSTANTS = {form: value for word, value in _SMALL_WORDS.items() for form in (word, word.title(), word.upper())}
_CONSTANTS |= {"": None, "~": None, **dict.fromkeys((".nan", ".NaN", ".NAN"), nan)}
"""Values of the plain words that YAML 1.1 does not read as text, in each way to capitalize them."""
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*|0b[01]+|0x[0-9a-fA-F]+)")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+(?:_[0-9]+)*\.[0-9]*|\.[0-9]+)(?:[eE][-+][0-9]+)?")
"""Patterns of numbers. YAML 1.1 would also read 1:30 as 90 (base 60), 020 as 16 and 5__1 as 51; here these are text."""


# YAML


def text_of_yaml(value: Any) -> str:
    """``value`` as YAML, each small mapping or list on one line.

    >>> text_of_yaml({"study": {"values": [1, 2]}})
    'study:\\n  values: [1, 2]\\n'
    """
    return str(yaml.safe_dump(value, sort_keys=False, default_flow_style=None, width=140, allow_unicode=True))


def read_yaml(path: Path) -> tuple[Any, Lines]:
    """The document in ``path``, and the line number of each value by its place in the document."""
    lines: Lines = {}
    return parse_yaml(_read_text(path), str(path), lines), lines


def _read_text(path: Path) -> str:
    return read_text(path, MAX_BYTES, "this is no profile or configuration; those take a few KiB")


def parse_yaml(text: str, origin: str, lines: Lines | None = None) -> Any:
    """The YAML document ``text``, None if it is empty. ``lines``, if given, is filled.

    Raises DataError, with ``origin`` as the name of the file, for text that is not YAML or that holds what is not allowed here.
    """
    loader = _Loader(text)
    try:
        return _document(loader, lines)
    except yaml.MarkedYAMLError as error:
        line, problem = error.problem_mark.line + 1 if error.problem_mark else 1, error.problem or ""
        if "nesting depth" in problem:  # the parser's own limit, since PyYAML 6.0.4
            problem = TOO_DEEP
        raise DataError(f"{origin}, line {line}: {problem}", "mend the YAML there") from None
    except yaml.YAMLError as error:
        raise DataError(f"{origin}: not YAML: {' '.join(str(error).split())}") from None
    finally:
        loader.dispose()


def _document(loader: Any, lines: Lines | None) -> Any:
    """The value of the only document of ``loader``, None if it is empty."""
    loader.get_event()  # start of the stream
    if loader.check_event(yaml.StreamEndEvent):
        return None
    loader.get_event()  # start of the document
    value = _value(loader, loader.get_event(), (), lines)
    loader.get_event()  # end of the document
    if not loader.check_event(yaml.StreamEndEvent):
        raise _yaml_error(loader.get_event(), "but found another document")
    return value


def _value(loader: Any, event: Any, place: tuple[str | int, ...], lines: Lines | None) -> Any:
    """The plain Python value that begins with ``event``, at ``place`` in the document; its line is added to ``lines`` if given.

    Refuses aliases, duplicate keys and deep nesting. Events are read directly: PyYAML's nodes and constructors take four times as long.
    """
    if lines is not None:
        lines[place] = event.start_mark.line + 1
    if len(place) > MAX_DEPTH:
        raise _yaml_error(event, TOO_DEEP)
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(loader, event)
    if isinstance(event, yaml.AliasEvent):
        raise _yaml_error(event, "aliases (*name) are not allowed; write the value out")
    if event.tag not in _TAGS:
        raise _not_allowed(event, event.tag)
    if isinstance(event, yaml.SequenceStartEvent):
        items: list[Any] = []
        while not isinstance(item := loader.get_event(), yaml.SequenceEndEvent):
            items.append(_value(loader, item, (*place, len(items)), lines))
        return items
    mapping: dict[str, Any] = {}
    while not isinstance(start := loader.get_event(), yaml.MappingEndEvent):
        key = _scalar(loader, start) if isinstance(start, yaml.ScalarEvent) else _value(loader, start, (*place, ""), None)
        if not isinstance(key, str):
            raise _yaml_error(start, "a key must be plain text")
        if key in mapping:
            raise _yaml_error(start, f"key {key!r} appears twice")
        mapping[key] = _value(loader, loader.get_event(), (*place, key), lines)
    return mapping


def _scalar(loader: Any, event: Any) -> Any:
    """The text, number, boolean or None of a scalar ``event``."""
    text: str = event.value
    is_plain, _ = event.implicit
    try:
        if event.tag not in (None, "!"):
            if event.tag not in _TAGS:
                raise _not_allowed(event, event.tag)
            return sound(loader.construct_object(yaml.ScalarNode(event.tag, text, event.start_mark)))
        if not is_plain:
            return text
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if text[0] not in "+-.0123456789<=":  # most values
            return text
        if _INTEGER.fullmatch(text):
            return sound(int(text, 0))
        if _FLOAT.fullmatch(text):
            return sound(float(text))
    except ValueError as error:
        raise _yaml_error(event, str(error)) from None
    if text[0] in "<=" or text[4:5] == "-":  # << and = are YAML's own, and this may be a date
        kind = loader.resolve(yaml.ScalarNode, text, event.implicit)
        if kind not in _TAGS:
            raise _not_allowed(event, kind)
    return text


def _not_allowed(event: Any, tag: str) -> yaml.MarkedYAMLError:
    """The error for a value of type ``tag``, such as a date."""
    return _yaml_error(event, f"tag {tag!r} is not allowed; quote the value if it is text")


def _yaml_error(event: Any, problem: str) -> yaml.MarkedYAMLError:
    """The error for ``problem`` at the line of ``event``."""
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


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
        field = error.message.split(":")[0].split(" ")[0]
        line = lines.get((*section, *field.split(".")))
        raise DataError(f"{path}{'' if line is None else f', line {line}'}: {error.message}", error.fix) from None


def _first_problem(path: Path, section: tuple[str, ...], error: ValidationError, lines: Lines) -> str:
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


def _nesting(text: str) -> int:
    """An upper estimate of how deep ``text`` nests in brackets, without parsing it."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(depth - 1, 0)
        deepest = max(deepest, depth)
    return deepest


def parse_json(text: str, **options: Any) -> Any:
    """The JSON document ``text``; ValueError for one that nests too deep, names a key twice, or has a number that is too large."""
    if text.count("[") + text.count("{") > 4 * MAX_DEPTH and _nesting(text) > 4 * MAX_DEPTH:
        raise ValueError(TOO_DEEP)
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
