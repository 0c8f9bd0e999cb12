"""Sizes of one micro-batch on one GPU: everything that the tensors of a layer depend on besides the layer itself."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.core.arith import Number
from perfmodel.transformer.step import share
from perfmodel.transformer.training.question import FP32, FREED, MIXED, SIXTEEN_BIT, Parallel, TrainingConfig


@dataclass(frozen=True, slots=True)
class Shape:
    """``tokens`` of a micro-batch, of which a sequence-parallel GPU keeps ``tokens / sp``; ``keys``: of a whole sequence.

    ``size``: bytes of an activation. ``gradient_size``: of the gradient of a weight as it comes, ``kept_gradient``: as it stays beyond
    its layer's backward pass, on ``gradient_shards`` GPUs; 0 if it is added to a buffer or applied at once. ``parallel``: of what
    divides a layer; ``dp`` counts the GPUs that divide its gradients, and ``pp`` says only whether there are stages.
    """

    hidden: Number
    norm: str
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
        hidden=model.hidden,
        norm=model.norm,
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
