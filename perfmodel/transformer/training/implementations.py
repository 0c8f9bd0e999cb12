"""Whose training loop is meant: each says what it records of every operation. To add one is to add its recorder here."""

from __future__ import annotations

from functools import lru_cache

from perfmodel.core.errors import UsageError, suggest
from perfmodel.transformer.spec import Layer, ModelSpec
from perfmodel.transformer.training.huggingface import HuggingFace
from perfmodel.transformer.training.recorder import Recorder
from perfmodel.transformer.training.shape import Shape
from perfmodel.transformer.training.tape import Tape

FUSED, HUGGINGFACE = "fused", "huggingface"


Implementation = type[Recorder]
IMPLEMENTATIONS: dict[str, Implementation] = {FUSED: Recorder, HUGGINGFACE: HuggingFace}


def implementation_named(name: str) -> Implementation:
    """The implementation called ``name``; UsageError with the nearest names otherwise."""
    if name not in IMPLEMENTATIONS:
        raise UsageError(f"--implementation: unknown implementation {name!r}", suggest(name, list(IMPLEMENTATIONS)))
    return IMPLEMENTATIONS[name]


@lru_cache(maxsize=2048)
def layer_tape(frame: ModelSpec, layer: Layer, shape: Shape, implementation: str = FUSED, selective: bool = False) -> Tape:
    """The tape of ``layer`` of the model ``frame``; ``selective``: the attention core runs again."""
    return implementation_named(implementation).layer(frame, layer, shape, selective=selective)


@lru_cache(maxsize=512)
def end_tape(frame: ModelSpec, shape: Shape, implementation: str, where: str) -> Tape:
    """The tape of the embedding or the head."""
    return implementation_named(implementation).end(frame, shape, where)
