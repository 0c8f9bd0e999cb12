"""Collectives of torch.distributed over NCCL or RCCL, by the records that each leaves of itself in a profile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from perfmodel.core.cost import READ, Kernel, once
from perfmodel.core.dtypes import DTYPES
from perfmodel.kernels.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, Collective
from perfmodel.program.calls import Call, UnknownError
from perfmodel.transformer.op import COLLECTIVE, Op, Timed


def collective(call: Call, op: str) -> Op:
    """``op`` among the GPUs of its group, on the larger of the buffers that enter and leave; no wait of a rank for others is in it."""
    buffer, world = call.tensor(0), int(call.value(1, "1"))
    if world < 2 or buffer.dtype not in DTYPES:
        raise UnknownError(f"{call.name} among {world} in {buffer.dtype or 'an unknown format'}")
    w = Collective(op, world, buffer.bytes, DTYPES[buffer.dtype])
    kernel = Kernel(w.title, w.dtype, (once("buffer", READ, buffer.elements, w.dtype.size),))
    return Op(w.title, COLLECTIVE, 1, kernel, Timed("collective", w, ("nccl",)))


OPERATORS: dict[str, Callable[[Call], Op]] = {
    f"c10d::{name}": partial(collective, op=op)
    for op, names in {
        ALL_REDUCE: ("allreduce", "allreduce_coalesced"),
        ALL_GATHER: ("allgather", "_allgather_base", "allgather_into_tensor_coalesced"),
        REDUCE_SCATTER: ("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
        ALL_TO_ALL: ("all_to_all", "all_to_allv"),
    }.items()
    for name in names
}
