"""Operations of a model, with their matrices and tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from perfmodel.core.arith import Number
from perfmodel.core.frozen import dataclass

ATTENTION, MLP, EXPERTS, ROUTER, TABLE = "attention", "mlp", "experts", "router", "table"
"""Groups of matrices; a table is the embedding, the positions or the head."""
MLP_PART, NORMS, RESIDUAL, EMBEDDING, HEAD = "MLP", "norms", "residual", "embedding", "head"
"""Parts of a model, besides those named like their matrices."""
LAST_NORM, HEAD_ROW, CHOSEN = "last norm", "LM head", "weights of the chosen"
SHARED = "shared expert, "
"""Prefix of the names of the shared expert's operations."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """``count`` matrices inputs -> outputs. ``group``: attention, mlp, experts, router or table. ``stored``: its name in a checkpoint."""

    name: str
    group: str
    inputs: Number
    outputs: Number
    count: Number = 1
    stored: str = ""

    @property
    def elements(self) -> Number:
        """Weights of all of them; a matrix and its transpose have the same formula."""
        first, second = sorted((self.inputs, self.outputs), key=repr, reverse=True)
        return self.count * (first * second)


class Operation(NamedTuple):
    """One operation of a layer or of an end of the model.

    ``kind``: the method that handles it. ``name``: on autograd's tape; ``row``: name of its kernel, if different. ``reads``, ``writes``:
    tensors; ``features``: features of the result, per token. ``matrices``: multiplied with the same input. ``vectors``: number of biases
    and norm weights. ``heads``: vectors per token that a norm normalizes. ``own``: with sequence parallelism, a GPU has only the result of
    its own tokens; ``gathers``: it gathers the tokens of all GPUs first, or scatters partial sums last.
    """

    kind: str
    name: str = ""
    part: str = ""
    reads: tuple[str, ...] = ()
    writes: str = ""
    features: Number = 0
    matrices: tuple[Matrix, ...] = ()
    vectors: Number = 0
    heads: Number = 1
    row: str = ""
    own: bool = False
    gathers: bool = False

    @property
    def kernel(self) -> str:
        """The name of its kernel."""
        return self.row or self.name


ENTER, LEAVE = Operation("enter"), Operation("leave")
"""Where the hidden state enters matrices that tensor-parallel GPUs share, and where their partial sums are added up."""


def summed(values: Iterable[Number]) -> Number:
    """Sum of ``values``, equal ones as a product: traced numbers keep short formulas.

    >>> summed([3, 4, 3])
    10
    """
    alike: dict[str, list[Number]] = {}
    for value in values:
        alike.setdefault(repr(value), []).append(value)
    return sum(len(same) * same[0] for same in alike.values())


def weights(matrices: Iterable[Matrix]) -> Number:
    """Number of weights of ``matrices``."""
    return summed(matrix.elements for matrix in matrices)


def linear(name: str, reads: str, writes: str, matrices: Sequence[Matrix], bias: bool = False, **options: Any) -> Operation:
    """``reads`` times ``matrices`` side by side."""
    features, part = summed(matrix.outputs for matrix in matrices), {MLP: MLP_PART, TABLE: HEAD}.get(matrices[0].group, ATTENTION)
    return Operation("linear", name, part, (reads,), writes, features, tuple(matrices), features if bias else 0, **options)
