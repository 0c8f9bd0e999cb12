"""Records of the passes over memory in profiles: ``python -m tools.measure.programs.records HARDWARE TORCH SOURCE PROFILE ...``.

One line per kind and sizes, with the median of all such kernels, to standard output. Operators of several kernels count as one. Products
are those that take 15 us, and twice as long as DRAM would: the state of the L2 and the profiler's own gaps decide little.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from perfmodel.core.arith import quantile
from perfmodel.program.calls import UnknownError
from perfmodel.program.operators import counted
from perfmodel.program.profile import read
from perfmodel.timing.base import chosen

MOST_OF_A_KIND = 240
"""Sizes of one kind and format that are kept, chosen by their hash."""
LEAST_S, GAP_S, DRAM = 15e-6, 1e-6 * chosen("profile_gap_us")["matmul"], 4.8e12
"""Shortest product; what one takes beyond its time in a profile, where one call follows another; and the bandwidth of an H200, in B/s."""

LAYOUT = re.compile("nchwToNhwc|nhwcToNchw")
"""Kernels that order the operands of a convolution, beside its product."""


def records(hardware: str, torch: str, source: str, paths: list[Path]) -> list[dict[str, Any]]:
    """Records of what the profiles ``paths`` hold, sorted."""
    found: dict[tuple[str, str, str, Shape], list[float]] = defaultdict(list)
    for path in paths:
        for one in read(path).operators:
            try:
                ops = counted(one.call)
            except UnknownError:
                continue
            for op in ops:
                if op.timed is None or op.timed.obstacle or op.timed.kind not in FIELDS:
                    continue
                w = op.timed.workload
                [name] = op.timed.implementations or ("",)
                shape = tuple((field, value) for field in FIELDS[op.timed.kind] if (value := getattr(w, field)))
                ordered = name == "torch-layout"
                seconds = sum(kernel.seconds for kernel in one.kernels if len(ops) == 1 or bool(LAYOUT.search(kernel.name)) == ordered)
                if op.timed.kind == "matmul":
                    moved = sum(access.elements if not access.compulsory else access.compulsory for access in op.kernel.accesses)
                    if seconds < LEAST_S or moved * w.dtype.size / DRAM > seconds / 2:
                        continue
                    seconds += min(GAP_S, seconds)
                if seconds:
                    found[op.timed.kind, name, w.dtype.name, shape].append(seconds)
    names: dict[tuple[str, str], list[tuple[str, str, str, Shape]]] = defaultdict(list)
    for key in sorted(found, key=lambda key: sha256(repr(key).encode()).hexdigest()):
        names[key[1], key[2]].append(key)
    kept = sorted(key for keys in names.values() for key in keys[:MOST_OF_A_KIND] if key[0] == "matmul" or "write_bytes" in dict(key[3]))
    return [_record(hardware, torch, source, *key, found[key]) for key in kept]


Shape = tuple[tuple[str, Any], ...]
FIELDS = {
    "pass": ("elements", "write_bytes", "read_bytes", "divisions", "rows", "parts"),
    "matmul": ("m", "n", "k", "batch", "aligned", "crossed"),
    "convolution": ("places", "filters", "channels", "window", "read_bytes", "write_bytes", "groups", "passes"),
}
"""Workloads that records are made of, with the sizes that say which."""


def _record(
    hardware: str, torch: str, source: str, workload: str, name: str, dtype: str, shape: Shape, seconds: list[float]
) -> dict[str, Any]:
    if "triton" in name:  # autotuning runs a kernel in every configuration: the fastest ones are what programs run
        seconds = sorted(seconds)[: max(2, len(seconds) // 20)]
    time = {"median": quantile(seconds, 0.5), "p10": quantile(seconds, 0.1), "p90": quantile(seconds, 0.9)}
    rounded = {key: float(f"{value:.4g}") for key, value in time.items()}
    return {
        "workload": workload,
        "implementation": name,
        "hardware": hardware,
        "dtype": dtype,
        "shape": dict(shape),
        "time_s": rounded,
        "environment": {"torch": torch} | ({"profiled": True} if workload == "matmul" else {}),
        "source": source,
    } | ({"cache": "clean"} if workload == "matmul" else {})


if __name__ == "__main__":
    for line in records(sys.argv[1], sys.argv[2], sys.argv[3], [Path(name) for name in sys.argv[4:]]):
        sys.stdout.write(json.dumps(line) + "\n")
