"""A schedule as a list of actions: which values are made, kept and dropped, and when each backward step runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from perfmodel.remat.chain import Chain

FORWARD, TAPE, LOSS, BACKWARD, DROP = "forward", "tape", "loss", "backward", "drop"


class Action(NamedTuple):
    """``forward``: layers start to stop - 1 run; x_start stays, x_stop is left, nothing between them.

    ``tape``: layer start runs and leaves its interior as well as its output. ``loss``: x_n becomes its gradient. ``backward``: of
    layer start; its input and interior, and the gradient of its output, are of no further use and go. ``drop``: x_start goes.
    """

    kind: str
    start: int
    stop: int

    def __str__(self) -> str:
        words = {LOSS: "loss", DROP: f"drop x{self.start}", BACKWARD: f"backward of layer {self.start}", TAPE: f"tape layer {self.start}"}
        return words.get(self.kind, f"forward x{self.start} -> x{self.stop}")


def forward(start: int, stop: int) -> Action:
    """Run layers ``start`` to ``stop - 1``."""
    return Action(FORWARD, start, stop)


def drop(value: int) -> Action:
    """Forget x_value."""
    return Action(DROP, value, value)


def turn(chain: Chain, layer: int) -> Iterator[Action]:
    """Backward of ``layer``, whose input is in memory; at the last layer its output and the loss first."""
    last = layer == len(chain) - 1
    taped = bool(chain.layers[layer].interior)
    if taped:
        yield Action(TAPE, layer, layer + 1)
    elif last:
        yield forward(layer, layer + 1)
    if last:
        yield Action(LOSS, len(chain), len(chain))
    elif taped:
        yield drop(layer + 1)
    yield Action(BACKWARD, layer, layer)


def keep(chain: Chain, start: int, stop: int) -> Iterator[Action]:
    """Run layers ``start`` to ``stop - 1`` and keep all that their backward needs."""
    for layer in range(start, stop):
        yield Action(TAPE if chain.layers[layer].interior else FORWARD, layer, layer + 1)


def backward(start: int, stop: int) -> Iterator[Action]:
    """Backward of layers ``stop - 1`` down to ``start``, everything that they need in memory."""
    return (Action(BACKWARD, layer, layer) for layer in range(stop - 1, start - 1, -1))
