"""The fields of a Hugging Face config.json, asked for one by one: each failure names the field and the rule that needs it."""

from __future__ import annotations

from typing import Any

from perfmodel.errors import DataError

LARGEST = 10**9
"""Largest size taken from a file: far above any model, and counts of its parameters stay printable."""
MOST_LAYERS = 10**4


class Facts:
    """``values`` by field name. A field that is absent and one that is null differ: null turns a feature off."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.architecture = str(values.get("model_type"))

    def _rule(self) -> str:
        return f"the rule for model_type {self.architecture!r}"

    def whole(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """The first of ``names`` that has a value, else ``default``; DataError if there is neither."""
        for name in names:
            if self.values.get(name) is not None:
                return self._checked(name, self.values[name], least)
        if default is None:
            raise DataError(f"{' or '.join(names)}: missing, and {self._rule()} needs it", "add the field from the model's config.json")
        return default

    def _checked(self, name: str, value: Any, least: int = 1) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
            raise DataError(f"{name} is {value!r}: {self._rule()} needs a whole number from {least} to {LARGEST:.0e}")
        return value

    def optional(self, name: str, default: int | None = None) -> int | None:
        """The number, None where the file says null, ``default`` where it says nothing."""
        value = self.values.get(name, default)
        return None if value is None else self._checked(name, value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false; ``default`` where the file says nothing or null."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise DataError(f"{name} is {value!r}: {self._rule()} needs true or false")
        return value

    def text(self, *names: str, default: str) -> str:
        """The first of ``names`` that has a value, else ``default``."""
        return next((str(self.values[name]) for name in names if self.values.get(name) is not None), default)

    def numbers(self, name: str, length: int = 0) -> list[int] | None:
        """A list of whole numbers from 0, at least ``length`` of them; None where there is none."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or (value and len(value) < length):
            raise DataError(f"{name}: {self._rule()} needs a list" + (f" of {length} numbers" if length else ""))
        return [self._checked(f"{name}.{index}", item, 0) for index, item in enumerate(value)]

    @property
    def layers(self) -> int:
        """Number of layers."""
        count = self.whole("num_hidden_layers", "n_layer")
        if count > MOST_LAYERS:
            raise DataError(f"num_hidden_layers is {count}: more than {MOST_LAYERS:,}")
        return count

    def windows(self, otherwise: list[int | None], window: int | None) -> list[int | None]:
        """The window of each layer, None for all tokens: from ``layer_types`` where the file has them, else ``otherwise``.

        ``window``: of the layers that the file calls sliding or chunked.
        """
        kinds = self.values.get("layer_types")
        if kinds is None:
            return otherwise
        if not isinstance(kinds, list) or len(kinds) != self.layers:
            raise DataError(f"layer_types: {self._rule()} needs one entry for each of the {self.layers} layers")
        sizes = {"full_attention": None, "sliding_attention": window, "chunked_attention": window}
        for index, kind in enumerate(kinds):
            if kind not in sizes:
                raise DataError(f"layer_types.{index}: no rule for {kind!r}", f"there are rules for {', '.join(sizes)}")
        return [sizes[kind] for kind in kinds]

    def check_windows(self, full: list[bool]) -> None:
        """Fail if ``layer_types`` asks for a window where the rule knows of none, or the other way round."""
        kinds = self.values.get("layer_types") or []
        for index, (kind, sees_all) in enumerate(zip(kinds, full, strict=False)):
            if (kind == "full_attention") != sees_all:
                raise DataError(f"layer_types.{index}: {self._rule()} does not allow {kind!r} there")

    def refuse(self, name: str, default: int | bool, what: str) -> None:
        """Fail if ``name`` asks for ``what``, for which there is no rule."""
        if self.values.get(name, default):
            raise DataError(f"{name}: {what} has no rule yet for model_type {self.architecture!r}", f"models with {name} 0 or false work")
