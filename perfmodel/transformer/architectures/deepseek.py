"""DeepSeek, and Kimi (Moonshot AI) and GLM-5 (Zhipu AI) after it: latent attention, experts with shared ones."""

from perfmodel.core.errors import DataError
from perfmodel.transformer.architectures._parts import HfFields, experts, gated, model
from perfmodel.transformer.spec import Indexer, LatentAttention, Layer, ModelSpec


def deepseek_v2(fields: HfFields, *, dense_layers: int = 0, router_bias: bool = False, indexer: Indexer | None = None) -> ModelSpec:
    """DeepSeek-V2 (arXiv 2405.04434). Defaults: all layers with experts, embeddings not tied.

    The first first_k_dense_replace layers are dense. ``router_bias``: a learned correction per expert (V3).
    Layers that predict further tokens (num_nextn_predict_layers) are like the last one.
    """
    fields.settled("num_key_value_heads", "head_dim", "qk_head_dim", "intermediate_size")
    shared = fields.whole("n_shared_experts", least=0) * fields.whole("moe_intermediate_size")
    extra = fields.whole("n_routed_experts") if router_bias else 0
    sparse = experts(fields, "moe_intermediate_size", shared_width=shared, router_extra=extra)
    first, every = fields.whole("first_k_dense_replace", default=dense_layers, least=0), fields.whole("moe_layer_freq", default=1)
    heads, dense = _latent(fields, indexer), gated(fields)
    layers = [Layer(heads, sparse if index >= first and index % every == 0 else dense) for index in range(fields.layers)]
    further = fields.whole("num_nextn_predict_layers", default=0, least=0)
    return model(fields, layers, tied=False, draft=(layers[-1],) * further)


def _latent(fields: HfFields, indexer: Indexer | None) -> LatentAttention:
    """Latent attention; a null q_lora_rank makes Q in one step."""
    return LatentAttention(
        heads=fields.whole("num_attention_heads"),
        kv_lora_rank=fields.whole("kv_lora_rank"),
        q_lora_rank=fields.optional("q_lora_rank", 1536),
        qk_rope_head_dim=fields.whole("qk_rope_head_dim"),
        qk_nope_head_dim=fields.whole("qk_nope_head_dim"),
        v_head_dim=fields.whole("v_head_dim"),
        bias=fields.flag("attention_bias", False),
        indexer=indexer,
    )


def deepseek_v3(fields: HfFields) -> ModelSpec:
    """DeepSeek-V3 and R1 (arXiv 2412.19437), and Kimi K2, with other sizes. Defaults: 3 dense layers, embeddings not tied.

    DeepSeek-V2 with a learned correction per expert in the router.
    """
    return deepseek_v2(fields, dense_layers=3, router_bias=True)


def deepseek_v32(fields: HfFields) -> ModelSpec:
    """DeepSeek-V3.2 (arXiv 2512.02556) and GLM-5 (Zhipu AI), with other sizes. Defaults: 3 dense layers, embeddings not tied.

    DeepSeek-V3 with an indexer in every layer, which picks index_topk tokens; layers that share one (indexer_types) have no rule.
    """
    if "shared" in (fields.get("indexer_types", list) or []):
        raise DataError("indexer_types: layers that share an indexer have no rule yet", "models with an indexer in each layer work")
    names = ("index_n_heads", "index_head_dim", "index_topk")
    return deepseek_v2(fields, dense_layers=3, router_bias=True, indexer=Indexer(*map(fields.whole, names)))


BUILDS = {
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "kimi_k2": deepseek_v3,
    "deepseek_v32": deepseek_v32,
    "glm_moe_dsa": deepseek_v32,
}
