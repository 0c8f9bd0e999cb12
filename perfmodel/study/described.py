"""The schema of ``study:`` files, from the classes that read them: for editors that know JSON Schema, and for the page in docs/."""

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
"""An option of workloads that a study gives beside them."""


def schema() -> dict[str, Any]:
    """The JSON Schema of a study file."""
    sections = {kind: section_of(kind) for kind in kind_names()}
    found: dict[str, Any] = {}
    for one in sections.values():
        found |= one.pop("$defs", {})
    study = {
        "type": "object",
        "description": _said(Study),
        "properties": {
            "title": {"type": "string"},
            "question": {"type": "string"},
            "sections": {"type": "array", "items": {"oneOf": [{"$ref": _REF.format(model=kind)} for kind in sections]}},
            "notes": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["title", "sections"],
        "additionalProperties": False,
    }
    whole = {"type": "object", "properties": {"study": study}, "required": ["study"], "additionalProperties": False}
    return {"$schema": DIALECT, "title": "perfmodel study", **whole, "$defs": {**sections, **found}}


def schema_text() -> str:
    """``schema`` as it is printed."""
    return json.dumps(schema(), indent=2, ensure_ascii=False)


def section_of(kind: str) -> dict[str, Any]:
    """The schema of a kind of section, those of its parts under ``$defs``."""
    section = import_module(f"{kinds.__name__}.{kind.replace('-', '_')}").SECTION
    raw = TypeAdapter(section).json_schema(ref_template=_REF)
    classes: list[type[Any]] = [AttentionQuestion, *_under(Options)]
    known = {one.__name__: one for one in classes}
    parts = {name: _described(part, known.get(name)) for name, part in raw.pop("$defs", {}).items()}
    made = _described(raw, section)
    properties = {"kind": {"const": kind}, **made["properties"]}
    return {**made, "properties": properties, "required": ["kind", *made.get("required", [])], "$defs": parts}


def _under(base: type[Any]) -> Iterator[type[Any]]:
    for one in base.__subclasses__():
        yield one
        yield from _under(one)


def _said(of: type[Any]) -> str:
    return " ".join(docstring(of).replace("``", "`").split())


def _described(part: dict[str, Any], of: type[Any] | None) -> dict[str, Any]:
    """``part`` with the names and the help of options, without titles and what stands for nothing given."""
    known: dict[str, Any] = {} if of is None else {one.name: one.metadata.get("option") for one in fields(of)}
    written = {field: name for name, field in getattr(of, "OPTION_NAMES", {}).items()}
    properties = {}
    for name, one in part.get("properties", {}).items():
        if name == ON_DEVICES and known.get(name) is not None:
            continue
        help = {"description": known[name].help} if known.get(name) is not None else {}
        properties[written.get(name, name)] = {**_plain(one), **help}
    said = {"description": _said(of)} if of is not None else {}
    return {**{key: value for key, value in part.items() if key != "title" and key not in said}, **said, "properties": properties}


def _plain(one: dict[str, Any]) -> dict[str, Any]:
    """A field without a title, without null beside its types and without a default of nothing."""
    found = {key: value for key, value in one.items() if key not in ("title", "anyOf") and not (key == "default" and value in (None, ""))}
    types = [kind for kind in one.get("anyOf", []) if kind.get("type") != "null"]
    return found | (types[0] if len(types) == 1 else {"anyOf": types} if types else {})
