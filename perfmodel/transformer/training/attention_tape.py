"""The attention of a layer on tape: each fused step keeps its inputs, and where scores are stored, they and their masks."""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.core.dtypes import DROPOUT_MASK_SIZE, STATISTIC_SIZE
from perfmodel.transformer.spec import GroupedAttention, LatentAttention
from perfmodel.transformer.training.matrices import Matrix
from perfmodel.transformer.training.recorder import Recorder
from perfmodel.transformer.training.tape import Node


def attention(tape: Recorder, a: GroupedAttention | LatentAttention, matrices: list[Matrix], inputs: str) -> str:
    """From the normed hidden state to the result of the output projection. ``a``: as one GPU sees it."""
    tape.part = "attention"
    by_name = {matrix.name: matrix for matrix in matrices}
    project = _grouped if isinstance(a, GroupedAttention) else _latent
    heads = project(tape, a, by_name, inputs)  # type: ignore[arg-type]
    sinks = a.heads if isinstance(a, GroupedAttention) and a.sinks else 0
    result = core(tape, heads, a.heads, by_name["O"].inputs, sinks)
    s = tape.shape
    bias = s.hidden if (a.output_bias if isinstance(a, GroupedAttention) else a.bias) else 0
    # with sequence parallelism the partial sums of all tokens are there until they are reduced and scattered
    gathered = (s.tokens - s.own_tokens) * s.hidden * s.size
    return tape.linear("output projection", result, "attention result", s.own_tokens, [by_name["O"]], biases=bias, gathered=gathered)


def _gathered(tape: Recorder) -> Number:
    """Bytes of the hidden state of the tokens that other sequence-parallel GPUs hold."""
    s = tape.shape
    return (s.tokens - s.own_tokens) * s.hidden * s.size


def _grouped(tape: Recorder, a: GroupedAttention, by_name: dict[str, Matrix], inputs: str) -> tuple[str, str, str]:
    tokens = tape.shape.tokens
    projections = [by_name[name] for name in ("Q", "K", "V") if name in by_name]
    sizes = {matrix.name: matrix.outputs for matrix in projections}
    joint = tape.linear(
        "QKV projection",
        inputs,
        "Q, K, V as projected",
        tokens,
        projections,
        biases=sum(sizes.values()) if a.qkv_bias else 0,
        gathered=_gathered(tape),
    )
    raw = [tape.activation(name, tokens, sizes[name]) for name in sizes]
    if a.shared_kv:
        raw.append(tape.activation("V", tokens, sizes["K"]))
    tape.add(Node("split and RoPE", (joint,), tuple(raw)))
    q, k, v = raw
    if a.qk_norm:
        q = tape.norm("norm of Q", q, "Q, normed", tokens, sizes["Q"], rows=a.heads, kind="rms")
        k = tape.norm("norm of K", k, "K, normed", tokens, sizes["K"], rows=a.kv_heads, kind="rms")
    return q, k, v


def _latent(tape: Recorder, a: LatentAttention, by_name: dict[str, Matrix], inputs: str) -> tuple[str, str, str]:
    tokens, size = tape.shape.tokens, a.qk_head_dim
    if a.q_lora_rank is None:
        q = tape.linear("Q projection", inputs, "Q", tokens, [by_name["Q"]], gathered=_gathered(tape))
    else:
        bias = a.q_lora_rank if a.bias else 0
        down = tape.linear("Q down projection", inputs, "latent of Q", tokens, [by_name["Q down"]], biases=bias, gathered=_gathered(tape))
        normed = tape.norm("norm of Q's latent", down, "latent of Q, normed", tokens, a.q_lora_rank, kind="rms")
        q = tape.linear("Q up projection", normed, "Q", tokens, [by_name["Q"]])
    bias = by_name["KV down"].outputs if a.bias else 0
    latent = tape.linear("KV down projection", inputs, "latent and rotated key", tokens, [by_name["KV down"]], biases=bias)
    normed = tape.norm("norm of the latent", latent, "latent, normed", tokens, a.kv_lora_rank, kind="rms")
    up = tape.linear("KV up projection", normed, "K and V of each head", tokens, [by_name["V"]])
    k, v = tape.activation("K", tokens, a.heads * size), tape.activation("V", tokens, a.heads * a.v_head_dim)
    tape.add(Node("rotated key beside K", (up, latent), (k, v)))
    return q, k, v


def core(tape: Recorder, heads: tuple[str, str, str], count: Number, features: Number, sinks: Number = 0) -> str:
    """Scores, softmax, dropout and the weighted sum of V: in one kernel, or each on its own with the scores in memory."""
    s, (q, k, v) = tape.shape, heads
    stays, passing = tape.weight_gradients(sinks if s.rank is None else 0)
    out = "attention output"
    if s.flash:
        tape.activation(out, s.tokens, features)
        lse = tape.tensor("logsumexp", STATISTIC_SIZE * s.tokens * count)
        # dQ is added up in fp32, beside the row sums of dO O (FlashAttention-2, Dao 2023, section 3.1)
        scratch = STATISTIC_SIZE * (tape.tape.sizes[q] // s.size + s.tokens * count)
        tape.add(Node("attention", (q, k, v), (out, lse), (q, k, v, out, lse), stays, 0, scratch + passing))
        return out
    scores = s.tokens * s.keys * count
    tape.tensor("scores", scores * s.size)
    tape.add(Node("Q K^T", (q, k), ("scores",), (q, k)))
    tape.tensor("softmax", scores * s.size)
    tape.add(Node("softmax", ("scores",), ("softmax",), ("softmax",), stays, 0, passing))
    weights = tape.dropout("attention's dropout", "softmax", "softmax after dropout", scores * DROPOUT_MASK_SIZE)
    tape.activation(out, s.tokens, features)
    tape.add(Node("P V", (weights, v), (out,), (weights, v)))
    return out
