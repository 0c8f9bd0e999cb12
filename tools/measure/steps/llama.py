"""A Llama-style model in plain PyTorch, every element-wise step a kernel (or a few) of its own, its matrices divided as in Megatron-LM.

Weights are random: times do not depend on what they say. Kernels of one layer: RMS norm, QKV matmul, RoPE (three kernels), two
writes to the cache, fused attention, output matmul, add, RMS norm, gate-and-up matmul, SiLU and product (two), down matmul, add.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from perfmodel.core.errors import UnavailableError
from perfmodel.transformer.spec import DenseMlp, GroupedAttention, ModelSpec
from perfmodel.validation.libraries.kernels import rotated

EPSILON, ROPE_BASE = 1e-5, 1e4
Torch = Any
Tensor = Any


@dataclass(frozen=True, slots=True)
class Sizes:
    """What one of ``world`` GPUs holds of a model whose layers are all alike."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocab: int

    @classmethod
    def of(cls, model: ModelSpec, world: int = 1) -> Sizes:
        """Shares of ``model``; UnavailableError for one that is not Llama-style."""
        kinds = model.layer_kinds
        layer = kinds[0][0]
        a, mlp = layer.attention, layer.mlp
        plain = isinstance(a, GroupedAttention) and isinstance(mlp, DenseMlp) and mlp.gated and model.norm == "rms"
        if len(kinds) > 1 or not plain or model.learned_positions or a.qkv_bias or a.qk_norm or a.sinks:  # type: ignore[union-attr]
            raise UnavailableError(f"{model.name} is not a Llama-style model", "give one such as llama-3-8b")
        assert isinstance(a, GroupedAttention)
        assert isinstance(mlp, DenseMlp)
        kv_heads = max(int(a.kv_heads) // world, 1)
        sizes = (int(a.heads) // world, kv_heads, int(a.head_dim), int(mlp.width) // world, -(-int(model.vocab) // world))
        return cls(len(model.layers), int(model.hidden), *sizes)


class Llama:
    """Weights of one GPU and the steps over them. ``group``: the process group of the tensor-parallel GPUs; None on one GPU."""

    def __init__(self, model: ModelSpec, torch: Torch, device: str, dtype: Any, group: Any = None, world: int = 1, rank: int = 0) -> None:
        self.torch, self.sizes, self.device, self.dtype = torch, Sizes.of(model, world), device, dtype
        self.group, self.world, self.first_row = group, world, rank * self.sizes.vocab
        s = self.sizes
        made = (s.heads + 2 * s.kv_heads) * s.head_dim
        shapes = ((made, s.hidden), (s.hidden, s.heads * s.head_dim), (2 * s.width, s.hidden), (s.hidden, s.width))
        self.layers = [tuple(self._drawn(*shape) for shape in shapes) for _ in range(s.layers)]
        self.norms = [self._ones() for _ in range(2 * s.layers + 1)]
        self.table, self.head = self._drawn(s.vocab, s.hidden), self._drawn(s.vocab, s.hidden)
        nn = import_module("torch.nn.attention")
        self.kernel: Callable[[], Any] = lambda: nn.sdpa_kernel(nn.SDPBackend.FLASH_ATTENTION)

    def _drawn(self, rows: int, cols: int) -> Tensor:
        made = self.torch.empty((rows, cols), dtype=self.dtype, device=self.device)
        return made.uniform_(-(cols**-0.5), cols**-0.5)

    def _ones(self) -> Tensor:
        return self.torch.ones((self.sizes.hidden,), dtype=self.dtype, device=self.device)

    def cache(self, batch: int, kv_len: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of every layer, [batch, kv_heads, kv_len, head_dim] each, filled."""
        s = self.sizes
        shape = (batch, s.kv_heads, kv_len, s.head_dim)
        options = {"dtype": self.dtype, "device": self.device}
        return [
            (self.torch.empty(shape, **options).uniform_(-1, 1), self.torch.empty(shape, **options).uniform_(-1, 1))
            for _ in range(s.layers)
        ]

    def angles(self, first: int, n: int) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of positions from ``first`` on, [n, 1, head_dim] each."""
        torch, d = self.torch, self.sizes.head_dim
        frequency = ROPE_BASE ** (-torch.arange(0, d, 2, device=self.device, dtype=torch.float32) / d)
        angle = torch.arange(first, first + n, device=self.device, dtype=torch.float32)[:, None] * frequency
        sine = torch.cat((-angle.sin(), angle.sin()), -1)
        return torch.cat((angle.cos(), angle.cos()), -1)[:, None].to(self.dtype), sine[:, None].to(self.dtype)

    def step(self, tokens: Tensor, cache: list[tuple[Tensor, Tensor]], angles: tuple[Tensor, Tensor]) -> Tensor:
        """Logits of the last position, [batch, vocab]. ``tokens`` [batch, n]: the last n of the cache's kv_len."""
        torch, s, (batch, n) = self.torch, self.sizes, tokens.shape
        linear = torch.nn.functional.linear
        x = self._embedded(tokens)
        for index, (qkv, out, gate_up, down) in enumerate(self.layers):
            attended = self._attention(linear(self._norm(x, 2 * index), qkv).view(batch, n, -1, s.head_dim), cache[index], angles)
            x = x + self._summed(linear(attended, out))
            both = linear(self._norm(x, 2 * index + 1), gate_up)
            x = x + self._summed(linear(torch.nn.functional.silu(both[..., : s.width]) * both[..., s.width :], down))
        return self._gathered(linear(self._norm(x[:, -1], 2 * s.layers), self.head))

    def _norm(self, x: Tensor, index: int) -> Tensor:
        return self.torch.nn.functional.rms_norm(x, (self.sizes.hidden,), self.norms[index], EPSILON)

    def _attention(self, made: Tensor, cache: tuple[Tensor, Tensor], angles: tuple[Tensor, Tensor]) -> Tensor:
        """``made``: Q, K and V, [batch, n, heads + 2 kv_heads, head_dim]."""
        torch, s, (batch, n) = self.torch, self.sizes, made.shape[:2]
        turned = rotated(torch, made[:, :, : s.heads + s.kv_heads], angles)
        q, k, v = (
            turned[:, :, : s.heads].transpose(1, 2),
            turned[:, :, s.heads :].transpose(1, 2),
            made[:, :, -s.kv_heads :].transpose(1, 2),
        )
        keys, values = cache
        keys[:, :, -n:].copy_(k)
        values[:, :, -n:].copy_(v)
        if n == 1:
            k, v = keys, values
        with self.kernel():
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=n > 1, enable_gqa=s.heads != s.kv_heads)
        return mixed.transpose(1, 2).reshape(batch, n, s.heads * s.head_dim)

    def _embedded(self, tokens: Tensor) -> Tensor:
        if self.group is None:
            return self.torch.nn.functional.embedding(tokens, self.table)
        own = tokens - self.first_row
        other = (own < 0) | (own >= self.sizes.vocab)
        found = self.torch.nn.functional.embedding(own.masked_fill(other, 0), self.table)
        return self._summed(found.masked_fill_(other[..., None], 0))

    def _summed(self, x: Tensor) -> Tensor:
        if self.group is not None:
            import_module("torch.distributed").all_reduce(x, group=self.group)
        return x

    def _gathered(self, logits: Tensor) -> Tensor:
        if self.group is None:
            return logits
        whole = self.torch.empty((self.world * logits.shape[0], logits.shape[1]), dtype=self.dtype, device=self.device)
        import_module("torch.distributed").all_gather_into_tensor(whole, logits.contiguous(), group=self.group)
        return whole
