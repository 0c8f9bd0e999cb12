"""The timeline of a serving engine: simulated steps of its workers, kernels in a few of them, counters of requests and of the cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from perfmodel.report.document import CounterSample, KernelSpan
from perfmodel.report.step import StepPart
from perfmodel.report.step import timeline as kernels_of
from perfmodel.serving.answer import ServingAnswer
from perfmodel.serving.scheduler import LoggedSteps
from perfmodel.serving.simulate import LOGGED, PREFILL
from perfmodel.transformer.step_power import under_power


def timeline(answer: ServingAnswer) -> list[KernelSpan]:
    """Spans of the first ``LOGGED`` steps by worker; the first one of each phase of a worker has spans of its kernels inside."""
    spans: list[KernelSpan] = []
    cut = f", the first {LOGGED:,} steps" if sum(group.count for group in answer.steps) >= LOGGED else ""
    opened = set[tuple[str, str]]()
    for group, start, seconds, number in islice(_single_steps(answer), LOGGED):
        spans.append(KernelSpan(group.phase, group.lane + cut, start, seconds, _details(group, number * answer.load.tokens_per_step)))
        if number == 0 and (group.lane, group.phase) not in opened:
            opened.add((group.lane, group.phase))
            spans += [replace(span, lane=group.lane + cut) for span in _kernels(answer, group)]
    return spans


def _single_steps(answer: ServingAnswer) -> Iterator[tuple[LoggedSteps, float, float, int]]:
    """Each logged step with its start and length in seconds, and its number among equal ones."""
    for group in answer.steps:
        start = group.start
        for number in range(group.count):
            seconds = group.first_s + number * group.growth_s
            yield group, start, seconds, number
            start += seconds


def _details(group: LoggedSteps, further: float) -> dict[str, str]:
    """Details of a step: its sequences and prompts; ``further``: tokens of each sequence since the first of equal steps."""
    step, details = group.step, {"requests running": f"{group.running:,}", "requests waiting": f"{group.waiting:,}"}
    if step.decodes:
        details |= {"sequences": f"{step.decodes:,}", "context": f"{step.context + further:,.0f} tokens"}
    if step.chunk:
        details |= {"prompts": f"{step.prompts:,}", "tokens of prompts": f"{step.chunk:,}"}
    return details


def _kernels(answer: ServingAnswer, group: LoggedSteps) -> Iterator[KernelSpan]:
    """Spans of the kernels of the first step of ``group``, behind the time of the host; none if they overlap over several stages."""
    times = answer.pools.prefill if answer.pools is not None and group.lane.startswith(PREFILL) else answer.times
    rows = under_power(times.estimate(group.step), times.power).rows
    parts = [StepPart(row.op.name, row.op, row.cost, row.interval, row.seconds) for row in rows]
    host_s = group.first_s - sum(part.seconds for part in parts)
    if host_s < 0:
        return
    for span in kernels_of(parts):
        yield KernelSpan(span.name, "", group.start + host_s + span.start_s, span.seconds, span.details)


def counters(answer: ServingAnswer) -> list[CounterSample]:
    """Requests, tokens in the cache and its bytes as each group of equal steps begins, of the steps that ``timeline`` shows."""
    samples, shown = [], 0
    for group in answer.steps:
        if shown >= LOGGED:
            break
        shown += group.count
        samples.append(CounterSample(f"requests, {group.lane}", group.start, {"running": group.running, "waiting": group.waiting}))
        samples.append(CounterSample(f"KV cache, {group.lane}", group.start, {"tokens": group.tokens}))
        if not group.lane.startswith(PREFILL) and group.running:
            held = answer.memory.fit(max(group.tokens // group.running, 1), group.running).kv_cache
            samples.append(CounterSample(f"KV cache per GPU, {group.lane}", group.start, {"bytes": float(held)}))
    return samples
