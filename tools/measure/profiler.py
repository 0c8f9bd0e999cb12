"""Which kernels a library launches for a case, with their grids: one run under torch's profiler."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

from perfmodel.core.errors import PerfmodelError
from perfmodel.validation.cases import KernelCase
from perfmodel.validation.libraries import gradients_of, load_torch
from tools.measure.prepared import find


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel that ran. ``duration_s`` is the profiler's, L2 as the run before left it."""

    name: str
    grid: tuple[int, ...]
    threads: int
    registers: int
    shared_bytes: int
    duration_s: float


def launches(cases: Iterable[KernelCase]) -> list[tuple[KernelCase, list[Launch]]]:
    """The kernels of each case that runs, in order; a case that does not run is left out."""
    torch = load_torch()
    module = import_module("torch.profiler")
    ran: dict[str, KernelCase] = {}
    with module.profile(activities=[module.ProfilerActivity.CPU, module.ProfilerActivity.CUDA]) as found:
        for number, case in enumerate(cases):
            try:
                prepared = find(case)(case, torch)
                with gradients_of(case, torch):
                    prepared.run()
                    torch.cuda.synchronize()
                    with module.record_function(f"case {number}"):
                        prepared.run()
                        torch.cuda.synchronize()
            except (PerfmodelError, RuntimeError):
                continue
            ran[f"case {number}"] = case
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return [(ran[name], kernels) for name, kernels in in_windows(events).items() if name in ran]


def in_windows(events: list[dict[str, Any]]) -> dict[str, list[Launch]]:
    """Kernels of a Chrome trace by the ``record_function`` range on the host in which they ran, which ends synchronized."""
    windows = [e for e in events if e.get("cat") == "user_annotation"]
    kernels = sorted((e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")), key=lambda e: float(e["ts"]))
    return {window["name"]: [_launch(k) for k in kernels if window["ts"] <= k["ts"] <= window["ts"] + window["dur"]] for window in windows}


def _launch(event: dict[str, Any]) -> Launch:
    more = event.get("args", {})
    block = tuple(more.get("block", ()))
    return Launch(
        name=event["name"],
        grid=tuple(more.get("grid", ())),
        threads=prod(block) if block else 0,
        registers=int(more.get("registers per thread", 0)),
        shared_bytes=int(more.get("shared memory", 0)),
        duration_s=float(event["dur"]) / 1e6,
    )
