"""What PyTorch's allocator held at most between two marks, and seconds between CUDA events."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any

from perfmodel.validation.libraries import Torch

DEVICE = "cuda"

Mark = Callable[[str], None]
"""Called at the end of each part of a step, with the part's name."""


def silent(part: str) -> None:
    """A mark that does nothing."""


@dataclass(slots=True)
class Bytes:
    """A mark that notes, of each part, the most bytes that were allocated in it and those at its end."""

    torch: Torch
    before: int = 0
    peak: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)

    def start(self) -> None:
        """From here on."""
        self.before = int(self.torch.cuda.memory_allocated())
        self.torch.cuda.reset_peak_memory_stats()

    def __call__(self, part: str) -> None:
        """``part`` ends here."""
        self.peak[part] = int(self.torch.cuda.max_memory_allocated())
        self.after[part] = int(self.torch.cuda.memory_allocated())
        self.torch.cuda.reset_peak_memory_stats()

    def above(self, base: int = 0) -> dict[str, float]:
        """``peak_bytes`` of all parts, and of each its peak and what is left after it, less ``base`` bytes."""
        found: dict[str, float] = {"peak_bytes": max(self.peak.values()) - base}
        for part in self.peak:
            found[f"{part}_peak_bytes"] = self.peak[part] - base
            found[f"after_{part}_bytes"] = self.after[part] - base
        return found


@dataclass(slots=True)
class Clock:
    """A mark that records a CUDA event at the end of each part; one step after the other, none waited for."""

    torch: Torch
    steps: list[dict[str, Any]] = field(default_factory=list)
    host_s: list[float] = field(default_factory=list)
    """What the host took to enqueue each step."""

    def measure(self, step: Callable[[Mark], Any], runs: int) -> None:
        """Run ``step`` so many times."""
        for _ in range(runs):
            self.steps.append({})
            begin = perf_counter()
            self("begin")
            step(self)
            self.host_s.append(perf_counter() - begin)
        self.torch.cuda.synchronize()

    def __call__(self, part: str) -> None:
        """``part`` ends here."""
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        self.steps[-1][part] = event

    def step_s(self) -> list[float]:
        """Seconds of each whole step."""
        return [_between(step, "begin", list(step)[-1]) for step in self.steps]

    def parts_s(self) -> dict[str, list[float]]:
        """Seconds of each part of each step."""
        names = list(self.steps[0])
        return {end: [_between(step, begin, end) for step in self.steps] for begin, end in pairwise(names)}


def _between(step: dict[str, Any], begin: str, end: str) -> float:
    return float(step[begin].elapsed_time(step[end])) / 1e3


def nbytes(tensors: Any) -> int:
    """Bytes of ``tensors``."""
    return sum(int(each.numel()) * int(each.element_size()) for each in tensors)


def release(torch: Torch) -> None:
    """Hand back what nothing refers to any more, the workspaces of cuBLAS included."""
    gc.collect()
    with suppress(AttributeError, RuntimeError):  # a private name of torch
        torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def sm_mhz(torch: Torch) -> dict[str, int]:
    """The SM clock, if the machine's management library is there to ask."""
    with suppress(Exception):  # that library's own errors, which have no name where it is missing
        return {"sm_mhz": int(torch.cuda.clock_rate())}
    return {}
