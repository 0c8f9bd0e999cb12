"""What each optimizer keeps per parameter, in one table.

Sources: Kingma & Ba 2015 (Adam); Loshchilov & Hutter 2019 (AdamW); Dettmers et al. 2022, arXiv 2110.02861, and the blocks of 256 of
bitsandbytes (8-bit Adam); Shazeer & Stern 2018 (Adafactor, no first moment); Chen et al. 2023 (Lion); Jordan et al. 2024 (Muon: one
momentum for each matrix of a layer, AdamW for tables and vectors).
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.errors import UsageError, suggest
from perfmodel.transformer.layer import TABLE
from perfmodel.transformer.training.matrices import Holding

BLOCK = 256
"""Elements of 8-bit state that share an fp32 scale. Source: bitsandbytes, blockwise optimizers."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """``moments``: numbers kept per parameter, in the precision of the state. ``eight_bit``: in one byte, with scales by block.

    ``factored``: a row and a column of sums per matrix instead of a second moment. ``matrix_moments``: of a layer's matrices, where
    they differ from those of tables and vectors. ``temporary``: numbers per parameter while many tensors are updated together by
    PyTorch's foreach kernels (torch/optim/adam.py takes the square root of all second moments at once); a fused kernel needs none.
    """

    name: str
    title: str
    moments: int
    eight_bit: bool = False
    factored: bool = False
    matrix_moments: int | None = None
    temporary: int = 0


OPTIMIZERS = {
    optimizer.name: optimizer
    for optimizer in (
        Optimizer("adam", "Adam: first and second moment", 2, temporary=1),
        Optimizer("adamw", "AdamW: first and second moment", 2, temporary=1),
        Optimizer("sgd", "SGD: nothing", 0),
        Optimizer("momentum", "SGD with momentum: one velocity", 1),
        Optimizer("adafactor", "Adafactor: sums of each row and column of the second moment", 0, factored=True),
        Optimizer("adam8bit", "8-bit Adam: both moments in a byte each, an fp32 scale per 256", 2, eight_bit=True),
        Optimizer("lion", "Lion: one momentum", 1),
        Optimizer("muon", "Muon: one momentum per matrix; AdamW for tables and vectors", 2, matrix_moments=1),
    )
}


def optimizer_named(name: str) -> Optimizer:
    """The optimizer called ``name``; UsageError with the nearest names otherwise."""
    if name not in OPTIMIZERS:
        raise UsageError(f"--optimizer: unknown optimizer {name!r}", suggest(name, list(OPTIMIZERS)))
    return OPTIMIZERS[name]


def state_elements(optimizer: Optimizer, holding: Holding) -> Number:
    """Numbers in the precision of the state that ``optimizer`` keeps for ``holding``, scales of 8-bit blocks apart."""
    if optimizer.factored:
        return sum(matrix.count * (matrix.inputs + matrix.outputs) for matrix in holding.matrices) + holding.vectors
    if optimizer.matrix_moments is None:
        return optimizer.moments * holding.parameters
    tables = sum(matrix.elements for matrix in holding.matrices if matrix.group == TABLE)
    rest = tables + holding.vectors
    return optimizer.matrix_moments * (holding.parameters - rest) + optimizer.moments * rest


def state_size(optimizer: Optimizer, holding: Holding, element_size: int) -> Number:
    """Bytes of the state, with ``element_size`` bytes per number that is not stored in 8 bits.

    >>> from perfmodel.transformer.layer import Matrix
    >>> square = Holding((Matrix("Q", "attention", 1024, 1024),))
    >>> [state_size(OPTIMIZERS[name], square, 4) // 1024 for name in ("adam", "momentum", "adafactor", "adam8bit", "muon")]
    [8192, 4096, 8, 2080, 4096]
    """
    elements = state_elements(optimizer, holding)
    return elements + 4 * ceil_div(elements, BLOCK) if optimizer.eight_bit else element_size * elements
