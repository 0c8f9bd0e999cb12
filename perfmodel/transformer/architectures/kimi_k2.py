"""Kimi K2 (Moonshot AI): DeepSeek-V3 with other sizes."""

from perfmodel.transformer.architectures import deepseek_v3
from perfmodel.transformer.architectures._parts import HfFields
from perfmodel.transformer.spec import ModelSpec


def build(fields: HfFields) -> ModelSpec:
    """As DeepSeek-V3."""
    return deepseek_v3.build(fields)
