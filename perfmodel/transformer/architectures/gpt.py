"""GPT-2 and gpt-oss (OpenAI), which have more biases than others."""

from perfmodel.transformer.architectures._parts import HfFields, attention, experts, grouped, model, split
from perfmodel.transformer.spec import DenseMlp, Layer, ModelSpec


def gpt2(fields: HfFields) -> ModelSpec:
    """GPT-2 and GPT-3: learned positions, plain MLPs, layer norms, biases everywhere. Defaults: width 4 n_embd, tied embeddings.

    Fields have GPT-2's own names: n_embd, n_layer, n_head, n_inner, n_positions (once n_ctx).
    """
    hidden, heads = fields.whole("n_embd"), fields.whole("n_head")
    mlp = DenseMlp(fields.whole("n_inner", default=4 * hidden), gated=False, bias=True, activation="gelu")
    layer = Layer(grouped(heads, heads, split(fields, heads), None, qkv_bias=True, output_bias=True), mlp)
    positions = fields.whole("n_positions", "n_ctx")
    return model(fields, [layer] * fields.layers, tied=True, norm="layer", learned_positions=True, max_positions=positions)


def gpt_oss(fields: HfFields) -> ModelSpec:
    """gpt-oss: biases in attention, router and experts, a learned sink per head.

    Defaults: head_dim 64, a window of 128 in layers 0, 2, 4, ..., embeddings not tied. The router has a bias, one weight per expert.
    """
    fields.settled("experts_per_token")
    window = fields.optional("sliding_window", 128)
    windows = fields.windows([None if index % 2 else window for index in range(fields.layers)], window)
    count = fields.whole("num_local_experts", "num_experts")
    mlp = experts(fields, "intermediate_size", bias=True, router_extra=count)
    return model(fields, [Layer(attention(fields, w, head_dim=64, bias=True, sinks=True), mlp) for w in windows], tied=False)


BUILDS = {"gpt2": gpt2, "gpt_oss": gpt_oss}
