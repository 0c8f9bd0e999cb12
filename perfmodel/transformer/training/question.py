"""What is asked of a training step: the model, the batch, the formats, what is recomputed, and which GPU holds what; its sizes.

``Shape``: sizes of one micro-batch on one GPU, on which the tensors of a layer depend besides the layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from perfmodel.core.arith import Number, ceil_div
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import share

MIXED, BF16, FP32 = "mixed", "bf16", "fp32"
PRECISIONS = (MIXED, BF16, FP32)
"""Mixed: 16-bit weights, gradients and activations beside fp32 master weights and optimizer state."""
NONE, SELECTIVE, FULL, EVERY = "none", "selective", "full", "every"
"""What backward recomputes: nothing; the attention core (Korthikanti et al. 2022); each layer from its input; segments of K layers."""
SIXTEEN_BIT, FULL_GRADIENTS, BOTH_GRADIENTS = "16bit", "fp32", "both"
GRADIENTS = (SIXTEEN_BIT, FULL_GRADIENTS, BOTH_GRADIENTS)
"""What mixed precision keeps of gradients: as they come; added up in fp32 (Megatron-LM's main_grad); the two side by side."""
FREED, KEPT, APPLIED = "freed", "kept", "applied"
LIVES = (FREED, KEPT, APPLIED)
"""Gradients go after each step (``zero_grad`` of PyTorch); stay, as buffers do; or each goes once backward has applied it."""
ALL, ATTENTION_ONLY, QV = "all", "attention", "qv"
TARGETS = (ALL, ATTENTION_ONLY, QV)
"""Matrices with an adapter: all of attention and MLP (experts and router apart); all of attention; Q and V (Hu et al. 2021)."""


@dataclass(frozen=True, slots=True)
class Recomputation:
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
class TrainingConfig:
    """One optimizer step on ``batch`` sequences of ``n`` tokens in all, ``micro_batch`` of them at a time on each data-parallel GPU.

    ``optimizer``: a name of the table of optimizers. ``flash``: scores are never stored. ``lora``: rank of adapters, None to train
    every weight. ``dropout``: whether masks are kept. ``gradients``, ``gradient_life``: what is kept of gradients, and how long.
    ``fused_optimizer``: one kernel updates all, without temporary copies.
    """

    model: ModelSpec
    batch: Number
    n: Number
    micro_batch: Number | None = None
    precision: str = MIXED
    optimizer: str = "adam"
    recompute: Recomputation = field(default_factory=Recomputation)
    flash: bool = True
    lora: int | None = None
    dropout: bool = False
    parallel: Parallel = field(default_factory=Parallel)
    gradients: str = SIXTEEN_BIT
    gradient_life: str = FREED
    lora_targets: str = ALL
    fused_optimizer: bool = True

    @property
    def sequences(self) -> Number:
        """Sequences that one GPU works on at a time."""
        return ceil_div(self.batch, self.parallel.dp) if self.micro_batch is None else self.micro_batch

    @property
    def micro_batches(self) -> Number:
        """Times that a GPU goes forward and backward before the optimizer's step."""
        return ceil_div(ceil_div(self.batch, self.parallel.dp), self.sequences)

    @property
    def length(self) -> Number:
        """Tokens of a sequence on one of the context-parallel GPUs."""
        return ceil_div(self.n, self.parallel.cp)

    @property
    def tokens(self) -> Number:
        """Tokens of a micro-batch on one GPU."""
        return self.sequences * self.length


@dataclass(frozen=True, slots=True)
class Shape:
    """``model``: cut to its first layer, all that a layer needs to know of it. ``tokens`` of a micro-batch, of which a sequence-parallel
    GPU keeps ``tokens / sp``; ``keys``: of a whole sequence.

    ``size``: bytes of an activation. ``gradient_size``: of the gradient of a weight as it comes, ``kept_gradient``: as it stays beyond
    its layer's backward pass, on ``gradient_shards`` GPUs; 0 if it is added to a buffer or applied at once. ``parallel``: of what
    divides a layer; ``dp`` counts the GPUs that divide its gradients, and ``pp`` says only whether there are stages.
    """

    model: ModelSpec
    tokens: Number
    length: Number
    keys: Number
    size: int
    flash: bool
    dropout: bool
    rank: int | None
    targets: str
    parallel: Parallel
    gradient_size: int
    kept_gradient: int
    gradient_shards: int

    @property
    def hidden(self) -> Number:
        """Features of the residual stream."""
        return self.model.hidden

    @property
    def cp(self) -> Number:
        """GPUs that share each sequence."""
        return self.keys // self.length

    @property
    def sp(self) -> int:
        """GPUs that share the tokens outside of matrices."""
        return self.parallel.tp if self.parallel.sp else 1

    @property
    def own_tokens(self) -> Number:
        """Tokens outside of matrices on one GPU."""
        return share(self.tokens, self.sp)

    @property
    def sequences(self) -> Number:
        """Sequences of the micro-batch."""
        return self.tokens // self.length


def shape_of(training: TrainingConfig) -> Shape:
    """Sizes of a micro-batch of ``training``."""
    model, parallel = training.model, training.parallel
    size = 4 if training.precision == FP32 else 2
    shards = parallel.dp * parallel.cp if parallel.zero >= 2 else 1
    stays = training.gradient_life == FREED and training.micro_batches == 1
    kept = 4 if training.precision == MIXED and training.gradients != SIXTEEN_BIT else size
    if training.precision == MIXED and training.gradients == "both":
        kept += 2
    return Shape(
        model=replace(model, layers=model.layers[:1]),
        tokens=training.tokens,
        length=training.length,
        keys=training.n,
        size=size,
        flash=training.flash,
        dropout=training.dropout,
        rank=training.lora,
        targets=training.lora_targets,
        # layouts that differ in nothing else share their tapes
        parallel=Parallel(
            parallel.tp, parallel.sp, min(parallel.pp, 2), ep=parallel.ep, dp=shards, zero=parallel.zero if shards > 1 else 0
        ),
        gradient_size=size,
        kept_gradient=kept if stays else 0,
        gradient_shards=shards,
    )
