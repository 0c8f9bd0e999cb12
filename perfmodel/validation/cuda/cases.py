"""One kernel on one shape, in the words of a measurement record, and which of them are measured unless a user says otherwise.

The timed cases take about two minutes on an H200, most of it for compiling. They cover head dims 64 and 128, causal and not,
grouped heads, partial tiles, all tile edges, and a factor of a hundred in time; few distinct tiles, as each is a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from perfmodel.core.errors import UsageError, suggest
from perfmodel.validation.cases import KernelCase

ATTENTION_KEYS = ("batch", "heads", "kv_heads", "n", "kv_len", "d", "causal")
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


def attention_case(
    implementation: str, heads: tuple[int, int, int], lengths: tuple[int, int], d: int, tile: TileEdges, causal: bool, dtype: str
) -> KernelCase:
    """A case of attention. ``heads``: batch, query heads, KV heads; ``lengths``: queries, keys."""
    shape = dict(zip(ATTENTION_KEYS, (*heads, *lengths, d, causal), strict=True))
    return numba_case(implementation, shape, dtype, tile)


def _of(name: str, d: int, causal: bool, tiles: Iterable[TileEdges], problems: Iterable[Problem], dtype: str = "fp32") -> list[KernelCase]:
    """Cases of each tile on each problem."""
    return [attention_case(f"numba-{name}", *problem, d, tile, causal, dtype) for tile, problem in product(tiles, problems)]


def timed_cases() -> list[KernelCase]:
    """The default list of validate: every kernel of the package, cheap ones first."""
    flash1 = [case for family in FLASH1 for case in _of("flash1", *family)]
    return [*copies(16, 20, 24, 27, 30), *matmuls(), *flash_cases(), *flash1, *standard_cases(), *flash_mma_cases()]


MORE_FLASH = ((64, False, (32, 128)), (64, True, (128, 32)), (128, False, (64, 32)), (128, True, (64, 128)), (128, True, (32, 32)))
MORE_STANDARD = ((64, False, (64, 32)), (64, True, (128, 32)), (128, True, (64, 64)))
MORE_MMA = (
    *((64, False, tile) for tile in ((64, 32), (64, 128), (128, 64))),
    *((64, True, (128, 32)), (128, False, (64, 32))),
    *((128, True, tile) for tile in ((64, 64), (64, 128), (128, 128))),
)
"""Head dim, mask and tile of families that ``records.held_out`` leaves to fits."""


def calibrated_cases() -> list[KernelCase]:
    """The default list of calibrate: that of validate, and as many families more as fits of every kernel ask for."""
    more = copies(17, 22, 23, 28)
    for name, families, dtype in (("flash", MORE_FLASH, "fp32"), ("standard", MORE_STANDARD, "fp32"), ("flash-mma", MORE_MMA, "fp16")):
        for d, causal, tile in families:
            more += _of(name, d, causal, [tile], (*SQUARES, RAGGED), dtype)
    return [*timed_cases(), *more]


def copies(*powers: int) -> list[KernelCase]:
    """Cases of copies, of powers of two in bytes."""
    return [numba_case("numba-copy", {"bytes": 1 << power}) for power in powers]


def matmuls() -> list[KernelCase]:
    """Cases of matmuls: square ones, partial tiles, and without shared memory for comparison."""
    sizes = ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (1000, 3000, 2000))
    tiled = [_matmul("numba-matmul", mnk, tile) for tile, mnk in product((64, 128), sizes)]
    naive = [_matmul("numba-matmul-naive", (edge, edge, edge), 1) for edge in (1024, 1536, 2048, 3072)]
    small = [_matmul("numba-matmul", mnk, 32) for mnk in (sizes[1], (768, 2304, 1000), (512, 512, 4096))]
    wide = [_matmul("numba-matmul", (2048, 5000, 1000), tile) for tile in (64, 128)]
    return [*naive, *small, *wide, *tiled]


def _matmul(implementation: str, mnk: tuple[int, int, int], tile: int) -> KernelCase:
    return numba_case(implementation, dict(zip("mnk", mnk, strict=True)), tile=(tile, tile))


FLASH = {64: ((128, 64), (64, 32), (32, 128), (64, 64), (32, 32)), 128: ((128, 64), (64, 64), (128, 32), (32, 64), (64, 128))}
"""Tiles of numba-flash by head dim: the first two with and without a mask, the others with and without by turns."""


def flash_cases() -> list[KernelCase]:
    """Cases of every tile on small, ragged and large problems, with and without mask."""
    cases = []
    for d, tiles in FLASH.items():
        for at, tile in enumerate(tiles):
            for causal in (False, True) if at < 2 else ((at + d // 64) % 2 == 1,):
                cases += _of("flash", d, causal, [tile], (*SQUARES, RAGGED))
            cases += _of("flash", d, True, [tile], [WIDE]) if at == 0 else []
    return cases


FLASH1 = (
    (64, False, [(64, 64)], [((1, 132, 132), (512, 512)), ((1, 132, 132), (1024, 1024))]),
    (64, True, [(64, 64)], [((1, 132, 132), (2048, 2048)), ((1, 64, 16), (1000, 1500))]),
    (128, False, [(64, 64)], [((1, 64, 64), (2000, 2000)), ((1, 8, 8), (256, 256))]),
    *(
        (d, causal, tiles, [((1, heads, heads), (n, n)) for heads, n in ((64, 512), (132, 1024), (300, 512))])
        for d, causal, tiles in (
            (64, False, [(32, 32), (32, 128), (64, 32), (128, 64)]),
            (64, True, [(32, 128), (128, 32)]),
            (128, False, [(32, 32), (128, 64)]),
            (128, True, [(64, 64), (32, 128)]),
        )
    ),
)
"""Head dim, mask, tiles and problems. One block per head, so as many heads as a large device has multiprocessors, fewer, and more."""


def standard_cases() -> list[KernelCase]:
    """Cases of standard attention, with up to 2 GiB of scores in memory."""
    problems: tuple[Problem, ...] = (((1, 8, 8), (512, 512)), ((1, 16, 4), (1000, 3000)), ((1, 16, 16), (4096, 4096)))
    found = [case for problem, d in product(problems, (64, 128)) for case in _of("standard", d, d == 64, [(128, 64)], [problem])]
    found += _of("standard", 128, True, [(128, 64)], [((1, 16, 16), (n, n)) for n in (512, 1024, 2048)])
    return found + _of("standard", 64, False, [(128, 64)], [((1, 16, 16), (512, 8192))])


def flash_mma_cases() -> list[KernelCase]:
    """Cases of attention on tensor cores: FlashAttention-2's tiles, and smaller ones, in both 16-bit types."""
    problems = (*SQUARES, RAGGED, WIDE)
    cases = []
    for d, tile, dtypes in ((64, (128, 128), ("fp16", "bf16")), (128, (128, 64), ("bf16", "fp16"))):  # without and with a mask
        for causal, dtype in zip((False, True), dtypes, strict=True):
            cases += _of("flash-mma", d, causal, [tile], problems, dtype)
    return cases + _of("flash-mma", 64, True, [(64, 64)], problems[1:3], "fp16")


def counted_cases() -> list[KernelCase]:
    """The default list for hardware counters: numba-flash and numba-flash1 on working sets below and above an L2 of 60 MiB."""
    small, large, long_keys = ((1, 16, 16), (2048, 2048)), ((1, 64, 64), (8192, 8192)), ((4, 16, 16), (512, 8192))
    flash = [
        (small, 64, (128, 64), (False, True)),
        (RAGGED, 64, (64, 32), (False, True)),
        (small, 64, (32, 128), (True,)),
        (large, 64, (128, 64), (False, True)),
        (long_keys, 64, (128, 64), (False, True)),
        (small, 128, (128, 64), (False, True)),
        (RAGGED, 128, (64, 64), (False, True)),
        (long_keys, 128, (128, 64), (False, True)),
        (((1, 16, 4), (16384, 16384)), 128, (128, 64), (False, True)),
    ]
    cases = [case for problem, d, tile, masks in flash for causal in masks for case in _of("flash", d, causal, [tile], [problem])]
    cases += _of("flash1", 64, False, [(64, 64)], [((1, 132, 132), (n, n)) for n in (512, 640, 768, 896, 1024)])
    cases += _of("flash1", 64, True, [(64, 64)], [((1, 132, 132), (n, n)) for n in (1024, 2048)])
    cases += _of("flash1", 64, False, [(64, 64)], [((1, 66, 66), (1024, 1024))])
    return cases + _of("flash1", 64, True, [(64, 64)], [((1, 64, 16), (1000, 1500))])
