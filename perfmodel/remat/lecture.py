"""Forward and backward steps that a lecture's code for rematerialization takes on a chain of layers: as printed, and corrected.

Two errors of that code. (1) To recompute the output of layer i, a closure starts from the checkpoint f, the output of layer f, but runs
weights[f : i + 1]; weights[f + 1 : i + 1] is right, since layer f has run already. (2) Python looks up the loop variable i when a
closure runs, so every closure recomputes the last output.
"""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.remat.schedule import rebuilt_steps


def plain_steps(layers: Number) -> Number:
    """Steps with every output kept: one forward and two backward per layer.

    >>> plain_steps(10)
    30
    """
    return 3 * layers


def input_only_steps(layers: Number) -> Number:
    """Steps with only the chain's input kept: the input of each layer is recomputed from it.

    >>> input_only_steps(10)
    75
    """
    return plain_steps(layers) + rebuilt_steps(layers, [0])


def printed_steps(layers: int, checkpoint: int, *, last: bool) -> Number:
    """Steps with error (1): one too many for each output beyond the checkpoint. ``last``: the last output x_n is recomputed as well.

    >>> printed_steps(10, 5, last=True), printed_steps(10, 5, last=False)
    (59, 54)
    """
    outputs = [i for i in range(layers if last else layers - 1) if i != checkpoint]
    return plain_steps(layers) + sum(i + 1 - (checkpoint if i > checkpoint else 0) for i in outputs)


def late_bound_steps(layers: Number, checkpoint: Number) -> Number:
    """Steps with errors (1) and (2), as Python runs the code: every closure recomputes the last output.

    >>> late_bound_steps(10, 5)
    75
    """
    return plain_steps(layers) + (layers - 1) * (layers - checkpoint)
