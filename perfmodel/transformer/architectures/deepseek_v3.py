"""DeepSeek-V3 and R1 (arXiv 2412.19437). Defaults: 3 dense layers, embeddings not tied."""

from perfmodel.transformer.architectures import deepseek_v2
from perfmodel.transformer.architectures._parts import HfFields
from perfmodel.transformer.spec import ModelSpec


def build(fields: HfFields) -> ModelSpec:
    """DeepSeek-V2 with a learned correction per expert in the router."""
    return deepseek_v2.build(fields, dense_layers=3, router_bias=True)
