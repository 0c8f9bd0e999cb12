"""Loads and stores of the CUDA kernels, counted in numba's simulator, beside the model's closed forms.

The simulator must be chosen before numba is first imported, so the kernels run in a separate process (``__main__``), which reads cases and
answers with one JSON object per case.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfmodel.core.cost import READ, Kernel, Tile
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.workload import Attention
from perfmodel.kernels.attention.algorithms import find
from perfmodel.kernels.matmul import Matmul
from perfmodel.validation.compare import Count

LOADS, STORES = "loads", "stores"
Case = dict[str, Any]
"""A kernel, its shape and its tile."""
Counts = dict[str, dict[str, int]]
"""Loads and stores in elements, by tensor."""
HEAD_DIM = 8


def fused(kernel: str, n: int, kv_len: int, heads: tuple[int, int, int], causal: bool, tile: tuple[int, int, int]) -> tuple[str, Case]:
    """Name and case of a fused kernel. ``heads``: batch, heads, KV heads. ``tile``: B_r, B_c, most scores per thread and row."""
    batch, query_heads, kv_heads = heads
    br, bc, max_scores = tile
    shape = {"n": n, "kv_len": kv_len, "batch": batch, "heads": query_heads, "kv_heads": kv_heads, "causal": causal}
    chunks = -(-bc // (2 * max_scores))  # two threads share a row
    mask = "causal" if causal else "full"
    name = f"{kernel}-{n}x{kv_len}-tile{br}x{bc}-chunks{chunks}-h{batch * query_heads}-{mask}"
    return name, {"kernel": kernel, "shape": shape, "tile": tile}


def standard(n: int, kv_len: int, br: int, bc: int, causal: bool) -> tuple[str, Case]:
    """Name and case of standard attention with GEMM tiles of ``br`` x ``bc``."""
    shape = {"n": n, "kv_len": kv_len, "batch": 1, "heads": 2, "kv_heads": 1, "causal": causal}
    return f"standard-{n}x{kv_len}-{br}x{bc}-{'causal' if causal else 'full'}", {"kernel": "standard", "shape": shape, "tile": (br, bc)}


def matmul(m: int, n: int, k: int, tile: int) -> tuple[str, Case]:
    """Name and case of a matmul; tile 1 is the kernel without shared memory."""
    return f"matmul-{m}x{n}x{k}-tile{tile}", {"kernel": "matmul", "shape": {"m": m, "n": n, "k": k}, "tile": (tile, tile)}


def copy(elements: int) -> tuple[str, Case]:
    """Name and case of a copy."""
    return f"copy-{elements}", {"kernel": "copy", "shape": {"elements": elements}, "tile": ()}


GROUPED = (2, 4, 2)
"""Batch 2, four query heads on two KV heads."""
CASES: dict[str, Case] = dict(
    [
        fused("flash2", 13, 19, (1, 2, 2), False, (4, 8, 4)),
        fused("flash2", 13, 19, GROUPED, True, (8, 4, 8)),
        fused("flash2", 9, 3, (1, 2, 2), True, (4, 8, 2)),
        fused("flash1", 13, 19, (1, 2, 2), False, (4, 8, 4)),
        fused("flash1", 12, 12, GROUPED, True, (8, 4, 8)),
        standard(13, 12, 16, 16, False),
        standard(13, 20, 8, 8, True),
        matmul(13, 12, 20, 8),
        matmul(9, 20, 4, 1),
        copy(100),
    ]
)
"""Causal and not, grouped heads, partial tiles, rows that see nothing, tiles that need two chunks."""


def counted(progress: Callable[[str], None]) -> list[Count]:
    """Loads and stores of every kernel, shape and tensor in elements, beside the model's; PerfmodelError without a simulator."""
    counts: list[Count] = []
    for name, answer in simulated(CASES, progress).items():
        counts += _compared(name, CASES[name], answer)
    return counts


def _compared(name: str, case: Mapping[str, Any], answer: Mapping[str, Any]) -> Iterator[Count]:
    expected, nothing = predicted(case, answer), {LOADS: 0, STORES: 0}
    for tensor in dict.fromkeys([*expected, *answer["counts"]]):
        for kind, count in expected.get(tensor, nothing).items():
            simulated_count = answer["counts"].get(tensor, nothing)[kind]
            yield Count(f"numba-{case['kernel']} {name}", f"{tensor} {kind}", count, simulated_count, (count, count))


def workload(case: Mapping[str, Any]) -> Attention:
    """The attention that a case runs."""
    return Attention(d=HEAD_DIM, dv=HEAD_DIM, dtype=DTYPES["fp32"], **case["shape"])


def predicted(case: Mapping[str, Any], answer: Mapping[str, Any]) -> Counts:
    """Loads and stores of every tensor by the model.

    A kernel whose tiles load operands more often than its algorithm says has its own formula, whose results are ``answer["loads"]``.
    """
    sizes = case["shape"]
    if case["kernel"] == "copy":
        return {"source": {LOADS: sizes["elements"], STORES: 0}, "target": {LOADS: 0, STORES: sizes["elements"]}}
    tile = Tile(*case["tile"][:2])
    if case["kernel"] == "matmul":
        return _counts(Matmul(**sizes, dtype=DTYPES["fp32"]).kernels(tile))
    counts = _counts(find(case["kernel"]).forward(workload(case), tile))
    for tensor, loads in answer.get("loads", {}).items():
        counts[tensor][LOADS] = loads
    return counts


def _counts(kernels: list[Kernel]) -> Counts:
    """Elements by tensor; zero fill is a store."""
    counts: Counts = {}
    for access in (access for kernel in kernels for access in kernel.accesses):
        tensor = counts.setdefault(access.tensor, {LOADS: 0, STORES: 0})
        tensor[LOADS if access.kind == READ else STORES] += access.elements
    return counts


def simulated(
    cases: Mapping[str, Mapping[str, Any]], progress: Callable[[str], None], python_options: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """The answer of the simulator's process to each case, by name.

    An answer has ``counts``, the relative ``error`` of the output and, if the kernel has its own formula for loads, ``loads`` by tensor.
    """
    inherited = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
    path = os.pathsep.join([str(Path(__file__).parents[3]), *inherited])  # this package first
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": path}
    command = [sys.executable, *python_options, "-m", __name__]
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryFile("w+") as questions, tempfile.TemporaryFile("w+") as errors:
        json.dump(cases, questions)
        questions.seek(0)
        with subprocess.Popen(command, stdin=questions, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                answer = json.loads(line)
                name = answer.pop("key")
                results[name] = answer
                progress(f"simulated {len(results)} of {len(cases)}: {name}")
        errors.seek(0)
        if process.returncode or len(results) < len(cases):
            raise PerfmodelError(
                f"the CUDA simulator stopped after {len(results)} of {len(cases)} cases: {_last_line(errors.read())}",
                "run it alone to see more: NUMBA_ENABLE_CUDASIM=1 python -m perfmodel.validation.simulator < cases.json",
            )
    return results


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"
