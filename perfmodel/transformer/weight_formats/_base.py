"""The stored format of a matrix in a checkpoint, and rules on which matrices have which format."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.errors import DataError
from perfmodel.core.frozen import dataclass
from perfmodel.core.trace import plain

FIELD = "quantization_config"
PREFIXES = ("model.", "language_model.model.", "model.language_model.")
"""Prefixes before ``layers.0``: in a language model, and in multimodal models."""
LONGEST_PATTERN = 300
FP32, FP16 = 32, 16
"""Bits of a scale."""


class PerBlock(NamedTuple):
    """Further stored bits of a matrix, such as scales: ``bits`` per block of ``inputs`` x ``outputs``; None spans all of them."""

    inputs: int | None
    outputs: int | None
    bits: int


@dataclass(frozen=True, slots=True)
class MatrixFormat:
    """``bits`` of an element, and what is stored ``beside`` the elements.

    ``compute_dtype``: narrowest format that products with the matrix may run in; empty for the activations' format.
    """

    name: str
    bits: int
    beside: tuple[PerBlock, ...] = ()
    compute_dtype: str = ""

    @property
    def is_integer(self) -> bool:
        """Whether elements are integers, dequantised before they are multiplied."""
        return self.name.startswith("int")

    def bytes(self, inputs: Number, outputs: Number) -> Number:
        """Bytes of a matrix inputs -> outputs, with its scales, zero points and indices.

        >>> MatrixFormat("int4", 4, (PerBlock(128, 1, 16), PerBlock(128, 1, 4))).bytes(4096, 1024)
        2179072
        """
        beside = [_blocks(inputs, further.inputs) * _blocks(outputs, further.outputs) * further.bits for further in self.beside]
        return sum(ceil_div(bits, 8) for bits in (inputs * outputs * self.bits, *beside))

    def element_bytes(self, inputs: Number, outputs: Number) -> float:
        """Bytes of a weight of such a matrix, with its share of the scales."""
        return float(plain(self.bytes(inputs, outputs)) / plain(inputs * outputs))


def _blocks(size: Number, block: int | None) -> Number:
    return 1 if block is None else ceil_div(size, block)


@dataclass(frozen=True, slots=True)
class Rule:
    """Matrices whose names match one of ``targets`` (None: every linear layer) have the format ``stored``."""

    stored: MatrixFormat
    targets: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Quantized:
    """Formats of a quantization_config. ``words``: its name in its own terms.

    ``rules``: the first that matches holds; empty for an unknown format. ``kept``: matrices in the model's own format, like embeddings,
    norms, biases and routers. ``unread``: its fields that no rule knows.
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
    """Fields ``values`` by name. ``place``: prefix of their names in messages; ``recognized``: names that a rule knows, present or not."""

    def __init__(self, values: Mapping[str, Any], place: str = f"{FIELD}.") -> None:
        self.values, self.place, self.recognized = values, place, set[str]()

    def get(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """The value of ``name``, ``default`` if it is absent or null; DataError unless it is of that kind."""
        self.recognized.add(name)
        value = self.values.get(name)
        return default if value is None else self.of_kind(name, value, kind)

    def of_kind(self, name: str, value: Any, kind: type | tuple[type, ...]) -> Any:
        """``value``; DataError unless it is of that kind."""
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise self._wrong_type(name, value, kind)
        return value

    def _wrong_type(self, name: str, value: Any, kind: Any) -> DataError:
        return DataError(f"{self.place}{name} is {value!r:.40}: no value of that field", "write it as the tool that made the file does")

    def inside(self, name: str, values: Mapping[str, Any]) -> "Fields":
        """The fields ``values`` of the object ``name``."""
        return Fields(values, f"{self.place}{name}.")

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number from 1, or -1, which means all inputs."""
        value = self.get(name, int, default)
        if value is None or not (1 <= value <= 2**31 or value == -1):
            raise DataError(f"{self.place}{name} is {value!r:.40}: the rule for this format needs a whole number", "such as 128")
        return int(value)

    def patterns(self, *names: str) -> tuple[str, ...]:
        """Names of modules, from the lists under ``names``."""
        listed = [pattern for name in names for pattern in self.get(name, list, [])]
        for pattern in listed:
            if not isinstance(pattern, str) or len(pattern) > LONGEST_PATTERN:
                raise DataError(f"{self.place}{names[0]}: {pattern!r:.40} is no name of a module", "give names such as lm_head")
        return tuple(listed)

    def unread(self, harmless: Iterable[str]) -> tuple[str, ...]:
        """Fields with a value that were not read and are not ``harmless``."""
        return tuple(name for name, value in self.values.items() if value and name not in self.recognized and name not in harmless)


def group(size: int) -> int | None:
    """Inputs that share a scale; -1 means all."""
    return None if size == -1 else size


def matcher(patterns: Iterable[str]) -> re.Pattern[str]:
    """Pattern that matches names of modules: ``re:`` patterns from the start, others as a run of whole parts; * is anything."""
    expressions = []
    for pattern in patterns:
        if pattern.startswith("re:"):
            expressions.append(pattern.removeprefix("re:"))
        else:
            parts = ".*".join(map(re.escape, pattern.split("*")))
            expressions.append(rf"(?:.*\.)?{parts}(?:\..*)?$")
    try:
        return re.compile("|".join(f"(?:{expression})" for expression in expressions) or "(?!)")
    except re.error as error:
        raise DataError(f"{FIELD}: a pattern of modules is no regular expression: {error}") from None


class Family(NamedTuple):
    """Formats of one or several ``quant_method`` names. ``read``: their rule; ``harmless``: names of fields that change no byte."""

    read: Callable[[Fields], Quantized]
    harmless: str
