"""Kernels of sparse attention with a lightning indexer (DeepSeek-V3.2, arXiv 2512.02556, section 2.1).

The indexer scores every token that a query may see, in fp8; the best ``topk`` are attended to. Up to ``topk`` tokens all are selected,
and prefill runs as dense attention, as SGLang does (sgl-project/sglang, nsa_backend.py, MHA up to index_topk tokens). Beyond, latents
are attended to as in decode: each query reads its own ``topk``, and is timed as a sequence of its own with a cache of that length.
Scores of prefill are timed as one fp8 product of all index heads side by side, which has as many FLOP, as large a Q and a result;
those of decode as a copy of their bytes, nearly all of them cached keys. The selection is timed as one pass over the scores.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.arith import Number, ceil_div, minimum
from perfmodel.core.cost import READ, WRITE, Kernel, Work, matmul_work, once, stored
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.trace import plain
from perfmodel.kernels.latent_decode import LatentDecode
from perfmodel.kernels.matmul import Matmul
from perfmodel.transformer.op import ATTENTION, CACHE, ELEMENTWISE, FRESH, WEIGHTS, Op, Timed, activation
from perfmodel.transformer.operation import Operation
from perfmodel.transformer.spec import Indexer, LatentAttention
from perfmodel.transformer.state_rows import StateRows

KEYS = 128
"""Keys of a block of scores. Source: deepseek-ai/DeepGEMM, fp8_mqa_logits."""
SCORE_SIZE = 4
"""Bytes of a score, of a head's weight and of an index."""


def seen(n: Number, kv_len: Number, most: Number | None = None) -> Number:
    """Keys that the last ``n`` of ``kv_len`` tokens see, each those up to its own, at most ``most``.

    >>> seen(4, 4), seen(1, 100), seen(3, 10), seen(3, 10, 9)
    (10, 100, 27, 26)
    """
    before = kv_len - n
    if most is None:
        return n * before + n * (n + 1) // 2
    below, full = minimum(before, most), minimum(kv_len, most)
    return (full * (full + 1) - below * (below + 1)) // 2 + (kv_len - before - (full - below)) * most


class SparseRows(StateRows):
    """Their methods by kind of operation, for ``ops.Rows``."""

    @property
    def _latent(self) -> LatentAttention:
        assert isinstance(self.attended, LatentAttention)
        return self.attended

    @property
    def _index(self) -> Indexer:
        assert self._latent.indexer is not None
        return self._latent.indexer

    @property
    def _selects(self) -> bool:
        """Whether there are more tokens than attention sees."""
        a = self.attended
        return isinstance(a, LatentAttention) and a.topk is not None and bool(self.step.kv_len > a.topk)

    def index_keys(self, op: Operation) -> list[Op]:
        """Norm and rotation of the new keys, which go to the indexer's cache, and rotation of its Q; both leave in fp8."""
        step, index, tokens = self.step, self._index, self.tokens
        queries = index.heads * index.head_dim
        accesses = (
            activation(READ, tokens * (index.head_dim + queries), step),
            stored(WEIGHTS, READ, op.vectors, step.weight_bits),
            once(CACHE if step.cached else FRESH, WRITE, tokens * index.key_bytes, 1),
            once("activations", WRITE, tokens * queries, 1),
        )
        return [self._copied(op.kernel, ELEMENTWISE, accesses, Work(0, tokens * (6 * index.head_dim + 3 * queries)))]

    def _scored(self) -> Number:
        return self.step.sequences * seen(self.step.n, self.step.kv_len)

    def index_scores(self, op: Operation) -> list[Op]:
        """Scores of all heads, their weighted sum per token."""
        step, index = self.step, self._index
        pairs, fp8 = self._scored(), DTYPES["fp8"]
        flops = 2 * pairs * index.heads * index.head_dim
        kept = CACHE if step.cached and step.kv_len > step.n else FRESH
        accesses = (
            once("activations", READ, self._own * index.heads * (index.head_dim + SCORE_SIZE), 1),
            once(kept, READ, step.sequences * step.kv_len * index.key_bytes, 1),
            once("activations", WRITE, SCORE_SIZE * pairs, 1),
        )
        tensor = matmul_work(step.dtype, flops)
        work = Work(tensor.tensor, tensor.vector + 2 * pairs * index.heads, tensor.sfu)
        kernel = Kernel(op.kernel, step.dtype, accesses, flops, flops, work, work)
        if self._decodes:
            return [Op(op.kernel, ATTENTION, 1, kernel, self._copied(op.kernel, ATTENTION, accesses, work).timed, fp8), *self._beside(op)]
        columns = KEYS * ceil_div(pairs, KEYS * self._own)  # whole blocks of keys, as such kernels take them
        same = Matmul(step.n, columns, index.heads * index.head_dim, step.sequences, dtype=step.dtype)
        narrow = Timed("matmul", replace(same, dtype=fp8), step.kernels.narrow_products)
        return [Op(op.kernel, ATTENTION, 1, kernel, Timed("matmul", same, step.kernels.products, preferred=narrow), fp8), *self._beside(op)]

    def select(self, op: Operation) -> list[Op]:
        """The best tokens of each query."""
        step, pairs = self.step, self._scored()
        picked = step.sequences * seen(step.n, step.kv_len, self._index.topk)
        accesses = (once("activations", READ, SCORE_SIZE * pairs, 1), once("activations", WRITE, SCORE_SIZE * picked, 1))
        return [self._copied(op.kernel, ELEMENTWISE, accesses, Work(0, pairs)), *self._beside(op)]

    def _selected(self) -> Op:
        """Attention of each query to the latents that were picked for it."""
        a, step = self._latent, self.step
        pairs, queries = step.sequences * seen(step.n, step.kv_len, a.topk), self._own * a.heads
        flops = 2 * a.heads * pairs * (a.kept + a.kv_lora_rank)
        kept = CACHE if step.cached and step.kv_len > step.n else FRESH
        bits = step.kv_bits if step.cached else 8 * step.dtype.size
        distinct = stored(kept, READ, minimum(pairs, step.sequences * step.kv_len) * a.kept, bits).elements
        accesses = (
            activation(READ, queries * a.kept, step, "Q"),
            replace(stored(kept, READ, pairs * a.kept, bits), footprint=distinct, compulsory=distinct),
            once("activations", READ, SCORE_SIZE * pairs, 1),
            activation(WRITE, queries * a.kv_lora_rank, step, "O"),
        )
        work = matmul_work(step.dtype, flops)
        name = f"attention, top {plain(self._index.topk)}"
        same = LatentDecode(self._own, a.heads, self._index.topk, a.kv_lora_rank, a.qk_rope_head_dim, 1, step.dtype, bits, False)
        obstacle = "" if bits in (8, 16) and not step.integer_kv else f"no kernel with a {bits}-bit integer cache is calibrated"
        timed = Timed("latent-attention", same, step.kernels.latent_attention, obstacle)
        form = DTYPES["fp8"] if bits == 8 and step.dtype.size == 2 and not step.integer_kv else None
        return Op(name, ATTENTION, 1, Kernel(name, step.dtype, accesses, flops, flops, work, work), timed, form)
