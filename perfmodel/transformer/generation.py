"""Cost of generating n tokens one by one, with a KV cache and without; throughput and latency of decode over the batch size.

Step t puts token t after t - 1 others. With a cache only that token passes through the layers and attends to the t tokens so far;
without one all t tokens do, each attending to those before it. In a model of width d that is O(n d^2 + n^2 d) against
O(n^2 d^2 + n^3 d); the terms with d^2 are the matrices, the others attention. The head runs on the last token only.
Counts are FLOP of matrix multiplication on visible scores, a multiply-add counts 2; one sequence.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from perfmodel.core.arith import Number, minimum
from perfmodel.core.roofline import rates_of
from perfmodel.core.trace import label
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.transformer.answer import ModelAnswer, answer
from perfmodel.transformer.estimate import all_ops, pass_needs
from perfmodel.transformer.kv_cache import CacheFormat, attended_bytes, attention_kinds, weight_bytes
from perfmodel.transformer.op import CACHE, WEIGHTS, total_bytes
from perfmodel.transformer.op_time import op_estimate, scaled
from perfmodel.transformer.parallel import step_memory
from perfmodel.transformer.parameters import active, head_matrix, layer_matrices
from perfmodel.transformer.sparse_rows import seen
from perfmodel.transformer.spec import AttentionLayer, ModelSpec, score_flops
from perfmodel.transformer.step import DECODE, Request


class Generation(NamedTuple):
    """FLOP of the layers' matrices, of the head and of attention; bytes of weights and cache that the steps read."""

    layers: Number
    head: Number
    attention: Number
    weights_read: Number
    cache_read: Number

    @property
    def flops(self) -> Number:
        """FLOP of all steps."""
        return self.layers + self.head + self.attention


def scores(n: Number, window: Number | None = None) -> Number:
    """Keys that tokens 1 .. n see, each itself included: sum of min(t, window).

    >>> scores(4), scores(4, 2)
    (10, 7)
    """
    if window is None:
        return n * (n + 1) // 2
    full = minimum(n, window)
    return full * (full + 1) // 2 + (n - full) * window


def scores_anew(n: Number, window: Number | None = None) -> Number:
    """Scores of all steps if step t computes the scores of all its t tokens: sum of ``scores(t)``.

    >>> scores_anew(4), sum(scores(t) for t in range(1, 5))
    (20, 20)
    >>> scores_anew(4, 2), sum(scores(t, 2) for t in range(1, 5))
    (16, 16)
    """
    if window is None:
        return n * (n + 1) * (n + 2) // 6
    in_window = minimum(n, window)
    beyond = n - in_window
    first_steps = in_window * (in_window + 1) * (in_window + 2) // 6
    return first_steps + beyond * (window * (window + 1) // 2) + window * (beyond * (beyond + 1) // 2)


def picked_anew(n: Number, topk: Number, block: Number) -> Number:
    """``scores_anew`` where an indexer picks ``topk`` keys in blocks: sum of ``seen(t, t, topk, block)`` over steps t.

    >>> picked_anew(9, 4, 2), sum(seen(t, t, 4, 2) for t in range(1, 10))
    (121, 121)
    """
    first = minimum(n, topk)  # steps in which every token sees all keys up to its own
    picking = n - first
    full_blocks = picking // block
    rest = picking - full_blocks * block
    by_first_steps = first * (first + 1) * (first + 2) // 6
    picked_before = picking * (topk * (topk + 1) // 2) + (topk - block) * (picking * (picking + 1) // 2)
    # keys of a token's own block, summed over its tokens and then over steps: of whole blocks, and of the last one of each step
    whole_blocks = block * (full_blocks * (full_blocks - 1) // 2) + full_blocks * (rest + 1)
    last_blocks = full_blocks * ((block - 1) * block * (block + 1) // 6) + rest * (rest + 1) * (rest + 2) // 6
    return by_first_steps + picked_before + whole_blocks * (block * (block + 1) // 2) + last_blocks


def index_flops(a: AttentionLayer) -> Number:
    """FLOP per token and key of an indexer's scores: all its heads."""
    return 0 if a.indexer is None else 2 * a.indexer.heads * a.indexer.head_dim


def scores_seen(a: AttentionLayer, n: Number) -> Number:
    """Keys that tokens 1 .. n attend to in one layer."""
    return scores(n, a.window) if a.topk is None else seen(n, n, a.topk, _block(a))


def _block(a: AttentionLayer) -> Number:
    """Number of keys that an indexer picks together."""
    return 1 if a.indexer is None else a.indexer.block


def attention_flops(a: AttentionLayer, n: Number) -> Number:
    """FLOP of one layer over ``n`` cached steps."""
    return score_flops(a, cached=True) * scores_seen(a, n) + index_flops(a) * scores(n) + a.token_flops * n


def attention_flops_anew(a: AttentionLayer, n: Number) -> Number:
    """FLOP of one layer over ``n`` steps without a cache; tokens picked by an indexer from more are attended to as latents."""
    expanded = score_flops(a, cached=False)
    if a.topk is None:
        return expanded * scores_anew(n, a.window) + a.token_flops * (n * (n + 1) // 2)
    before_picking = scores_anew(minimum(n, a.topk))
    while_picking = picked_anew(n, a.topk, _block(a)) - before_picking
    return expanded * before_picking + score_flops(a, cached=True) * while_picking + index_flops(a) * scores_anew(n)


def with_cache(spec: ModelSpec, n: Number, weights_dtype: str, form: CacheFormat) -> Generation:
    """FLOP and bytes of ``n`` steps of one token each; a step reads each weight that it uses once."""
    attention = sum(count * attention_flops(a, n) for a, count in attention_kinds(spec))
    return _generation(spec, n, weights_dtype, n, attention, cache_read(spec, n, form))


def cache_read(spec: ModelSpec, n: Number, form: CacheFormat) -> Number:
    """Bytes of cache that ``n`` steps of one token each read."""
    return sum(
        count * (attended_bytes(a, form) * scores_seen(a, n) + a.index_bytes * scores(n) + a.state_bytes * (n - 1))
        for a, count in attention_kinds(spec)
    )


def without_cache(spec: ModelSpec, n: Number, weights_dtype: str) -> Generation:
    """FLOP and bytes of ``n`` steps without a cache; step t runs over t tokens. A mixture of experts reads at least one token's experts."""
    attention = sum(count * attention_flops_anew(a, n) for a, count in attention_kinds(spec))
    return _generation(spec, n, weights_dtype, n * (n + 1) // 2, attention, 0)


def _generation(spec: ModelSpec, n: Number, weights_dtype: str, tokens: Number, attention: Number, cache_read: Number) -> Generation:
    """FLOP and bytes of ``n`` steps; ``tokens``: number of tokens that pass through the layers, over all steps."""
    matrices = sum(count * layer_matrices(spec, layer) for layer, count in spec.layer_kinds)
    layer_weights = label("W_layers", "weights a token meets in the layers", matrices)
    return Generation(
        layers=2 * layer_weights * tokens,
        head=2 * head_matrix(spec) * n,
        attention=attention,
        weights_read=n * weight_bytes(active(spec), weights_dtype),
        cache_read=cache_read,
    )


def heads_at_every_token(spec: ModelSpec, n: Number) -> Number:
    """FLOP of the head without a cache in programs that run it on every token of a step, not only on the last."""
    return 2 * head_matrix(spec) * (n * (n + 1) // 2)


class Measured(NamedTuple):
    """Published times to generate ``tokens`` tokens: mean and standard deviation in seconds."""

    model: str
    device: str
    tokens: int
    cached_s: tuple[float, float]
    uncached_s: tuple[float, float]
    source: str


MEASURED = (
    Measured("gpt2", "NVIDIA T4", 1000, (11.885, 0.272), (56.197, 1.855), "mean of 10 runs, J. Lages, blog on KV caching"),
    Measured("gpt2", "NVIDIA RTX A5000", 1000, (6.244, 0.258), (21.098, 0.252), "mean of runs, public repository"),
)


WEIGHTS_PART, CACHE_PART, COMPUTE_PART = "weights", "KV cache", "compute"
PAYS = 2**0.5
"""Least gain in tokens/s with which doubling the batch pays: half, in logarithms, of the largest possible gain."""
UNKNOWN_CAPACITY = 1024
"""Largest batch shown if the profile has no DRAM capacity, or nothing fits."""
LARGEST = 2**20


class BatchPoint(NamedTuple):
    """A decode step. ``parts``: seconds of weights and KV cache at DRAM bandwidth, and of arithmetic at the highest clock."""

    batch: int
    step: ModelAnswer
    parts: dict[str, float]
    memory: int
    fits: bool | None

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second over all sequences."""
        return self.step.tokens_per_s

    @property
    def bound(self) -> str:
        """Name of the largest part."""
        return max(self.parts, key=lambda name: self.parts[name])


class Curve(NamedTuple):
    """``knee``: smallest batch whose doubling gains less than ``PAYS`` by the bound, at most ``best``; None if it always pays."""

    request: Request
    points: Sequence[BatchPoint]
    knee: int | None
    max_batch: int | None

    @property
    def best(self) -> BatchPoint:
        """The first of the points with the most tokens/s."""
        return max(self.points, key=lambda point: point.tokens_per_s)


def curve(request: Request, fallbacks: FallbackDevices = tuple) -> Curve:
    """Decode at ``request.kv_len`` for batches 1, 2, 4, ... up to the largest that fits, including the knee and the largest."""
    r = replace(request, phase=DECODE).check()
    max_batch = step_memory(r.model, r.step(DECODE), r.device, r.reserve).max_batch
    most = max_batch or UNKNOWN_CAPACITY
    knee_batch = knee(r, most)
    batches = {2**power for power in range(min(most, LARGEST).bit_length())} | {most, knee_batch or most}
    points = [point(replace(r, batch=batch), fallbacks) for batch in sorted(batches)]
    decode_curve = Curve(r, points, knee_batch, max_batch)
    best = decode_curve.best.batch
    return decode_curve._replace(knee=best) if best < (knee_batch or most) else decode_curve


def point(r: Request, fallbacks: FallbackDevices) -> BatchPoint:
    """The decode step of request ``r``, with its parts and memory."""
    answered, rates = answer(r, fallbacks), rates_of(r.device, r.dtype)
    ops = [row.op for row in answered.rows]
    parts = {
        WEIGHTS_PART: float(total_bytes(ops, WEIGHTS) / rates.dram),
        CACHE_PART: float(total_bytes(ops, CACHE) / rates.dram),
        COMPUTE_PART: float(answered.cost.needs.work_s),
    }
    return BatchPoint(r.batch, answered, parts, answered.memory.total, answered.memory.fits)


def bound_s(r: Request, batch: int) -> float:
    """Least seconds of a decode step with that batch."""
    step = replace(r, batch=batch).step(DECODE)
    rows = [(op, scaled(op_estimate(op, r.device), op.count)) for op in all_ops(r.model, step)]
    return float(pass_needs(rows, step.split.pp).cold_s)


def knee(r: Request, most: int) -> int | None:
    """The smallest batch up to ``most`` beyond which doubling never pays; None if it still pays at ``most``.

    Doubling may pay again after it did not: in a mixture of experts, small batches touch more experts as they grow.
    """

    def pays(batch: int) -> bool:
        return 2 * bound_s(r, batch) / bound_s(r, 2 * batch) >= PAYS

    if pays(most):
        return None
    paying, not_paying = 0, most
    for batch in (2**power for power in reversed(range(most.bit_length()))):
        if pays(batch):
            paying = batch
            break
        not_paying = batch
    return bisect_left(range(not_paying), True, lo=paying + 1, key=lambda batch: not pays(batch))
