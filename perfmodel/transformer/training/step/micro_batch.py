"""Sizes of one micro-batch on one GPU, and what the GPUs of a group exchange for it: the inputs of the kernels of a layer."""

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
    """``model``: cut to its first layer. ``forward``: the pass over all tokens of the micro-batch; ``shape``: its sizes on one GPU.

    ``eager``: one kernel per written operation, as the modules of huggingface/transformers run.
    """

    model: ModelSpec
    shape: Shape
    forward: ModelPass
    eager: bool
    cp: int = 1

    @property
    def tokens(self) -> Number:
        """Tokens that a matmul multiplies."""
        return self.shape.tokens

    @property
    def own_tokens(self) -> Number:
        """Tokens that norms and residuals see: under sequence parallelism a GPU's share."""
        return self.shape.own_tokens

    @property
    def hidden(self) -> Number:
        """Features of the residual stream."""
        return self.shape.hidden


def micro_batch_of(training: TrainingConfig, implementation: str, dtype: Dtype) -> MicroBatch:
    """The micro-batch of ``training``. Its sequence length is the part that one context-parallel GPU has."""
    shape, p = shape_of(training), training.parallel
    # kernels do not depend on how gradients are kept: layouts that differ only in that share cached kernels
    bare_parallel = Parallel(p.tp, p.sp, min(p.pp, 2), ep=p.ep, dp=p.ep)
    shape = replace(shape, parallel=bare_parallel, kept_gradient=0, gradient_shards=1)
    bits = 8 * shape.size
    split = Split(p.tp, p.ep)
    step = ModelPass(PREFILL, shape.sequences * p.ep, shape.length, shape.length, dtype, bits, bits, cached=False, split=split)
    return MicroBatch(bare(training.model), shape, step, implementation == HUGGINGFACE, p.cp)


TENSOR, CONTEXT, EXPERT, DATA, EXPERT_DATA, STAGES = "tensor", "context", "expert", "data", "expert data", "pipeline"
"""Groups of GPUs: those that share matrices, a sequence, experts; those with the same weights, or experts; neighbouring stages."""
DRAM = "DRAM"
"""The resource that an exchange occupies besides the links of its levels."""
BEHIND = "gradient of inputs"
"""Name of the matmul that can hide the second all-gather of the tokens."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """``op`` on a buffer of ``bytes``, ``count`` times, in each ``group`` of GPUs. ``behind``: kernels of this name may hide it."""

    group: str
    op: str
    bytes: Number
    count: Number = 1
    behind: str = ""


def enters(batch: MicroBatch) -> tuple[list[Exchange], list[Exchange]]:
    """Exchanges, forward and backward, before column-parallel matrices (Korthikanti et al. 2022, section 4.2).

    Backward sums the partial input gradients of the GPUs. Under sequence parallelism forward gathers the tokens, and backward gathers
    them again for the weight gradients, as only a share was kept.
    """
    size = batch.tokens * batch.hidden * batch.shape.size
    if batch.shape.parallel.tp == 1:
        return [], []
    if batch.shape.sp == 1:
        return [], [Exchange(TENSOR, ALL_REDUCE, size)]
    return [Exchange(TENSOR, ALL_GATHER, size)], [Exchange(TENSOR, ALL_GATHER, size, behind=BEHIND), Exchange(TENSOR, REDUCE_SCATTER, size)]


def leaves(batch: MicroBatch) -> tuple[list[Exchange], list[Exchange]]:
    """Exchanges, forward and backward, after row-parallel matrices: an all-reduce, or a reduce-scatter under sequence parallelism."""
    size = batch.tokens * batch.hidden * batch.shape.size
    if batch.shape.parallel.tp == 1:
        return [], []
    if batch.shape.sp == 1:
        return [Exchange(TENSOR, ALL_REDUCE, size)], []
    return [Exchange(TENSOR, REDUCE_SCATTER, size)], [Exchange(TENSOR, ALL_GATHER, size)]


def experts(batch: MicroBatch, per_token: Number) -> list[Exchange]:
    """The two all-to-alls that send tokens to their experts and back. ``per_token``: experts that one token visits."""
    if batch.shape.parallel.ep == 1:
        return []
    return [Exchange(EXPERT, ALL_TO_ALL, batch.tokens * per_token * batch.hidden * batch.shape.size, 2)]


def ring(batch: MicroBatch, kv_elements: Number) -> tuple[list[Exchange], list[Exchange]]:
    """Exchanges, forward and backward, of ring attention (Liu et al. 2023): K and V pass by; backward dK and dV as well."""
    if batch.cp == 1:
        return [], []
    size = batch.tokens * kv_elements * batch.shape.size
    return [Exchange(CONTEXT, P2P, size, batch.cp - 1, "attention")], [Exchange(CONTEXT, P2P, 2 * size, batch.cp - 1, "attention")]
