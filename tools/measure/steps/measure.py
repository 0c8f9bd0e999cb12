"""Steps and collectives timed, a record each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.validation.cases import HELD_OUT
from perfmodel.validation.libraries import version_of
from perfmodel.validation.libraries.measure import as_line
from perfmodel.validation.records import Record, Seconds
from tools.measure.hardware import current_profile
from tools.measure.steps.cases import DECODE, StepCase
from tools.measure.steps.clock import ALONE, Together, captured, step_times
from tools.measure.steps.llama import Llama

RUNS = 5


def step_run(case: StepCase, model: Llama) -> Callable[[], Any]:
    """One step of ``case``, ready to run; in decode as a CUDA graph."""
    torch = model.torch
    n = 1 if case.phase == DECODE else case.length
    tokens = torch.randint(0, model.sizes.vocab, (case.batch, n), device=model.device)
    cache, angles = model.cache(case.batch, case.length), model.angles(case.length - n, n)

    def run() -> Any:
        return model.step(tokens, cache, angles)

    return captured(torch, run) if case.phase == DECODE else run


def step_record(case: StepCase, model: Llama, together: Together = ALONE) -> str:
    """A line of the record format."""
    torch = model.torch
    with torch.no_grad():
        times = step_times(torch, step_run(case, model), RUNS, together)
    return as_line(_record("transformer", "torch", case.shape, times, torch, case.role))


def _record(workload: str, implementation: str, shape: dict[str, Any], times: list[float], torch: Any, role: str) -> Record:
    return Record(
        workload=workload,
        implementation=implementation,
        hardware=current_profile(torch),
        dtype="bf16",
        shape=shape,
        time_s=Seconds.of(times),
        cache="warm",
        environment={"torch": torch.__version__, "runs": len(times)},
        source=f"{version_of(torch)}; {role}",
    )


REPEATED, REPETITIONS = 10, 11
"""A collective is timed over so many in a row, so often."""


def collective_run(op: str, world: int, size: int, torch: Any, dist: Any, group: Any, ranks: list[int]) -> Callable[[], Any]:
    """``op`` on a bf16 buffer of ``size`` bytes, enqueued once per call."""
    count = size // 2 // world * world
    full, part = (torch.zeros(n, dtype=torch.bfloat16, device="cuda") for n in (count, count // world))
    if op == "all_reduce":
        return lambda: dist.all_reduce(full, group=group)
    if op == "all_gather":
        return lambda: dist.all_gather_into_tensor(full, part, group=group)
    if op == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, full, group=group)
    if op == "all_to_all":
        other = torch.empty_like(full)
        return lambda: dist.all_to_all_single(other, full, group=group)
    if dist.get_rank() == ranks[0]:
        return lambda: dist.send(full, ranks[1], group=group)
    return lambda: dist.recv(full, ranks[0], group=group)


def collective_record(op: str, world: int, size: int, torch: Any, dist: Any, group: Any, ranks: list[int], together: Together) -> str:
    """A line of the record format: seconds of one of REPEATED collectives in a row."""
    once = collective_run(op, world, size, torch, dist, group, ranks)

    def run() -> None:
        for _ in range(REPEATED):
            once()

    times = [found / REPEATED for found in step_times(torch, run, REPETITIONS, together)]
    shape = {"op": op, "world": world, "bytes": size // 2 // world * world * 2}
    return as_line(_record("collective", "nccl", shape, times, torch, HELD_OUT))
