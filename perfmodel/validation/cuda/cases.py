"""One kernel on one shape, in the words of a measurement record, and which of them are measured unless a user says otherwise.

The timed cases take about two and a half minutes on an H200, most of it for compiling. They cover head dims 64 and 128, causal and
not, grouped heads, partial tiles, all tile edges, and a factor of a hundred in time; few distinct tiles, as each is a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from perfmodel.core.errors import UsageError, suggest
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

Problem = tuple[tuple[int, int, int], tuple[int, int]]
"""Batch, query heads and KV heads; queries and keys."""
TileEdges = tuple[int, int]


def numba_case(implementation: str, shape: Mapping[str, Any], dtype: str = "fp32", tile: TileEdges | None = None) -> KernelCase:
    """A case of one of the project's kernels."""
    launch = {} if tile is None else {"br": tile[0], "bc": tile[1]}
    return KernelCase(WORKLOADS[implementation], implementation, shape, dtype, launch=launch)


def checked(case: KernelCase) -> KernelCase:
    """``case``, if there is such a kernel and every key is there; else UsageError."""
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


SQUARES: tuple[Problem, ...] = (((1, 16, 16), (1024, 1024)), ((1, 32, 8), (2048, 2048)), ((2, 32, 32), (4096, 4096)))
"""A factor 64 in work."""
RAGGED: Problem = ((2, 16, 4), (1000, 3000))
"""Partial tiles on both sides, grouped heads, more keys than queries."""
WIDE: Problem = ((1, 8, 8), (16384, 16384))
BASIC = (*SQUARES, RAGGED)
Family = tuple[str, int, bool, tuple[TileEdges, ...], tuple[Problem, ...], str]
"""Kernel, head dim, mask, tiles, each of which meets each of the problems, and dtype."""


def _heads(*pairs: tuple[int, int]) -> tuple[Problem, ...]:
    """Problems of so many heads and as many queries as keys."""
    return tuple(((1, heads, heads), (n, n)) for heads, n in pairs)


ONE_PER_HEAD = _heads((64, 512), (132, 1024), (300, 512))
"""Of numba-flash1, which has one block per head: as many heads as a large device has multiprocessors, fewer, and more."""
TIMED: tuple[Family, ...] = (
    ("flash", 64, False, ((128, 64), (64, 32), (64, 64)), BASIC, "fp32"),
    ("flash", 64, True, ((128, 64), (64, 32), (32, 128), (32, 32)), BASIC, "fp32"),
    ("flash", 128, False, ((128, 64), (64, 64), (128, 32), (64, 128)), BASIC, "fp32"),
    ("flash", 128, True, ((128, 64), (64, 64), (32, 64)), BASIC, "fp32"),
    ("flash", 64, True, ((128, 64),), (WIDE,), "fp32"),
    ("flash", 128, True, ((128, 64),), (WIDE,), "fp32"),
    ("flash1", 64, False, ((64, 64),), _heads((132, 512), (132, 1024)), "fp32"),
    ("flash1", 64, True, ((64, 64),), (*_heads((132, 2048)), ((1, 64, 16), (1000, 1500))), "fp32"),
    ("flash1", 128, False, ((64, 64),), _heads((64, 2000), (8, 256)), "fp32"),
    ("flash1", 64, False, ((32, 32), (32, 128), (64, 32), (128, 64)), ONE_PER_HEAD, "fp32"),
    ("flash1", 64, True, ((32, 128), (128, 32)), ONE_PER_HEAD, "fp32"),
    ("flash1", 128, False, ((32, 32), (128, 64)), ONE_PER_HEAD, "fp32"),
    ("flash1", 128, True, ((64, 64), (32, 128)), ONE_PER_HEAD, "fp32"),
    ("standard", 64, False, ((128, 64),), (((1, 16, 16), (512, 8192)),), "fp32"),
    ("standard", 64, True, ((128, 64),), (*_heads((8, 512), (16, 4096)), ((1, 16, 4), (1000, 3000))), "fp32"),
    ("standard", 128, False, ((128, 64),), (*_heads((8, 512), (16, 4096)), ((1, 16, 4), (1000, 3000))), "fp32"),
    ("standard", 128, True, ((128, 64),), _heads((16, 512), (16, 1024), (16, 2048)), "fp32"),
    ("flash-mma", 64, False, ((128, 128),), (*BASIC, WIDE), "fp16"),
    ("flash-mma", 64, True, ((128, 128),), (*BASIC, WIDE), "bf16"),
    ("flash-mma", 128, False, ((128, 64),), (*BASIC, WIDE), "bf16"),
    ("flash-mma", 128, True, ((128, 64),), (*BASIC, WIDE), "fp16"),
    ("flash-mma", 64, True, ((64, 64),), SQUARES[1:], "fp16"),
)
"""Families of attention that validate runs; standard attention has up to 2 GiB of scores in memory."""
CALIBRATED: tuple[Family, ...] = (
    ("flash", 64, False, ((32, 128),), BASIC, "fp32"),
    ("flash", 64, True, ((128, 32),), BASIC, "fp32"),
    ("flash", 128, False, ((64, 32),), BASIC, "fp32"),
    ("flash", 128, True, ((64, 128), (32, 32)), BASIC, "fp32"),
    ("standard", 64, False, ((64, 32),), BASIC, "fp32"),
    ("standard", 64, True, ((128, 32),), BASIC, "fp32"),
    ("standard", 128, True, ((64, 64),), BASIC, "fp32"),
    ("flash-mma", 64, False, ((64, 32), (64, 128), (128, 64)), BASIC, "fp16"),
    ("flash-mma", 64, True, ((128, 32),), BASIC, "fp16"),
    ("flash-mma", 128, False, ((64, 32),), BASIC, "fp16"),
    ("flash-mma", 128, True, ((64, 64), (64, 128), (128, 128)), BASIC, "fp16"),
)
"""Families that calibrate runs besides, as many as fits of every kernel ask for; ``records.held_out`` leaves them to fits."""
SMALL, LARGE = ((1, 16, 16), (2048, 2048)), ((1, 64, 64), (8192, 8192))
LONG_KEYS, LONGEST = ((4, 16, 16), (512, 8192)), ((1, 16, 4), (16384, 16384))
COUNTED: tuple[Family, ...] = (
    ("flash", 64, False, ((128, 64),), (SMALL, LARGE, LONG_KEYS), "fp32"),
    ("flash", 64, True, ((128, 64),), (SMALL, LARGE, LONG_KEYS), "fp32"),
    ("flash", 64, False, ((64, 32),), (RAGGED,), "fp32"),
    ("flash", 64, True, ((64, 32),), (RAGGED,), "fp32"),
    ("flash", 64, True, ((32, 128),), (SMALL,), "fp32"),
    ("flash", 128, False, ((128, 64),), (SMALL, LONG_KEYS, LONGEST), "fp32"),
    ("flash", 128, True, ((128, 64),), (SMALL, LONG_KEYS, LONGEST), "fp32"),
    ("flash", 128, False, ((64, 64),), (RAGGED,), "fp32"),
    ("flash", 128, True, ((64, 64),), (RAGGED,), "fp32"),
    ("flash1", 64, False, ((64, 64),), _heads((132, 512), (132, 640), (132, 768), (132, 896), (132, 1024), (66, 1024)), "fp32"),
    ("flash1", 64, True, ((64, 64),), (*_heads((132, 1024), (132, 2048)), ((1, 64, 16), (1000, 1500))), "fp32"),
)
"""Families for hardware counters, on working sets below and above an L2 of 60 MiB."""


def attention_case(
    implementation: str, heads: tuple[int, int, int], lengths: tuple[int, int], d: int, tile: TileEdges, causal: bool, dtype: str
) -> KernelCase:
    """A case of attention. ``heads``: batch, query heads, KV heads; ``lengths``: queries, keys."""
    return numba_case(implementation, attention_shape(heads, lengths, d, causal), dtype, tile)


def _of(families: Iterable[Family]) -> list[KernelCase]:
    """Cases of each tile on each problem."""
    return [
        attention_case(f"numba-{name}", *problem, d, tile, causal, dtype)
        for name, d, causal, tiles, problems, dtype in families
        for tile, problem in product(tiles, problems)
    ]


def timed_cases() -> list[KernelCase]:
    """The list of ``validate --all``: every kernel of the package, cheap ones first."""
    return [*_copies(16, 20, 24, 27, 30), *_matmuls(), *_of(TIMED)]


def default_cases() -> list[KernelCase]:
    """The default list of validate: of ``timed_cases`` one tile of each kernel with each head dim, mask and dtype, not each with each."""
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
    """``cases`` of the first ``most`` tiles of each kernel, head dim and mask, as a tile is a kernel to compile."""
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
    return [*timed_cases(), *_copies(17, 22, 23, 28), *_of(CALIBRATED)]


def counted_cases() -> list[KernelCase]:
    """The default list for hardware counters."""
    return _of(COUNTED)


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
