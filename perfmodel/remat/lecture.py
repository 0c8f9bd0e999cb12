"""The counts of a lecture's code for rematerialization, as printed and put right: steps of a chain with checkpoints.

Its closures rebuild the output of layer i from the checkpoint f nearest to it with weights[f : i + 1], although layer f has run
already: weights[f + 1 : i + 1] is right. Python binds the loop's i late, so that, run as printed, every closure rebuilds the last
output.
"""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.remat.schedule import rebuilt_steps


def plain_steps(layers: Number) -> Number:
    """Everything kept: one step forward and two backward per layer.

    >>> plain_steps(10)
    30
    """
    return 3 * layers


def input_only_steps(layers: Number) -> Number:
    """Nothing kept but the input: each layer's input rebuilt from it.

    >>> input_only_steps(10)
    75
    """
    return plain_steps(layers) + rebuilt_steps(layers, [0])


def printed_steps(layers: int, checkpoint: int, *, last: bool) -> Number:
    """weights[checkpoint : i + 1] for each output i beyond the checkpoint: one step too many each. ``last``: x_n rebuilt as well.

    >>> printed_steps(10, 5, last=True), printed_steps(10, 5, last=False)
    (59, 54)
    """
    outputs = [i for i in range(layers if last else layers - 1) if i != checkpoint]
    return plain_steps(layers) + sum(i + 1 - (checkpoint if i > checkpoint else 0) for i in outputs)


def late_bound_steps(layers: Number, checkpoint: Number) -> Number:
    """The same as Python runs it: all closures see the last i of the loop, and rebuild the last output.

    >>> late_bound_steps(10, 5)
    75
    """
    return plain_steps(layers) + (layers - 1) * (layers - checkpoint)
