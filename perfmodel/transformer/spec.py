"""Parts of a decoder-only transformer: one record per layer, with the sizes of its matrices.

A matrix that maps ``a`` to ``b`` features is written a -> b; it has a x b weights, and b more with a bias.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, ClassVar, Literal

from perfmodel.core.arith import Number, ceil_div, maximum, minimum
from perfmodel.core.frozen import dataclass
from perfmodel.core.kept import cached_by_identity
from perfmodel.transformer.linear_attention import GatedDeltaNet, Mamba2
from perfmodel.transformer.weight_formats._base import MatrixFormat, Quantized

LayerFormats = tuple[tuple[str, MatrixFormat], ...]
"""Matrices of a layer that are not stored in the model's own format, by name."""


INDEX_GROUP, INDEX_SCALE = 128, 4
"""Elements of an indexer's key that share a scale, and its bytes."""


@dataclass(frozen=True, slots=True)
class Indexer:
    """The lightning indexer of DeepSeek's sparse attention: it scores every token, and attention sees only the ``topk`` best ones.

    Matrices: Q q_lora_rank -> heads x head_dim, one key hidden -> head_dim with a norm that has a bias, weights of the heads hidden ->
    heads. The score of a token is the weighted sum over heads of relu(q k). Keys are cached in fp8 with a scale per 128.
    Source: DeepSeek-V3.2 technical report (arXiv 2512.02556), section 2.1; vllm-project/vllm, DeepseekV32IndexerCache, 132 B a token.
    """

    heads: Number
    head_dim: Number
    topk: Number

    block: ClassVar[int] = 1
    sets: ClassVar[int] = 1
    query_size: ClassVar[int] = 1

    def divided(self, tp: int) -> Indexer:
        """The part on one of ``tp`` GPUs: all of it."""
        return self

    @property
    def key_bytes(self) -> Number:
        """Bytes of a cached key."""
        return self.head_dim + INDEX_SCALE * ceil_div(self.head_dim, INDEX_GROUP)


@dataclass(frozen=True, slots=True)
class BlockIndexer:
    """The indexer of MiniMax's sparse attention: each KV head sees the ``blocks`` best blocks of ``block`` keys, its own among them.

    Matrices, with the attention's own: Q hidden -> heads x head_dim, with as many heads as KV heads, and one key hidden -> head_dim;
    both pass a norm per head. The score of a block is its best key's. Keys are cached in 16 bits.
    Source: MiniMax Sparse Attention (arXiv 2606.13392); huggingface/transformers, modeling_minimax_m3_vl.py; vllm-project/vllm,
    minimax_m3.py.
    """

    heads: Number
    head_dim: Number
    blocks: Number
    block: Number

    query_size: ClassVar[int] = 2

    def divided(self, tp: int) -> BlockIndexer:
        """The part on one of ``tp`` GPUs; the key is copied, and heads are if there are more GPUs."""
        return replace(self, heads=maximum(self.heads // tp, 1))

    @property
    def topk(self) -> Number:
        """Keys of all blocks that are seen."""
        return self.blocks * self.block

    @property
    def sets(self) -> Number:
        """Sets of blocks that are picked for a query."""
        return self.heads

    @property
    def key_bytes(self) -> Number:
        """Bytes of a cached key."""
        return 2 * self.head_dim


class _Indexed:
    """Attention to all visible tokens, or to those that its ``indexer`` picks; it keeps no state."""

    __slots__ = ()

    state_bytes: ClassVar[int] = 0
    token_flops: ClassVar[int] = 0

    @property
    def topk(self: Any) -> Number | None:
        """Most tokens that a query sees; None for all."""
        return None if self.indexer is None else self.indexer.topk

    @property
    def index_bytes(self: Any) -> Number:
        """Indexer bytes per cached token, independent of the KV dtype."""
        return 0 if self.indexer is None else self.indexer.key_bytes


@dataclass(frozen=True, slots=True)
class GroupedAttention(_Indexed):
    """Query heads that share K and V in groups; multi-head with as many KV heads as heads, multi-query with one.

    Matrices: Q hidden -> heads x head_dim, K and V hidden -> kv_heads x head_dim, O heads x head_dim -> hidden. ``window``: a token sees at
    most this many of the last tokens, itself among them; None for all. ``qk_norm``: Q and K pass a norm with head_dim weights. ``sinks``: a
    learned score per head joins the softmax. ``shared_kv``: one matrix makes K and V, which are still stored separately (K is rotated and
    normed, V is not). ``output_gate``: the Q matrix is twice as wide and makes a gate, whose sigmoid scales the output. ``whole_norm``:
    with ``qk_norm``, one norm over all heads of Q and one over all heads of K (MiniMax-M2). ``rotated``: Q and K are rotated; not so where
    other layers order the tokens. ``indexer``: picks the blocks that are seen.
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
    output_gate: bool = False
    whole_norm: bool = False
    rotated: bool = True
    indexer: BlockIndexer | None = None

    def divided(self, tp: int) -> GroupedAttention:
        """The part on one of ``tp`` GPUs; KV heads are copied if there are more GPUs."""
        indexer = None if self.indexer is None else self.indexer.divided(tp)
        return replace(self, heads=self.heads // tp, kv_heads=maximum(self.kv_heads // tp, 1), indexer=indexer)

    @property
    def norm_weights(self) -> Number:
        """Learned numbers of the norms of Q and K."""
        return self.heads * self.head_dim + self.kv_heads * self.head_dim if self.whole_norm else 2 * self.head_dim

    @property
    def kept(self) -> Number:
        """Elements that a layer's cache keeps of one token."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def kind(self) -> str:
        """MHA, GQA or MQA, or with an indexer MSA."""
        if self.indexer is not None:
            return "MSA"
        if self.kv_heads == self.heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"


@dataclass(frozen=True, slots=True)
class LatentAttention(_Indexed):
    """Multi-head latent attention (DeepSeek-V2, section 2.1): a token keeps one latent vector and one rotated key.

    Matrices: Q hidden -> q_lora_rank -> heads x (nope + rope), or in one step without ``q_lora_rank``; latent and rotated key
    hidden -> kv_lora_rank + rope; K and V kv_lora_rank -> heads x (nope + v); O heads x v -> hidden. Each latent passes a norm.
    ``bias``: the matrices that read and write the hidden state have one (except Q in one step). ``indexer``: picks the tokens that
    are seen; every GPU has all of it.
    """

    heads: Number
    kv_lora_rank: Number
    q_lora_rank: Number | None
    qk_rope_head_dim: Number
    qk_nope_head_dim: Number
    v_head_dim: Number
    bias: bool = False
    indexer: Indexer | None = None

    window: ClassVar[None] = None

    def divided(self, tp: int) -> LatentAttention:
        """The part of one of ``tp`` GPUs."""
        return replace(self, heads=self.heads // tp)

    @property
    def kind(self) -> str:
        """MLA, or with an indexer DSA."""
        return "MLA" if self.indexer is None else "DSA"

    @property
    def kept(self) -> Number:
        """Elements that a layer's cache keeps of one token."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def qk_head_dim(self) -> Number:
        """Features of a query head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


AttentionLayer = GroupedAttention | LatentAttention | GatedDeltaNet | Mamba2
"""Operation that mixes the tokens of a layer. ``kept`` elements and ``index_bytes`` are per token, ``state_bytes`` per sequence."""


def visible(attention: AttentionLayer, kv_len: Number) -> Number:
    """Tokens of the last ``kv_len`` that a token sees and a layer has to keep."""
    return kv_len if attention.window is None else minimum(kv_len, attention.window)


def most_seen(attention: AttentionLayer) -> Number | None:
    """Keys that a token attends to at most; None for all."""
    return attention.window if attention.topk is None else attention.topk


def score_flops(attention: AttentionLayer, cached: bool) -> Number:
    """FLOP per layer, token and key it sees, over all heads.

    Attention over a cached latent moves K's and V's matrices to Q and O (DeepSeek-V2, section 2.1.2): a key is then kv_lora_rank + rope
    wide and a value kv_lora_rank. Without a cache K and V are built first, which costs less per score.

    >>> score_flops(GroupedAttention(heads=32, kv_heads=8, head_dim=128), cached=True)
    16384
    """
    if isinstance(attention, GroupedAttention):
        return 4 * attention.heads * attention.head_dim
    if not isinstance(attention, LatentAttention):
        return 0
    wide = attention.kv_lora_rank + attention.qk_rope_head_dim + attention.kv_lora_rank
    return 2 * attention.heads * (wide if cached else attention.qk_head_dim + attention.v_head_dim)


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """Plain: hidden -> width, activation, width -> hidden. Gated: two matrices hidden -> width, their product, width -> hidden."""

    width: Number
    gated: bool = True
    bias: bool = False
    activation: str = "silu"


@dataclass(frozen=True, slots=True)
class MoeMlp:
    """A mixture of ``experts`` MLPs of ``width``; a router hidden -> experts picks ``experts_per_token`` for each token.

    ``shared_width``: an MLP of that width sees every token besides (n shared experts are one n times as wide); 0 for none. ``shared_gate``:
    a vector of hidden weights scales its output. ``router_extra``: learned biases and scales of the router. ``bias``: whether the experts'
    matrices have biases.
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

    def shared_as_routed(self) -> MoeMlp:
        """This MLP with the shared expert as one more that is always picked, if it is as wide and has no gate; else unchanged."""
        if self.shared_width != self.width or self.shared_gate:
            return self
        return replace(self, experts=self.experts + 1, experts_per_token=self.experts_per_token + 1, shared_width=0)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. ``norms``: norms over the hidden state, 2 in most models. ``formats``: formats of its matrices in a quantized checkpoint.

    ``mlp``: None if the layer only mixes tokens.
    """

    attention: AttentionLayer
    mlp: DenseMlp | MoeMlp | None
    norms: Number = 2
    formats: LayerFormats = ()


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only language model: embedding, ``layers`` in order, a last norm, and a matrix hidden -> vocab.

    ``norm``: ``rms`` has one weight per feature, ``layer`` a weight and a bias. ``tied_embeddings``: the last matrix is the embedding.
    ``learned_positions``: a table of max_positions x hidden is added to the embedding; otherwise Q and K are rotated. ``native_dtype``:
    format of the published weights; None if the source does not say. ``quantized``: their narrower format, if any; ``head_format`` and
    ``table_format``: formats of the last matrix and the embedding. ``draft``: number of layers that predict further tokens, stored and not
    run. ``unread``: fields of the source that no rule knows.
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
    table_format: MatrixFormat | None = None
    draft: tuple[Layer, ...] = ()
    unread: tuple[str, ...] = ()
    source: str = ""

    @property
    def layer_kinds(self) -> list[tuple[Layer, int]]:
        """Each different layer with how often it occurs, in the order of first occurrence."""
        return list(_kinds(self.layers))

    @property
    def is_moe(self) -> bool:
        """Whether any layer routes tokens to experts."""
        return any(isinstance(layer.mlp, MoeMlp) for layer in self.layers)


@cached_by_identity
def _kinds(layers: tuple[Layer, ...]) -> tuple[tuple[Layer, int], ...]:
    same = Counter(map(id, layers))  # most are one object: equality is asked of few
    counts: dict[Layer, int] = {}
    for layer in {id(layer): layer for layer in layers}.values():
        counts[layer] = counts.get(layer, 0) + same[id(layer)]
    return tuple(counts.items())
