"""The fastest layout that fits: the same that trying each one finds, and quick."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from fuzzing import calls

from perfmodel.catalog import calibrated_devices, find_device, find_model, find_system
from perfmodel.core.errors import PerfmodelError, UnavailableError
from perfmodel.transformer.training.memory import peak
from perfmodel.transformer.training.question import Parallel, TrainingConfig, checked
from perfmodel.transformer.training.step.job import job_of
from perfmodel.transformer.training.step.layer_time import machine_of
from perfmodel.transformer.training.step.search import candidates, parallels, search
from perfmodel.transformer.training.step.step_time import step_time

H200, NODE = find_device("nvidia-h200-sxm"), find_system("h200-x8")
SMALL = TrainingConfig(find_model("gpt2-medium"), 16, 1024)


@cache
def fallbacks():
    return calibrated_devices()


@cache
def on_h200():
    return machine_of(H200, fallbacks)


def test_the_best_is_what_trying_each_layout_finds():
    found = search(SMALL, 8, on_h200(), NODE, most=3)
    tried = list(candidates(SMALL, 8, 8))
    assert found.tried == len(tried) == len({repr((t.parallel, t.micro_batch, t.recompute)) for t in tried})
    fitting = [t for t in tried if peak(t).bytes <= H200.dram.capacity.number]
    times = sorted(step_time(job_of(t, on_h200(), NODE)).seconds for t in fitting)
    assert [layout.seconds for layout in found.layouts] == pytest.approx(times[:3])


def test_less_memory_leaves_fewer_layouts_and_none_that_is_too_large():
    room = H200.dram.capacity.number
    wide = search(SMALL, 8, on_h200(), NODE, most=1)
    narrow = search(SMALL, 8, on_h200(), NODE, most=1, headroom=1 - 3e9 / room)
    assert narrow.layouts[0].bytes <= 3e9 < wide.layouts[0].bytes
    assert narrow.layouts[0].seconds > wide.layouts[0].seconds
    assert narrow.refused > 0
    assert search(SMALL, 8, on_h200(), NODE, headroom=1 - 1e8 / room).layouts == []


@pytest.mark.parametrize(("name", "gpus", "batch"), [("llama-3-70b", 64, 128), ("mixtral-8x7b", 32, 64), ("gpt2-xl", 24, 48)])
def test_every_layout_is_one_that_can_be_asked_for(name, gpus, batch):
    training = TrainingConfig(find_model(name), batch, 4096, flash=name != "gpt2-xl")
    seen = list(candidates(training, gpus, 8))
    assert {t.parallel.gpus for t in seen} == {gpus}
    assert all(t.parallel.tp <= 8 for t in seen)
    for layout in seen[:: max(len(seen) // 200, 1)]:
        assert checked(layout) is layout
    if training.model.is_moe:
        assert {t.parallel.ep for t in seen} == {1, 2, 4, 8}


def test_layouts_that_the_search_leaves_out_cannot_be_asked_for():
    model = find_model("gpt2")  # 12 heads
    offered = {p.tp for p in parallels(model, 8, 16, 1024, 8, True)}
    for tp in (1, 2, 4, 8):
        try:
            checked(TrainingConfig(model, 16, 1024, parallel=Parallel(tp=tp)))
        except PerfmodelError:
            assert tp not in offered
        else:
            assert tp in offered


def test_layouts_cost_little_each():
    """Calls of functions per layout, which a busy machine does not change: 3,300 when written, and half in large searches.

    Of a second search: what the first one reads and keeps depends on the tests before it.
    """
    search(SMALL, 8, machine_of(H200, fallbacks), NODE)
    with calls() as counted:
        found = search(SMALL, 8, machine_of(H200, fallbacks), NODE)
    assert found.layouts
    assert counted["calls"] / found.tried < 5000


def test_a_device_without_a_capacity_is_refused():
    bare = replace(H200, memory=[replace(level, capacity=None) if level.level == "dram" else level for level in H200.memory])
    with pytest.raises(UnavailableError, match="capacity"):
        search(SMALL, 8, machine_of(bare, fallbacks), NODE)
