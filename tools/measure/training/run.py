"""Measure the cases in order until they or the seconds run out; each record is on the disk before the next case starts."""

from __future__ import annotations

import gc
import json
import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any

from perfmodel.validation.cases import KernelCase
from perfmodel.validation.libraries import Torch, load_torch
from perfmodel.validation.libraries.measure import KEPT_BYTES, as_line
from tools.measure.training import attention_memory, linear_chain
from tools.measure.training.gpt2_step import Gpt2Steps
from tools.measure.training.kernels import kernels
from tools.measure.training.result import Measure, record_of

FILES = {"transformer": "torch-training.jsonl", "mlp-chain": "torch-chains.jsonl", "attention": "torch-attention-memory.jsonl"}
KERNELS, LOG = "torch-training-kernels.jsonl", "torch-training-log.jsonl"


@dataclass(slots=True)
class Campaign:
    """A run: where its lines go, and when it ends (``seconds`` after ``begin``)."""

    out: Path
    hardware: str
    seconds: float
    progress: Callable[[str], None] = lambda line: None
    begin: float = field(default_factory=monotonic)

    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return round(monotonic() - self.begin, 2)

    def append(self, name: str, line: str) -> None:
        """Write ``line`` to the file of that name and close it."""
        with (self.out / name).open("a") as file:
            file.write(line)

    def log(self, **entries: Any) -> None:
        """A line of the log, with the time, which is also the progress."""
        line = json.dumps({"at_s": self.elapsed_s(), **entries}) + "\n"
        self.append(LOG, line)
        self.progress(line)

    def run(self, cases: Iterable[KernelCase], profiled: Iterable[KernelCase] = ()) -> int:
        """Measure ``cases``, then list the kernels of ``profiled`` (a profiler slows what follows it); how many went well."""
        self.out.mkdir(parents=True, exist_ok=True)
        torch, steps = load_torch(), Gpt2Steps()
        self.log(**machine(torch))
        measures: dict[str, Measure] = {"transformer": steps, "mlp-chain": linear_chain.measure, "attention": attention_memory.measure}

        def measured(case: KernelCase) -> None:
            record = record_of(case, measures[case.workload](case, torch), self.hardware, torch)
            self.append(FILES[case.workload], as_line(record))

        def listed(case: KernelCase) -> None:
            self.append(KERNELS, json.dumps({"shape": dict(case.shape), "kernels": kernels(steps, case, torch)}) + "\n")

        written = sum(self.each(cases, measured, torch)) + sum(self.each(profiled, listed, torch))
        self.log(written=written)
        return written

    def each(self, cases: Iterable[KernelCase], do: Callable[[KernelCase], None], torch: Torch) -> Iterator[bool]:
        """Whether ``do`` went well, for each case that there is time for."""
        for case in cases:
            if self.elapsed_s() >= self.seconds:
                self.log(stopped="seconds", next=dict(case.shape))
                return
            yield self.tried(case, do, torch)

    def tried(self, case: KernelCase, do: Callable[[KernelCase], None], torch: Torch) -> bool:
        """Whether ``do(case)`` went well. A case that fails is logged, whatever it raised, and the next one runs."""
        begin = monotonic()
        name = {"workload": case.workload, "implementation": case.implementation, "dtype": case.dtype, "shape": dict(case.shape)}
        error = {}
        try:
            do(case)
        except Exception as raised:
            error["error"] = f"{type(raised).__name__}: {str(raised)[:300]}"
        with suppress(RuntimeError):  # a broken CUDA context; only here is the traceback gone, with what its frames held
            gc.collect()
            if error or torch.cuda.memory_reserved() > KEPT_BYTES:
                torch.cuda.empty_cache()
        self.log(took_s=round(monotonic() - begin, 3), role=case.role, **error, **name)
        return not error


def machine(torch: Torch) -> dict[str, Any]:
    """What the numbers depend on besides the case."""
    found: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version()}
    asked: dict[str, Callable[[], Any]] = {
        "cuda": lambda: torch.version.cuda,
        "cudnn": torch.backends.cudnn.version,
        "device": torch.cuda.get_device_name,
        "device_bytes": lambda: torch.cuda.get_device_properties(0).total_memory,
        "allocator": torch.cuda.get_allocator_backend,
        "transformers": lambda: import_module("transformers").__version__,
    }
    for key, ask in asked.items():
        try:
            found[key] = ask()
        except Exception as error:  # nothing here is worth losing the run
            found[key] = f"{type(error).__name__}: {error}"
    return found
