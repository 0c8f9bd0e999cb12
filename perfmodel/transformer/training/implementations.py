"""Whose training loop is meant: each says which tensors it records. To add one is to add its three tapes here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perfmodel.core.arith import Number
from perfmodel.core.errors import UsageError, suggest
from perfmodel.transformer.spec import Layer, ModelSpec
from perfmodel.transformer.training import huggingface, model_tape
from perfmodel.transformer.training.question import Recomputation
from perfmodel.transformer.training.shape import Shape
from perfmodel.transformer.training.tape import Tape

FUSED, HUGGINGFACE = "fused", "huggingface"


@dataclass(frozen=True, slots=True)
class Implementation:
    """``layer``, ``head``, ``embedding``: its tapes. ``core``: operations of a layer that selective recomputation runs again.

    ``constant``: bytes that it holds all the time; ``waiting``: those of a micro-batch from its forward to its backward pass besides
    what the tapes say.
    """

    name: str
    title: str
    layer: Callable[[ModelSpec, Layer, Shape], Tape]
    head: Callable[[ModelSpec, Shape], Tape]
    embedding: Callable[[ModelSpec, Shape], Tape]
    core: frozenset[str]
    constant: Callable[[ModelSpec, Shape], Number] = lambda model, shape: 0
    waiting: Callable[[ModelSpec, Shape, Recomputation], Number] = lambda model, shape, recompute: 0


CORE = frozenset({"attention", "Q K^T", "scale", "mask", "softmax", "softmax, rounding", "attention's dropout", "P V"})

IMPLEMENTATIONS = {
    each.name: each
    for each in (
        Implementation(
            FUSED,
            "one kernel each for norm, RoPE, activation function, attention's steps, softmax and loss",
            model_tape.layer_tape,
            model_tape.head_tape,
            model_tape.embedding_tape,
            CORE,
        ),
        Implementation(
            HUGGINGFACE,
            "the modules of huggingface/transformers in PyTorch, one kernel per written operation",
            huggingface.layer_tape,
            huggingface.head_tape,
            huggingface.embedding_tape,
            CORE,
            huggingface.constant_bytes,
            huggingface.waiting_bytes,
        ),
    )
}


def implementation_named(name: str) -> Implementation:
    """The implementation called ``name``; UsageError with the nearest names otherwise."""
    if name not in IMPLEMENTATIONS:
        raise UsageError(f"--implementation: unknown implementation {name!r}", suggest(name, list(IMPLEMENTATIONS)))
    return IMPLEMENTATIONS[name]
