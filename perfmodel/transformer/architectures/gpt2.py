"""GPT-2 and GPT-3 (OpenAI): learned positions, plain MLPs, layer norms, biases everywhere. Defaults: width 4 n_embd, tied embeddings."""

from perfmodel.transformer.architectures._parts import HfFields, grouped, model, split
from perfmodel.transformer.spec import DenseMlp, Layer, ModelSpec


def build(fields: HfFields) -> ModelSpec:
    """Fields have GPT-2's own names: n_embd, n_layer, n_head, n_inner, n_positions (once n_ctx)."""
    hidden, heads = fields.whole("n_embd"), fields.whole("n_head")
    mlp = DenseMlp(fields.whole("n_inner", default=4 * hidden), gated=False, bias=True, activation="gelu")
    layer = Layer(grouped(heads, heads, split(fields, heads), None, qkv_bias=True, output_bias=True), mlp)
    positions = fields.whole("n_positions", "n_ctx")
    return model(fields, [layer] * fields.layers, tied=True, norm="layer", learned_positions=True, max_positions=positions)
