"""What memory buys: the cost of the cheapest schedule of a chain for several amounts of it."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.core.arith import Number
from perfmodel.remat.base import Plan
from perfmodel.remat.budget import LARGEST, Program
from perfmodel.remat.chain import Chain
from perfmodel.remat.simulate import simulate
from perfmodel.remat.strategies import keep_all

STOPS = 8
ROOM = 1.1


@dataclass(frozen=True, slots=True)
class Point:
    """The least ``memory`` for a schedule of ``cost``, forward and backward; ``overhead``: relative to everything kept."""

    memory: Number
    cost: Number
    overhead: float


def curve(chain: Chain, stops: int = STOPS) -> list[Point]:
    """From the least memory that will do to what keeping everything takes, in about ``stops`` steps; nothing for a long chain."""
    if len(chain) > LARGEST:
        return []
    whole = simulate(chain, keep_all.schedule(chain, Plan()))
    program = Program(chain, whole.peak)
    if not program.needs.exact:  # sizes are rounded up: only with more than it takes is keeping everything among the schedules
        program = Program(chain, ROOM * whole.peak)
    found = program.curve
    least, most = found[0][0], found[-1][0]
    targets = [least * (most / least) ** (stop / (stops - 1)) for stop in range(stops)]
    chosen = dict.fromkeys(
        max((point for point in found if point[0] <= target * (1 + 1e-12)), key=lambda point: point[0]) for target in targets
    )
    return [Point(memory, cost + chain.backward_cost, (cost + chain.backward_cost) / whole.cost - 1) for memory, cost in chosen]
