"""What a strategy of rematerialization is: a name, where it is from, the schedule that it makes, and its closed forms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from perfmodel.core.arith import Number
from perfmodel.core.errors import UsageError
from perfmodel.remat.chain import Chain
from perfmodel.remat.schedule import Action


@dataclass(frozen=True, slots=True)
class Plan:
    """What the strategies are told. ``checkpoints``: layers, from 0, whose outputs are kept; None where nobody named any.

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
    """``schedule``: the actions for a chain. ``applies``: whether it has all that it needs. ``rule``: its counts in words.

    In closed form, for equal layers, of their number and the plan; None where there is none: ``extra_steps`` and ``values``, the
    layers run forward once more and the most values in memory at once, for layers without interior; ``taped_steps``, the extra
    steps if every layer has one.
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
        """Where its counts are from."""
        return f"{self.paper}: {self.rule}" if self.paper else self.rule
