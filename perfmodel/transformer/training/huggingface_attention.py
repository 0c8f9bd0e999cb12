"""Attention as the modules of huggingface/transformers write it: joint QKV in GPT-2, three projections and RoPE in Llama's kin."""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.core.dtypes import STATISTIC_SIZE
from perfmodel.transformer.spec import GroupedAttention, ModelSpec
from perfmodel.transformer.training.huggingface_norm import rms_norm
from perfmodel.transformer.training.matrices import Matrix
from perfmodel.transformer.training.recorder import Recorder
from perfmodel.transformer.training.tape import Node


def attention(tape: Recorder, model: ModelSpec, a: GroupedAttention, matrices: dict[str, Matrix], inputs: str) -> str:
    """From the normed hidden state to the result of the output projection."""
    tape.part = "attention"
    s = tape.shape
    joint = _joint(tape, a, matrices, inputs) if model.learned_positions else ""
    heads = ("Q", "K", "V") if joint else _separate(tape, a, matrices, inputs)
    out = _fused(tape, a, heads, joint) if s.flash else _eager(tape, a, heads, exact_softmax=not joint)
    return tape.linear("output projection", out, "attention result", s.tokens, [matrices["O"]], biases=s.hidden if a.output_bias else 0)


def _joint(tape: Recorder, a: GroupedAttention, matrices: dict[str, Matrix], inputs: str) -> str:
    """One projection; Q, K and V are views of its result."""
    s, parts = tape.shape, [matrices[name] for name in ("Q", "K", "V")]
    biases = sum(part.outputs for part in parts) if a.qkv_bias else 0
    joint = tape.linear("QKV projection", inputs, "Q, K, V", s.tokens, parts, biases=biases)
    for part in parts:
        tape.tensor(part.name, 0)
        tape.tape.views[part.name] = s.tokens * part.outputs * s.size
    tape.add(Node("split", (joint,), ("Q", "K", "V")))
    return joint


def _separate(tape: Recorder, a: GroupedAttention, matrices: dict[str, Matrix], inputs: str) -> tuple[str, str, str]:
    """A projection each; Q and K are turned, an operation at a time."""
    s, found = tape.shape, []
    for name, rows in (("Q", a.heads), ("K", a.kv_heads), ("V", a.kv_heads)):
        features = matrices[name].outputs
        biases = features if a.qkv_bias else 0
        made = tape.linear(f"{name} projection", inputs, f"{name}, projected", s.tokens, [matrices[name]], biases=biases)
        if name != "V" and a.qk_norm:
            made = rms_norm(tape, f"norm of {name}", made, f"{name}, normed", s.tokens, features, rows)
        if name != "V":
            turned = tape.activation(name, s.tokens, features)
            size = tape.tape.sizes[turned]
            tape.add(Node(f"RoPE of {name}", (made,), (turned,), scratch=2 * size, backward_scratch=2 * size))
            made = turned
        found.append(made)
    return found[0], found[1], found[2]


def _fused(tape: Recorder, a: GroupedAttention, heads: tuple[str, str, str], joint: str) -> str:
    """scaled_dot_product_attention by FlashAttention-2 or cuDNN: keeps its inputs, its output and the logsumexp."""
    s = tape.shape
    out = tape.activation("attention output", s.tokens, a.heads * a.head_dim)
    lse = tape.tensor("logsumexp", STATISTIC_SIZE * s.tokens * a.heads)
    scratch = STATISTIC_SIZE * s.tokens * a.heads * (a.head_dim + 1)  # dQ in fp32, row sums of dO O
    saved = (joint,) if joint else heads
    tape.add(Node("attention", heads, (out, lse), (*saved, out, lse), backward_scratch=scratch))
    return out


def _eager(tape: Recorder, a: GroupedAttention, heads: tuple[str, str, str], *, exact_softmax: bool) -> str:
    """Matmul, scale, mask, softmax, dropout, matmul; ``exact_softmax``: in fp32, then rounded. Each matmul copies its operands."""
    s = tape.shape
    rows, scores = s.tokens * a.heads * a.head_dim, s.tokens * s.keys * a.heads
    q, k, v = (tape.tensor(f"{name}, copied", rows * s.size) for name in ("Q", "K", "V"))
    wide = scores * (4 if exact_softmax else s.size)
    products = tape.tensor("scores", scores * s.size)
    tape.add(Node("Q K^T", heads[:2], (products, q, k), (q, k)))
    scaled = tape.tensor("scores, scaled", scores * s.size)
    tape.add(Node("scale", (products,), (scaled,)))
    masked = tape.tensor("scores, masked", scores * s.size)
    tape.add(Node("mask", (scaled,), (masked,), adds=True))
    made = tape.tensor("softmax", wide)
    tape.add(Node("softmax", (masked,), (made,), (made,), backward_scratch=wide))  # its product with the gradient
    if wide != scores * s.size:
        rounded = tape.tensor("softmax, rounded", scores * s.size)
        tape.add(Node("softmax, rounding", (made,), (rounded,)))
        made = rounded
    made = tape.dropout("attention's dropout", made, "softmax after dropout", scores)
    mixed = tape.tensor("attention output by heads", rows * s.size)
    tape.add(Node("P V", (made, heads[2]), (mixed, v), (made, v)))
    out = tape.tensor("attention output", rows * s.size)
    tape.add(Node("heads side by side", (mixed,), (out,)))
    return out


def mask_bytes(sequences: Number, n: Number, size: int) -> Number:
    """The additive mask, one per sequence."""
    return sequences * n * n * size
