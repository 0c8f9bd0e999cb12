"""Sizes of one micro-batch on one GPU, as the kernels of a layer depend on them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.core.arith import Number
from perfmodel.core.dtypes import Dtype
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import PREFILL, ModelPass, Split
from perfmodel.transformer.training.implementations import HUGGINGFACE
from perfmodel.transformer.training.matrices import bare
from perfmodel.transformer.training.question import Parallel, TrainingConfig
from perfmodel.transformer.training.shape import Shape, shape_of


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """``model``: its first layer only. ``forward``: the pass over all tokens of the micro-batch; ``shape``: what divides it.

    ``eager``: one kernel per written operation, as the modules of huggingface/transformers run.
    """

    model: ModelSpec
    shape: Shape
    forward: ModelPass
    eager: bool
    cp: int = 1

    @property
    def tokens(self) -> Number:
        """Tokens inside of matrices."""
        return self.shape.tokens

    @property
    def own_tokens(self) -> Number:
        """Tokens outside of matrices."""
        return self.shape.own_tokens

    @property
    def hidden(self) -> Number:
        """Features of the residual stream."""
        return self.shape.hidden


def micro_batch_of(training: TrainingConfig, implementation: str, dtype: Dtype) -> MicroBatch:
    """The frame of a micro-batch of ``training``. A sequence is as long as its part on one context-parallel GPU."""
    shape, p = shape_of(training), training.parallel
    # how gradients are kept is nothing to a kernel: layouts that differ in it share theirs
    bare_parallel = Parallel(p.tp, p.sp, min(p.pp, 2), ep=p.ep, dp=p.ep)
    shape = replace(shape, parallel=bare_parallel, kept_gradient=0, gradient_shards=1)
    bits = 8 * shape.size
    split = Split(p.tp, p.ep)
    step = ModelPass(PREFILL, shape.sequences * p.ep, shape.length, shape.length, dtype, bits, bits, cached=False, split=split)
    return MicroBatch(bare(training.model), shape, step, implementation == HUGGINGFACE, p.cp)
