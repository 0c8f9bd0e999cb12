"""Frozen dataclasses whose methods are the same functions in every class.

``dataclasses.dataclass`` compiles six methods for each class, which took a fifth of the time of a short question.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass

__all__ = ["dataclass"]
_put = object.__setattr__


def _filling(listed: list[Field[Any]], is_checked: bool) -> Callable[..., None]:
    """``__init__`` of a class with the fields ``listed``. ``is_checked``: it calls ``__post_init__``."""
    listed = sorted(listed, key=attrgetter("kw_only"))
    names, places = [field_.name for field_ in listed], sum(not field_.kw_only for field_ in listed)
    defaults = [(field_.name, field_.default) for field_ in listed]
    factories = {field_.name: field_.default_factory for field_ in listed if field_.default_factory is not MISSING}

    def fill(self: Any, *values: Any, **named: Any) -> None:
        placed = len(values)
        if placed < len(names):
            values += tuple([named.pop(name, default) for name, default in defaults[placed:]])
        if named or placed > places:
            raise TypeError(f"{type(self).__name__} takes {', '.join(names)}; not {', '.join(named) or placed}")
        for name, value in zip(names, values, strict=True):
            if value is not MISSING:
                _put(self, name, value)
            elif name in factories:
                _put(self, name, factories[name]())
            else:
                raise TypeError(f"{type(self).__name__} needs {name}")
        if is_checked:
            self.__post_init__()

    return fill


def _refuse(self: Any, name: str, *value: Any) -> None:
    raise FrozenInstanceError(f"cannot set or delete {name!r}, as {type(self).__name__} is frozen")


def _is_equal(self: Any, other: Any) -> bool:
    return bool(self._compared(self) == self._compared(other)) if other.__class__ is self.__class__ else NotImplemented


def _as_text(self: Any) -> str:
    shown = ", ".join(f"{field_.name}={getattr(self, field_.name)!r}" for field_ in fields(self) if field_.repr)
    return f"{type(self).__qualname__}({shown})"


def _refill(self: Any, state: list[Any]) -> None:
    for field_, value in zip(fields(self), state, strict=True):
        _put(self, field_.name, value)


_REFUSED = ("__setattr__", "__delattr__")
_FROZEN = {**dict.fromkeys(_REFUSED, _refuse), "__repr__": _as_text}
_COMPARED = {"__eq__": _is_equal, "__hash__": lambda self: hash(self._compared(self))}
_COPIED = {"__getstate__": lambda self: [getattr(self, field_.name) for field_ in fields(self)], "__setstate__": _refill}
"""Methods of classes that are frozen, that are compared by value, and that have slots."""

if not TYPE_CHECKING:

    def dataclass(*, frozen: bool = False, eq: bool = True, **others: bool) -> Callable[[type], type]:
        """``dataclasses.dataclass`` of the same options. Either kind may be the base of the other."""
        if not frozen:
            return dataclasses.dataclass(eq=eq, **others)

        def decorated(kind: type) -> type:
            derived = any(map(dataclasses.is_dataclass, kind.__mro__[1:]))  # a frozen base asks for a frozen class
            kind = dataclasses.dataclass(init=False, repr=False, eq=False, frozen=derived, **others)(kind)
            kind.__dataclass_params__.frozen = True
            kind._compared = attrgetter(*[field_.name for field_ in fields(kind) if field_.compare] or ["__class__"])
            kind.__init__ = _filling([field_ for field_ in fields(kind) if field_.init], hasattr(kind, "__post_init__"))
            for name, method in (_FROZEN | (_COMPARED if eq else {}) | (_COPIED if others.get("slots") else {})).items():
                if name in _REFUSED or kind.__dict__.get(name) is None:
                    setattr(kind, name, method)
            return kind

        return decorated
