"""Low-rank adapters beside frozen matrices: two small matmuls forward, four backward, for each matrix that has one."""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.kernels.matmul import Matmul
from perfmodel.transformer.op import Op
from perfmodel.transformer.training.lora import is_targeted
from perfmodel.transformer.training.matrices import ATTENTION, MLP, Matrix
from perfmodel.transformer.training.step.micro_batch import MicroBatch
from perfmodel.transformer.training.step.row import StepOp, pointwise, product

MATRICES = {
    "QKV projection": (ATTENTION, ("Q", "K", "V")),
    "output projection": (ATTENTION, ("O",)),
    "Q down projection": (ATTENTION, ("Q down",)),
    "Q up projection": (ATTENTION, ("Q",)),
    "KV down projection": (ATTENTION, ("KV down",)),
    "KV up projection": (ATTENTION, ("V",)),
    "gate and up projection": (MLP, ("gate", "up")),
    "up projection": (MLP, ("up",)),
    "down projection": (MLP, ("down",)),
}
"""Which matrices a row multiplies by, with their group."""


def adapters(op: Op, frame: MicroBatch, outputs: dict[str, Number]) -> tuple[list[StepOp], list[StepOp]]:
    """Forward and backward rows of the adapters beside ``op``. ``outputs``: columns of each matrix of the layer by name."""
    rank, key = frame.shape.rank, op.name.removeprefix("shared expert, ")
    if rank is None or key not in MATRICES or op.timed is None:
        return [], []
    w: Matmul = op.timed.workload
    group, names = MATRICES[key]
    chosen = [name for name in names if name in outputs and is_targeted(Matrix(name, group, w.k, outputs[name]), frame.shape.targets)]
    forward: list[StepOp] = []
    back: list[StepOp] = []
    for name in chosen:
        columns, step = outputs[name] if len(names) > 1 else w.n, frame.forward
        first, second = f"adapter of {name}, A", f"adapter of {name}, B"
        forward += [
            product(first, step, Matmul(w.m, rank, w.k, dtype=w.dtype), weights="B"),
            product(second, step, Matmul(w.m, columns, rank, dtype=w.dtype), weights="B"),
            pointwise(f"adapter of {name}, sum", step, w.m, columns, reads=2),
        ]
        back += [
            product(f"{second}, gradient of inputs", step, Matmul(w.m, rank, columns, dtype=w.dtype), weights="B"),
            product(f"{second}, gradient of weights", step, Matmul(rank, columns, w.m, dtype=w.dtype), weights="C"),
            product(f"{first}, gradient of inputs", step, Matmul(w.m, w.k, rank, dtype=w.dtype), weights="B"),
            product(f"{first}, gradient of weights", step, Matmul(w.k, rank, w.m, dtype=w.dtype), weights="C"),
            pointwise(f"adapter of {name}, sum of gradients", step, w.m, w.k, reads=2),
        ]
    return forward, back
