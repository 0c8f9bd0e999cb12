"""MiniMax-M2 and M3 (MiniMax): grouped attention to all tokens or to picked blocks of them, and experts."""

from dataclasses import replace

from perfmodel.core.errors import DataError
from perfmodel.transformer.architectures._parts import HfFields, attention, experts, gated, model
from perfmodel.transformer.spec import BlockIndexer, Layer, ModelSpec


def minimax_m2(fields: HfFields) -> ModelSpec:
    """MiniMax-M2, M2.1 and M2.5: one norm over all heads of Q and one over all heads of K. Defaults: embeddings not tied.

    A learned correction per expert in the router. Modules that predict further tokens (use_mtp) are not counted; M2 has no linear or
    sparse attention, unlike MiniMax-01, for which there is no rule, and M3.
    """
    fields.settled(
        "use_mtp", "mtp_transformer_layers", "num_mtp_modules", "qk_norm_type", "rotary_dim", "use_routing_bias", "attn_type_list"
    )
    fields.refuse("shared_intermediate_size", 0, "a shared expert")
    normed = fields.flag("use_qk_norm", True)
    heads = attention(fields, qk_norm=normed, whole_norm=normed)
    extra = fields.whole("num_local_experts") if fields.flag("use_routing_bias", True) else 0
    return model(fields, [Layer(heads, experts(fields, "intermediate_size", router_extra=extra))] * fields.layers, tied=False)


def minimax_m3(fields: HfFields) -> ModelSpec:
    """MiniMax-M3 (arXiv 2606.13392): sparse attention to blocks of keys, experts with a shared one; the first layers are dense.

    sparse_attention_config says which layers pick blocks, moe_layer_freq which have experts; norms on Q and K per head. Modules that
    predict further tokens are not counted: the published weights have none.
    """
    fields.settled("num_mtp_modules", "num_nextn_predict_layers", "qk_norm_type", "rotary_dim", "use_gemma_norm", "first_k_dense_replace")
    fields.settled("use_routing_bias", "intermediate_size", "n_shared_experts", "attention_output_gate")
    sparse = HfFields({**fields.get("sparse_attention_config", dict, {}), "model_type": fields.architecture}, "sparse_attention_config.")
    sparse.refuse("sparse_init_block", 0, "a block that is always seen")
    names = ("sparse_num_index_heads", "sparse_index_dim", "sparse_topk_blocks", "sparse_block_size")
    index = BlockIndexer(*map(sparse.whole, names))
    picks, moe = sparse.numbers("sparse_attention_freq", fields.layers), fields.numbers("moe_layer_freq", fields.layers)
    if not picks or not moe:
        raise DataError("sparse_attention_freq and moe_layer_freq: each needs an entry per layer", "add them from the model's config.json")
    full = attention(fields, qk_norm=True)
    picking = replace(full, indexer=index)
    shared = fields.whole("shared_intermediate_size")
    routed = experts(fields, "moe_intermediate_size", shared_width=shared, router_extra=fields.whole("num_local_experts"))
    dense = gated(fields, field="dense_intermediate_size")
    kinds = zip(picks, moe, strict=True)
    layers = [Layer(picking if picks_blocks else full, routed if is_moe else dense) for picks_blocks, is_moe in kinds]
    return model(fields, layers, tied=False)


BUILDS = {"minimax_m2": minimax_m2, "minimax_m3": minimax_m3}
