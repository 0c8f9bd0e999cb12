"""The project's CUDA kernels as cases to measure, and the default lists of them.

The timed cases take about two and a half minutes on an H200, most of it for compiling. They cover head dims 64 and 128, causal and not,
grouped heads, partial tiles, all tile edges, and a factor of a hundred in time. There are few distinct tiles, as each is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.files import read_yaml
from perfmodel.validation.cases import ATTENTION_KEYS, KernelCase, attention_shape

_KEYS = {"attention": ATTENTION_KEYS, "matmul": ("m", "n", "k"), "copy": ("bytes",)}
WORKLOADS = {
    "numba-flash": "attention",
    "numba-flash1": "attention",
    "numba-flash-mma": "attention",
    "numba-standard": "attention",
    "numba-matmul": "matmul",
    "numba-matmul-naive": "matmul",
    "numba-copy": "copy",
}
"""The project's kernels and what they compute."""
UNTILED = ("numba-matmul-naive", "numba-copy")
"""Kernels whose launch has no tile."""
TileEdges = tuple[int, int]
"""B_r and B_c."""
CASES = Path(__file__).with_suffix(".yaml")
"""File with the cases of attention."""


def numba_case(implementation: str, shape: Mapping[str, Any], dtype: str = "fp32", tile: TileEdges | None = None) -> KernelCase:
    """A case of one of the project's kernels."""
    launch = {} if tile is None else {"br": tile[0], "bc": tile[1]}
    return KernelCase(WORKLOADS[implementation], implementation, shape, dtype, launch=launch)


def checked(case: KernelCase) -> KernelCase:
    """``case``, if there is such a kernel and no key is missing; else UsageError."""
    if case.implementation not in WORKLOADS:
        raise UsageError(f"no kernel of this package is called {case.implementation!r}", suggest(case.implementation, list(WORKLOADS)))
    keys = _KEYS[case.workload]
    if set(case.shape) != set(keys):
        raise UsageError(f"{case.implementation}: its shape has {', '.join(case.shape) or 'nothing'}", f"give {', '.join(keys)}")
    if case.implementation not in UNTILED and not {"br", "bc"} <= set(case.launch):
        raise UsageError(f"{case.implementation}: no tile", "give br and bc")
    return case


def needed_bytes(case: KernelCase) -> int:
    """Device memory of the case's tensors."""
    shape = case.shape
    if case.workload == "copy":
        return 2 * int(shape["bytes"])
    if case.workload == "matmul":
        m, n, k = shape["m"], shape["n"], shape["k"]
        return 4 * int(m * k + k * n + m * n)
    w = case.attention()
    elements = 2 * w.query_heads * w.n * w.d + 2 * w.stored_kv_heads * w.kv_len * w.d
    if case.implementation == "numba-standard":
        elements += 2 * w.query_heads * w.n * w.kv_len  # S and P
    statistics_bytes = 2 * w.query_heads * w.n * 4
    return int(elements * w.dtype.size + statistics_bytes)


def attention_case(
    implementation: str, heads: tuple[int, int, int], lengths: tuple[int, int], d: int, tile: TileEdges, causal: bool, dtype: str
) -> KernelCase:
    """A case of attention. ``heads``: batch, query heads, KV heads; ``lengths``: queries, keys."""
    return numba_case(implementation, attention_shape(heads, lengths, d, causal), dtype, tile)


def _section_cases(section: str) -> Iterator[KernelCase]:
    """Cases of attention in a section of ``cases.yaml``: each tile on each problem."""
    table, _ = read_yaml(CASES)
    for row in table[section]:
        kernel, dtype = f"numba-{row['kernel']}", row.get("dtype", "fp32")
        problems: list[list[int]] = []
        for problem in row["problems"]:  # a problem, or the name of a list of problems
            problems += table["problems"][problem] if isinstance(problem, str) else [problem]
        for (br, bc), (batch, heads, kv_heads, n, kv_len) in product(row["tiles"], problems):
            yield attention_case(kernel, (batch, heads, kv_heads), (n, kv_len), row["d"], (br, bc), row["causal"], dtype)


def timed_cases() -> list[KernelCase]:
    """The list of ``validate --all``: every kernel of the package, cheap ones first."""
    return [*_copies(16, 20, 24, 27, 30), *_matmuls(), *_section_cases("timed")]


def default_cases() -> list[KernelCase]:
    """The default list of validate: so few compiled kernels of ``timed_cases`` that each head dim, mask and dtype of a kernel occurs.

    In the order of ``timed_cases``, a compiled kernel (implementation, head dim, mask, dtype and tile) is taken if one of these values is
    new for the implementation; the list has all cases of the taken ones.
    """
    covered: set[tuple[Any, ...]] = set()
    taken: list[tuple[Any, ...]] = []
    cases = []
    for case in timed_cases():
        values = {"d": case.shape.get("d"), "causal": case.shape.get("causal"), "dtype": case.dtype}
        new_values = {(case.implementation, name, value) for name, value in values.items()} - covered
        covered |= new_values
        compiled = (case.implementation, *values.values(), case.launch)
        if new_values:
            taken.append(compiled)
        if compiled in taken:
            cases.append(case)
    return cases


def of_few_tiles(cases: Iterable[KernelCase], most: int) -> list[KernelCase]:
    """``cases`` of the first ``most`` tiles of each kernel, head dim and mask, as each tile is compiled separately."""
    tiles: dict[tuple[Any, ...], list[dict[str, int]]] = {}
    few = []
    for case in cases:
        its_tiles = tiles.setdefault((case.implementation, case.shape.get("d"), case.shape.get("causal")), [])
        if case.launch not in its_tiles:
            its_tiles.append(case.launch)
        if case.launch in its_tiles[:most]:
            few.append(case)
    return few


def calibrated_cases() -> list[KernelCase]:
    """The default list of calibrate."""
    return [*timed_cases(), *_copies(17, 22, 23, 28), *_section_cases("calibrated")]


def counted_cases() -> list[KernelCase]:
    """The default list for hardware counters."""
    return list(_section_cases("counted"))


def _copies(*powers: int) -> list[KernelCase]:
    """Cases of copies of 2 to each of ``powers`` bytes."""
    return [numba_case("numba-copy", {"bytes": 1 << power}) for power in powers]


def _matmuls() -> list[KernelCase]:
    """Cases of matmuls: without shared memory for comparison, with partial tiles, and square ones."""
    tiled = [
        *product((32,), ((2048, 2048, 2048), (768, 2304, 1000), (512, 512, 4096))),
        *product((64, 128), ((2048, 5000, 1000),)),
        *product((64, 128), ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (1000, 3000, 2000))),
    ]
    cases = [("numba-matmul-naive", 1, (edge, edge, edge)) for edge in (1024, 1536, 2048, 3072)]
    cases += [("numba-matmul", tile, sizes) for tile, sizes in tiled]
    return [numba_case(name, dict(zip("mnk", sizes, strict=True)), tile=(tile, tile)) for name, tile, sizes in cases]
