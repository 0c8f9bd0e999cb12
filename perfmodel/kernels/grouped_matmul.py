"""C_e = A_e B_e for a group of matrices B, each of which multiplies its own rows of A: the products of routed experts."""

from __future__ import annotations

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.checks import positive_int
from perfmodel.core.cost import READ, WRITE, Kernel, Tile, matmul_work, once
from perfmodel.core.dtypes import DTYPES, Dtype
from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass


@dataclass(frozen=True, slots=True)
class GroupedMatmul:
    """``tokens`` rows, each sent to ``top_k`` of ``experts`` matrices [k, n], of which ``touched`` get rows, all about as many."""

    tokens: Number
    top_k: Number
    experts: Number
    touched: Number
    n: Number
    k: Number
    dtype: Dtype = DTYPES["bf16"]

    @property
    def rows(self) -> Number:
        """Rows of A and of C over all matrices."""
        return self.tokens * self.top_k

    @property
    def rows_per_expert(self) -> Number:
        """Rows of the fullest matrix."""
        return ceil_div(self.rows, self.touched)

    @property
    def flops(self) -> Number:
        """2 FLOP per multiply-add.

        >>> GroupedMatmul(4, 2, 8, 3, 16, 32).flops
        8192
        """
        return 2 * self.rows * self.n * self.k

    def kernels(self, tile: Tile) -> list[Kernel]:
        """One kernel that reads A and the touched matrices once and writes C once."""
        size = self.dtype.size
        accesses = (
            once("A", READ, self.rows * self.k, size),
            once("B", READ, self.touched * self.k * self.n, size),
            once("C", WRITE, self.rows * self.n, size),
        )
        work = matmul_work(self.dtype, self.flops)
        return [Kernel("grouped matmul", self.dtype, accesses, self.flops, self.flops, work, work)]

    def check(self) -> GroupedMatmul:
        """This workload, if every value has a meaning; else UsageError names it."""
        for name in ("tokens", "top_k", "experts", "touched", "n", "k"):
            positive_int(name.replace("_", "-"), getattr(self, name))
        if not self.touched <= min(self.experts, self.rows):
            raise UsageError(f"--touched {self.touched}: at most {min(self.experts, self.rows)} matrices get a row", "give no more")
        return self
