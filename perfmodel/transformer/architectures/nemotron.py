"""Nemotron-H (NVIDIA): blocks of Mamba-2, attention, MLP or experts in any order."""

from dataclasses import replace

from perfmodel.core.errors import DataError
from perfmodel.transformer.architectures._parts import HfFields, attention, experts, model, state_bits
from perfmodel.transformer.linear_attention import Mamba2
from perfmodel.transformer.spec import AttentionLayer, DenseMlp, Layer, ModelSpec, MoeMlp

MIXERS, MLPS = "M*", "-E"
"""Blocks that mix tokens: Mamba-2, attention; blocks that do not: MLP, experts."""


def nemotron_h(fields: HfFields) -> ModelSpec:
    """Nemotron-H (arXiv 2504.03624) and Nemotron 3. Defaults: no biases but the convolution's, a state in fp32, embeddings not tied.

    hybrid_override_pattern has a letter per block, each with its own norm and sum. Here a block that mixes tokens is one layer together
    with the MLP after it, if there is one. Attention has no rotated positions. Matrices are not gated.
    """
    fields.settled(
        "expand", "chunk_size", "time_step_floor", "time_step_limit", "time_step_max", "time_step_min", "time_step_rank",
        "use_mamba_kernels", "rescale_prenorm_residual", "residual_in_fp32", "num_logits_to_keep", "mamba_hidden_act",
        "moe_shared_expert_overlap", "mtp_hybrid_override_pattern", "num_nextn_predict_layers", "attention_head_dim", "head_dim",
        "intermediate_size",
    )  # fmt: skip
    fields.refuse("moe_latent_size", 0, "a mixture of experts over a latent")
    fields.refuse("sliding_window", 0, "a window")
    pattern = fields.text("hybrid_override_pattern", default="")
    if len(pattern) != fields.layers:
        raise DataError(f"hybrid_override_pattern has {len(pattern)} blocks, num_hidden_layers is {fields.layers}", "give as many")
    mixers: dict[str, AttentionLayer] = {}
    if "M" in pattern:
        mixers["M"] = _mamba(fields)
    head_dim = fields.whole("attention_head_dim", "head_dim", default=128)
    if "*" in pattern:
        mixers["*"] = attention(fields, head_dim=head_dim, rotated=False)
    mlps = {block: _mlp(fields, block) for block in MLPS if block in pattern}
    layers, place = [], 0
    while place < len(pattern):
        mixer = mixers.get(pattern[place])
        if mixer is None:
            problem = f"hybrid_override_pattern.{place}: no rule for {pattern[place]!r} there"
            raise DataError(problem, f"begin with {' or '.join(MIXERS)}, then {MLPS}")
        mlp = mlps.get(pattern[place + 1 : place + 2])
        layers.append(Layer(mixer, mlp, norms=1 if mlp is None else 2))
        place += 1 if mlp is None else 2
    return model(fields, layers, tied=False)


def _mamba(fields: HfFields) -> Mamba2:
    return Mamba2(
        heads=fields.whole("mamba_num_heads"),
        head_dim=fields.whole("mamba_head_dim"),
        groups=fields.whole("n_groups"),
        state_size=fields.whole("ssm_state_size"),
        conv_kernel=fields.whole("conv_kernel", default=4),
        chunk=fields.whole("chunk_size", default=128),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias", False),
        state_bits=state_bits(fields, "mamba_ssm_cache_dtype"),
    )


def _mlp(fields: HfFields, block: str) -> DenseMlp | MoeMlp:
    activation, bias = fields.text("mlp_hidden_act", default="relu2"), fields.flag("mlp_bias", False)
    if block == "-":
        return DenseMlp(fields.whole("intermediate_size"), gated=False, bias=bias, activation=activation)
    shared = fields.whole("n_shared_experts", default=1, least=0) * fields.whole("moe_shared_expert_intermediate_size")
    extra = fields.whole("n_routed_experts")
    mixture = experts(fields, "moe_intermediate_size", shared_width=shared, router_extra=extra, gated=False, bias=bias)
    return replace(mixture, activation=activation)


BUILDS = {"nemotron_h": nemotron_h}
