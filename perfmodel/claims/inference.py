"""Claims about inference with a KV cache: its size, what it saves, and heads that share it."""

from __future__ import annotations

from perfmodel.arith import Number
from perfmodel.attention.base import key_rows_stored
from perfmodel.claims.base import INCOMPLETE, WRONG, Claim, Figure
from perfmodel.claims.devices import dram_bandwidth
from perfmodel.claims.formulas import quotient
from perfmodel.transformer.generation import Generation, with_cache, without_cache
from perfmodel.transformer.kv_cache import CacheFormat
from perfmodel.transformer.spec import DenseMlp, GroupedAttention, Layer, ModelSpec
from perfmodel.workload import Attention

NOTES = "lecture notes on transformer inference"
SHAZEER = f"{NOTES}, after Shazeer 2019 (multi-query attention), arXiv 1911.02150"


def kv_elements(batch: Number, n: Number, kv_heads: Number, d: Number) -> Number:
    """K and V of one layer.

    >>> kv_elements(1, 1, 12, 64)
    1536
    """
    return key_rows_stored(Attention(n=1, kv_len=n, d=d, dv=d, batch=batch, heads=kv_heads, kv_heads=kv_heads)) * 2 * d


def kv_bytes(batch: Number, n: Number, kv_heads: Number, d: Number, layers: Number, size: Number) -> Number:
    """K and V of all layers: 2 B n H_kv d L bytes."""
    return kv_elements(batch, n, kv_heads, d) * layers * size


def _generations(n: Number, d: Number) -> tuple[Generation, Generation]:
    """``n`` tokens from one layer of 12 d^2 weights, with a cache and without."""
    layer = Layer(GroupedAttention(1, 1, d), DenseMlp(4 * d, gated=False))
    spec = ModelSpec("one layer", "gpt2", d, 1, (layer,))
    return with_cache(spec, n, "fp16", CacheFormat()), without_cache(spec, n, "fp16")


def cached_flops(n: Number, d: Number) -> Number:
    """FLOP per layer to generate ``n`` tokens with a cache: 12 d^2 weights per token, and attention to all tokens so far.

    >>> cached_flops(10, 64) == sum(12 * 2 * 64**2 + 4 * 64 * t for t in range(1, 11))
    True
    """
    return _generations(n, d)[0].layers + _generations(n, d)[0].attention


def uncached_flops(n: Number, d: Number) -> Number:
    """The same when step t runs the forward pass over t tokens anew, each of which sees those before it.

    >>> steps = [12 * 2 * t * 64**2 + 4 * 64 * t * (t + 1) // 2 for t in range(1, 11)]
    >>> uncached_flops(10, 64) == sum(steps)
    True
    """
    return _generations(n, d)[1].layers + _generations(n, d)[1].attention


def layer_parameters(d: Number, kv_heads: Number, heads: Number, head_dim: Number, hidden: Number) -> Number:
    """Weights of one layer's attention (Q, K, V, O) and two-matrix feed-forward part."""
    return 2 * d * head_dim * (heads + kv_heads) + 2 * d * hidden


def _step_floor(parameters: Number, size: Number, bandwidth: Number) -> Number:
    """Seconds to read every weight once."""
    return parameters * size / bandwidth


_TABLE = (
    ("multi-head", 8, 8, 128, 8192),
    ("multi-query", 8, 1, 128, 9088),
    ("1 head", 1, 1, 128, 9984),
    ("2 heads", 2, 2, 64, 9984),
    ("4 heads", 4, 4, 32, 9984),
    ("8 heads", 8, 8, 16, 9984),
)
_TOKEN = {"batch": 1, "n": 1, "kv_heads": 12, "d": 64, "layers": 12, "size": 2}

CLAIMS = (
    Claim(
        "S059",
        NOTES,
        "A KV cache reduces the forward pass from O(n^2 d^2) to O(n d^2).",
        claimed="n^2 d^2 to n d^2",
        declared=INCOMPLETE,
        why="That is n tokens, no attention. With it O(n^2 d^2 + n^3 d) to O(n d^2 + n^2 d), one step O(n d^2 + n^2 d) to O(d^2 + n d).",
        inputs={"n": 1000, "d": 768},
        figures=(
            Figure("without a cache", uncached_flops, unit="FLOP"),
            Figure("with one", cached_flops, unit="FLOP"),
            Figure("saved", lambda n, d: uncached_flops(n, d) / cached_flops(n, d), unit="x", formula="without a cache / with one"),
        ),
        uses=(with_cache, without_cache),
    ),
    Claim(
        "S060",
        NOTES,
        "Ten generation steps of GPT-2 on a T4 take 56.197 s without and 11.885 s with a KV cache.",
        claimed="10 steps",
        declared=WRONG,
        why="Means of 10 runs of 1000 tokens each: 11.9 ms per token with the cache, launch bound; reading the weights takes 1.55 ms.",
        inputs={"before": 56.197, "after": 11.885, "parameters": 124_439_808, "size": 4, "bandwidth": dram_bandwidth("nvidia-t4")},
        figures=(
            Figure("speed-up", quotient, unit="x"),
            Figure("weights read once, fp32", _step_floor, unit="s"),
        ),
        uses=(quotient,),
    ),
    Claim(
        "S061",
        NOTES,
        "A KV cache takes 2BndH of memory.",
        claimed="2BndH",
        declared=INCOMPLETE,
        why="Elements of one layer: times layers and bytes per element, and with the KV heads, not the query heads.",
        inputs=_TOKEN,
        figures=(
            Figure("one layer", kv_elements, lambda batch, n, kv_heads, d: 2 * batch * n * d * kv_heads, "elements"),
            Figure("GPT-2, per token", kv_bytes, unit="B"),
            Figure("Llama-2-7B, per token", kv_bytes, unit="B", at={"kv_heads": 32, "d": 128, "layers": 32}),
            Figure("Llama-2-70B (8 KV heads), per token", kv_bytes, unit="B", at={"kv_heads": 8, "d": 128, "layers": 80}),
        ),
        uses=(key_rows_stored,),
    ),
    Claim(
        "S062",
        SHAZEER,
        "Hidden widths of 8192, 9088 and 9984 make the six models equally large.",
        claimed="equally large",
        why="20,971,520 weights of attention and feed-forward part per layer, for d_model = 1024.",
        inputs={"d": 1024},
        figures=tuple(
            Figure(
                name,
                layer_parameters,
                lambda d: 4 * d * d + 2 * d * 8192,
                "weights",
                at={"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "hidden": hidden},
            )
            for name, heads, kv_heads, head_dim, hidden in _TABLE
        ),
        uses=(layer_parameters,),
    ),
    Claim(
        "S063",
        f"{NOTES}, on grouped-query attention",
        "Grouping H heads r to one leaves H/r KV heads.",
        claimed="H/r",
        inputs={"batch": 1, "n": 4096, "d": 128, "heads": 64, "group": 8},
        figures=(
            Figure(
                "KV elements",
                lambda batch, n, d, heads, group: kv_elements(batch, n, heads // group, d),
                lambda batch, n, d, heads, group: kv_elements(batch, n, heads, d) / group,
                "elements",
            ),
        ),
        uses=(key_rows_stored,),
    ),
    Claim(
        "S064",
        f"{NOTES}, on multi-query attention",
        "Multi-query attention keeps one KV head.",
        claimed="one KV head",
        why="2Bnd elements per layer, a factor H fewer than with a KV head per query head.",
        inputs={"batch": 1, "n": 4096, "d": 128, "kv_heads": 1, "heads": 32},
        figures=(
            Figure("KV elements", kv_elements, lambda batch, n, d: 2 * batch * n * d, "elements"),
            Figure(
                "factor",
                lambda batch, n, d, heads, kv_heads: kv_elements(batch, n, heads, d) / kv_elements(batch, n, kv_heads, d),
                lambda heads: heads,
                "x",
            ),
        ),
        uses=(key_rows_stored,),
    ),
)
