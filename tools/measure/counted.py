"""Library attention under Nsight Compute, each case once: ``ncu ... python -m tools.measure.counted MANIFEST``.

Call ncu with ``--csv --profile-from-start off --clock-control none`` and its metrics; MANIFEST gets a line per case.
A kernel of ``torch.cuda._sleep`` comes before the kernels of each case and tells them apart.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfmodel.core.errors import PerfmodelError
from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.program.ncu_csv import CountedKernel
from perfmodel.validation.cases import ATTENTION_KEYS, KernelCase
from perfmodel.validation.libraries import gradients_of, load_torch
from perfmodel.validation.libraries.kernels import find

MARK = "spin_kernel"
"""The kernel that ``torch.cuda._sleep`` launches."""
FUSED = (
    (2, 16, 16, 2048, 2048, 64, False),
    (2, 16, 16, 2048, 2048, 64, True),
    (2, 16, 16, 2048, 2048, 128, False),
    (2, 16, 16, 2048, 2048, 128, True),
    (1, 32, 8, 2048, 2048, 128, True),
    (1, 64, 8, 4096, 4096, 64, False),
    (1, 16, 16, 1024, 4096, 128, False),
    (2, 8, 8, 2048, 2048, 96, False),
    (2, 8, 8, 2048, 2048, 192, False),
    (2, 8, 8, 2048, 2048, 256, True),
    (2, 16, 16, 1000, 1000, 64, False),
    (2, 16, 16, 1000, 1000, 64, True),
    (1, 8, 8, 3001, 3001, 128, False),
    (1, 8, 8, 3001, 3001, 128, True),
    (1, 8, 8, 517, 2111, 128, False),
    (1, 8, 2, 777, 777, 64, True),
    (4, 16, 16, 8192, 8192, 64, False),
    (1, 16, 16, 16384, 16384, 128, True),
)
"""Batch, heads, KV heads, queries, keys, head dim, causal: whole tiles and partial ones."""
EAGER = (
    (1, 16, 16, 1024, 1024, 64, False),
    (1, 16, 16, 1024, 1024, 64, True),
    (8, 12, 12, 1000, 1000, 64, False),
    (1, 8, 8, 640, 640, 128, False),
    (4, 16, 16, 2048, 2048, 64, False),
    (4, 16, 16, 2048, 2048, 128, False),
    (4, 16, 16, 2048, 2048, 128, True),
    (4, 16, 16, 2048, 2048, 96, False),
    (2, 8, 8, 3000, 3000, 64, False),
    (1, 1, 1, 8192, 8192, 128, True),
    (1, 16, 16, 4096, 4096, 256, False),
    (2, 16, 16, 4096, 4096, 64, False),
    (2, 16, 16, 4096, 4096, 128, False),
    (1, 8, 8, 8192, 8192, 64, True),
    (2, 16, 16, 512, 4096, 64, False),
)


def cases() -> Iterator[KernelCase]:
    """Everything that is counted, both passes."""
    for name in ("torch-sdpa-flash", "torch-sdpa-cudnn", "torch-sdpa-efficient", "torch-eager"):
        for row in EAGER if name == "torch-eager" else FUSED:
            shape = dict(zip(ATTENTION_KEYS, row, strict=True)) | ({"mask": True} if name == "torch-eager" and row[-1] else {})
            yield from (KernelCase("attention", name, shape, direction=way) for way in (FORWARD, BACKWARD))


def count(case: KernelCase, torch: Any) -> None:
    """One run of ``case`` between the start and the stop of the profiler, after one outside."""
    prepared = find(case)(case, torch)
    with gradients_of(case, torch):
        prepared.run()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        torch.cuda._sleep(1)
        prepared.run()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def apart(kernels: list[CountedKernel]) -> list[list[CountedKernel]]:
    """Kernels of each case, by the marks between them."""
    found: list[list[CountedKernel]] = []
    for kernel in kernels:
        if MARK in kernel.name:
            found.append([])
        elif found:
            found[-1].append(kernel)
    return found


def main(arguments: list[str]) -> None:
    """Count every case; the line of one that does not run has the reason."""
    torch = load_torch()
    with Path(arguments[0]).open("w", encoding="utf-8") as manifest:
        for case in cases():
            row = {"implementation": case.implementation, "dtype": case.dtype, "pass": case.direction, "shape": case.shape}
            try:
                count(case, torch)
            except (PerfmodelError, RuntimeError) as error:
                row["reason"] = str(error).splitlines()[0]
            finally:
                torch.cuda.empty_cache()
            manifest.write(json.dumps(row) + "\n")
            manifest.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
