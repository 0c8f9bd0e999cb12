"""What passes between GPUs during a micro-batch or a step, and between which."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.core.arith import Number
from perfmodel.kernels.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, P2P, REDUCE_SCATTER
from perfmodel.transformer.training.step.micro_batch import MicroBatch

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
