"""Calls of operators as a profile or a capture records them: name, tensors and options."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from perfmodel.core.dtypes import PRODUCTS, Dtype
from perfmodel.core.frozen import dataclass

SIZES = {
    "fp64": 8,
    "fp32": 4,
    "tf32": 4,
    "fp16": 2,
    "bf16": 2,
    "fp8": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes of an element by format."""
PLANNED = "_cudnn_attention_"
"""Part of the names of operators for which the host plans a kernel when their sizes are new."""
LIST_CHUNK = 65536
"""Elements per block of PyTorch's kernels over lists of tensors: aten/src/ATen/native/cuda/MultiTensorApply.cuh."""
RANKS = ("bool", "uint8", "int8", "int16", "int32", "int64", "fp8", "fp16", "bf16", "fp32", "fp64", "complex64", "complex128")
"""Formats in the order in which PyTorch promotes one to another."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor: its shape, its strides in elements (empty: contiguous), and its format."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        """Number of elements; those of a broadcast dimension count each time."""
        return prod(self.shape)

    @property
    def stored(self) -> int:
        """Number of distinct elements: a dimension of stride 0 holds one."""
        return prod(size for size, stride in zip(self.shape, self.strides or (1,) * len(self.shape), strict=False) if stride)

    @property
    def bytes(self) -> int:
        """Bytes of its distinct elements."""
        return self.stored * SIZES[self.dtype]

    @property
    def contiguous(self) -> bool:
        """Whether its elements are contiguous in memory, with the last dimension innermost."""
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=False):
            if size > 1 and stride != step:
                return False
            step *= size
        return True

    @property
    def dense(self) -> bool:
        """Whether its elements fill one block of memory, in any order of dimensions."""
        step = 1
        for stride, size in sorted((stride, size) for size, stride in zip(self.shape, self.strides, strict=False) if size > 1):
            if stride != step:
                return False
            step *= size
        return True


Argument = Operand | tuple[Operand, ...] | str | None
"""A tensor, a list of tensors, another value as text, or nothing."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the operator ``name``."""

    name: str
    arguments: tuple[Argument, ...]

    def tensor(self, place: int) -> Operand:
        """The tensor at ``place``; UnknownError if there is none."""
        argument = self.arguments[place] if place < len(self.arguments) else None
        if not isinstance(argument, Operand):
            raise UnknownError(f"{self.name} has no tensor as argument {place}")
        return argument

    def tensors(self) -> list[Operand]:
        """All tensors, including those in lists."""
        return list(self._tensors())

    def _tensors(self) -> Iterator[Operand]:
        for argument in self.arguments:
            if isinstance(argument, Operand):
                yield argument
            elif isinstance(argument, tuple):
                yield from argument

    def value(self, place: int, otherwise: str = "") -> str:
        """The text at ``place``; ``otherwise`` if there is none."""
        argument = self.arguments[place] if place < len(self.arguments) else None
        return argument if isinstance(argument, str) and argument else otherwise

    def integers(self, place: int) -> list[int]:
        """The list of whole numbers written at ``place``, such as ``[1, 2]``."""
        return [int(part) for part in self.value(place).strip("[]() ").split(",") if part.strip().lstrip("-").isdigit()]

    def is_true(self, place: int) -> bool:
        """Whether ``True`` is written at ``place``."""
        return self.value(place) == "True"


class UnknownError(Exception):
    """The work of a call is unknown; the message says why."""


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape to which ``shapes`` broadcast."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded, strict=True))


def promoted(*dtypes: str) -> str:
    """The format to which ``dtypes`` promote: the wider one; fp32 for two different 16-bit floats."""
    formats = set(dtypes)
    if {"fp16", "bf16"} <= formats:
        return "fp32"
    return max(formats, key=RANKS.index)


def product_dtype(name: str) -> Dtype:
    """The format called ``name`` for operands of a product; UnknownError if no product is known in it."""
    if name not in PRODUCTS:
        raise UnknownError(f"no product in {name} is known")
    return PRODUCTS[name]


def shown(argument: Any) -> str:
    """An argument in short form, such as ``2048x4096 bf16``."""
    if isinstance(argument, Operand):
        return f"{'x'.join(map(str, argument.shape)) or 'scalar'} {argument.dtype}"
    if isinstance(argument, tuple):
        return f"{len(argument)} tensors" if len(argument) > 2 else ", ".join(map(shown, argument))
    return str(argument)
