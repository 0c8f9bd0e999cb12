"""The JSON Schema of ``study:`` files, made from the classes that read them, for editors and for the page in docs/."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from typing import Any

from pydantic import TypeAdapter

from perfmodel.core.plugins import docstring
from perfmodel.kernels.attention.question import AttentionQuestion
from perfmodel.study import kinds
from perfmodel.study.schema import Options, Study, kind_names

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REF = "#/$defs/{model}"
ON_DEVICES = "hardware"
"""An option of workloads that a study states outside of them."""


def schema() -> dict[str, Any]:
    """The JSON Schema of a study file."""
    sections = {kind: section_of(kind) for kind in kind_names()}
    sections_of: dict[str, Any] = {}
    for section in sections.values():
        sections_of |= section.pop("$defs", {})
    study = {
        "type": "object",
        "description": _help_of(Study),
        "properties": {
            "title": {"type": "string"},
            "question": {"type": "string"},
            "sections": {"type": "array", "items": {"oneOf": [{"$ref": _REF.format(model=kind)} for kind in sections]}},
            "notes": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["title", "sections"],
        "additionalProperties": False,
    }
    document = {"type": "object", "properties": {"study": study}, "required": ["study"], "additionalProperties": False}
    return {"$schema": DIALECT, "title": "perfmodel study", **document, "$defs": {**sections, **sections_of}}


def schema_text() -> str:
    """``schema`` as text."""
    return json.dumps(schema(), indent=2, ensure_ascii=False)


def section_of(kind: str) -> dict[str, Any]:
    """The schema of a kind of section, with those of its parts under ``$defs``."""
    section = import_module(f"{kinds.__name__}.{kind.replace('-', '_')}").SECTION
    raw = TypeAdapter(section).json_schema(ref_template=_REF)
    classes: list[type[Any]] = [AttentionQuestion, *_subclasses(Options)]
    by_name = {class_.__name__: class_ for class_ in classes}
    parts = {name: _described(part, by_name.get(name)) for name, part in raw.pop("$defs", {}).items()}
    described = _described(raw, section)
    properties = {"kind": {"const": kind}, **described["properties"]}
    return {**described, "properties": properties, "required": ["kind", *described.get("required", [])], "$defs": parts}


def _subclasses(base: type[Any]) -> Iterator[type[Any]]:
    for subclass in base.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _help_of(class_: type[Any]) -> str:
    """The docstring of ``class_`` as one line of Markdown."""
    return " ".join(docstring(class_).replace("``", "`").split())


def _described(part: dict[str, Any], class_: type[Any] | None) -> dict[str, Any]:
    """The schema ``part`` with names and help of the options of ``class_``, without titles and empty defaults."""
    options: dict[str, Any] = {}
    if class_ is not None:
        options = {field_.name: field_.metadata.get("option") for field_ in fields(class_)}
    option_of_field = {field: option for option, field in getattr(class_, "OPTION_NAMES", {}).items()}
    properties = {}
    for name, property_ in part.get("properties", {}).items():
        option = options.get(name)
        if name == ON_DEVICES and option is not None:
            continue
        plain = _without_titles(property_)
        if option is not None:
            plain["description"] = option.help
        properties[option_of_field.get(name, name)] = plain
    described = {key: value for key, value in part.items() if key != "title"}
    if class_ is not None:
        described.pop("description", None)
        described["description"] = _help_of(class_)
    return {**described, "properties": properties}


def _without_titles(raw: dict[str, Any]) -> dict[str, Any]:
    """The schema of a field without title, null type and empty default."""
    plain = {key: value for key, value in raw.items() if key not in ("title", "anyOf")}
    if plain.get("default") in (None, ""):
        plain.pop("default", None)
    types = [kind for kind in raw.get("anyOf", []) if kind.get("type") != "null"]
    if len(types) == 1:
        return {**plain, **types[0]}
    return {**plain, "anyOf": types} if types else plain
