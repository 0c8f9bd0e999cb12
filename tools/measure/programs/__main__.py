"""Programs timed and profiled: ``python -m tools.measure.programs OUT [SECONDS] [NAME ...]``.

Writes OUT/traces, a profile of one step of each program, and OUT/steps.jsonl: seconds of a step without a profiler, peak memory,
memory before the step. A program that fails is a line with its error. One that does not end, or leaves the GPU unusable, ends the
run: run it again for those that were not begun.
"""

from __future__ import annotations

import gc
import gzip
import json
import os
import statistics
import sys
import time
from faulthandler import dump_traceback_later
from pathlib import Path
from typing import Any

from tools.measure.programs.cases import PROGRAMS, Step, drawn, prepared

WARM_UP, LEAST_S, MOST_STEPS, MOST_S = 4, 1.0, 60, 60
"""Steps before the timed ones; seconds and steps to time; and seconds of a program, its compilation included, until it is given up."""


def timed(step: Step, torch: Any) -> dict[str, float]:
    """Seconds of a step, one behind the other, and bytes that it takes at most."""
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    seconds: list[float] = []
    started = time.perf_counter()
    while len(seconds) < MOST_STEPS and (len(seconds) < 5 or time.perf_counter() - started < LEAST_S):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    many = min(20, max(3, int(LEAST_S / statistics.median(seconds))))
    start = time.perf_counter()
    for _ in range(many):
        step()
    torch.cuda.synchronize()
    streamed = (time.perf_counter() - start) / many
    return {"step_s": statistics.median(seconds), "stream_step_s": streamed, "peak_bytes": peak, "before_bytes": before}


def profiled(step: Step, torch: Any, path: Path) -> dict[str, Any]:
    """The profile of one step, as torch writes it, without Python's functions."""
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as found:
        step()
        torch.cuda.synchronize()
        with record_function("ProfilerStep#1"):
            step()
            torch.cuda.synchronize()
    found.export_chrome_trace(str(path))
    content: dict[str, Any] = json.loads(path.read_text())
    path.unlink()
    window = next(e for e in content["traceEvents"] if e.get("name") == "ProfilerStep#1" and e.get("cat") == "user_annotation")
    start, end = window["ts"] - 1, window["ts"] + window["dur"] + 1
    kept = ("cpu_op", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "user_annotation", "gpu_user_annotation")
    content["traceEvents"] = [e for e in content["traceEvents"] if e.get("cat") in kept and start <= e["ts"] <= end]
    return content


def main(folder: Path, limit_s: float, names: list[str]) -> None:
    """Run ``names``, in their order, until ``limit_s`` have passed."""
    import torch

    begin, steps, begun = time.monotonic(), folder / "steps.jsonl", folder / "begun.txt"
    done = begun.read_text().split() if begun.exists() else []
    (folder / "traces").mkdir(exist_ok=True)
    with steps.open("a") as lines:
        for name in (name for name in names if name not in done):
            if time.monotonic() - begin > limit_s:
                print("out of time before", name, flush=True)
                break
            started = time.monotonic()
            with begun.open("a") as listed:
                listed.write(f"{name}\n")
            dump_traceback_later(MOST_S, exit=True)
            line: dict[str, Any] = {"name": name, "device": torch.cuda.get_device_name(), "torch": torch.__version__}
            step: Step | None = None
            try:
                step = prepared((PROGRAMS | drawn())[name], torch)
                line |= timed(step, torch)
                content = json.dumps(profiled(step, torch, folder / "trace.json")).encode()
                (folder / "traces" / f"{name}.json.gz").write_bytes(gzip.compress(content, 9))
            except Exception as error:
                line["error"] = f"{type(error).__name__}: {error}"[:500]
            lines.write(json.dumps(line) + "\n")
            lines.flush()
            print(name, f"{time.monotonic() - started:.1f} s", line.get("error", line.get("step_s")), flush=True)
            if "CUDA error" in line.get("error", ""):  # nothing runs on the GPU any more in this process
                os._exit(1)
            step = None  # its tensors are freed before the next program
            gc.collect()
            torch.cuda.empty_cache()
            torch._dynamo.reset()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 500.0, sys.argv[3:] or list(drawn()))
