"""``python -m perfmodel.validation.cuda.profiled CASES MANIFEST``: launch each case once, under a profiler.

CASES holds one case per line, MANIFEST gets a line for each: which kernels were launched, in order, or why none was.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from perfmodel.validation.cuda.cases import KernelCase


def write_cases(cases: Iterable[KernelCase], path: Path) -> None:
    """One JSON object per line."""
    rows = [{"implementation": c.implementation, "dtype": c.dtype, "shape": c.shape, "launch": c.launch} for c in cases]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def read_cases(path: Path) -> list[KernelCase]:
    """What ``write_cases`` wrote."""
    return [KernelCase(**json.loads(line)).check() for line in path.read_text(encoding="utf-8").splitlines()]


def launch_all(cases: Iterable[KernelCase], manifest: Path, launch_one: Callable[[KernelCase], dict[str, Any]]) -> None:
    """Launch each case once; a case that fails before its launch leaves its reason in ``manifest``."""
    with manifest.open("w", encoding="utf-8") as file:
        for case in cases:
            try:
                row = launch_one(case)
            except Exception as error:  # whatever the driver says, the next case may run
                row = {"kernels": [], "reason": f"{type(error).__name__}: {error}".splitlines()[0]}
            file.write(json.dumps(row) + "\n")
            file.flush()


def launch_on_gpu(case: KernelCase) -> dict[str, Any]:
    """Prepare and launch ``case`` once, and nothing else."""
    import numpy as np
    from numba import cuda as module

    from perfmodel.validation.cuda.gpu import small_grids
    from perfmodel.validation.cuda.prepare import prepare

    cuda: Any = module
    with small_grids():
        ready = prepare(case, np.random.default_rng())
        ready.launch()
        cuda.synchronize()
    row = {"kernels": list(ready.kernels), "counted": list(ready.counted), "launch": ready.facts}
    del ready
    cuda.current_context().deallocations.clear()
    return row


def main(arguments: list[str]) -> None:
    """Run the cases of the first file, list them in the second."""
    from perfmodel.validation.cuda.gpu import current_gpu, load_numba_cuda

    load_numba_cuda()
    current_gpu()
    launch_all(read_cases(Path(arguments[0])), Path(arguments[1]), launch_on_gpu)


if __name__ == "__main__":
    main(sys.argv[1:])
