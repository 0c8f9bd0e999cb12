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
    by_name = {op.name: op for op in listed}
    if Q_DOWN not in by_name or KV_DOWN not in by_name:
        return listed
    q, kv = by_name[Q_DOWN], by_name[KV_DOWN]
    joint = q._replace(
        row="Q and KV down projection",
        features=q.features + kv.features,
        matrices=(*q.matrices, *kv.matrices),
        vectors=q.vectors + kv.vectors,
    )
    return [joint if op is q else op for op in listed if op is not kv]


def mixer(a: AttentionLayer, hidden: Number) -> list[Operation]:
    """Operations of the attention ``a``, from the normed input of the layer to the branch that is added to it."""
    if isinstance(a, GroupedAttention):
        return _grouped(a, hidden)
    if isinstance(a, LatentAttention):
        return _latent(a, hidden)
    return _delta_net(a, hidden) if isinstance(a, GatedDeltaNet) else _mamba(a, hidden)


def _grouped(a: GroupedAttention, hidden: Number) -> list[Operation]:
    """Operations of grouped attention, with Q, K and V made in one matmul."""
    queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
    matrices = [_matrix("Q", "q", hidden, 2 * queries if a.output_gate else queries), _matrix("K", "k", hidden, keys)]
    if not a.shared_kv:
        matrices.append(_matrix("V", "v", hidden, keys))
    if a.indexer is not None:  # in the same matmul (vllm-project/vllm, MinimaxM3QKVParallelLinearWithIndexer)
        matrices.append(_matrix("indexer Q", "index_q", hidden, a.indexer.heads * a.indexer.head_dim))
        matrices.append(_matrix("indexer K", "index_k", hidden, a.indexer.head_dim))
    operations = [
        linear("QKV projection", "attention input", "Q, K, V as projected", matrices, a.qkv_bias, gathers=True),
        Operation("split", "split and RoPE", ATTENTION, ("Q, K, V as projected",)),
    ]
    q_k_v = ("Q", "K", "V")
    if a.qk_norm:
        operations.append(Operation("qk_norm", "norm of", ATTENTION, ("Q", "K"), vectors=a.norm_weights, row="Q and K norm"))
        q_k_v = ("Q, normed", "K, normed", "V")
    operations.append(Operation("rotate", part=ATTENTION))
    if a.indexer is not None:
        operations += _selection(a.indexer)
    operations.append(Operation("attention", "attention", ATTENTION, q_k_v, OUTPUT, queries, vectors=a.heads if a.sinks else 0))
    if a.output_gate:
        operations.append(Operation("output_gate", "output gate", ATTENTION, (OUTPUT, "gate"), OUTPUT, queries))
    return [*operations, _output_projection(_matrix("O", "o", queries, hidden), a.output_bias)]


def _matrix(name: str, stored: str, inputs: Number, outputs: Number) -> Matrix:
    return Matrix(name, ATTENTION, inputs, outputs, stored=f"self_attn.{stored}_proj")


def _selection(index: Indexer | BlockIndexer) -> list[Operation]:
    """Operations of an indexer after its projections: its keys are kept, tokens are scored and the best are picked."""
    return [
        Operation("index_keys", "indexer K, normed and kept", ATTENTION, ("indexer K",), vectors=2 * index.head_dim),
        Operation("index_scores", "indexer scores", ATTENTION, ("indexer Q", "indexer K"), "indexer scores"),
        Operation("select", "selection of tokens", ATTENTION, ("indexer scores",), "selected tokens"),
    ]


OUTPUT = "attention output"


def _output_projection(matrix: Matrix, bias: bool) -> Operation:
    return linear("output projection", OUTPUT, "attention result", [matrix], bias, own=True, gathers=True)


def _latent(a: LatentAttention, hidden: Number) -> list[Operation]:
    """Operations of latent attention. Source: DeepSeek-V2, section 2.1."""
    queries, values = a.heads * a.qk_head_dim, a.heads * a.v_head_dim
    if a.q_lora_rank is None:
        q_input, rank = "attention input", hidden
        to_q = [linear("Q projection", q_input, "Q", [_matrix("Q", "q", hidden, queries)], row="Q up projection", gathers=True)]
    else:
        q_input, rank = "latent of Q, normed", a.q_lora_rank
        down, up = _matrix("Q down", "q_a", hidden, rank), _matrix("Q", "q_b", rank, queries)
        to_q = [
            linear(Q_DOWN, "attention input", "latent of Q", [down], a.bias, gathers=True),
            Operation("norm", "norm of Q's latent", ATTENTION, ("latent of Q",), q_input, rank, vectors=rank, row="Q latent norm"),
            linear("Q up projection", q_input, "Q", [up], row="Q up projection"),
        ]
    latent, key_and_latent, normed = a.kv_lora_rank, "latent and rotated key", "latent, normed"
    kv_down = Matrix("KV down", ATTENTION, hidden, latent + a.qk_rope_head_dim, stored="self_attn.kv_a_proj_with_mqa")
    kv_up = _matrix("V", "kv_b", latent, a.heads * (a.qk_nope_head_dim + a.v_head_dim))
    return [
        *to_q,
        linear(KV_DOWN, "attention input", key_and_latent, [kv_down], a.bias),
        Operation("norm", "norm of the latent", ATTENTION, (key_and_latent,), normed, latent, vectors=latent, row="KV latent norm"),
        Operation("rotate", part=ATTENTION),
        linear("KV up projection", normed, "K and V of each head", [kv_up]),
        Operation("split", "rotated key beside K", ATTENTION, ("K and V of each head", key_and_latent)),
        *([] if a.indexer is None else _token_indexer(a.indexer, q_input, rank, hidden)),
        Operation("attention", "attention", ATTENTION, ("Q", "K", "V"), OUTPUT, values),
        _output_projection(_matrix("O", "o", values, hidden), a.bias),
    ]


def _token_indexer(index: Indexer, q_input: str, rank: Number, hidden: Number) -> list[Operation]:
    """Operations that pick the tokens to attend to, all of them on every GPU. ``q_input``: the tensor of ``rank`` features that Q is of."""
    q = Matrix("indexer Q", ATTENTION, rank, index.heads * index.head_dim, stored="self_attn.indexer.wq_b")
    k = Matrix("indexer K", ATTENTION, hidden, index.head_dim, stored="self_attn.indexer.wk")
    heads = Matrix("indexer head weights", ATTENTION, hidden, index.heads)
    return [
        linear("indexer Q projection", q_input, "indexer Q", [q]),
        linear("indexer K projection", "attention input", "indexer K", [k]),
        linear("indexer head weights", "attention input", "indexer head weights", [heads]),
        *_selection(index),
    ]


CONVOLVED, STATE_OUTPUT = "Q, K, V, convolved", "output of the state"


def _delta_net(a: GatedDeltaNet, hidden: Number) -> list[Operation]:
    """Operations of Gated DeltaNet: Q, K, V and gate in one matmul, rate and decay in another. Source: vllm-project/vllm, qwen3_next.py."""
    keys, stored = a.key_heads * a.key_head_dim, "linear_attn.in_proj_qkv"
    matrices = [
        Matrix("Q", ATTENTION, hidden, keys, stored=stored),
        Matrix("K", ATTENTION, hidden, keys, stored=stored),
        Matrix("V", ATTENTION, hidden, a.inner, stored=stored),
        Matrix("gate", ATTENTION, hidden, a.inner, stored="linear_attn.in_proj_z"),
    ]
    rates = [
        Matrix("beta", ATTENTION, hidden, a.value_heads, stored="linear_attn.in_proj_b"),
        Matrix("alpha", ATTENTION, hidden, a.value_heads, stored="linear_attn.in_proj_a"),
    ]
    return [
        linear("QKV and gate projection", "attention input", "Q, K, V and gate", matrices, gathers=True),
        linear("decay and rate projection", "attention input", "decay and rate", rates),
        _convolution(a, 0),
        Operation("recurrence", "gated delta rule", ATTENTION, (CONVOLVED, "decay and rate"), STATE_OUTPUT, vectors=2 * a.value_heads),
        Operation("gated_norm", "norm and gate", ATTENTION, (STATE_OUTPUT,), OUTPUT, vectors=a.value_head_dim),
        _output_projection(Matrix("O", ATTENTION, a.inner, hidden, stored="linear_attn.out_proj"), bias=False),
    ]


def _convolution(a: GatedDeltaNet | Mamba2, biases: Number) -> Operation:
    """The causal convolution over Q, K and V, each channel with its own weights."""
    learned = a.channels * a.conv_kernel + biases
    return Operation("convolution", "short convolution", ATTENTION, ("Q, K, V and gate",), CONVOLVED, a.channels, vectors=learned)


def _mamba(a: Mamba2, hidden: Number) -> list[Operation]:
    """Operations of Mamba-2. One matrix makes gate, x, B, C and dt; A, D and the bias of dt are learned numbers per head."""
    joint = Matrix("in", ATTENTION, hidden, a.inner + a.channels + a.heads, stored="mixer.in_proj")
    return [
        linear("input projection", "attention input", "Q, K, V and gate", [joint], a.bias, gathers=True),
        _convolution(a, a.channels if a.conv_bias else 0),
        Operation("recurrence", "state-space scan", ATTENTION, (CONVOLVED,), STATE_OUTPUT, vectors=3 * a.heads),
        Operation("gated_norm", "norm and gate", ATTENTION, (STATE_OUTPUT,), OUTPUT, vectors=a.inner),
        _output_projection(Matrix("out", ATTENTION, a.inner, hidden, stored="mixer.out_proj"), a.bias),
    ]
