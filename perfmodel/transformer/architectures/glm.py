"""GLM-4.5 to 4.7 (Zhipu AI): grouped attention over experts with a shared one. GLM-5 is in ``deepseek``."""

from perfmodel.transformer.architectures._parts import HfFields, attention, experts, gated, model
from perfmodel.transformer.spec import Layer, ModelSpec


def glm4_moe(fields: HfFields) -> ModelSpec:
    """GLM-4.5, 4.6 and 4.7. Defaults: first layer dense, biases of Q, K and V if attention_bias, embeddings not tied.

    Norms on Q and K if use_qk_norm; a learned correction per expert in the router. Source: huggingface/transformers,
    modeling_glm4_moe.py.
    """
    fields.settled("num_nextn_predict_layers")
    bias, normed = fields.flag("attention_bias", False), fields.flag("use_qk_norm", False)
    heads = attention(fields, head_dim=128, qkv_bias=bias, output_bias=False, qk_norm=normed)
    shared = fields.whole("n_shared_experts", least=0) * fields.whole("moe_intermediate_size")
    sparse = experts(fields, "moe_intermediate_size", shared_width=shared, router_extra=fields.whole("n_routed_experts"))
    first, dense = fields.whole("first_k_dense_replace", default=1, least=0), gated(fields)
    layers = [Layer(heads, sparse if index >= first else dense) for index in range(fields.layers)]
    further = fields.whole("num_nextn_predict_layers", default=0, least=0)
    return model(fields, layers, tied=False, draft=(layers[-1],) * further)


BUILDS = {"glm4_moe": glm4_moe}
