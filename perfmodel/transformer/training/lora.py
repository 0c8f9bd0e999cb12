"""LoRA adapters (Hu et al. 2021, arXiv 2106.09685): two trained matrices a -> r and r -> b beside each frozen one a -> b."""

from __future__ import annotations

from perfmodel.transformer.layer import ATTENTION, MLP, Matrix
from perfmodel.transformer.training.matrices import Holding
from perfmodel.transformer.training.question import ALL, ATTENTION_ONLY

QV_NAMES = ("Q", "V")
"""The matrices that the paper adapts; in latent attention the up projections that have these names."""


def is_targeted(matrix: Matrix, targets: str) -> bool:
    """Whether ``matrix`` has an adapter. Experts, routers and tables have none."""
    if targets == ALL:
        return matrix.group in (ATTENTION, MLP)
    return matrix.group == ATTENTION and (targets == ATTENTION_ONLY or matrix.name in QV_NAMES)


def adapters(holding: Holding, rank: int, targets: str) -> Holding:
    """The trained matrices of ``rank`` beside the targeted ones of ``holding``; ``targets``: qv, attention or all.

    >>> adapters(Holding((Matrix("Q", "attention", 4096, 4096, 32),)), 8, "qv").parameters
    2097152
    """
    found = []
    for matrix in holding.matrices:
        if is_targeted(matrix, targets):
            found.append(Matrix(f"{matrix.name}, A", matrix.group, matrix.inputs, rank, matrix.count))
            found.append(Matrix(f"{matrix.name}, B", matrix.group, rank, matrix.outputs, matrix.count))
    return Holding(tuple(found))
