"""The KV cache: bytes per token, sequence and batch, and the batch or context that fits beside the weights.

A layer of grouped attention keeps K and V of each KV head. A layer of latent attention keeps one latent vector and one rotated key, shared
by all heads. A layer with a window keeps only the last tokens. An indexer keeps its own key per token; a layer of linear attention keeps a
state per sequence and nothing per token. Sources: Pope et al. 2022 (arXiv 2211.05102), section 3.3, for grouped heads; DeepSeek-V2 (arXiv
2405.04434), section 2.1.4, for the latent; PagedAttention (arXiv 2309.06180) for blocks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from perfmodel.core.arith import Number, ceil_div, maximum, minimum
from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.frozen import dataclass
from perfmodel.core.trace import label, plain
from perfmodel.core.workload import LARGEST_SIZE
from perfmodel.transformer.spec import AttentionLayer, GroupedAttention, LatentAttention, ModelSpec

BITS = {"fp32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8, "int4": 4}
"""Bits of a stored element, by number format."""
INTEGERS = ("int8", "int4")
"""Formats that are dequantized before the multiplication."""

SCALE_SIZE = 4
"""Bytes of a scale that quantized elements share: fp32, as in FlashMLA's FP8 cache."""


def bits_of(option: str, name: str) -> int:
    """Bits per element of the format ``name``; UsageError names ``option`` and the formats."""
    if name not in BITS:
        raise UsageError(f"--{option}: unknown dtype {name!r}", suggest(name, list(BITS)))
    return BITS[name]


class CacheFormat(NamedTuple):
    """Format in which a cache is stored.

    ``dtype``: format of the elements; ``rope_dtype``: format of latent attention's rotated key. ``block_size``: tokens per page; a sequence
    takes whole pages. ``scale_group``: elements of a head or a latent that share a scale of 4 B; None for no scales.
    """

    dtype: str = "fp16"
    rope_dtype: str | None = None
    block_size: Number = 1
    scale_group: Number | None = None


def vector_bytes(elements: Number, bits: int, scale_group: Number | None = None) -> Number:
    """Bytes of a vector of ``elements`` of ``bits`` bits, with its scales.

    >>> vector_bytes(128, 16), vector_bytes(128, 4), vector_bytes(512, 8, scale_group=128)
    (256, 64, 528)
    """
    stored = elements * (bits // 8) if bits % 8 == 0 else ceil_div(elements, 8 // bits)
    return stored if scale_group is None else stored + SCALE_SIZE * ceil_div(elements, scale_group)


def layer_token_bytes(attention: AttentionLayer, form: CacheFormat) -> Number:
    """Bytes that one layer keeps per token, an indexer's key included; 0 for a layer with a state."""
    return attended_bytes(attention, form) + attention.index_bytes


def attended_bytes(attention: AttentionLayer, form: CacheFormat) -> Number:
    """Bytes per token that attention reads: all but an indexer's key."""
    bits = BITS[form.dtype]
    if isinstance(attention, GroupedAttention):
        return 2 * attention.kv_heads * vector_bytes(attention.head_dim, bits, form.scale_group)
    if not isinstance(attention, LatentAttention):
        return 0
    rotated = vector_bytes(attention.qk_rope_head_dim, BITS[form.rope_dtype or form.dtype])
    return vector_bytes(attention.kv_lora_rank, bits, form.scale_group) + rotated


def stored_tokens(n: Number, window: Number | None, block_size: Number) -> Number:
    """Tokens for which a layer holds memory in a sequence of ``n`` tokens: whole blocks; blocks outside the window are freed.

    >>> stored_tokens(1000, None, 16), stored_tokens(8192, 4096, 16), stored_tokens(8200, 4096, 16)
    (1008, 4096, 4112)
    """
    gone = 0 if window is None else maximum(n - window, 0) // block_size
    return (ceil_div(n, block_size) - gone) * block_size


def most_stored_tokens(n: Number, window: Number | None, block_size: Number) -> Number:
    """Largest ``stored_tokens`` while a sequence grows to ``n`` tokens: a window can overlap one block more than it fills.

    >>> most_stored_tokens(1000, None, 16), most_stored_tokens(8192, 4096, 16), most_stored_tokens(8192, 4096, 1)
    (1008, 4112, 4096)
    """
    blocks = ceil_div(n, block_size)
    if window is not None:
        blocks = minimum(blocks, ceil_div(window - 1, block_size) + 1)
    return blocks * block_size


@dataclass(frozen=True, slots=True)
class LayerCache:
    """``count`` equal layers. Per layer: elements and bytes of a token, and ``tokens`` held.

    ``bytes``: bytes of a sequence in all ``count`` layers. A token's bytes include an indexer's key, a sequence's bytes a state.
    """

    attention: AttentionLayer
    count: int
    elements_per_token: Number
    bytes_per_token: Number
    tokens: Number
    bytes: Number


Kinds = Sequence[tuple[AttentionLayer, int]]


def attention_kinds(spec: ModelSpec) -> Kinds:
    """Each different attention with the number of its layers."""
    kinds: dict[AttentionLayer, int] = {}
    for layer, count in spec.layer_kinds:
        kinds[layer.attention] = kinds.get(layer.attention, 0) + count
    return list(kinds.items())


def layer_caches(kinds: Kinds, n: Number, form: CacheFormat, tokens: Callable[..., Number] = stored_tokens) -> list[LayerCache]:
    """The cache of one sequence of ``n`` tokens, one entry for each kind of attention."""
    caches = []
    for attention, count in kinds:
        prefix = kind_label(attention)
        size = label(f"{prefix} per token", "B in one layer", layer_token_bytes(attention, form))
        held = label(f"{prefix} tokens", "tokens held", tokens(n, attention.window, form.block_size))
        state = attention.state_bytes
        per_layer = size * held + label(f"{prefix} state", "B in one layer", state) if state else size * held
        total = label(f"{prefix} sequence", f"B in {count} layers", count * per_layer)
        caches.append(LayerCache(attention, count, attention.kept, size, held, total))
    return caches


def kind_label(attention: AttentionLayer) -> str:
    """Name of an attention kind, such as ``GQA`` or ``GQA window 4096``."""
    return attention.kind + ("" if attention.window is None else f" window {plain(attention.window)}")


def token_bytes(spec: ModelSpec, form: CacheFormat) -> Number:
    """Bytes that one token adds over all layers, as long as no window is full."""
    return sum(count * layer_token_bytes(attention, form) for attention, count in attention_kinds(spec))


def sequence_bytes(spec: ModelSpec, n: Number, form: CacheFormat) -> Number:
    """Bytes of one sequence of ``n`` tokens."""
    return sum(cache.bytes for cache in layer_caches(attention_kinds(spec), n, form))


def batch_bytes(spec: ModelSpec, n: Number, batch: Number, form: CacheFormat) -> Number:
    """Bytes of ``batch`` sequences of ``n`` tokens, none shared."""
    return batch * sequence_bytes(spec, n, form)


def weight_bytes(parameters: Number, dtype: str) -> Number:
    """Bytes of the weights, without scales.

    >>> weight_bytes(6738415616, "fp16")
    13476831232
    """
    return vector_bytes(parameters, BITS[dtype])


def largest_batch(room: Number, each: Number, growing: Callable[[int], Number] | None = None) -> Number:
    """The most sequences whose caches of ``each`` bytes fit in ``room`` bytes; 0 if none does.

    ``growing``: function that gives further bytes for a number of sequences. They are about proportional to it, so the search interpolates.
    """
    if growing is None:
        return maximum(room, 0) // each

    def left(batch: int) -> Number:
        """Bytes that ``batch`` sequences leave free; negative if they do not fit."""
        return room - batch * each - growing(batch)

    fits, left_by_fits = 1, left(1)
    if left_by_fits < 0:
        return 0
    beyond = int(room // (each + growing(1))) + 1
    while (left_by_beyond := left(beyond)) >= 0:
        fits, left_by_fits, beyond = beyond, left_by_beyond, 2 * beyond
    while beyond - fits > 1:
        by_line = int((beyond - fits) * left_by_fits / (left_by_fits - left_by_beyond))
        between = fits + min(max(by_line, 1), beyond - fits - 1)
        left_by_between = left(between)
        if left_by_between >= 0:
            fits, left_by_fits = between, left_by_between
        else:
            beyond, left_by_beyond = between, left_by_between
    return fits


def longest_context(room: int, spec: ModelSpec, batch: int, form: CacheFormat) -> int | None:
    """The most tokens to which each of ``batch`` sequences can grow in ``room`` bytes; None if every layer has a window that fits."""

    kinds = attention_kinds(spec)

    def fits(n: int) -> bool:
        return bool(batch * sum(cache.bytes for cache in layer_caches(kinds, n, form, most_stored_tokens)) <= room)

    if fits(LARGEST_SIZE):
        return None
    return bisect_left(range(LARGEST_SIZE), True, lo=1, key=lambda n: not fits(n)) - 1


def equivalent_kv_heads(attention: LatentAttention) -> Number:
    """Number of KV heads with which grouped attention keeps as many elements (DeepSeek-V2, Table 1).

    Its heads are as wide as the unrotated keys.

    >>> equivalent_kv_heads(LatentAttention(128, 512, 1536, 64, 128, 128))
    2.25
    """
    return attention.kept / (2 * attention.qk_nope_head_dim)
