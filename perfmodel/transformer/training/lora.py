"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685): beside a frozen matrix a -> b run two trained ones, a -> r and r -> b."""

from __future__ import annotations

from perfmodel.transformer.layer import ATTENTION, MLP, Matrix
from perfmodel.transformer.training.matrices import Holding
from perfmodel.transformer.training.question import ALL, ATTENTION_ONLY

QV_NAMES = ("Q", "V")
"""Those of the paper's experiments; of latent attention the matrices up to them."""


def is_targeted(matrix: Matrix, targets: str) -> bool:
    """Whether ``matrix`` has an adapter. Experts, routers and tables have none."""
    if targets == ALL:
        return matrix.group in (ATTENTION, MLP)
    return matrix.group == ATTENTION and (targets == ATTENTION_ONLY or matrix.name in QV_NAMES)


def adapters(holding: Holding, rank: int, targets: str) -> Holding:
    """The trained matrices beside those of ``holding``.

    >>> adapters(Holding((Matrix("Q", "attention", 4096, 4096, 32),)), 8, "qv").parameters
    2097152
    """
    found = []
    for matrix in holding.matrices:
        if is_targeted(matrix, targets):
            found.append(Matrix(f"{matrix.name}, A", matrix.group, matrix.inputs, rank, matrix.count))
            found.append(Matrix(f"{matrix.name}, B", matrix.group, rank, matrix.outputs, matrix.count))
    return Holding(tuple(found))
