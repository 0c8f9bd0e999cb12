"""Cases of kernels on shapes, in the terms of a measurement record, and the default lists of those to measure.

The timed cases take about two and a half minutes on an H200, most of it for compiling. They cover head dims 64 and 128, causal and
not, grouped heads, partial tiles, all tile edges, and a factor of a hundred in time; few distinct tiles, as each is a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, product
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

TileEdges = tuple[int, int]
CASES = Path(__file__).with_suffix(".yaml")
"""Cases of attention."""


def numba_case(implementation: str, shape: Mapping[str, Any], dtype: str = "fp32", tile: TileEdges | None = None) -> KernelCase:
    """A case of one of the project's kernels."""
    launch = {} if tile is None else {"br": tile[0], "bc": tile[1]}
    return KernelCase(WORKLOADS[implementation], implementation, shape, dtype, launch=launch)


def checked(case: KernelCase) -> KernelCase:
    """``case``, if there is such a kernel and no key is missing; else UsageError."""
    if case.implementation not in WORKLOADS:
        raise UsageError(f"no kernel of this package is called {case.implementation!r}", suggest(case.implementation, list(WORKLOADS)))
    wanted = _KEYS[case.workload]
    if set(case.shape) != set(wanted):
        raise UsageError(f"{case.implementation}: its shape has {', '.join(case.shape) or 'nothing'}", f"give {', '.join(wanted)}")
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
    elements += 2 * w.query_heads * w.n * w.kv_len if case.implementation == "numba-standard" else 0
    return int(elements * w.dtype.size + 2 * w.query_heads * w.n * 4)


def attention_case(
    implementation: str, heads: tuple[int, int, int], lengths: tuple[int, int], d: int, tile: TileEdges, causal: bool, dtype: str
) -> KernelCase:
    """A case of attention. ``heads``: batch, query heads, KV heads; ``lengths``: queries, keys."""
    return numba_case(implementation, attention_shape(heads, lengths, d, causal), dtype, tile)


def _section_cases(section: str) -> Iterator[KernelCase]:
    """Cases of attention in a section of ``cases.yaml``: each tile on each problem."""
    table, _ = read_yaml(CASES)
    for row in table[section]:
        listed = [table["problems"][problem] if isinstance(problem, str) else [problem] for problem in row["problems"]]
        for (br, bc), (batch, heads, kv_heads, n, kv_len) in product(row["tiles"], chain.from_iterable(listed)):
            kernel, dtype = f"numba-{row['kernel']}", row.get("dtype", "fp32")
            yield attention_case(kernel, (batch, heads, kv_heads), (n, kv_len), row["d"], (br, bc), row["causal"], dtype)


def timed_cases() -> list[KernelCase]:
    """The list of ``validate --all``: every kernel of the package, cheap ones first."""
    return [*_copies(16, 20, 24, 27, 30), *_matmuls(), *_section_cases("timed")]


def default_cases() -> list[KernelCase]:
    """The default list of validate: from ``timed_cases`` one tile per kernel, head dim, mask and dtype."""
    met: set[tuple[Any, ...]] = set()
    compiled: list[tuple[Any, ...]] = []
    few = []
    for case in timed_cases():
        traits = (case.shape.get("d"), case.shape.get("causal"), case.dtype)
        new = {(case.implementation, *trait) for trait in enumerate(traits)} - met
        met |= new
        compiled += [(case.implementation, *traits, case.launch)] if new else []
        few += [case] if (case.implementation, *traits, case.launch) in compiled else []
    return few


def of_few_tiles(cases: Iterable[KernelCase], most: int) -> list[KernelCase]:
    """``cases`` of the first ``most`` tiles of each kernel, head dim and mask, as each tile is compiled separately."""
    tiles: dict[tuple[Any, ...], list[dict[str, int]]] = {}
    few = []
    for case in cases:
        seen = tiles.setdefault((case.implementation, case.shape.get("d"), case.shape.get("causal")), [])
        if case.launch not in seen:
            seen.append(case.launch)
        few += [case] if case.launch in seen[:most] else []
    return few


def calibrated_cases() -> list[KernelCase]:
    """The default list of calibrate."""
    return [*timed_cases(), *_copies(17, 22, 23, 28), *_section_cases("calibrated")]


def counted_cases() -> list[KernelCase]:
    """The default list for hardware counters."""
    return list(_section_cases("counted"))


def _copies(*powers: int) -> list[KernelCase]:
    """Cases of copies, of powers of two in bytes."""
    return [numba_case("numba-copy", {"bytes": 1 << power}) for power in powers]


def _matmuls() -> list[KernelCase]:
    """Cases of matmuls: without shared memory for comparison, partial tiles, and square ones."""
    sizes = ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (1000, 3000, 2000))
    tiled = [
        *((32, mnk) for mnk in (sizes[1], (768, 2304, 1000), (512, 512, 4096))),
        *((tile, (2048, 5000, 1000)) for tile in (64, 128)),
        *product((64, 128), sizes),
    ]
    cases = [("numba-matmul-naive", 1, (edge, edge, edge)) for edge in (1024, 1536, 2048, 3072)]
    cases += [("numba-matmul", tile, mnk) for tile, mnk in tiled]
    return [numba_case(name, dict(zip("mnk", mnk, strict=True)), tile=(tile, tile)) for name, tile, mnk in cases]
