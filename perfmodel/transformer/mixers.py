"""Operations that mix the tokens of a layer: grouped or latent attention, and linear attention with a state."""

from __future__ import annotations

from collections.abc import Iterable

from perfmodel.core.arith import Number
from perfmodel.transformer.linear_attention import GatedDeltaNet, Mamba2
from perfmodel.transformer.operation import ATTENTION, Matrix, Operation, linear
from perfmodel.transformer.spec import AttentionLayer, BlockIndexer, GroupedAttention, Indexer, LatentAttention

Q_DOWN, KV_DOWN = "Q down projection", "KV down projection"


def with_joint_latents(operations: Iterable[Operation]) -> list[Operation]:
    """``operations`` with the latents of Q and of K and V made in one matmul, as serving engines do.

    Source: vllm-project/vllm and sgl-project/sglang, models/deepseek_v2.py (fused_qkv_a_proj, fused_qkv_a_proj_with_mqa);
    NVIDIA/TensorRT-LLM, _torch/modules/attention.py (kv_a_proj_with_mqa of an MLA).
    """
    listed = list(operations)
    parts = [op for op in listed if op.name in (Q_DOWN, KV_DOWN)]
    if len(parts) < 2:
        return listed
    first, second = parts
    features, matrices = first.features + second.features, (*first.matrices, *second.matrices)
    joint = first._replace(row="Q and KV down projection", features=features, matrices=matrices, vectors=first.vectors + second.vectors)
    return [joint if op is first else op for op in listed if op is not second]


def mixer(a: AttentionLayer, hidden: Number) -> list[Operation]:
    """Operations of the attention ``a``, from the normed input of the layer to the branch that is added to it."""
    if isinstance(a, GroupedAttention):
        return _grouped(a, hidden)
    if isinstance(a, LatentAttention):
        return _latent(a, hidden)
    return _delta_net(a, hidden) if isinstance(a, GatedDeltaNet) else _mamba(a, hidden)


def _matrix(name: str, stored: str, inputs: Number, outputs: Number) -> Matrix:
    return Matrix(name, ATTENTION, inputs, outputs, stored=f"self_attn.{stored}_proj")


def _latent_norm(name: str, reads: str, features: Number, row: str) -> Operation:
    return Operation("norm", name, ATTENTION, (reads,), f"{reads}, normed", features, vectors=features, row=row)


def _grouped(a: GroupedAttention, hidden: Number) -> list[Operation]:
    """Operations of grouped attention, with Q, K and V made in one matmul."""
    queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
    wide = (2 if a.output_gate else 1) * queries
    matrices = [_matrix("Q", "q", hidden, wide), _matrix("K", "k", hidden, keys), _matrix("V", "v", hidden, keys)]
    joint, heads = "Q, K, V as projected", ("Q", "K", "V")
    matrices = matrices[: 2 if a.shared_kv else 3]
    if a.indexer is not None:  # in the same matmul (vllm-project/vllm, MinimaxM3QKVParallelLinearWithIndexer)
        sizes = {"q": a.indexer.heads * a.indexer.head_dim, "k": a.indexer.head_dim}
        matrices += [_matrix(f"indexer {name.upper()}", f"index_{name}", hidden, size) for name, size in sizes.items()]
    listed = [
        linear("QKV projection", "attention input", joint, matrices, a.qkv_bias, gathers=True),
        Operation("split", "split and RoPE", ATTENTION, (joint,)),
    ]
    if a.qk_norm:
        listed.append(Operation("qk_norm", "norm of", ATTENTION, heads[:2], vectors=a.norm_weights, row="Q and K norm"))
        heads = ("Q, normed", "K, normed", "V")
    output = _matrix("O", "o", queries, hidden)
    listed += [Operation("rotate", part=ATTENTION), *([] if a.indexer is None else _selection(a.indexer))]
    return [*listed, *_attended(heads, output, a.heads if a.sinks else 0, a.output_bias, a.output_gate)]


def _latent(a: LatentAttention, hidden: Number) -> list[Operation]:
    """Operations of latent attention. Source: DeepSeek-V2, section 2.1."""
    queries, inputs, into = a.heads * a.qk_head_dim, "attention input", list[Operation]()
    q = _matrix("Q", "q", hidden, queries)
    if a.q_lora_rank is not None:
        down = _matrix("Q down", "q_a", hidden, a.q_lora_rank)
        q = _matrix("Q", "q_b", a.q_lora_rank, queries)
        into.append(linear(Q_DOWN, inputs, "latent of Q", [down], a.bias, gathers=True))
        into.append(_latent_norm("norm of Q's latent", "latent of Q", a.q_lora_rank, "Q latent norm"))
    name, reads = ("Q projection", inputs) if not into else ("Q up projection", into[-1].writes)
    latent = Matrix("KV down", ATTENTION, hidden, a.kv_lora_rank + a.qk_rope_head_dim, stored="self_attn.kv_a_proj_with_mqa")
    up = _matrix("V", "kv_b", a.kv_lora_rank, a.heads * (a.qk_nope_head_dim + a.v_head_dim))
    return [
        *into,
        linear(name, reads, "Q", [q], row="Q up projection", gathers=not into),
        linear(KV_DOWN, inputs, "latent and rotated key", [latent], a.bias),
        _latent_norm("norm of the latent", "latent", a.kv_lora_rank, "KV latent norm")._replace(reads=("latent and rotated key",)),
        Operation("rotate", part=ATTENTION),
        linear("KV up projection", "latent, normed", "K and V of each head", [up]),
        Operation("split", "rotated key beside K", ATTENTION, ("K and V of each head", "latent and rotated key")),
        *_indexer(a.indexer, into[-1].writes if into else inputs, a.q_lora_rank or hidden, hidden),
        *_attended(("Q", "K", "V"), _matrix("O", "o", a.heads * a.v_head_dim, hidden), 0, a.bias),
    ]


def _indexer(index: Indexer | None, reads: str, rank: Number, hidden: Number) -> list[Operation]:
    """Operations that pick the tokens to attend to, if there is an indexer; every GPU runs all. Q comes from the latent of Q."""
    if index is None:
        return []
    q = Matrix("indexer Q", ATTENTION, rank, index.heads * index.head_dim, stored="self_attn.indexer.wq_b")
    k = Matrix("indexer K", ATTENTION, hidden, index.head_dim, stored="self_attn.indexer.wk")
    heads = Matrix("indexer head weights", ATTENTION, hidden, index.heads)
    return [
        linear("indexer Q projection", reads, "indexer Q", [q]),
        linear("indexer K projection", "attention input", "indexer K", [k]),
        linear("indexer head weights", "attention input", "indexer head weights", [heads]),
        *_selection(index),
    ]


def _selection(index: Indexer | BlockIndexer) -> list[Operation]:
    return [
        Operation("index_keys", "indexer K, normed and kept", ATTENTION, ("indexer K",), vectors=2 * index.head_dim),
        Operation("index_scores", "indexer scores", ATTENTION, ("indexer Q", "indexer K"), "indexer scores"),
        Operation("select", "selection of tokens", ATTENTION, ("indexer scores",), "selected tokens"),
    ]


CONVOLVED = "Q, K, V, convolved"


def _delta_net(a: GatedDeltaNet, hidden: Number) -> list[Operation]:
    """Operations of Gated DeltaNet: Q, K, V and gate in one matmul, rate and decay in another. Source: vllm-project/vllm, qwen3_next.py."""
    keys, stored = a.key_heads * a.key_head_dim, "linear_attn.in_proj_qkv"
    sizes = (("Q", keys, stored), ("K", keys, stored), ("V", a.inner, stored), ("gate", a.inner, "linear_attn.in_proj_z"))
    matrices = [Matrix(name, ATTENTION, hidden, size, stored=place) for name, size, place in sizes]
    rates = [Matrix(name, ATTENTION, hidden, a.value_heads, stored=f"linear_attn.in_proj_{name[0]}") for name in ("beta", "alpha")]
    return [
        linear("QKV and gate projection", "attention input", "Q, K, V and gate", matrices, gathers=True),
        linear("decay and rate projection", "attention input", "decay and rate", rates),
        _convolution(a, 0),
        Operation("recurrence", "gated delta rule", ATTENTION, (CONVOLVED, "decay and rate"), STATE_OUTPUT, vectors=2 * a.value_heads),
        Operation("gated_norm", "norm and gate", ATTENTION, (STATE_OUTPUT,), "attention output", vectors=a.value_head_dim),
        _state_output(Matrix("O", ATTENTION, a.inner, hidden, stored="linear_attn.out_proj"), bias=False),
    ]


STATE_OUTPUT = "output of the state"


def _convolution(a: GatedDeltaNet | Mamba2, biases: Number) -> Operation:
    learned = a.channels * a.conv_kernel + biases
    return Operation("convolution", "short convolution", ATTENTION, ("Q, K, V and gate",), CONVOLVED, a.channels, vectors=learned)


def _state_output(matrix: Matrix, bias: bool) -> Operation:
    return linear("output projection", "attention output", "attention result", [matrix], bias, own=True, gathers=True)


def _mamba(a: Mamba2, hidden: Number) -> list[Operation]:
    """Operations of Mamba-2. One matrix makes gate, x, B, C and dt; A, D and the bias of dt are learned numbers per head."""
    joint = Matrix("in", ATTENTION, hidden, a.inner + a.channels + a.heads, stored="mixer.in_proj")
    return [
        linear("input projection", "attention input", "Q, K, V and gate", [joint], a.bias, gathers=True),
        _convolution(a, a.channels if a.conv_bias else 0),
        Operation("recurrence", "state-space scan", ATTENTION, (CONVOLVED,), STATE_OUTPUT, vectors=3 * a.heads),
        Operation("gated_norm", "norm and gate", ATTENTION, (STATE_OUTPUT,), "attention output", vectors=a.inner),
        _state_output(Matrix("out", ATTENTION, a.inner, hidden, stored="mixer.out_proj"), a.bias),
    ]


def _attended(heads: tuple[str, ...], output: Matrix, sinks: Number, bias: bool, gate: bool = False) -> list[Operation]:
    result = "attention output"
    gates = [Operation("output_gate", "output gate", ATTENTION, (result, "gate"), result, output.inputs)] if gate else []
    return [
        Operation("attention", "attention", ATTENTION, heads, result, output.inputs, vectors=sinks),
        *gates,
        linear("output projection", result, "attention result", [output], bias, own=True, gathers=True),
    ]
