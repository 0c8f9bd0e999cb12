"""GPT-2's activation function as huggingface/transformers writes it: eight kernels forward, eleven backward.

0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). Source: its source, NewGELUActivation; the kernels that a profiler lists.
"""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.transformer.step import Step
from perfmodel.transformer.training.step.row import StepOp, pointwise

ONE_READ, TWO_READS = 6, 2
"""Forward: the cube, its factor, the factor of the sum, tanh, 1 +, half of x; two sums or products of two tensors."""
BACK_ONE, BACK_TWO = 5, 6
"""Backward: four factors and the square; two gradients of the product, those of tanh and of the cube, two sums of gradients."""


def new_gelu(step: Step, rows: Number, cols: Number) -> tuple[list[StepOp], list[StepOp]]:
    """Forward and backward rows."""
    one, two = pointwise("GELU, of one tensor", step, rows, cols), pointwise("GELU, of two tensors", step, rows, cols, reads=2)
    back_one = pointwise("GELU's gradient, of one tensor", step, rows, cols)
    back_two = pointwise("GELU's gradient, of two tensors", step, rows, cols, reads=2)
    return [one.times(ONE_READ), two.times(TWO_READS)], [back_one.times(BACK_ONE), back_two.times(BACK_TWO)]
