"""Decode attention over a cache with fewer bits per element than the queries."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.core.cost import Kernel, Tile, in_bits
from perfmodel.core.dtypes import DTYPES, Dtype
from perfmodel.core.workload import Attention
from perfmodel.kernels.attention.algorithms.flash2 import forward


@dataclass(frozen=True, slots=True)
class NarrowCacheAttention(Attention):
    """``kv_bits``: of a stored element of K and V."""

    kv_bits: int = 8

    @property
    def multiplied(self) -> Dtype:
        """What scores may be multiplied in: a cache of 8 bits allows 8-bit arithmetic."""
        return DTYPES["fp8"] if self.kv_bits == 8 else self.dtype

    def kernels(self, tile: Tile) -> list[Kernel]:
        """The one kernel."""
        return [kernel(self, tile)]


def kernel(w: NarrowCacheAttention, tile: Tile) -> Kernel:
    """Attention that reads each K and V at their width."""
    [plain] = forward(w, tile)
    accesses = tuple(in_bits(one, one.tensor, w.kv_bits) if one.tensor in ("K", "V") else one for one in plain.accesses)
    return replace(plain, dtype=w.multiplied, accesses=accesses)
