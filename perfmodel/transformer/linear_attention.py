"""Linear attention: layers that keep a state per sequence in place of keys and values of every token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from perfmodel.core.arith import Number, maximum
from perfmodel.core.frozen import dataclass

CONV_SIZE = 2
"""Bytes of an element that a short convolution keeps: 16 bits, like the activations."""


class _StateLayer:
    """A layer that sees all tokens through its state and keeps nothing per token."""

    __slots__ = ()

    window: ClassVar[None] = None
    indexer: ClassVar[None] = None
    topk: ClassVar[None] = None
    index_bytes: ClassVar[int] = 0
    kept: ClassVar[int] = 0

    @property
    def state_bytes(self: Any) -> Number:
        """Bytes of a sequence: the state, and the last tokens that the convolution needs."""
        return self.state * (self.state_bits // 8) + (self.conv_kernel - 1) * self.channels * CONV_SIZE


@dataclass(frozen=True, slots=True)
class GatedDeltaNet(_StateLayer):
    """Gated DeltaNet (arXiv 2412.06464): linear attention with a state [value_heads, key_head_dim, value_head_dim] per sequence.

    Each token decays the state, corrects what it recalls for its key, and reads it: S = a S (I - b k k^T) + b v k^T, o = S q. Matrices: Q
    and K hidden -> key_heads x key_head_dim each, V and a gate hidden -> value_heads x value_head_dim each, decay and rate hidden ->
    value_heads each, O value_heads x value_head_dim -> hidden. Q, K and V pass a causal convolution over ``conv_kernel`` tokens, the result
    a norm with value_head_dim weights, scaled by the gate. ``state_bits``: bits of an element of the state. Source:
    huggingface/transformers, modeling_qwen3_next.py, Qwen3NextGatedDeltaNet.
    """

    key_heads: Number
    value_heads: Number
    key_head_dim: Number
    value_head_dim: Number
    conv_kernel: Number = 4
    state_bits: int = 32

    kind: ClassVar[str] = "gated delta net"

    def divided(self, tp: int) -> GatedDeltaNet:
        """The part of one of ``tp`` GPUs."""
        return replace(self, key_heads=self.key_heads // tp, value_heads=self.value_heads // tp)

    @property
    def heads(self) -> Number:
        """Heads that can be divided among GPUs: the heads of Q and K."""
        return self.key_heads

    @property
    def inner(self) -> Number:
        """Features of V, of the gate and of the result."""
        return self.value_heads * self.value_head_dim

    @property
    def channels(self) -> Number:
        """Features that are convolved: Q, K and V."""
        return 2 * self.key_heads * self.key_head_dim + self.inner

    @property
    def state(self) -> Number:
        """Elements of a sequence's state."""
        return self.value_heads * self.key_head_dim * self.value_head_dim

    @property
    def token_flops(self) -> Number:
        """FLOP per token: state times key, an added outer product, state times query."""
        return 6 * self.state


@dataclass(frozen=True, slots=True)
class Mamba2(_StateLayer):
    """Mamba-2 (arXiv 2405.21060): a state [heads, head_dim, state_size] per sequence, S = a S + dt x B^T, y = S C + D x.

    Matrices: gate and x hidden -> heads x head_dim each, B and C hidden -> groups x state_size each, dt hidden -> heads, in one; out heads
    x head_dim -> hidden. x, B and C pass a causal convolution over ``conv_kernel`` tokens, the result a norm that the gate scales.
    ``chunk``: tokens that prefill takes at once. ``state_bits``: bits of an element of the state. Source: huggingface/transformers,
    modeling_nemotron_h.py, NemotronHMamba2Mixer.
    """

    heads: Number
    head_dim: Number
    groups: Number
    state_size: Number
    conv_kernel: Number = 4
    chunk: Number = 128
    conv_bias: bool = True
    bias: bool = False
    state_bits: int = 32

    kind: ClassVar[str] = "Mamba-2"

    def divided(self, tp: int) -> Mamba2:
        """The part on one of ``tp`` GPUs; groups are copied if there are more GPUs."""
        return replace(self, heads=self.heads // tp, groups=maximum(self.groups // tp, 1))

    @property
    def inner(self) -> Number:
        """Features of x, of the gate and of the result."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> Number:
        """Features that are convolved: x, B and C."""
        return self.inner + 2 * self.groups * self.state_size

    @property
    def state(self) -> Number:
        """Elements of a sequence's state."""
        return self.heads * self.head_dim * self.state_size

    @property
    def token_flops(self) -> Number:
        """FLOP per token: an outer product added, the state times C."""
        return 4 * self.state
