"""Activation memory of a GPT in 16 bits with dropout, by published formulas, which leave out norm statistics and 16-bit logits.

Source: Korthikanti et al. 2022, arXiv 2205.05198, sections 4 and 5, Table 2, equations 1 to 6. s: sequence, b: micro-batch, h: hidden,
a: heads, L: layers, t: tensor-parallel GPUs, p: pipeline stages, m: interleaved chunks, v: vocabulary. The MLP is 4 h wide and not gated.
``implementations.saved_tensors`` counts the tensors that a given model keeps; for a GPT the two agree up to the statistics of norms.
"""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.core.frozen import dataclass
from perfmodel.transformer.spec import DenseMlp, GroupedAttention, ModelSpec
from perfmodel.transformer.training.question import FULL, NONE, TrainingConfig

TENSOR, SEQUENCE = "tensor", "sequence"
"""How tensor-parallel GPUs divide a tensor: by heads or columns (always), or by tokens (only with sequence parallelism)."""


@dataclass(frozen=True, slots=True)
class Term:
    """A tensor of one layer: ``linear`` x sbh + ``quadratic`` x a s^2 b bytes."""

    part: str
    name: str
    linear: int
    quadratic: int
    divided: str


TERMS = (
    Term("attention", "input of Q, K, V", 2, 0, SEQUENCE),
    Term("attention", "Q and K", 4, 0, TENSOR),
    Term("attention", "softmax", 0, 2, TENSOR),
    Term("attention", "mask of the softmax's dropout", 0, 1, TENSOR),
    Term("attention", "softmax after dropout", 0, 2, TENSOR),
    Term("attention", "V", 2, 0, TENSOR),
    Term("attention", "input of the output projection", 2, 0, TENSOR),
    Term("attention", "mask of the dropout after attention", 1, 0, SEQUENCE),
    Term("MLP", "input of the first matrix", 2, 0, SEQUENCE),
    Term("MLP", "input of GELU", 8, 0, TENSOR),
    Term("MLP", "input of the second matrix", 8, 0, TENSOR),
    Term("MLP", "mask of the dropout after the MLP", 1, 0, SEQUENCE),
    Term("layer norms", "input of the first", 2, 0, SEQUENCE),
    Term("layer norms", "input of the second", 2, 0, SEQUENCE),
)


def layer_bytes(s: Number, b: Number, h: Number, a: Number, t: Number = 1, *, sp: bool = False, recompute: str = NONE) -> Number:
    """Bytes of one layer on one GPU, Table 2: sbh (34 + 5 a s / h) without parallelism, 2 sbh if all of it is recomputed.

    >>> 34 * 2048 * 12288 + 5 * 96 * 2048**2 == layer_bytes(2048, 1, 12288, 96)
    True
    >>> kinds = [(sp, kind) for sp in (False, True) for kind in ("none", "selective")]
    >>> [layer_bytes(2048, 1, 12288, 96, 8, sp=sp, recompute=kind) / (2048 * 12288) for sp, kind in kinds]
    [23.0, 13.0, 14.25, 4.25]
    """
    if recompute == FULL:
        return 2 * s * b * h
    kept = [term for term in TERMS if recompute == NONE or not term.quadratic]
    by_tokens = _term_bytes([term for term in kept if term.divided == SEQUENCE], s, b, h, a)
    by_heads = _term_bytes([term for term in kept if term.divided == TENSOR], s, b, h, a)
    if t == 1:
        return by_tokens + by_heads
    return by_tokens / (t if sp else 1) + by_heads / t


def _term_bytes(terms: list[Term], s: Number, b: Number, h: Number, a: Number) -> Number:
    """Bytes of ``terms`` on one GPU that divides none of them."""
    return sum(term.linear for term in terms) * s * b * h + sum(term.quadratic for term in terms) * a * s**2 * b


def interleaving(p: Number, m: Number) -> Number:
    """Factor by which the first stage keeps more with m chunks per stage: 1 + (p - 1) / (p m).

    >>> round(interleaving(8, 3), 4)
    1.2917
    """
    return 1 + (p - 1) / (p * m)


def _layer(training: TrainingConfig) -> Number:
    """Bytes of one layer: ``layer_bytes`` with the sizes, the recomputation and the heads of the first layer of ``training``."""
    model, parallel, recompute = training.model, training.parallel, training.recompute
    sizes = (training.length, training.sequences, model.hidden, model.layers[0].attention.heads, parallel.tp)
    return layer_bytes(*sizes, sp=parallel.sp, recompute=FULL if recompute.of_layers else recompute.kind)


def stage_bytes(training: TrainingConfig) -> Number:
    """Bytes of the layers on a GPU of the first stage: p micro-batches of L / p layers each, more with interleaving (section 4.2.3).

    With ``every:K`` only the inputs of every K-th layer are kept.
    """
    parallel, recompute = training.parallel, training.recompute
    more = interleaving(parallel.pp, parallel.interleave) if parallel.interleave > 1 else 1
    return _layer(training) * len(training.model.layers) / recompute.every * more


def ends_bytes(training: TrainingConfig) -> Number:
    """Bytes before and after the layers (equation 5): p dropout masks of the embedding; if p = 1, last norm, head input, fp32 logits."""
    model, p, t = training.model, training.parallel.pp, training.parallel.tp
    sbh = training.tokens * model.hidden
    last_stage = 4 * sbh + 4 * training.tokens * model.vocab if p == 1 else 0
    return (sbh * p + last_stage) / t


def applies_to(model: ModelSpec) -> bool:
    """Whether the formulas apply to ``model``: as many KV heads as heads, an ungated MLP of width 4 h, layer norms."""
    return model.norm == "layer" and all(
        isinstance(layer.attention, GroupedAttention)
        and layer.attention.kv_heads == layer.attention.heads
        and layer.attention.heads * layer.attention.head_dim == model.hidden
        and isinstance(layer.mlp, DenseMlp)
        and not layer.mlp.gated
        and layer.mlp.width == 4 * model.hidden
        for layer, _ in model.layer_kinds
    )


@dataclass(frozen=True, slots=True)
class Literature:
    """Activation bytes by the formulas: one layer, all layers of the first stage, embedding and head. ``applies``: the model is a GPT."""

    layer: Number
    layers: Number
    ends: Number
    applies: bool


def literature(training: TrainingConfig) -> Literature:
    """Activation bytes of ``training`` by the formulas."""
    return Literature(_layer(training), stage_bytes(training), ends_bytes(training), applies_to(training.model))
