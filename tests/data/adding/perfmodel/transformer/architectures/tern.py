"""Tern: every second layer sees a window, the others all tokens and have experts. Defaults: two experts a token, tied embeddings.

Its files say ``depth``, ``width``, ``q_heads``, ``kv_groups``, ``ffn_mult``, ``experts``, ``context`` and ``window``.
"""

from perfmodel.transformer.architectures._parts import HfFields, grouped
from perfmodel.transformer.spec import DenseMlp, Layer, ModelSpec, MoeMlp


def build(fields: HfFields) -> ModelSpec:
    """Layers in pairs: window and dense MLP, then all tokens and experts."""
    width, heads = fields.whole("width"), fields.whole("q_heads")
    kv_heads, inner = fields.whole("kv_groups", default=heads), width * fields.whole("ffn_mult", default=4)
    experts, window = fields.whole("experts", default=8), fields.whole("window", default=1024)
    near = Layer(grouped(heads, kv_heads, width // heads, window), DenseMlp(inner))
    far = Layer(grouped(heads, kv_heads, width // heads, None), MoeMlp(experts, fields.whole("active", default=2), inner // 2))
    layers = tuple(far if index % 2 else near for index in range(fields.whole("depth")))
    return ModelSpec(
        name="",
        architecture=fields.architecture,
        hidden=width,
        vocab=fields.whole("vocabulary"),
        layers=layers,
        tied_embeddings=fields.flag("tied", True),
        max_positions=fields.optional("context"),
    )
