"""Sizes of one micro-batch on one GPU, as the kernels of a layer depend on them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.core.arith import Number
from perfmodel.core.dtypes import Dtype
from perfmodel.kernels.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, P2P, REDUCE_SCATTER
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import PREFILL, ModelPass, Split
from perfmodel.transformer.training.implementations import HUGGINGFACE
from perfmodel.transformer.training.matrices import bare
from perfmodel.transformer.training.question import Parallel, Shape, TrainingConfig, shape_of


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


TENSOR, CONTEXT, EXPERT, DATA, EXPERT_DATA, STAGES = "tensor", "context", "expert", "data", "expert data", "pipeline"
"""Which GPUs: those that share matrices, a sequence, experts; those with the same weights, or experts; neighbouring stages."""
DRAM = "DRAM"
"""The resource beside the links of each level that an exchange takes."""
BEHIND = "gradient of inputs"
"""The second gathering of tokens runs beside the matmul for the gradient of inputs."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """``op`` on a buffer of ``bytes`` among the GPUs of ``group``, ``count`` times. ``behind``: rows of this name may hide it."""

    group: str
    op: str
    bytes: Number
    count: Number = 1
    behind: str = ""


def enters(frame: MicroBatch) -> tuple[list[Exchange], list[Exchange]]:
    """Forward and backward, where the hidden state enters matrices that tensor-parallel GPUs share (Korthikanti et al. 2022, section 4.2).

    Their partial gradients are summed; under sequence parallelism the tokens are gathered first, and once more for the gradients of
    the weights, as only a share of them was kept.
    """
    size = frame.tokens * frame.hidden * frame.shape.size
    if frame.shape.parallel.tp == 1:
        return [], []
    if frame.shape.sp == 1:
        return [], [Exchange(TENSOR, ALL_REDUCE, size)]
    return [Exchange(TENSOR, ALL_GATHER, size)], [Exchange(TENSOR, ALL_GATHER, size, behind=BEHIND), Exchange(TENSOR, REDUCE_SCATTER, size)]


def leaves(frame: MicroBatch) -> tuple[list[Exchange], list[Exchange]]:
    """The same where it leaves them: partial sums are added up, or each GPU gets the sums of its tokens."""
    size = frame.tokens * frame.hidden * frame.shape.size
    if frame.shape.parallel.tp == 1:
        return [], []
    if frame.shape.sp == 1:
        return [Exchange(TENSOR, ALL_REDUCE, size)], []
    return [Exchange(TENSOR, REDUCE_SCATTER, size)], [Exchange(TENSOR, ALL_GATHER, size)]


def experts(frame: MicroBatch, per_token: Number) -> list[Exchange]:
    """Tokens on their way to their experts, and back: once each way."""
    if frame.shape.parallel.ep == 1:
        return []
    return [Exchange(EXPERT, ALL_TO_ALL, frame.tokens * per_token * frame.hidden * frame.shape.size, 2)]


def ring(frame: MicroBatch, kv_elements: Number) -> tuple[list[Exchange], list[Exchange]]:
    """K and V of the other context-parallel GPUs pass by; backward so do their gradients (Liu et al. 2023, ring attention)."""
    if frame.cp == 1:
        return [], []
    size = frame.tokens * kv_elements * frame.shape.size
    return [Exchange(CONTEXT, P2P, size, frame.cp - 1, "attention")], [Exchange(CONTEXT, P2P, 2 * size, frame.cp - 1, "attention")]
