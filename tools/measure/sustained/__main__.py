"""Kernels and steps of one seed, for seconds and alone after a pause before: ``python -m tools.measure.sustained SEED SECONDS OUT``.

Lines of OUT are records as they ship, held out: perfmodel/validation/measured/DEVICE/sustained-drawn.jsonl.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfmodel.catalog import find_model
from perfmodel.core.workload import FORWARD
from perfmodel.timing.base import WARM
from perfmodel.validation.cases import KernelCase
from perfmodel.validation.libraries import gradients_of, load_torch, version_of
from perfmodel.validation.libraries.measure import KEPT_BYTES, TOLERANCE, TorchTimer, as_line
from perfmodel.validation.records import Record, Seconds
from perfmodel.validation.statistics import StoppingRule
from tools.measure.hardware import current_profile
from tools.measure.prepared import find
from tools.measure.steps.cases import StepCase
from tools.measure.steps.clock import captured, step_times
from tools.measure.steps.llama import Llama
from tools.measure.steps.measure import step_run
from tools.measure.sustained.cases import FP8, kernels, steps
from tools.measure.sustained.nvml import limit_w
from tools.measure.sustained.run import Sustained, one_run, run_for_seconds

PAUSE_S = 0.3
BURST_RUNS = 3
RULE = StoppingRule(relative_error=0.005, least_runs=10, runs=20, budget_s=0.05)
STEPS_SHARE = 0.45
"""Of the seconds, at most."""
FP8_TOLERANCE = 0.02
"""Products of the same rounded operands, accumulated by the tensor unit."""
HOST_BOUND = 1.1
"""Two runs enqueued one by one, over one that waited for the host: beyond it the time is the host's. Backward passes are not captured."""

Write = Callable[[Record], None]


def lasting(record: Record, burst: list[float], found: Sustained) -> Record:
    """``record`` as it ran for seconds; ``burst_s``: the same alone after a pause, with caches as warm."""
    seconds = Seconds.of(found.seconds)
    more = {"graph": found.graph, "reasons": found.reasons, "sm_mhz": list(found.mhz[1:]), "burst_s": Seconds.of(burst).median}
    return replace(
        record,
        time_s=seconds,
        cache="warm",
        clock="sustained",
        environment=record.environment | more,
        power_w=round(found.watts, 1),
        sm_hz=found.mhz[0] * 1e6,
        energy_j=float(f"{found.watts * seconds.median:.4g}"),
    )


def _software(torch: Any) -> dict[str, Any]:
    return {"torch": torch.__version__, "limit_w": limit_w()}


def kernel(case: KernelCase, torch: Any, timer: TorchTimer) -> Record:
    """The record of one kernel."""
    prepared = find(case)(case, torch)
    with gradients_of(case, torch):
        error = prepared.error(prepared.run())
        if not error <= (FP8_TOLERANCE if case.dtype == FP8 else TOLERANCE[case.direction]):
            raise RuntimeError(f"its relative error against float64 is {error:.2g}")
        time.sleep(PAUSE_S)
        burst = timer.times(prepared.run, WARM)
        found = case.record(current_profile(torch), source=version_of(torch), environment=_software(torch))
        capture = case.direction == FORWARD
        if not capture and one_run(torch, prepared.run) > HOST_BOUND * sorted(burst)[len(burst) // 2]:
            raise RuntimeError("the host is slower than the kernel")
        return lasting(found, burst, run_for_seconds(torch, prepared.run, capture))


def step(case: StepCase, model: Llama) -> Record:
    """The record of one step, a CUDA graph in prefill too: the host has no part in it."""
    torch = model.torch
    shape: dict[str, Any] = {**case.shape, "cuda_graph": True}
    with torch.no_grad():
        run = step_run(case, model)
        run = run if case.shape["cuda_graph"] else captured(torch, run)
        time.sleep(PAUSE_S)
        burst = step_times(torch, run, BURST_RUNS)
        source = f"{version_of(torch)}; {case.role}"
        record = Record("transformer", "torch", current_profile(torch), "bf16", shape, Seconds(1.0), cache="warm", source=source)
        return lasting(replace(record, environment=_software(torch)), burst, run_for_seconds(torch, run, False))


def all_steps(seed: int, torch: Any, end: float, write: Write) -> None:
    """Steps of each model."""
    for name, cases in steps(seed):
        model = Llama(find_model(name), torch, "cuda", torch.bfloat16)
        for case in cases:
            if time.monotonic() > end:
                return
            _tried(case, lambda case=case, model=model: step(case, model), write)  # type: ignore[misc]
            torch.cuda.empty_cache()
        del model
        torch.cuda.empty_cache()


def all_kernels(seed: int, torch: Any, end: float, write: Write) -> None:
    """Kernels until the seconds are over."""
    timer = TorchTimer(torch, RULE)
    for case in kernels(seed):
        if time.monotonic() > end:
            return
        _tried(case, lambda case=case: kernel(case, torch, timer), write)  # type: ignore[misc]
        if torch.cuda.memory_reserved() > KEPT_BYTES:
            torch.cuda.empty_cache()


def _tried(case: object, run: Callable[[], Record], write: Write) -> None:
    try:
        write(run())
    except Exception as error:  # torch raises RuntimeError where no kernel fits or memory is short: the rest still runs
        sys.stderr.writelines([f"{case}: {type(error).__name__}: {str(error).strip().splitlines()[0][:160] if str(error) else ''}\n"])


def main(arguments: list[str]) -> None:
    """Steps first, then kernels, until the seconds are over."""
    seed, seconds, out = int(arguments[0]), float(arguments[1]), Path(arguments[2])
    begin, torch = time.monotonic(), load_torch()
    with out.open("w", encoding="utf-8") as file:

        def write(record: Record) -> None:
            file.write(as_line(record))
            file.flush()

        all_steps(seed, torch, begin + STEPS_SHARE * seconds, write)
        all_kernels(seed, torch, begin + seconds, write)


if __name__ == "__main__":
    main(sys.argv[1:])
