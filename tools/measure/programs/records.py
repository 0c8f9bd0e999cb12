"""Records of the passes over memory in profiles: ``python -m tools.measure.programs.records HARDWARE SOURCE PROFILE ...``.

One line per kind and sizes, with the median of all such kernels, to standard output. Operators of several kernels count as one.
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

VERSION = "2.11.0+cu130"
"""PyTorch's, of all profiles that records are made of."""
MOST_OF_A_KIND = 160
"""Sizes of one kind that are kept, chosen by their hash."""

LAYOUT = re.compile("nchwToNhwc|nhwcToNchw")
"""Kernels that order the operands of a convolution, beside its product."""


def records(hardware: str, source: str, paths: list[Path]) -> list[dict[str, Any]]:
    """Records of what the profiles ``paths`` hold, sorted."""
    found: dict[tuple[str, str, int, int, int, int, int], list[float]] = defaultdict(list)
    for path in paths:
        for one in read(path).operators:
            try:
                *first, op = counted(one.call)
            except UnknownError:
                continue
            if op.timed is not None and op.timed.kind == "pass":
                w = op.timed.workload
                key = (f"torch-{w.kind}", w.dtype.name, w.elements, w.write_bytes, w.read_bytes, w.divisions, w.rows)
                seconds = sum(kernel.seconds for kernel in one.kernels if not first or LAYOUT.search(kernel.name))
                if seconds:
                    found[key].append(seconds)
    names = defaultdict(list)
    for key in sorted(found, key=lambda key: sha256(repr(key).encode()).hexdigest()):
        names[key[0]].append(key)
    kept = sorted(key for keys in names.values() for key in keys[:MOST_OF_A_KIND] if key[2] and key[3])
    return [_record(hardware, source, *key, found[key]) for key in kept]


def _record(hardware: str, source: str, name: str, dtype: str, *sizes: Any) -> dict[str, Any]:
    *counts, seconds = sizes
    shape = {key: count for key, count in zip(("elements", "write_bytes", "read_bytes", "divisions", "rows"), counts, strict=True) if count}
    if "triton" in name:  # autotuning runs a kernel in every configuration: the fastest ones are what programs run
        seconds = sorted(seconds)[: max(2, len(seconds) // 20)]
    time = {"median": quantile(seconds, 0.5), "p10": quantile(seconds, 0.1), "p90": quantile(seconds, 0.9)}
    rounded = {key: float(f"{value:.4g}") for key, value in time.items()}
    return {
        "workload": "pass",
        "implementation": name,
        "hardware": hardware,
        "dtype": dtype,
        "shape": shape,
        "time_s": rounded,
        "environment": {"torch": VERSION},
        "source": source,
    }


if __name__ == "__main__":
    for line in records(sys.argv[1], sys.argv[2], [Path(name) for name in sys.argv[3:]]):
        sys.stdout.write(json.dumps(line) + "\n")
