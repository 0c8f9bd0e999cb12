"""Decode attention over a compressed cache: one latent vector and one rotated key per token, or K and V in fewer bits than Q.

Latent (DeepSeek-V2, 2.1.2): every query head sees both. Scores use both, values only the latent vector, so K and V are one cache, read
once.
"""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.core.checks import positive_int
from perfmodel.core.cost import READ, WRITE, Kernel, Tile, in_bits, matmul_work, once, stored
from perfmodel.core.dtypes import DTYPES, Dtype
from perfmodel.core.frozen import dataclass
from perfmodel.core.workload import Attention
from perfmodel.kernels.attention.algorithms.flash2 import forward


@dataclass(frozen=True, slots=True)
class LatentDecode:
    """Shapes: Q [batch, n, heads, kv_lora_rank + rope], cache [batch, kv_len, kv_lora_rank + rope], O [batch, n, heads, kv_lora_rank].

    ``kv_len`` counts the new tokens. ``kv_bits``: bits of a cached element; ``dtype``: format of Q and O. ``appends``: include the kernels
    that rotate Q and write the new token to the cache.
    """

    batch: Number
    heads: Number
    kv_len: Number
    kv_lora_rank: Number = 512
    rope: Number = 64
    n: Number = 1
    dtype: Dtype = DTYPES["bf16"]
    kv_bits: int = 16
    appends: bool = True

    @property
    def token_size(self) -> Number:
        """Elements per cached token."""
        return self.kv_lora_rank + self.rope

    @property
    def query_bytes(self) -> Number:
        """Bytes of Q."""
        return self.batch * self.n * self.heads * self.token_size * self.dtype.size

    @property
    def cache_bytes(self) -> Number:
        """Bytes of the cache."""
        return self.batch * self.kv_len * self.token_size * self.kv_bits // 8

    @property
    def compute_dtype(self) -> Dtype:
        """Format that the scores may be multiplied in: a cache of 8 bits allows 8-bit arithmetic."""
        return DTYPES["fp8"] if self.kv_bits == 8 else self.dtype

    def kernels(self, tile: Tile) -> list[Kernel]:
        """One kernel that reads Q and the cache once and writes O once, in ``compute_dtype``; ``tile`` is not used."""
        queries = self.batch * self.n * self.heads
        accesses = (
            once("Q", READ, queries * self.token_size, self.dtype.size),
            stored("cache", READ, self.batch * self.kv_len * self.token_size, self.kv_bits),
            once("O", WRITE, queries * self.kv_lora_rank, self.dtype.size),
        )
        work = matmul_work(self.compute_dtype, flops(self))
        return [Kernel("latent attention", self.compute_dtype, accesses, flops(self), flops(self), work, work)]

    def check(self) -> LatentDecode:
        """This workload, if every value has a meaning; else UsageError names it."""
        for name in ("batch", "heads", "kv_len", "kv_lora_rank", "rope", "n"):
            positive_int(name.replace("_", "-"), getattr(self, name))
        return self


def flops(w: LatentDecode) -> Number:
    """FLOP on visible scores: a query sees the keys up to its own.

    >>> flops(LatentDecode(1, 128, 4096)) == 2 * 128 * 4096 * (576 + 512)
    True
    """
    seen = w.n * w.kv_len - w.n * (w.n - 1) // 2
    return 2 * w.batch * w.heads * seen * (w.token_size + w.kv_lora_rank)


@dataclass(frozen=True, slots=True)
class NarrowCacheAttention(Attention):
    """Attention over a narrow cache. ``kv_bits``: bits of a stored element of K and V."""

    kv_bits: int = 8

    @property
    def compute_dtype(self) -> Dtype:
        """Format that the scores may be multiplied in: a cache of 8 bits allows 8-bit arithmetic."""
        return DTYPES["fp8"] if self.kv_bits == 8 else self.dtype

    def kernels(self, tile: Tile) -> list[Kernel]:
        """One kernel, which reads K and V at their stored width."""
        [kernel] = forward(self, tile)
        accesses = [in_bits(access, access.tensor, self.kv_bits) if access.tensor in ("K", "V") else access for access in kernel.accesses]
        return [kernel._replace(dtype=self.compute_dtype, accesses=tuple(accesses))]
