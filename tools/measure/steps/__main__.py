"""Measure on this machine's GPUs, records as they come: ``python3 -m tools.measure.steps OUT SECONDS MODEL...`` on one GPU;
``torchrun --nproc-per-node 4 -m tools.measure.steps OUT SECONDS`` on several."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from perfmodel.catalog import find_model
from perfmodel.validation.libraries.measure import as_line, cases, measure
from tools.measure.hardware import current_profile
from tools.measure.steps.cases import DECODE, OPS, PARALLEL_MODELS, PREFILL, StepCase, collective_sizes, step_cases
from tools.measure.steps.clock import among
from tools.measure.steps.llama import Llama
from tools.measure.steps.measure import collective_record, step_record, step_run

torch: Any = import_module("torch")
ROPE_WITH = "llama-3-8b"


def _say(text: str) -> None:
    sys.stderr.writelines([text + "\n"])
    sys.stderr.flush()


def _fails(error: Exception, what: object) -> None:
    _say(f"{what}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    torch.cuda.empty_cache()


def one_gpu(out: Path, seconds: float, names: list[str]) -> None:
    """Steps of each model on the current GPU, then what kernels a few of them consist of."""
    end = time.monotonic() + seconds
    with (out / f"steps-{names[0]}.jsonl").open("a") as file:
        for name in names:
            model = Llama(find_model(name), torch, "cuda", torch.bfloat16)
            for case in step_cases(name):
                if time.monotonic() > end:
                    return
                try:
                    file.write(step_record(case, model))
                    file.flush()
                except (RuntimeError, ValueError) as error:
                    _fails(error, case)
                torch.cuda.empty_cache()
            if time.monotonic() < end:
                _profiles(out / "profiles.jsonl", model, name, 1)
            del model
            torch.cuda.empty_cache()
        if names[0] == ROPE_WITH:
            _rope(file, end)


def _rope(file: Any, end: float) -> None:
    """RoPE alone, after a flush, as the other row kernels are measured."""

    def write(record: Any) -> None:
        file.write(as_line(record))
        file.flush()

    for case in cases("rope"):
        if time.monotonic() < end:
            measure([case], current_profile(torch), write, lambda case, reason: _say(f"{case}: {reason}"))


def _profiles(path: Path, model: Llama, name: str, world: int) -> None:
    """What kernels a prefill and a decode consist of."""
    with path.open("a") as file:
        for case in (StepCase(name, PREFILL, 1, 2048, world, ""), StepCase(name, DECODE, 16, 2048, world, "")):
            try:
                file.write(profile(case, model))
            except (RuntimeError, ValueError) as error:
                _fails(error, case)


def profile(case: StepCase, model: Llama) -> str:
    """A line of JSON: the case with the runs and mean microseconds of each kernel of one step."""
    with torch.no_grad():
        run = step_run(case, model)
        run()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            run()
            torch.cuda.synchronize()
    rows = [(e.key[:120], e.count, round(e.self_device_time_total / e.count, 2)) for e in found.key_averages() if e.self_device_time_total]
    return json.dumps(case.shape | {"kernels": sorted(rows, key=lambda row: -row[1] * row[2])}) + "\n"


def several_gpus(out: Path, seconds: float) -> None:
    """Collectives among two and four GPUs, then tensor-parallel steps; every GPU of the job runs this."""
    dist = import_module("torch.distributed")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    end = time.monotonic() + seconds
    groups = {size: [list(range(first, first + size)) for first in range(0, world, size)] for size in (2, 4) if size <= world}
    own: dict[int, Any] = {}
    for size, all_ranks in groups.items():
        for ranks in all_ranks:
            made = dist.new_group(ranks)
            if rank in ranks:
                own[size] = (made, ranks)
    with (out / "parallel.jsonl" if rank == 0 else Path(os.devnull)).open("a") as file:
        for line in _parallel_lines(own, rank, dist, end, out / "profiles.jsonl" if rank == 0 else Path(os.devnull)):
            file.write(line)
            file.flush()
    dist.barrier()
    os._exit(0)


def _parallel_lines(own: dict[int, Any], rank: int, dist: Any, end: float, profiles: Path) -> Iterator[str]:
    together = {size: among(torch, dist, group) for size, (group, _) in own.items()}
    for size, (group, ranks) in own.items():
        for count in collective_sizes():
            for op in OPS:
                if op != "p2p" or size == 2:
                    yield collective_record(op, size, count, torch, dist, group, ranks, together[size])
    _say(f"rank {rank}: collectives done, {end - time.monotonic():.0f} s left")
    for name in PARALLEL_MODELS:
        for size, (group, ranks) in reversed(own.items()):
            model = Llama(find_model(name), torch, "cuda", torch.bfloat16, group, size, ranks.index(rank))
            for case in step_cases(name, size):
                if _late(end, dist):
                    return
                try:
                    yield step_record(case, model, together[size])
                except RuntimeError as error:
                    _fails(error, case)
                torch.cuda.empty_cache()
            _profiles(profiles, model, name, size)
            del model
            torch.cuda.empty_cache()


def _late(end: float, dist: Any) -> bool:
    """Whether it is too late on any GPU."""
    flag = torch.tensor([float(time.monotonic() > end)], device="cuda")
    dist.all_reduce(flag)
    return bool(flag.item())


if __name__ == "__main__":
    folder, budget = Path(sys.argv[1]), float(sys.argv[2])
    started = os.environ.get("START_WHEN")
    while started and not Path(started).exists():
        time.sleep(0.2)
    if "RANK" in os.environ:
        several_gpus(folder, budget)
    else:
        one_gpu(folder, budget, sys.argv[3:])
