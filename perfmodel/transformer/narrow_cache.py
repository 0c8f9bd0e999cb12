"""Decode attention over a cache with fewer bits per element than the queries."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.attention.algorithms.flash2 import forward
from perfmodel.cost import Kernel, Tile
from perfmodel.dtypes import DTYPES, Dtype
from perfmodel.transformer.op import in_bits
from perfmodel.workload import Attention


@dataclass(frozen=True, slots=True)
class NarrowCacheAttention(Attention):
    """``kv_bits``: of a stored element of K and V."""

    kv_bits: int = 8

    @property
    def multiplied(self) -> Dtype:
        """What scores may be multiplied in: a cache of 8 bits allows 8-bit arithmetic."""
        return DTYPES["fp8"] if self.kv_bits == 8 else self.dtype


def kernel(w: NarrowCacheAttention, tile: Tile) -> Kernel:
    """Attention that reads each K and V at their width."""
    [plain] = forward(w, tile)
    accesses = tuple(in_bits(one, one.tensor, w.kv_bits) if one.tensor in ("K", "V") else one for one in plain.accesses)
    return replace(plain, dtype=w.multiplied, accesses=accesses)
