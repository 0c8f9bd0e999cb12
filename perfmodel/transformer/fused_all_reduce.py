"""All-reduces that also do the residual add and the norm after them, in one kernel that keeps the sum in registers.

Source: flashinfer, trtllm_allreduce_fusion, a port of TensorRT-LLM's kernels; vLLM, compilation/passes/fusion/allreduce_rms_fusion.py;
SGLang, --enable-flashinfer-allreduce-fusion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.core.arith import ceil_div
from perfmodel.core.cost import READ, Access
from perfmodel.core.trace import plain
from perfmodel.kernels.collectives import ALL_REDUCE
from perfmodel.transformer.op import Op

MIB = 1 << 20
LARGEST = {2: 64 * MIB, 4: 2 * MIB, 8: MIB // 2}  # known
"""Largest buffer that is summed this way, by number of GPUs: vLLM's default for compute capability 9.0, the least in its table."""
KERNELS = ("trtllm-allreduce",)  # known
"""Implementation of the kernel in every engine."""
SUMMED, FUSED = "residual add and norm", "all-reduce, residual add and norm"


def fused(rows: Sequence[Op]) -> list[Op]:
    """``rows`` in order, with each small all-reduce joined to the residual add and norm that follow it."""
    ops: list[Op] = []
    for row in rows:
        if ops and row.name == SUMMED and _small(ops[-1]):
            ops[-1] = joined(ops[-1], row)
        else:
            ops.append(row)
    return ops


def _small(row: Op) -> bool:
    w = row.exchange
    return w is not None and w.op == ALL_REDUCE and plain(w.bytes) <= LARGEST.get(w.world, 0)


def joined(reduced: Op, summed: Op) -> Op:
    """Row of one kernel that reads the buffer and the residual, and writes their sum and its norm; the reduced buffer stays on the chip."""
    assert reduced.timed is not None
    accesses = list(reduced.kernel.accesses)
    for access in summed.kernel.accesses:
        is_input = access.kind == READ and access.tensor == "activations"
        accesses.append(_residual_alone(access) if is_input else access)
    kernel = summed.kernel._replace(name=FUSED, accesses=tuple(accesses))
    names = tuple(dict.fromkeys((*KERNELS, *(reduced.timed.implementations or ()))))
    return replace(reduced, name=FUSED, kernel=kernel, timed=reduced.timed._replace(implementations=names))


def _residual_alone(both: Access) -> Access:
    """The read of the residual alone: half of ``both``, which a separate kernel reads (residual and reduced buffer)."""
    return both._replace(
        elements=ceil_div(both.elements, 2), footprint=ceil_div(both.footprint, 2), compulsory=ceil_div(both.compulsory, 2)
    )
