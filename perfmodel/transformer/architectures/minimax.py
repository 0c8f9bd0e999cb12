"""MiniMax-M2 (MiniMax): grouped attention to all tokens, experts in every layer."""

from perfmodel.transformer.architectures._parts import HfFields, attention, experts, model
from perfmodel.transformer.spec import Layer, ModelSpec


def minimax_m2(fields: HfFields) -> ModelSpec:
    """MiniMax-M2, M2.1 and M2.5: one norm over all heads of Q and one over those of K. Defaults: embeddings not tied.

    A learned correction per expert in the router. Modules that predict further tokens (use_mtp) are not counted; M2 has no linear or
    sparse attention, unlike MiniMax-01 and M3, for which there is no rule.
    """
    fields.settled(
        "use_mtp", "mtp_transformer_layers", "num_mtp_modules", "qk_norm_type", "rotary_dim", "use_routing_bias", "attn_type_list"
    )
    fields.refuse("shared_intermediate_size", 0, "a shared expert")
    normed = fields.flag("use_qk_norm", True)
    heads = attention(fields, qk_norm=normed, whole_norm=normed)
    extra = fields.whole("num_local_experts") if fields.flag("use_routing_bias", True) else 0
    return model(fields, [Layer(heads, experts(fields, "intermediate_size", router_extra=extra))] * fields.layers, tied=False)


BUILDS = {"minimax_m2": minimax_m2}
