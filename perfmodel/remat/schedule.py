"""A schedule as a list of actions: which values are made, kept and dropped, and when each backward step runs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from perfmodel.core.arith import Number, ceil_div, maximum
from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.remat.chain import Chain

FORWARD, TAPE, LOSS, BACKWARD, DROP = "forward", "tape", "loss", "backward", "drop"


class Action(NamedTuple):
    """A step of a schedule. ``forward``: layers start to stop - 1 run; x_start stays, x_stop is left, nothing between them.

    ``tape``: layer start runs and leaves its interior as well as its output. ``loss``: x_n becomes its gradient. ``backward``: the backward
    step of layer start; then its input, its interior and the gradient of its output are freed. ``drop``: x_start is freed.
    """

    kind: str
    start: int
    stop: int

    def __str__(self) -> str:
        words = {LOSS: "loss", DROP: f"drop x{self.start}", BACKWARD: f"backward of layer {self.start}", TAPE: f"tape layer {self.start}"}
        return words.get(self.kind, f"forward x{self.start} -> x{self.stop}")


def forward(start: int, stop: int) -> Action:
    """Actions that run layers ``start`` to ``stop - 1``."""
    return Action(FORWARD, start, stop)


def drop(value: int) -> Action:
    """The action that forgets x_value."""
    return Action(DROP, value, value)


def loss(chain: Chain) -> Action:
    """The action that turns the last output into its gradient."""
    return Action(LOSS, len(chain), len(chain))


def from_input(chain: Chain, layer: int) -> Iterator[Action]:
    """Actions of the backward of ``layer``, whose input is in memory; a layer with an interior runs once more to get it."""
    if chain.layers[layer].interior:
        yield Action(TAPE, layer, layer + 1)
        yield drop(layer + 1)
    yield Action(BACKWARD, layer, layer)


def from_input_or_loss(chain: Chain, layer: int) -> Iterator[Action]:
    """Actions of the backward of ``layer``, whose input is in memory; at the last layer its output and the loss first."""
    if layer < len(chain) - 1:
        yield from from_input(chain, layer)
    else:
        yield from keep(chain, layer, layer + 1)
        yield loss(chain)
        yield Action(BACKWARD, layer, layer)


def keep(chain: Chain, start: int, stop: int) -> Iterator[Action]:
    """Actions that run layers ``start`` to ``stop - 1`` and keep all that their backward needs."""
    for layer in range(start, stop):
        yield Action(TAPE if chain.layers[layer].interior else FORWARD, layer, layer + 1)


def backward(start: int, stop: int) -> Iterator[Action]:
    """Actions of the backward of layers ``stop - 1`` down to ``start``, everything that they need in memory."""
    return (Action(BACKWARD, layer, layer) for layer in range(stop - 1, start - 1, -1))


def sweep(values: Sequence[int]) -> Iterator[Action]:
    """Actions that run forward from the first to the last of ``values``, keeping each on the way."""
    return (forward(start, stop) for start, stop in pairwise(values))


def rebuilt(chain: Chain, values: Sequence[int], *, output: bool = False) -> Iterator[Action]:
    """Actions that rebuild the input of each layer for its backward, from the last of ``values`` before it.

    ``output``: the last output is rebuilt as well.
    """
    end = len(chain)
    yield from sweep([*values, end])
    if output:
        yield drop(end)
        yield forward(values[-1], end)
    yield loss(chain)
    for layer in reversed(range(end)):
        start = values[bisect_right(values, layer) - 1]
        if start < layer:
            yield forward(start, layer)
        yield from from_input(chain, layer)


def rebuilt_steps(n: Number, values: Sequence[int]) -> Number:
    """Forward steps that ``rebuilt`` adds for layers without interior: l (l - 1) / 2 per stretch of l layers between kept values.

    >>> rebuilt_steps(10, [0]), rebuilt_steps(10, [0, 6])
    (45, 21)
    """
    return sum((stop - start) * (stop - start - 1) // 2 for start, stop in pairwise([*values, n]))


def segmented(chain: Chain, values: Sequence[int], *, keep_last: bool) -> Iterator[Action]:
    """Actions that reverse the segments that begin at ``values``, 0 first."""
    end, last = len(chain), values[-1]
    if keep_last:
        yield from sweep(values)
        yield from keep(chain, last, end)
    else:
        yield from sweep([*values, end])
    yield loss(chain)
    for start, stop in reversed(list(pairwise([*values, end]))):
        if keep_last and stop == end:
            yield from backward(start, stop)
        else:
            yield from keep(chain, start, stop - 1)
            yield from from_input(chain, stop - 1)  # its last layer runs only for its interior, not for its output
            yield from backward(start, stop - 1)


def every_steps(n: Number, k: Number) -> Number:
    """Extra forward steps of segments of k layers, of which the last is kept: all but one layer of every other segment.

    >>> every_steps(10, 4), every_steps(100, 10)
    (6, 81)
    """
    return (ceil_div(n, k) - 1) * (k - 1)


def every_values(n: Number, k: Number) -> Number:
    """Most values at once with m = ceil(n / k) segments, k <= n: m starts and the rest of the last segment, or m - 1 and a rebuilt one.

    >>> every_values(10, 4), every_values(100, 10), every_values(10, 10)
    (5, 20, 11)
    """
    m = ceil_div(n, k)
    return m + maximum(n - (m - 1) * k, k - 2)


@dataclass(frozen=True, slots=True)
class Plan:
    """Inputs of the strategies, None where not given. ``checkpoints``: layers, from 0, whose outputs are kept.

    ``every``: layers per segment; ``slots``: values stored at once, x_0 among them; ``memory``: bytes that everything may take.
    """

    checkpoints: tuple[int, ...] | None = None
    every: Number | None = None
    slots: Number | None = None
    memory: Number | None = None

    def check(self, chain: Chain) -> Plan:
        """This plan, if it has a meaning for ``chain``; else UsageError names the option and the fix."""
        length = len(chain)
        for layer in self.checkpoints or ():
            if not 0 <= layer < length - 1:
                why = "its output is the last one, which no backward step needs" if layer == length - 1 else "there is no such layer"
                raise UsageError(f"--checkpoints: {layer} of a chain of {length}: {why}", f"layers count from 0; give 0 to {length - 2}")
        for option, value in (("every", self.every), ("slots", self.slots)):
            if value is not None and value < 1:
                raise UsageError(f"--{option} is {value}", "give a whole number from 1")
        return self

    @property
    def values(self) -> list[int]:
        """The values kept: x_0, and the outputs of the layers named."""
        return [0, *(layer + 1 for layer in sorted(set(self.checkpoints or ())))]


@dataclass(frozen=True, slots=True)
class Strategy:
    """A strategy. ``schedule``: the actions for a chain. ``applies``: whether it has all inputs that it needs.

    ``rule``: its counts in words. Closed forms for equal layers, as functions of their number and the plan, or None: ``extra_steps``,
    layers run forward once more, and ``values``, most values in memory at once, for layers without interior; ``taped_steps``, extra steps
    if every layer has an interior.
    """

    name: str
    summary: str
    rule: str
    schedule: Callable[[Chain, Plan], Iterable[Action]]
    paper: str = ""
    applies: Callable[[Chain, Plan], bool] = lambda chain, plan: True
    extra_steps: Callable[[Number, Plan], Number] | None = None
    taped_steps: Callable[[Number, Plan], Number] | None = None
    values: Callable[[Number, Plan], Number] | None = None

    @property
    def source(self) -> str:
        """Source of its counts."""
        return f"{self.paper}: {self.rule}" if self.paper else self.rule
