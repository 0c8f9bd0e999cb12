"""Small models with the layers that large ones of today have: config.json by ``model_type``, and the tensors of a checkpoint."""

from __future__ import annotations

from typing import Any

SHARED: dict[str, Any] = {"hidden_size": 24, "vocab_size": 50, "num_attention_heads": 4, "head_dim": 6, "num_key_value_heads": 2}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 5}

QWEN: dict[str, Any] = {
    **SHARED, **EXPERTS, "model_type": "qwen3_next", "num_hidden_layers": 5, "num_experts": 4, "shared_expert_intermediate_size": 7,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 3, "linear_value_head_dim": 5,
    "full_attention_interval": 2, "linear_conv_kernel_dim": 3,
}  # fmt: skip
NEMOTRON: dict[str, Any] = {
    **SHARED, **EXPERTS, "model_type": "nemotron_h", "num_hidden_layers": 8, "hybrid_override_pattern": "MEM*-M-M",
    "mamba_num_heads": 4, "mamba_head_dim": 3, "n_groups": 2, "ssm_state_size": 5, "conv_kernel": 4, "chunk_size": 8,
    "intermediate_size": 11, "n_routed_experts": 4, "n_shared_experts": 1, "moe_shared_expert_intermediate_size": 9,
}  # fmt: skip
GLM: dict[str, Any] = {
    **SHARED, **EXPERTS, "model_type": "glm_moe_dsa", "num_hidden_layers": 3, "first_k_dense_replace": 1, "intermediate_size": 11,
    "n_routed_experts": 4, "n_shared_experts": 1, "kv_lora_rank": 8, "q_lora_rank": 10, "qk_rope_head_dim": 2, "qk_nope_head_dim": 6,
    "v_head_dim": 5, "index_n_heads": 3, "index_head_dim": 4, "index_topk": 5,
}  # fmt: skip
MINIMAX: dict[str, Any] = {
    **SHARED, "model_type": "minimax_m2", "num_hidden_layers": 2, "num_experts_per_tok": 2, "intermediate_size": 5, "num_local_experts": 4,
}  # fmt: skip
MINIMAX3: dict[str, Any] = {
    **SHARED, **EXPERTS, "model_type": "minimax_m3", "num_hidden_layers": 3, "dense_intermediate_size": 11, "num_local_experts": 4,
    "shared_intermediate_size": 7, "moe_layer_freq": [0, 1, 1],
    "sparse_attention_config": {
        "sparse_attention_freq": [0, 1, 1], "sparse_num_index_heads": 2, "sparse_index_dim": 3, "sparse_topk_blocks": 2,
        "sparse_block_size": 4,
    },
}  # fmt: skip
GLM4: dict[str, Any] = {
    **SHARED, **EXPERTS, "model_type": "glm4_moe", "num_hidden_layers": 3, "first_k_dense_replace": 1, "intermediate_size": 11,
    "n_routed_experts": 4, "n_shared_experts": 2, "attention_bias": True, "use_qk_norm": True,
}  # fmt: skip
CONFIGS = {one["model_type"]: one for one in (QWEN, NEMOTRON, GLM, MINIMAX, MINIMAX3, GLM4)}

Shapes = list[tuple[int, ...]]


def attention(c: dict[str, Any], gate: int = 1) -> Shapes:
    h, q, kv = c["hidden_size"], c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    return [(gate * q, h), (kv, h), (kv, h), (h, q)]


def experts(c: dict[str, Any], count: int, width: int, shared: int, gated: bool = True) -> Shapes:
    """Router, experts, and the one that sees every token."""
    h, into = c["hidden_size"], 2 if gated else 1
    one = [(width, h)] * into + [(h, width)]
    return [(count, h), *one * count, *([(shared, h)] * into + [(h, shared)] if shared else [])]


def qwen(c: dict[str, Any]) -> Shapes:
    h, d, k, v = c["hidden_size"], c["head_dim"], c["linear_num_key_heads"], c["linear_num_value_heads"]
    keys, values = k * c["linear_key_head_dim"], v * c["linear_value_head_dim"]
    channels = 2 * keys + values
    linear = [(2 * keys + 2 * values, h), (2 * v, h), (channels, 1, c["linear_conv_kernel_dim"]), (v,), (v,), (c["linear_value_head_dim"],)]
    linear += [(h, values)]
    full = [*attention(c, 2), (d,), (d,)]
    mlp = [*experts(c, c["num_experts"], c["moe_intermediate_size"], c["shared_expert_intermediate_size"]), (1, h), (h,), (h,)]
    every = c["full_attention_interval"]
    layers = [(full if (index + 1) % every == 0 else linear) + mlp for index in range(c["num_hidden_layers"])]
    return [shape for layer in layers for shape in layer]


def nemotron(c: dict[str, Any]) -> Shapes:
    h, inner, groups = c["hidden_size"], c["mamba_num_heads"] * c["mamba_head_dim"], c["n_groups"] * c["ssm_state_size"]
    channels, heads = inner + 2 * groups, c["mamba_num_heads"]
    blocks = {
        "M": [(inner + channels + heads, h), (channels, 1, c["conv_kernel"]), (channels,), *[(heads,)] * 3, (inner,), (h, inner)],
        "*": attention(c),
        "-": [(c["intermediate_size"], h), (h, c["intermediate_size"])],
        "E": [*experts(c, 4, c["moe_intermediate_size"], c["moe_shared_expert_intermediate_size"], gated=False), (4,)],
    }
    return [shape for block in c["hybrid_override_pattern"] for shape in [*blocks[block], (h,)]]


def glm(c: dict[str, Any]) -> Shapes:
    h, heads, nope, rope, v = (c[k] for k in ("hidden_size", "num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    r, rq, n, d = c["kv_lora_rank"], c["q_lora_rank"], c["index_n_heads"], c["index_head_dim"]
    latent = [(rq, h), (rq,), (heads * (nope + rope), rq), (r + rope, h), (r,), (heads * (nope + v), r), (h, heads * v), (h,), (h,)]
    indexer = [(n * d, rq), (d, h), (d,), (d,), (n, h)]
    dense, sparse = [(c["intermediate_size"], h)] * 3, [*experts(c, 4, c["moe_intermediate_size"], c["moe_intermediate_size"]), (4,)]
    return [shape for index in range(c["num_hidden_layers"]) for shape in [*latent, *indexer, *(sparse if index else dense)]]


def minimax(c: dict[str, Any]) -> Shapes:
    h, d = c["hidden_size"], c["head_dim"]
    layer = [*attention(c), (c["num_attention_heads"] * d,), (c["num_key_value_heads"] * d,), (h,), (h,)]
    return [*layer, *experts(c, 4, c["intermediate_size"], 0), (4,)] * c["num_hidden_layers"]


def minimax3(c: dict[str, Any]) -> Shapes:
    h, d = c["hidden_size"], c["head_dim"]
    index = [(2 * 3, h), (3, h), (3,), (3,)]
    layer, dense = [*attention(c), (d,), (d,), (h,), (h,)], [(c["dense_intermediate_size"], h)] * 3
    sparse = [*index, *experts(c, 4, c["moe_intermediate_size"], c["shared_intermediate_size"]), (4,)]
    return [*layer, *dense, *(layer + sparse) * 2]


def glm4(c: dict[str, Any]) -> Shapes:
    h, d, q, kv = c["hidden_size"], c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
    layer = [*attention(c), (q * d,), (kv * d,), (kv * d,), (d,), (d,), (h,), (h,)]
    sparse = [*experts(c, 4, c["moe_intermediate_size"], 2 * c["moe_intermediate_size"]), (4,)]
    dense = [(c["intermediate_size"], h)] * 3
    return [shape for index in range(c["num_hidden_layers"]) for shape in [*layer, *(sparse if index else dense)]]


TENSORS = {"qwen3_next": qwen, "nemotron_h": nemotron, "glm_moe_dsa": glm, "minimax_m2": minimax, "minimax_m3": minimax3, "glm4_moe": glm4}
