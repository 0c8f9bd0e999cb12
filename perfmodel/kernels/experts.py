"""The routed experts of a layer as one workload: each expert is a gated MLP over the tokens that the router sends to it."""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.core.checks import positive_int
from perfmodel.core.cost import READ, WRITE, Kernel, Tile, matmul_work, once
from perfmodel.core.dtypes import ACTIVATION_SIZE, DTYPES, Dtype
from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass

UP, ACTIVATE, DOWN, SUM = "up", "activate", "down", "sum"
PARTS = (UP, ACTIVATE, DOWN, SUM)
"""Parts of the workload: sorting tokens by expert with the gate and up products; activation; down product; weighted sum per token."""


@dataclass(frozen=True, slots=True)
class Experts:
    """``tokens`` of ``hidden`` features, each sent to ``experts_per_token`` of ``experts`` gated MLPs of ``width``.

    ``touched``: experts that get tokens, evenly unless ``loads`` gives the tokens of each. ``dtype``: format of weights and products.
    ``pairs``: number of pairs of token and expert, by default all. ``parts``: the parts that run. ``stored``: bytes of a weight with its
    share of scales, if weights are stored narrower than they are multiplied; else 0.
    """

    tokens: Number
    hidden: Number
    width: Number
    experts: Number
    experts_per_token: Number
    touched: Number
    dtype: Dtype = DTYPES["bf16"]
    pairs: Number | None = None
    parts: tuple[str, ...] = PARTS
    loads: tuple[float, ...] = ()
    stored: float = 0.0

    @property
    def element_bytes(self) -> float:
        """Bytes of a weight."""
        return self.stored or self.dtype.size

    @property
    def rows(self) -> Number:
        """Pairs of token and expert: rows of the matmuls over all experts."""
        return self.tokens * self.experts_per_token if self.pairs is None else self.pairs

    @property
    def weight_bytes(self) -> Number:
        """Bytes of the gate, up and down matrices of the touched experts."""
        return 3 * self.touched * self.hidden * self.width * self.element_bytes

    def kernels(self, tile: Tile) -> list[Kernel]:
        """A single kernel that moves the hidden states in and out and the weights of the touched experts once."""
        accesses = (
            once("hidden states", READ, self.tokens * self.hidden, ACTIVATION_SIZE),
            once("weights", READ, self.weight_bytes, 1),
            once("result", WRITE, self.tokens * self.hidden, ACTIVATION_SIZE),
        )
        work = matmul_work(self.dtype, flops(self))
        return [Kernel("experts", self.dtype, accesses, flops(self), flops(self), work, work)]

    def check(self) -> Experts:
        """This workload, if every value has a meaning; else UsageError names it."""
        for name in ("tokens", "hidden", "width", "experts", "experts_per_token", "touched"):
            positive_int(name.replace("_", "-"), getattr(self, name))
        most_touched = min(self.experts, self.rows)
        if self.experts_per_token > self.experts:
            raise UsageError(f"--experts-per-token {self.experts_per_token} is more than {self.experts} experts", "give at most all")
        if not self.experts_per_token <= self.touched <= most_touched:
            raise UsageError(
                f"--touched {self.touched}: from {self.experts_per_token} to {most_touched} experts get a token", "give one between"
            )
        return self


def flops(w: Experts) -> Number:
    """FLOP: 2 per weight of an expert for each of its tokens.

    >>> flops(Experts(4, 8, 16, 4, 2, 4))
    6144
    """
    return 2 * w.rows * 3 * w.hidden * w.width


def tiles(w: Experts, height: int) -> Number:
    """Tiles of ``height`` rows over all experts. Each touched expert has at least one, and its last tile may be partial.

    >>> tiles(Experts(4, 8, 16, 8, 2, 3), 2), tiles(Experts(10, 8, 16, 3, 1, 3, loads=(8, 1, 1)), 4)
    (6, 4)
    """
    if not w.loads:
        return w.touched * -(-rows_per_expert(w) // height)
    return w.touched + sum(-(-int(load) // height) - 1 for load in w.loads if load > height)


def rows_per_expert(w: Experts) -> int:
    """Rows of the fullest touched expert under an even spread.

    >>> rows_per_expert(Experts(4, 8, 16, 8, 2, 3))
    3
    """
    return -int(-w.rows // w.touched)
