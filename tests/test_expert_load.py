"""An uneven router: chances of experts, what the fullest GPU gets, and the kernels that follow."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from each import each

from perfmodel.catalog import find_model
from perfmodel.kernels.experts import Experts, rows_per_expert, tiles
from perfmodel.transformer.ops import step_ops
from perfmodel.transformer.parallel import weight_bytes
from perfmodel.transformer.routing import fullest, picks, touched
from perfmodel.transformer.step import Split, decode

SIZES = [(8, 2, 64), (128, 8, 4), (256, 8, 1), (64, 6, 1000), (16, 4, 3)]


@each("exponent", [0.0, 0.5, 1.0, 1.01, 1.2, 2.0])
@each(("experts", "per_token", "tokens"), SIZES)
def test_each_token_picks_as_many_experts_as_the_model_says(experts, per_token, tokens, exponent):
    found = picks(experts, per_token, tokens, exponent)
    assert sum(found) == pytest.approx(per_token)
    assert list(found) == sorted(found, reverse=True)
    assert 0 < found[-1] <= found[0] <= 1
    for groups in (1, 2, experts):
        group = fullest(experts, per_token, tokens, groups, exponent)
        assert len(group) == experts // groups
        assert per_token / groups - 1e-9 <= sum(group) <= min(per_token, experts // groups) + 1e-9


def test_touched_experts_are_those_of_drawn_tokens():
    r, chances = Random(1), picks(8, 2, 20, 1.2)
    drawn = [sum(any(r.random() < chance for _ in range(20)) for chance in chances) for _ in range(2000)]
    assert touched(chances, 20) == pytest.approx(sum(drawn) / len(drawn), rel=0.02)


@pytest.mark.parametrize("exponent", [1.01, 1.2])
def test_the_fullest_gpu_is_that_of_drawn_orders(exponent):
    r, known, most = Random(2), list(picks(64, 6, 500, exponent)), []
    for _ in range(500):
        r.shuffle(known)
        most.append(max(sum(known[start : start + 8]) for start in range(0, 64, 8)))
    assert sum(fullest(64, 6, 500, 8, exponent)) == pytest.approx(sum(most) / len(most), rel=0.06)


def test_even_loads_have_the_tiles_of_none():
    for rows in (3, 16, 64, 100):
        even = Experts(8 * rows, 64, 64, 8, 1, 8)
        assert tiles(even, 16) == tiles(replace(even, loads=(float(rows),) * 8), 16) == 8 * -(-rows_per_expert(even) // 16)


def test_an_uneven_router_fills_one_gpu_and_touches_fewer_experts():
    model = replace(find_model("mixtral-8x7b"), layers=find_model("mixtral-8x7b").layers[:1])

    def flops(imbalance: float, ep: int) -> int:
        found = step_ops(model, decode(64, 96, split=Split(ep=ep), imbalance=imbalance))
        return sum(op.count * op.kernel.flops for op in found if op.name.startswith("experts"))

    assert flops(1.2, 1) == flops(0.0, 1)
    assert flops(0.0, 8) < flops(1.01, 8) <= flops(1.2, 8) <= 4 * flops(0.0, 8)
    step = decode(4, 96, split=Split(ep=4))
    assert weight_bytes(model, step) == weight_bytes(model, replace(step, imbalance=1.2))
    assert touched(picks(8, 2, 4, 1.2), 4) < touched(picks(8, 2, 4, 0.0), 4)
