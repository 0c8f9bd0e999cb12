"""What is asked of a training step: the model, the batch, the formats, what is recomputed, and which GPU holds what."""

from __future__ import annotations

from dataclasses import dataclass, field

from perfmodel.arith import Number
from perfmodel.transformer.spec import ModelSpec

MIXED, BF16, FP32 = "mixed", "bf16", "fp32"
"""Precisions. Mixed: 16-bit weights, gradients and activations beside fp32 master weights and optimizer state."""
NONE, SELECTIVE, FULL, EVERY = "none", "selective", "full", "every"
"""What backward recomputes: nothing; the attention core (Korthikanti et al. 2022); each layer from its input; segments of K layers."""


@dataclass(frozen=True, slots=True)
class Recompute:
    """``kind`` with, for ``every``, the number of layers per segment."""

    kind: str = NONE
    every: int = 1


@dataclass(frozen=True, slots=True)
class Parallel:
    """GPUs of a run. ``tp`` share matrices, with ``sp`` also the rest of a layer; ``pp`` hold stages of layers, in ``interleave`` turns;

    ``cp`` share each sequence; ``ep`` of the data-parallel ones share experts; ``dp`` hold copies, whose state ZeRO divides (0 to 3).
    """

    tp: int = 1
    sp: bool = False
    pp: int = 1
    interleave: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    zero: int = 0

    @property
    def gpus(self) -> int:
        """GPUs in all; expert-parallel groups are made of data-parallel ones."""
        return self.tp * self.pp * self.cp * self.dp


@dataclass(frozen=True, slots=True)
class Training:
    """One optimizer step on ``batch`` sequences of ``n`` tokens in all, ``micro_batch`` of them at a time on each data-parallel GPU.

    ``optimizer``: a name of the table of optimizers. ``flash``: scores are never stored. ``lora``: rank of adapters, None to train
    every weight. ``dropout``: whether masks are kept.
    """

    model: ModelSpec
    batch: Number
    n: Number
    micro_batch: Number | None = None
    precision: str = MIXED
    optimizer: str = "adam"
    recompute: Recompute = field(default_factory=Recompute)
    flash: bool = True
    lora: int | None = None
    dropout: bool = False
    parallel: Parallel = field(default_factory=Parallel)
