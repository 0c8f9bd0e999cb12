"""No step is shorter than any one resource is busy, whatever overlaps with what: links of each level, DRAM, tensor and vector units."""

from __future__ import annotations

from collections import Counter

import pytest
from training_questions import Question, answered, questions

from perfmodel.roofline import rates_of
from perfmodel.transformer.training.question import EVERY, FULL
from perfmodel.transformer.training.step import links
from perfmodel.transformer.training.step.data_parallel import shared_gradients, shared_weights
from perfmodel.transformer.training.step.estimate import TrainingEstimate
from perfmodel.transformer.training.step.exchange import Exchange
from perfmodel.transformer.training.step.job import state_of
from perfmodel.transformer.training.step.pieces import EMBEDDING, HEAD, end_piece, layer_piece
from perfmodel.transformer.training.step.system import crossed

ROUNDING = 1 + 1e-9
MANY = [250, pytest.param(5_000, marks=pytest.mark.slow)]


def exchanges(found: TrainingEstimate, stage: int) -> list[tuple[Exchange, float]]:
    """Everything that a GPU of ``stage`` sends in a step, with how often: from the model, whatever is said to hide it."""
    job, t, p = found.job, found.training, found.training.parallel
    often, again = int(t.micro_batches), 2 if t.recompute.kind in (FULL, EVERY) else 1
    pieces = [(layer_piece(job.frame, layer, job.on), count, again) for layer, count in job.layers.of_stage(p.pp, p.interleave, stage)]
    ends = [EMBEDDING] * (stage == 0) + [HEAD] * (stage == p.pp - 1)
    pieces += [(end_piece(job.frame, where, job.on), 1, 1) for where in ends]
    state = state_of(t, job.layers, stage)
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
            for level in crossed(system, p, exchange.group):
                busy[stage, level.name] += times * links.seconds(exchange, system, p, question.device)
    return busy


def vector_rate(device) -> float:
    peak = device.peaks.vector.get("fp32")
    return float("inf") if peak is None else device._rate_at_max_clock(peak, "vector")


def busy_units(device, cost, dtype) -> dict[str, float]:
    """Seconds of each unit at its highest clock, and of DRAM, as far as is known what passes there."""
    rates, known = rates_of(device, dtype), device.cache_bytes is not None
    return {
        "tensor": float(cost.work.tensor / rates.matmul_at_max_clock),
        "vector": float(cost.work.vector) / vector_rate(device),
        "DRAM": float(cost.dram.total / rates.dram) if known else 0.0,
    }


@pytest.mark.parametrize("count", MANY)
def test_no_training_step_is_shorter_than_a_resource_is_busy(count, monkeypatch):
    seen = Counter()
    for question in questions(count):
        found = answered(question, monkeypatch)
        busy = busy_units(question.device, found.cost, found.job.frame.forward.dtype) | busy_links(question, found)
        for resource, seconds in busy.items():
            assert seconds <= found.seconds * ROUNDING, (resource, question)
        if found.prediction is not None:
            assert max(busy.values()) <= found.prediction[1] * ROUNDING, question
        if question.system is not None and max(busy, key=lambda name: busy[name]) not in ("tensor", "vector", "DRAM"):
            seen["links are the busiest"] += 1
        seen["several stages"] += question.training.parallel.pp > 1
        seen["hidden"] += question.overlap and sum(busy_links(question, found).values()) > 0
    assert min(seen.values()) > count / 20 and len(seen) == 3, seen
