"""How a checkpoint stores one matrix, and which matrices of a model it stores so."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.errors import DataError
from perfmodel.core.trace import plain

FIELD = "quantization_config"
PREFIXES = ("model.", "language_model.model.", "model.language_model.")
"""Before ``layers.0``: in a language model, and in models that do more than language."""
LONGEST_PATTERN = 300
FP32, FP16 = 32, 16
"""Bits of a scale."""


@dataclass(frozen=True, slots=True)
class MatrixFormat:
    """``bits`` of an element. ``beside``: what is stored besides, as bits for each block of (inputs, outputs); None spans all of them.

    ``compute_dtype``: the narrowest format in which products with the matrix may run; empty for that of the activations.
    """

    name: str
    bits: int
    beside: tuple[tuple[int | None, int | None, int], ...] = ()
    compute_dtype: str = ""

    @property
    def is_integer(self) -> bool:
        """Whether elements are integers, dequantised before they are multiplied."""
        return self.name.startswith("int")

    def bytes(self, inputs: Number, outputs: Number) -> Number:
        """Bytes of a matrix inputs -> outputs, with its scales, zero points and indices.

        >>> MatrixFormat("int4", 4, ((128, 1, 16), (128, 1, 4))).bytes(4096, 1024)
        2179072
        """
        besides = [_blocks(inputs, rows) * _blocks(outputs, columns) * bits for rows, columns, bits in self.beside]
        return sum(ceil_div(bits, 8) for bits in (inputs * outputs * self.bits, *besides))

    def element_bytes(self, inputs: Number, outputs: Number) -> float:
        """Bytes of a weight of such a matrix, with its share of the scales."""
        return float(plain(self.bytes(inputs, outputs)) / plain(inputs * outputs))


def _blocks(size: Number, block: int | None) -> Number:
    return 1 if block is None else ceil_div(size, block)


@dataclass(frozen=True, slots=True)
class Rule:
    """Matrices whose names match one of ``targets`` are ``stored`` so; None: every linear layer."""

    stored: MatrixFormat
    targets: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Quantized:
    """Formats of a quantization_config, ``words`` in its own terms. ``rules``: the first that matches counts; none where nothing reads it.

    ``kept``: matrices that stay in the model's own format, as do embeddings, norms, biases and routers. ``unread``: its fields
    that no rule knows.
    """

    words: str
    rules: tuple[Rule, ...] = ()
    kept: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def main(self) -> MatrixFormat | None:
        """The format of most matrices."""
        return self.rules[0].stored if self.rules else None


class Fields:
    """``values`` by name, asked for one by one. ``place``: what stands before their names; ``asked``: those a rule knows, there or not."""

    def __init__(self, values: Mapping[str, Any], place: str = f"{FIELD}.") -> None:
        self.values, self.place, self.asked = values, place, set[str]()

    def get(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """The value of ``name``, ``default`` where there is none or null; DataError unless it is of that kind."""
        self.asked.add(name)
        value = self.values.get(name)
        return default if value is None else self.of_kind(name, value, kind)

    def of_kind(self, name: str, value: Any, kind: type | tuple[type, ...]) -> Any:
        """``value``; DataError unless it is of that kind."""
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise self._wrong(name, value, kind)
        return value

    def _wrong(self, name: str, value: Any, kind: Any) -> DataError:
        return DataError(f"{self.place}{name} is {value!r:.40}: no value of that field", "write it as the tool that made the file does")

    def inside(self, name: str, values: Mapping[str, Any]) -> "Fields":
        """The fields ``values``, which stand under ``name``."""
        return Fields(values, f"{self.place}{name}.")

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number from 1, or -1, which means all inputs."""
        value = self.get(name, int, default)
        if value is None or not (1 <= value <= 2**31 or value == -1):
            raise DataError(f"{self.place}{name} is {value!r:.40}: the rule for this format needs a whole number", "such as 128")
        return int(value)

    def patterns(self, *names: str) -> tuple[str, ...]:
        """Names of modules, from the lists under ``names``."""
        found = [pattern for name in names for pattern in self.get(name, list, [])]
        for pattern in found:
            if not isinstance(pattern, str) or len(pattern) > LONGEST_PATTERN:
                raise DataError(f"{self.place}{names[0]}: {pattern!r:.40} is no name of a module", "give names such as lm_head")
        return tuple(found)

    def unread(self, harmless: Iterable[str]) -> tuple[str, ...]:
        """Fields with a value that were not asked for and are not ``harmless``."""
        return tuple(name for name, value in self.values.items() if value and name not in self.asked and name not in harmless)


def group(size: int) -> int | None:
    """Inputs that share a scale; -1 means all."""
    return None if size == -1 else size


def matcher(patterns: Iterable[str]) -> re.Pattern[str]:
    """Matches names of modules at ``re:`` patterns from their start, and at others where these are a run of whole parts; * is anything."""
    expressions = [
        pattern[3:] if pattern.startswith("re:") else rf"(?:.*\.)?{re.escape(pattern).replace(chr(92) + '*', '.*')}(?:\..*)?$"
        for pattern in patterns
    ]
    try:
        return re.compile("|".join(f"(?:{expression})" for expression in expressions) or "(?!)")
    except re.error as error:
        raise DataError(f"{FIELD}: a pattern of modules is no regular expression: {error}") from None


class Family(NamedTuple):
    """Formats of one or several ``quant_method`` names. ``read``: their rule; ``harmless``: fields, in words, that change no byte."""

    read: Callable[[Fields], Quantized]
    harmless: str
