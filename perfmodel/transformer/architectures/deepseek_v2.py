"""DeepSeek-V2 (arXiv 2405.04434): latent attention, experts with shared ones. Defaults: all layers with experts, embeddings not tied."""

from perfmodel.transformer.architectures._parts import HfFields, experts, gated, model
from perfmodel.transformer.spec import LatentAttention, Layer, ModelSpec


def build(fields: HfFields, *, dense_layers: int = 0, router_bias: bool = False) -> ModelSpec:
    """The first first_k_dense_replace layers are dense. ``router_bias``: a learned correction per expert (V3).

    Layers that predict further tokens (num_nextn_predict_layers) are like the last one.
    """
    fields.settled("num_key_value_heads", "head_dim", "qk_head_dim", "intermediate_size")
    shared = fields.whole("n_shared_experts", least=0) * fields.whole("moe_intermediate_size")
    extra = fields.whole("n_routed_experts") if router_bias else 0
    sparse = experts(fields, "moe_intermediate_size", shared_width=shared, router_extra=extra)
    first, every = fields.whole("first_k_dense_replace", default=dense_layers, least=0), fields.whole("moe_layer_freq", default=1)
    heads, dense = latent(fields), gated(fields)
    moe = [index >= first and index % every == 0 for index in range(fields.layers)]
    layers = [Layer(heads, sparse if routed else dense) for routed in moe]
    further = fields.whole("num_nextn_predict_layers", default=0, least=0)
    return model(fields, layers, tied=False, draft=(layers[-1],) * further)


def latent(fields: HfFields) -> LatentAttention:
    """A null q_lora_rank: Q in one step."""
    return LatentAttention(
        heads=fields.whole("num_attention_heads"),
        kv_lora_rank=fields.whole("kv_lora_rank"),
        q_lora_rank=fields.optional("q_lora_rank", 1536),
        qk_rope_head_dim=fields.whole("qk_rope_head_dim"),
        qk_nope_head_dim=fields.whole("qk_nope_head_dim"),
        v_head_dim=fields.whole("v_head_dim"),
        bias=fields.flag("attention_bias", False),
    )
