"""Schedules of a chain: run on real matrices by a walker of its own, against the simulation and the closed forms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
from each import each
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.core.errors import DataError, UnavailableError, UsageError
from perfmodel.remat.chain import Chain, ChainLayer, uniform
from perfmodel.remat.evaluate import evaluate, explain
from perfmodel.remat.optimal_dp import Program
from perfmodel.remat.schedule import LOSS, Action, Plan, drop, forward
from perfmodel.remat.simulate import simulate
from perfmodel.remat.source import Source
from perfmodel.remat.strategies import find, names
from perfmodel.remat.strategies import revolve as binomial
from perfmodel.remat.strategies.revolve import schedule as revolve
from perfmodel.report.op_common import chart, columns, sparkline

PLANS = [Plan(), Plan(checkpoints=(5,)), Plan(checkpoints=(0, 3, 4), every=4, slots=3), Plan(every=3, slots=1), Plan(slots=9)]


@dataclass
class Walk:
    """Runs actions on matrices, one layer at a time, with nothing at hand but what is in memory.

    A layer with an interior is tanh(x W), whose slope its backward needs; one without is x W. Sizes are those of the chain.
    """

    chain: Chain
    values: dict[int, np.ndarray] = field(default_factory=dict)
    slopes: dict[int, np.ndarray] = field(default_factory=dict)
    weight_gradients: dict[int, np.ndarray] = field(default_factory=dict)
    gradient: np.ndarray | None = None
    at: int = -1
    steps: int = 0
    peak: float = 0
    most: int = 0
    order: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(len(self.chain))
        self.weights = [rng.standard_normal((2, 2)) for _ in self.chain.layers]
        self.input = self.values[0] = rng.standard_normal((3, 2))

    def layer(self, i: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        z = x @ self.weights[i]
        return (np.tanh(z), 1 - np.tanh(z) ** 2) if self.chain.layers[i].interior else (z, np.ones_like(z))

    def look(self, *working: float, values: int = 0) -> None:
        """Note what is in memory now, with ``working`` besides."""
        sizes, layers = self.chain.sizes, self.chain.layers
        held = sum(sizes[i] for i in self.values) + sum(layers[i].interior for i in self.slopes)
        gradients = sizes[self.at] if self.gradient is not None else 0
        weights = sum(layer.weights for layer in layers) + sum(layers[i].weights for i in self.weight_gradients)
        self.peak = max(self.peak, held + gradients + weights + sum(working))
        self.most = max(self.most, len(self.values) + values)

    def run(self, actions: Iterable[Action]) -> Walk:
        for kind, start, stop in actions:
            getattr(self, kind)(start, stop)
        return self

    def forward(self, start: int, stop: int) -> None:
        x, sizes = self.values[start], self.chain.sizes
        for i in range(start, stop):
            x, _ = self.layer(i, x)
            before = sizes[i] if i > start else 0
            self.look(before, sizes[i + 1], self.chain.layers[i].scratch, values=2 if i > start else 1)
            self.steps += 1
        self.values[stop] = x

    def tape(self, start: int, stop: int) -> None:
        y, slope = self.layer(start, self.values[start])
        self.look(self.chain.sizes[stop], self.chain.layers[start].interior, self.chain.layers[start].scratch, values=1)
        self.values[stop], self.slopes[start] = y, slope
        self.steps += 1

    def loss(self, start: int, stop: int) -> None:
        self.look(self.chain.sizes[-1])
        self.gradient, self.at = self.values.pop(start), start  # of half the sum of squares

    def backward(self, i: int, _: int) -> None:
        assert self.gradient is not None
        assert self.at == i + 1
        layer = self.chain.layers[i]
        slope = self.slopes[i] if layer.interior else 1
        inner = self.gradient * slope
        self.weight_gradients[i] = self.values[i].T @ inner
        self.look(self.chain.sizes[i], layer.scratch)
        self.gradient, self.at = inner @ self.weights[i].T, i
        self.order.append(i)
        del self.values[i]
        self.slopes.pop(i, None)

    def drop(self, start: int, _: int) -> None:
        del self.values[start]

    def reference(self) -> dict[int, np.ndarray]:
        """Gradients of the weights by backpropagation as in a textbook."""
        xs, slopes = [self.input], []
        for i in range(len(self.chain)):
            y, slope = self.layer(i, xs[-1])
            xs.append(y)
            slopes.append(slope)
        gradient, found = xs[-1], {}
        for i in reversed(range(len(self.chain))):
            inner = gradient * slopes[i]
            found[i], gradient = xs[i].T @ inner, inner @ self.weights[i].T
        return found


def check(chain: Chain, actions: list[Action]) -> Walk:
    """Right gradients, each backward step once, last first; and the simulation counts what the walker counts."""
    walk, found = Walk(chain).run(actions), simulate(chain, actions)
    assert walk.order == list(reversed(range(len(chain))))
    for i, expected in walk.reference().items():
        np.testing.assert_allclose(walk.weight_gradients[i], expected, rtol=1e-9, atol=1e-12)
    assert (walk.steps, walk.peak, walk.most) == (found.forward_steps, found.peak, found.values)
    return walk


@each("interior", [0, 3])
@each("name", names())
def test_every_schedule_gives_the_gradients_in_the_steps_and_memory_counted(name, interior):
    strategy, ran = find(name), 0
    for length in (1, 2, 3, 7, 10, 16, 30):
        chain = uniform(length, interior=interior)
        for plan in [*PLANS, Plan(memory=length + 2 + 4 * interior)]:
            fits = not plan.checkpoints or max(plan.checkpoints) < length - 1
            if not fits or not strategy.applies(chain, plan):
                continue
            walk = check(chain, list(strategy.schedule(chain, plan)))
            steps = strategy.taped_steps if interior else strategy.extra_steps
            if steps is not None:
                assert walk.steps - length == steps(length, plan), plan
            if strategy.values is not None and not interior:
                assert walk.most == strategy.values(length, plan), plan
            ran += 1
    assert ran >= 5


whole = st.integers(1, 5)
layers = st.builds(ChainLayer, whole, whole, whole, st.sampled_from([0, 0, 1, 4]), st.integers(0, 2), st.integers(0, 2))
chains = st.builds(lambda found, first: Chain(tuple(found), first), st.lists(layers, min_size=1, max_size=12), whole)


@given(chains, st.data())
@settings(max_examples=120, deadline=None)
def test_any_chain_under_any_plan(chain, data):
    length = len(chain)
    kept = data.draw(st.none() if length == 1 else st.lists(st.integers(0, length - 2), min_size=1, max_size=4).map(tuple))
    plan = Plan(kept, data.draw(whole), data.draw(whole)).check(chain)
    for name in names():
        strategy = find(name)
        if strategy.applies(chain, plan):
            actions = list(strategy.schedule(chain, plan))
            check(chain, actions)
            peak = simulate(chain, actions).peak
            assert simulate(chain, Program(chain, peak).schedule()).cost <= simulate(chain, actions).cost, name


@given(chains, st.integers(2, 60))
@settings(max_examples=80, deadline=None)
def test_the_optimal_schedule_fits(chain, memory):
    program = Program(chain, memory)
    if program.least_cost is None:
        with pytest.raises(UnavailableError, match="no schedule"):
            list(program.schedule())
        return
    actions = list(program.schedule())
    assert check(chain, actions).peak <= memory
    assert simulate(chain, actions).forward_cost == program.least_cost
    assert (memory, program.least_cost) >= program.curve[0]


def test_rounding_sizes_up_keeps_a_schedule_within_its_memory():
    """Sizes that are no whole parts of the memory, as those of a model."""
    chain = uniform(40, forward=0.7, backward=1.6, output=1.37, interior=17.9, scratch=11.3)
    kept = simulate(chain, find("keep-all").schedule(chain, Plan())).peak
    costs = []
    for share in (0.2, 0.4, 0.6, 0.8):
        run = simulate(chain, Program(chain, share * kept).schedule())
        assert run.peak <= share * kept
        costs.append(run.cost)
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) == 4


# Counts


def printed(length: int, checkpoint: int, *, late: bool, last: bool) -> tuple[int, list[int]]:
    """The lecture's code as printed: its matmuls, and which output each closure rebuilds in backward.

    ``late``: the closures see the loop's i as it is in the end; ``last``: the last output is rebuilt as well.
    """
    matmuls, rebuilt = 0, []

    def rebuild(i: int) -> None:
        nonlocal matmuls
        matmuls += len(range(length)[(checkpoint if i > checkpoint else 0) : i + 1])
        rebuilt.append(i)

    closures = {}
    for i in range(length):
        matmuls += 1
        if i != checkpoint:
            closures[i] = (lambda: rebuild(i)) if late else (lambda i=i: rebuild(i))  # noqa: B023 - the late binding is the point
    for layer in reversed(range(length)):
        if layer in closures and (last or layer < length - 1):
            closures[layer]()
        matmuls += 2
    return matmuls, rebuilt


@each("half", [2, 5, 8])
def test_the_lecture_code_as_printed(run, half):
    """One checkpoint in the middle of the layers, as in claims S047 and S048."""
    assert printed(10, 5, late=True, last=True) == (75, [9] * 9)
    late, *wrong = (printed(2 * half, half, late=late, last=last)[0] for late, last in ((True, True), (False, True), (False, False)))
    said = run(f"remat --layers {2 * half} --checkpoints {half} --full").out
    assert f"A count of {late} with" in said
    assert f"{wrong[0]} and {wrong[1]} steps" in said


@cache
def forward_steps_dp(length: int, slots: int) -> int:
    """Fewest forward steps by dynamic programming: store x_j, reverse what comes after with one slot less, then what comes before."""
    if length == 1:
        return 0
    if slots == 1:
        return length * (length - 1) // 2
    return min(j + forward_steps_dp(length - j, slots - 1) + forward_steps_dp(j, slots) for j in range(1, length))


def test_revolve_closed_form_dp_and_schedule():
    for length in range(1, 80):
        for slots in range(1, 9):
            runs = binomial.repetitions(length, slots)
            assert binomial.beta(slots, runs - 1) < length <= binomial.beta(slots, runs) or length == 1
            steps = binomial.forward_steps(length, slots, runs)
            assert steps == forward_steps_dp(length, slots)
            plan = Plan(slots=slots)
            assert simulate(uniform(length), revolve(uniform(length), plan)).extra_steps == steps - (length - 1)
            assert simulate(uniform(length, interior=1), revolve(uniform(length, interior=1), plan)).extra_steps == steps


@given(st.lists(st.integers(1, 9), min_size=2, max_size=10), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_revolve_of_unequal_costs_beats_the_placement_for_equal_ones(costs, slots):
    chain = Chain(tuple(ChainLayer(cost, 2 * cost) for cost in costs))
    placed = list(revolve(uniform(len(costs)), Plan(slots=min(slots, len(costs)))))
    assert simulate(chain, revolve(chain, Plan(slots=slots))).cost <= simulate(chain, placed).cost


# What is refused


@pytest.mark.parametrize(
    "actions",
    [
        [forward(1, 2)],
        [forward(0, 2), forward(0, 2)],
        [forward(0, 2), drop(1)],
        [forward(0, 2), Action("backward", 1, 1)],
        [forward(0, 3), Action(LOSS, 3, 3), Action("backward", 2, 2)],
        [forward(0, 2), forward(2, 3), Action(LOSS, 3, 3), Action("backward", 1, 1)],
        [forward(0, 2), forward(2, 3), Action(LOSS, 3, 3), Action("backward", 2, 2)],
        [Action(LOSS, 3, 3)],
    ],
)
def test_an_impossible_schedule_is_an_error(actions):
    with pytest.raises(DataError, match="schedule"):
        simulate(uniform(3), actions)


def test_a_tape_is_needed_and_not_made_twice():
    chain = uniform(2, interior=1)
    ahead = [forward(0, 1), forward(1, 2), Action(LOSS, 2, 2)]
    with pytest.raises(DataError, match="interior of layer 1 is not in memory"):
        simulate(chain, [*ahead, Action("backward", 1, 1)])
    with pytest.raises(DataError, match="nothing that is not in memory already"):
        simulate(chain, [Action("tape", 0, 1), drop(1), Action("tape", 0, 1)])


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(checkpoints=(9,)), "the last one, which no backward step needs"),
        (Plan(checkpoints=(10,)), "there is no such layer"),
        (Plan(checkpoints=(-1,)), "there is no such layer"),
        (Plan(every=0), "--every is 0"),
        (Plan(slots=0), "--slots is 0"),
    ],
)
def test_a_plan_that_means_nothing(plan, message):
    with pytest.raises(UsageError, match=message):
        plan.check(uniform(10))


# Explanations and timelines


@each("interior", [0, 2])
@each("plan", PLANS)
def test_explanations_end_in_what_the_simulation_counted(plan, interior):
    answer = evaluate(Source(uniform(30, interior=interior), ""), plan)
    for (name, _, steps), row in zip(explain(answer), [row for row in answer.rows if row.run], strict=True):
        found = {step.name: int(step.value) for step in steps}
        assert row.run is not None
        assert (name, found["extra steps"], found["values"]) == (row.strategy.name, row.run.extra_steps, row.run.values)
        assert (found["peak"], found["cost"]) == (row.run.peak, row.run.cost)
        assert all(step.source for step in steps)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=20), st.integers(1, 40), st.booleans())
def test_columns_show_the_highest_moment_wherever_it_is(steps, width, whole_steps):
    moments, end = [], 0
    for cost, taken in steps:
        end += cost
        moments.append((end, taken))
    shown = columns(moments, width, whole_steps=whole_steps)
    assert max(shown) == max(taken for _, taken in moments)
    assert len(shown) <= width or not end


def test_characters():
    assert sparkline([0, 1, 100], 100) == "▁▁█"
    picture = chart([1, 3, 4, 2], 4, 4, str)
    assert [label for label, _ in picture] == ["4", "3", "2", "1"]
    assert [bars for _, bars in picture] == ["│  █", "│ ██", "│ ███", "│████"]
