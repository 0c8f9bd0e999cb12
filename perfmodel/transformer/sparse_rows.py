"""Kernels of sparse attention with a lightning indexer (DeepSeek-V3.2, arXiv 2512.02556, section 2.1).

The indexer scores every token that a query may see, in fp8; the best ``topk`` are attended to. MiniMax's indexer (arXiv 2606.13392) picks
blocks of keys per KV head instead, for grouped attention.

Attention: up to ``topk`` tokens, all are selected and prefill runs as dense attention, as in SGLang (sgl-project/sglang, nsa_backend.py,
MHA up to index_topk tokens). Beyond, latents are attended to as in decode: each query reads its own ``topk`` and is timed as a separate
sequence with a cache of that length.

Scores: prefill's are timed as one fp8 product of all index heads side by side, which has the same FLOP, Q and result; decode's as a copy of
their bytes, nearly all of them cached keys. The selection is timed as one pass over the scores.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.arith import Number, ceil_div, minimum
from perfmodel.core.cost import READ, WRITE, Kernel, Work, matmul_work, once, stored
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.trace import plain
from perfmodel.core.workload import Attention
from perfmodel.kernels.latent_decode import LatentDecode
from perfmodel.kernels.matmul import Matmul
from perfmodel.transformer.op import ATTENTION, CACHE, ELEMENTWISE, FRESH, WEIGHTS, Op, Timed, activation, attend, linear
from perfmodel.transformer.operation import Matrix, Operation
from perfmodel.transformer.spec import BlockIndexer, GroupedAttention, Indexer, LatentAttention
from perfmodel.transformer.state_rows import StateRows
from perfmodel.transformer.step import DECODE

KEYS = 128
"""Keys of a block of scores. Source: deepseek-ai/DeepGEMM, fp8_mqa_logits."""
SCORE_SIZE = 4
"""Bytes of a score, of a head's weight and of an index."""


def seen(n: Number, kv_len: Number, most: Number | None = None, block: Number = 1) -> Number:
    """Keys that the last ``n`` of ``kv_len`` tokens see, summed over these tokens: each sees the keys up to its own.

    A token with more than ``most`` such keys sees picked blocks of ``block`` keys, ``most`` keys in all. Its own block is one of them, of
    which it sees the keys up to itself.

    >>> seen(4, 4), seen(1, 100), seen(3, 10), seen(3, 10, 9)
    (10, 100, 27, 26)
    >>> seen(6, 6, 4, 2), 1 + 2 + 3 + 4 + (2 + 1) + (2 + 2)
    (17, 17)
    """
    return _seen_by_first(kv_len, most, block) - _seen_by_first(kv_len - n, most, block)


def _seen_by_first(tokens: Number, most: Number | None, block: Number) -> Number:
    """``seen`` summed over the first ``tokens`` tokens."""
    if most is None:
        return tokens * (tokens + 1) // 2
    seeing_all = minimum(tokens, most)
    picking = tokens - seeing_all
    full_blocks = picking // block
    rest = picking - full_blocks * block
    in_own_block = full_blocks * (block * (block + 1) // 2) + rest * (rest + 1) // 2
    return seeing_all * (seeing_all + 1) // 2 + picking * (most - block) + in_own_block


def blocks_seen(n: Number, kv_len: Number, block: Number, most: Number | None = None) -> Number:
    """Blocks of ``block`` keys that the last ``n`` of ``kv_len`` tokens see, partial ones included; at most ``most`` per token.

    >>> blocks_seen(3, 5, 2), blocks_seen(3, 5, 2, 2), blocks_seen(4, 4, 1)
    (7, 6, 10)
    """
    return _blocks_seen_by_first(kv_len, block, most) - _blocks_seen_by_first(kv_len - n, block, most)


def _blocks_seen_by_first(tokens: Number, block: Number, most: Number | None) -> Number:
    """``blocks_seen`` summed over the first ``tokens`` tokens."""
    seeing_all = tokens if most is None else minimum(tokens, most * block)
    full_blocks = seeing_all // block
    rest = seeing_all - full_blocks * block
    by_seeing_all = block * (full_blocks * (full_blocks + 1) // 2) + rest * (full_blocks + 1)
    return by_seeing_all + (0 if most is None else (tokens - seeing_all) * most)


class SparseRows(StateRows):
    """Kernels of sparse attention: methods by kind of operation, for ``ops.Rows``."""

    @property
    def _latent(self) -> LatentAttention:
        assert isinstance(self.attended, LatentAttention)
        return self.attended

    @property
    def _index(self) -> Indexer | BlockIndexer:
        assert self.attended.indexer is not None
        return self.attended.indexer

    @property
    def _selects(self) -> bool:
        """Whether there are more tokens than attention sees."""
        topk = self.attended.topk
        return topk is not None and bool(self.step.kv_len > topk)

    @property
    def _absorbed(self) -> bool:
        """Whether attention runs on the latents, as in decode: W_UK is multiplied into Q, W_UV into the result.

        Source: DeepSeek-V2, section 2.1.2 and appendix B. Prefill, and any step without a cache, expands them to K and V, unless an
        indexer has picked some of them for each query.
        """
        return ((self.step.n == 1 or self.step.phase == DECODE) and self.step.cached) or self._selects

    def _absorbing(self, name: str, inputs: Number, outputs: Number, features: Number) -> Op:
        """The product of each head with its ``features`` columns of the matrix that expands latents."""
        a = self._latent
        matrix = Matrix("V", "attention", a.kv_lora_rank, a.heads * features, stored="self_attn.kv_b_proj")
        return linear(name, self.step, self.step.sequences * self.step.n, inputs, outputs, matrices=(matrix,), batch=a.heads)

    def index_keys(self, op: Operation) -> list[Op]:
        """Kernels of norm and rotation of the new keys for the indexer's cache, and of rotation of its Q to the format of the scores."""
        step, index, tokens = self.step, self._index, self.tokens
        queries = index.heads * index.head_dim
        accesses = (
            activation(READ, tokens * (index.head_dim + queries), step),
            stored(WEIGHTS, READ, op.vectors, step.weight_bits),
            once(CACHE if step.cached else FRESH, WRITE, tokens * index.key_bytes, 1),
            once("activations", WRITE, tokens * queries, index.query_size),
        )
        return [self._copied(op.kernel, ELEMENTWISE, accesses, Work(0, tokens * (6 * index.head_dim + 3 * queries)))]

    def _scored(self) -> Number:
        """Number of scores that are written: one per token, or one per block and head."""
        return self.step.sequences * self._index.sets * blocks_seen(self.step.n, self.step.kv_len, self._index.block)

    def index_scores(self, op: Operation) -> list[Op]:
        """Kernels of the scores of all heads, and their weighted sum per token."""
        step, index = self.step, self._index
        pairs = step.sequences * seen(step.n, step.kv_len)
        compute_dtype = DTYPES["fp8"] if index.query_size == 1 else None
        flops = 2 * pairs * index.heads * index.head_dim
        head_weight_bytes = SCORE_SIZE if isinstance(index, Indexer) else 0
        accesses = (
            once("activations", READ, self._new_tokens * index.heads * (index.head_dim * index.query_size + head_weight_bytes), 1),
            once(self._key_tensor, READ, step.sequences * step.kv_len * index.key_bytes, 1),
            once("activations", WRITE, SCORE_SIZE * self._scored(), 1),
        )
        products = matmul_work(step.dtype, flops)
        work = Work(products.tensor, products.vector + 2 * pairs * index.heads, products.sfu)
        kernel = Kernel(op.kernel, step.dtype, accesses, flops, flops, work, products)
        if self._decodes:
            timed = self._copied(op.kernel, ATTENTION, accesses, work).timed
        else:
            columns = KEYS * ceil_div(pairs, KEYS * self._new_tokens)  # whole blocks of keys, as such kernels take them
            w = Matmul(step.n, columns, index.heads * index.head_dim, step.sequences, dtype=step.dtype)
            timed = Timed("matmul", w, step.kernels.products)
            if compute_dtype is not None:
                timed = timed._replace(preferred=Timed("matmul", replace(w, dtype=compute_dtype), step.kernels.narrow_products))
        return [Op(op.kernel, ATTENTION, 1, kernel, timed, compute_dtype), *self._rows_beside(op)]

    @property
    def _key_tensor(self) -> str:
        """Tensor that holds the keys which attention or an indexer reads: the cache, or those that the step itself has made."""
        return CACHE if self._continued else FRESH

    def select(self, op: Operation) -> list[Op]:
        """Kernel that picks the best tokens of each query."""
        scores, picked = self._scored(), self._picked()
        accesses = (once("activations", READ, SCORE_SIZE * scores, 1), once("activations", WRITE, SCORE_SIZE * picked, 1))
        return [self._copied(op.kernel, ELEMENTWISE, accesses, Work(0, scores)), *self._rows_beside(op)]

    def _picked(self) -> Number:
        """Number of indices picked for all queries."""
        step, index = self.step, self._index
        return step.sequences * index.sets * blocks_seen(step.n, step.kv_len, index.block, index.topk // index.block)

    def _blocks_attended(self, w: Attention) -> Op:
        """Attention ``w`` of each query to the blocks picked for its KV head, timed like a window of as many keys.

        The kernel has a tile of the queries of a group, like one with a window (MiniMax-AI/MSA).
        """
        a, step = self.attended, self.step
        assert isinstance(a, GroupedAttention)
        assert a.topk is not None
        pairs = step.sequences * seen(step.n, step.kv_len, a.topk, self._index.block)
        read, cached = pairs * a.kept, step.sequences * step.kv_len * a.kept
        distinct = stored(self._key_tensor, READ, minimum(read, cached), step.kv_bits).elements
        accesses = (
            activation(READ, self._new_tokens * a.heads * a.head_dim, step, "Q"),
            stored(self._key_tensor, READ, read, step.kv_bits)._replace(footprint=distinct, compulsory=distinct),
            once("activations", READ, SCORE_SIZE * self._picked(), 1),
            activation(WRITE, self._new_tokens * a.heads * a.head_dim, step, "O"),
        )
        flops = 4 * a.heads * a.head_dim * pairs
        name, work = f"attention, top {plain(a.topk)}", matmul_work(step.dtype, flops)
        windowed = attend(replace(w, window=a.topk), step)
        return replace(windowed, name=name, kernel=Kernel(name, step.dtype, accesses, flops, flops, work, work))

    def _selected(self) -> Op:
        """Attention of each query to the latents picked for it."""
        a, step = self._latent, self.step
        pairs, queries = step.sequences * seen(step.n, step.kv_len, a.topk), self._new_tokens * a.heads
        flops = 2 * a.heads * pairs * (a.kept + a.kv_lora_rank)
        bits = step.kv_bits if step.cached else 8 * step.dtype.size
        distinct = stored(self._key_tensor, READ, minimum(pairs, step.sequences * step.kv_len) * a.kept, bits).elements
        accesses = (
            activation(READ, queries * a.kept, step, "Q"),
            stored(self._key_tensor, READ, pairs * a.kept, bits)._replace(footprint=distinct, compulsory=distinct),
            once("activations", READ, SCORE_SIZE * pairs, 1),
            activation(WRITE, queries * a.kv_lora_rank, step, "O"),
        )
        name, work = f"attention, top {plain(self._index.topk)}", matmul_work(step.dtype, flops)
        w = LatentDecode(
            batch=self._new_tokens,
            heads=a.heads,
            kv_len=self._index.topk,
            kv_lora_rank=a.kv_lora_rank,
            rope=a.qk_rope_head_dim,
            dtype=step.dtype,
            kv_bits=bits,
            appends=False,
        )
        obstacle = "" if bits in (8, 16) and not step.integer_kv else f"no kernel with a {bits}-bit integer cache is calibrated"
        timed = Timed("latent-attention", w, step.kernels.latent_attention, obstacle)
        compute_dtype = DTYPES["fp8"] if bits == 8 and step.dtype.size == 2 and not step.integer_kv else None
        return Op(name, ATTENTION, 1, Kernel(name, step.dtype, accesses, flops, flops, work, work), timed, compute_dtype)
