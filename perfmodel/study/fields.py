"""Records read from a study: a wrong field is told with its place and the nearest name that is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from perfmodel.core.errors import suggest

_Model = TypeVar("_Model")


def problem(place: tuple[str | int, ...], message: str, raw: Any = None) -> Exception:
    """pydantic's error at ``place``: raised inside a validator, it becomes one of the whole document."""
    from pydantic import ValidationError
    from pydantic_core import InitErrorDetails, PydanticCustomError

    told = PydanticCustomError("study", "{message}", {"message": message})
    return ValidationError.from_exception_data("study", [InitErrorDetails(type=told, loc=place, input=raw)])


def checked(model: type, raw: Any) -> Any:
    """``raw`` with the names of ``model``'s fields; a ValidationError names one that it does not have."""
    if not isinstance(raw, Mapping):
        return raw
    renamed = getattr(model, "OPTION_NAMES", {})
    known = {field.name for field in fields(model)} - set(renamed.values()) | set(renamed)
    for key in raw:
        if key not in known and key not in renamed.values():
            raise problem((key,), f"unknown field; {suggest(str(key), sorted(known))}", raw)
    return {renamed.get(key, key): value for key, value in raw.items()}


def read(model: type[_Model], raw: Any) -> _Model:
    """``raw`` as a ``model``; pydantic's ValidationError names a wrong field."""
    from pydantic import TypeAdapter

    found: _Model = TypeAdapter(model).validate_python(checked(model, raw))
    return found


class Fields:
    """Marks a record within a record, so that its fields are checked in the same way."""

    def __init__(self, model: type) -> None:
        self.model = model

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(lambda raw: checked(self.model, raw), handler(source))
