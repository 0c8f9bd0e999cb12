"""No step is shorter than any one resource is busy, whatever overlaps with what: links of each level, DRAM, tensor and vector units."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_questions import FEW_DEVICES, FEW_MODELS, Question, answered, fallbacks, questions
from training_questions import layout as drawn_layout

from perfmodel.catalog import device_ids, find_device, find_model, find_system, model_names, system_names
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.roofline import rates_of
from perfmodel.kernels.collectives import OPS, Collective, least_bytes, link_bandwidth
from perfmodel.transformer.answer import answer
from perfmodel.transformer.op import COLLECTIVE
from perfmodel.transformer.op_time import in_compute_dtype
from perfmodel.transformer.spec import Layer
from perfmodel.transformer.step import Request, Split, formats
from perfmodel.transformer.training.question import EVERY, FULL, Parallel, TrainingConfig
from perfmodel.transformer.training.step.estimate import TrainingEstimate, estimate
from perfmodel.transformer.training.step.flops import run
from perfmodel.transformer.training.step.job import shared_gradients, shared_weights
from perfmodel.transformer.training.step.layer_time import Window, machine_of
from perfmodel.transformer.training.step.search import search
from perfmodel.transformer.training.step.system import CONTEXT, DATA, EXPERT, TENSOR, Exchange, exchange_seconds, span

ROUNDING = 1 + 1e-9


def exchanges(found: TrainingEstimate, stage: int) -> list[tuple[Exchange, float]]:
    """Everything that a GPU of ``stage`` sends in a step, with how often: from the model, whatever is said to hide it."""
    job, t = found.job, found.training
    often, again = int(t.micro_batches), 2 if t.recompute.kind in (FULL, EVERY) else 1
    pieces = [(piece, count, again if isinstance(piece.where, Layer) else 1) for piece, count in job.times(stage)]
    state = job.state(stage)
    inside = [
        (exchange, often * count * times)
        for piece, count, repeats in pieces
        for ways, times in ((piece.ops.forward_exchanges, repeats), (piece.ops.backward_exchanges, 1))
        for exchange in ways
    ]
    return [*inside, *((exchange, 1.0) for exchange in (*shared_gradients(t, state), *shared_weights(t, state)))]


def busy_links(question: Question, found: TrainingEstimate) -> Counter[tuple[int, str]]:
    """Seconds of each level of links on each stage."""
    busy: Counter[tuple[int, str]] = Counter()
    system, p = question.system, question.training.parallel
    for stage in range(p.pp) if system is not None else ():
        for exchange, times in exchanges(found, stage):
            for level in span(system, p, exchange.group).crossed:
                busy[stage, level.name] += times * exchange_seconds(exchange, system, p, question.device)
    return busy


def vector_rate(device) -> float:
    return float("inf") if "fp32" not in device.peaks.vector else device._rate_at_max_clock("fp32", "vector")


def busy_units(device, cost, dtype) -> dict[str, float]:
    """Seconds of each unit at its highest clock, and of DRAM, as far as is known what passes there."""
    rates, known = rates_of(device, dtype), device.cache_bytes is not None
    return {
        "tensor": float(cost.work.tensor / rates.matmul_at_max_clock),
        "vector": float(cost.work.vector) / vector_rate(device),
        "DRAM": float(cost.dram.total / rates.dram) if known else 0.0,
    }


@pytest.mark.parametrize("count", [60, pytest.param(5_000, marks=pytest.mark.slow)])
def test_no_training_step_is_shorter_than_a_resource_is_busy(count, monkeypatch):
    """Nor does it use more than the peak: MFU <= HFU <= 1."""
    seen = Counter({"links are the busiest": 0, "several stages": 0, "beside kernels": 0})
    for question in questions(count):
        found = answered(question, monkeypatch)
        wires = busy_links(question, found)
        busy = busy_units(question.device, found.cost, found.job.micro_batch.forward.dtype) | wires
        for resource, seconds in busy.items():
            assert seconds <= found.seconds * ROUNDING, (resource, question)
        if found.prediction is not None:
            assert max(busy.values()) <= found.prediction[1] * ROUNDING, question
        mfu, hfu = run(found.job).shares(found.job, found.seconds)
        assert 0 < mfu <= hfu * ROUNDING
        assert hfu <= ROUNDING, question
        seen["links are the busiest"] += max(busy, key=lambda name: busy[name]) in wires
        seen["several stages"] += question.training.parallel.pp > 1
        seen["beside kernels"] += question.overlap and bool(wires)
    assert min(seen.values()) > count / 20, seen


def test_the_fastest_layout_of_gpt3_keeps_every_link_within_its_step():
    """1,024 A100s of Selene: sums of gradients and the weights of ZeRO 3 once hid behind the same backward pass."""
    system = find_system("selene-a100")
    on = machine_of(find_device(system.device), fallbacks)
    found = search(TrainingConfig(find_model("gpt3-175b"), 1536, 2048), 1024, on, system, most=2)
    for layout in found.layouts:
        step = estimate(layout.training, on.device, fallbacks, system)
        question = Question(layout.training, on.device, system, "fused", True)
        assert step.seconds == pytest.approx(layout.seconds)
        assert max(busy_links(question, step).values()) <= step.seconds
    zero3 = TrainingConfig(find_model("gpt3-175b"), 1536, 2048, 1, parallel=Parallel(cp=2, dp=512, zero=3))
    step = estimate(zero3, on.device, fallbacks, system)
    assert max(busy_links(Question(zero3, on.device, system, "fused", True), step).values()) > 16.7
    assert step.seconds > 16.7


def test_no_link_carries_more_than_its_bandwidth():
    """Every kind of exchange, group and size, by calibrations and by steps of a ring."""
    rng = random.Random(1)
    for name in system_names():
        system = find_system(name)
        device = find_device(system.device)
        for _ in range(300):
            p = drawn_layout(rng)
            group, op = rng.choice([TENSOR, CONTEXT, EXPERT, DATA]), rng.choice(OPS)
            if p.gpus > system.gpus or (at := span(system, p, group)).world == 1:
                continue
            exchange = Exchange(group, op, rng.choice([1, 1e4, 1e7, 1e10]))
            least = least_bytes(Collective(op, at.world, exchange.bytes, DTYPES["bf16"]))
            inner = system.levels[0] is at.level
            pace = at.level.bandwidth.number * (1 if inner else at.inside)
            assert exchange_seconds(exchange, system, p, device) * ROUNDING >= least / pace, (exchange, p)


lengths = st.just(0.0) | st.floats(1e-3, 5)
drawn = st.tuples(lengths, st.booleans(), st.dictionaries(st.sampled_from("abc"), lengths))


@given(lengths, lengths, st.lists(drawn))
def test_a_window_hides_no_resource_twice(seconds, inside, exchanges):
    """Each exchange takes some of each resource; what is hidden of them all fits the window, and that inside of it."""
    outer = Window(seconds, {"a": seconds / 2})
    inner = Window(min(inside, seconds), {}, outer)
    taken = Counter()
    for length, nested, needs in exchanges:
        hidden = (inner if nested else outer).hide(length, needs)
        assert 0 <= hidden <= length * ROUNDING
        for name, need in needs.items() if length else ():
            taken[nested, name] += need * hidden / length
    for name in "abc":
        free = seconds / 2 if name == "a" else seconds
        assert taken[True, name] + taken[False, name] <= free + 1e-9
        assert taken[True, name] <= inner.seconds + 1e-9


# Inference


def requests(count: int) -> Iterator[Request]:
    """Prefill and decode, formats, splits."""
    rng, wide = random.Random(count), count > 1000
    while count:
        pick, phase = rng.choice, rng.choice(["prefill", "decode"])
        n, dtype = pick([1, 2, 100, 1000, 8192, 131072]), DTYPES[pick(["fp16", "bf16", "fp32"])]
        model, device = find_model(pick(model_names() if wide else FEW_MODELS)), find_device(pick(device_ids() if wide else FEW_DEVICES))
        split = Split(pick([1, 1, 2, 8]), pick([1, 1, 2]), pick([1, 1, 2]))
        more = {"fused": rng.random() < 0.5, "graph": pick([None, True, False]), "cached": rng.random() < 0.8}
        try:
            form = formats(model, dtype, pick([None, None, "fp8", "int4"]), pick([None, "fp8"]))
            sizes = {"batch": pick([1, 2, 8, 64, 1000]), "n": n, "kv_len": n, "dtype": dtype, "split": split}
            asked = Request(phase, **sizes, model=model, device=device, **more, **form).check()
            rates_of(device, dtype)
            Collective("all_reduce", 2, 1, dtype).estimate(device)
        except PerfmodelError:
            continue
        count -= 1
        yield asked


@pytest.mark.parametrize("count", [40, pytest.param(5_000, marks=pytest.mark.slow)])
def test_no_pass_is_shorter_than_a_resource_is_busy(count):
    for asked in requests(count):
        found = answer(asked, fallbacks)
        [(one, _)] = found.steps
        rows = [row for row in one.rows if row.op.group != COLLECTIVE]
        wires = sum(float(row.op.count * least_bytes(row.op.timed.workload)) for row in one.rows if row.op.group == COLLECTIVE)
        busy = {"link": wires / link_bandwidth(asked.device)}
        for row in rows:
            dtype = in_compute_dtype(row.op, asked.device).dtype
            for name, seconds in busy_units(asked.device, row.cost, dtype).items():
                busy[name] = busy.get(name, 0.0) + seconds
        for name, seconds in busy.items():
            assert seconds <= one.seconds * ROUNDING, (name, asked)
        if one.prediction is not None:
            assert max(busy.values()) <= one.prediction[1] * ROUNDING, asked
        assert 0 < found.mfu <= ROUNDING, asked
