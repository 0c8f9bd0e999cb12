"""The CUDA kernels in numba's simulator, with arrays that count: loads and stores of every tensor against the closed forms.

The simulator must be chosen before numba is first imported, so the kernels run in a process of their own, which reads cases
and answers with one JSON object per case.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfmodel.core.errors import PerfmodelError
from perfmodel.validation.simulator.cases import CASES, predicted

LOADS, STORES = "loads", "stores"


def counted(progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """One row per kernel, shape and tensor: ``predicted`` and ``counted`` {"loads", "stores"} in elements of device memory.

    ``relative_error`` is the kernel's result against float64. PerfmodelError if the simulator cannot run.
    """
    return [row for key, found in simulated(CASES, progress).items() for row in _rows(key, CASES[key], found)]


def _rows(key: str, case: Mapping[str, Any], found: Mapping[str, Any]) -> list[dict[str, Any]]:
    expected = predicted(case, found)
    tensors = list(dict.fromkeys([*expected, *found["counts"]]))
    nothing = {LOADS: 0, STORES: 0}
    return [
        {
            "kernel": f"numba-{case['kernel']}",
            "case": key,
            "shape": case["shape"],
            "tensor": tensor,
            "level": "device memory",
            "predicted": expected.get(tensor, nothing),
            "counted": found["counts"].get(tensor, nothing),
            "relative_error": found["error"],
        }
        for tensor in tensors
    ]


def simulated(
    cases: Mapping[str, Mapping[str, Any]], progress: Callable[[str], None], python_options: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """What every case counted: ``counts`` {tensor: {"loads", "stores"}}, ``error`` and, where the kernel has its own formula, ``loads``."""
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": _python_path()}
    command = [sys.executable, *python_options, "-m", __name__]
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryFile("w+") as asked, tempfile.TemporaryFile("w+") as complaints:
        json.dump(cases, asked)
        asked.seek(0)
        with subprocess.Popen(command, stdin=asked, stdout=subprocess.PIPE, stderr=complaints, env=environment, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                row = json.loads(line)
                found[row.pop("key")] = row
                progress(f"simulated {len(found)} of {len(cases)}: {list(found)[-1]}")
        complaints.seek(0)
        if process.returncode or len(found) < len(cases):
            raise PerfmodelError(
                f"the CUDA simulator stopped after {len(found)} of {len(cases)} cases: {_last_line(complaints.read())}",
                "run it alone to see more: NUMBA_ENABLE_CUDASIM=1 python -m perfmodel.validation.simulator < cases.json",
            )
    return found


def _python_path() -> str:
    """The search path of the new process: this package first."""
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(Path(__file__).parents[3]), *([inherited] if inherited else [])])


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"
