"""What a decoder-only transformer consists of: one record per layer, with the sizes that its matrices have.

A matrix that maps ``a`` to ``b`` features is written a -> b; it has a x b weights, and b more with a bias.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Literal

from perfmodel.core.arith import Number, minimum
from perfmodel.transformer.weight_formats._base import MatrixFormat, Quantized

LayerFormats = tuple[tuple[str, MatrixFormat], ...]
"""Matrices of a layer that are not stored in the model's own format, by name."""


@dataclass(frozen=True, slots=True)
class GroupedAttention:
    """Query heads that share K and V in groups; multi-head with as many KV heads as heads, multi-query with one.

    Matrices: Q hidden -> heads x head_dim, K and V hidden -> kv_heads x head_dim, O heads x head_dim -> hidden.
    ``window``: a token sees at most this many of the last tokens, itself among them; None for all.
    ``qk_norm``: Q and K pass a norm with head_dim weights. ``sinks``: a learned score per head joins the softmax.
    ``shared_kv``: one matrix makes K and V, which are still stored apart (K is rotated and normed, V is not).
    """

    heads: Number
    kv_heads: Number
    head_dim: Number
    window: Number | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    shared_kv: bool = False

    @property
    def kept(self) -> Number:
        """Elements that a layer's cache keeps of one token."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def kind(self) -> str:
        """MHA, GQA or MQA."""
        if self.kv_heads == self.heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, section 2.1): a token keeps one latent vector and one rotated key.

    Matrices: Q hidden -> q_lora_rank -> heads x (nope + rope), or in one step without ``q_lora_rank``; latent and rotated key
    hidden -> kv_lora_rank + rope; K and V kv_lora_rank -> heads x (nope + v); O heads x v -> hidden. Each latent passes a norm.
    ``bias``: the matrices that read and write the hidden state have one (except Q in one step).
    """

    heads: Number
    kv_lora_rank: Number
    q_lora_rank: Number | None
    qk_rope_head_dim: Number
    qk_nope_head_dim: Number
    v_head_dim: Number
    bias: bool = False

    window: ClassVar[None] = None
    kind: ClassVar[str] = "MLA"

    @property
    def kept(self) -> Number:
        """Elements that a layer's cache keeps of one token."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def qk_head_dim(self) -> Number:
        """Features of a query head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


def visible(attention: GroupedAttention | LatentAttention, kv_len: Number) -> Number:
    """Tokens of the last ``kv_len`` that a token sees, and that a layer has to keep."""
    return kv_len if attention.window is None else minimum(kv_len, attention.window)


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """Plain: hidden -> width, activation, width -> hidden. Gated: two matrices hidden -> width, their product, width -> hidden."""

    width: Number
    gated: bool = True
    bias: bool = False
    activation: str = "silu"


@dataclass(frozen=True, slots=True)
class MoeMlp:
    """``experts`` MLPs of ``width``, of which a router hidden -> experts picks ``experts_per_token`` for each token.

    ``shared_width``: an MLP of that width sees every token besides (n shared experts are one n times as wide); 0 for none.
    ``shared_gate``: a vector of hidden weights scales its output. ``router_extra``: learned biases and scales of the router.
    ``bias``: of the experts' matrices.
    """

    experts: Number
    experts_per_token: Number
    width: Number
    shared_width: Number = 0
    shared_gate: bool = False
    router_extra: Number = 0
    gated: bool = True
    bias: bool = False
    activation: str = "silu"


@dataclass(frozen=True, slots=True)
class Layer:
    """``norms``: norms over the hidden state, 2 in most models. ``formats``: in which a quantized checkpoint stores its matrices."""

    attention: GroupedAttention | LatentAttention
    mlp: DenseMlp | MoeMlp
    norms: Number = 2
    formats: LayerFormats = ()


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only language model: embedding, ``layers`` in order, a last norm, and a matrix hidden -> vocab.

    ``norm``: ``rms`` has one weight per feature, ``layer`` a weight and a bias. ``tied_embeddings``: the last matrix is the
    embedding. ``learned_positions``: a table of max_positions x hidden is added to the embedding; otherwise Q and K are rotated.
    ``native_dtype``: of the published weights; None where the source does not say. ``quantized``: their narrower format, if they have one,
    and ``head_format`` that of the last matrix. ``draft``: layers that predict further tokens, stored and not run.
    ``unread``: fields of the source that no rule knows.
    """

    name: str
    architecture: str
    hidden: Number
    vocab: Number
    layers: tuple[Layer, ...]
    norm: Literal["rms", "layer"] = "rms"
    tied_embeddings: bool = False
    learned_positions: bool = False
    max_positions: Number | None = None
    native_dtype: str | None = None
    quantized: Quantized | None = None
    head_format: MatrixFormat | None = None
    draft: tuple[Layer, ...] = ()
    unread: tuple[str, ...] = ()
    source: str = ""

    @property
    def layer_kinds(self) -> list[tuple[Layer, int]]:
        """Each different layer with how often it occurs, in the order of first occurrence."""
        same = Counter(map(id, self.layers))  # most are one object: equality is asked of few
        counts: dict[Layer, int] = {}
        for layer in {id(layer): layer for layer in self.layers}.values():
            counts[layer] = counts.get(layer, 0) + same[id(layer)]
        return list(counts.items())

    @property
    def is_moe(self) -> bool:
        """Whether any layer routes tokens to experts."""
        return any(isinstance(layer.mlp, MoeMlp) for layer in self.layers)
