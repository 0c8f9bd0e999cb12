"""What is measured unless a user says otherwise.

The timed cases take about two minutes on an H200, most of it for compiling. They cover head dims 64 and 128, causal and not,
grouped heads, partial tiles, all tile edges, and a factor of a hundred in time; few distinct tiles, as each is a kernel of its own.
"""

from __future__ import annotations

from itertools import product

from perfmodel.validation.cuda.cases import KernelCase, attention_case

SQUARES = (((1, 16, 16), 1024), ((1, 32, 8), 2048), ((2, 32, 32), 4096))
"""Heads (batch, query, KV) and length of the square problems: a factor 64 in work."""
RAGGED = ((2, 16, 4), (1000, 3000))
"""Partial tiles on both sides, grouped heads, more keys than queries."""
WIDE = ((1, 8, 8), (16384, 16384))
FLASH = {64: ((128, 64), (64, 32), (32, 128), (64, 64), (32, 32)), 128: ((128, 64), (64, 64), (128, 32), (32, 64), (64, 128))}
"""Tiles of numba-flash by head dim: the first two with and without a mask, the others with and without by turns."""


def timed_cases() -> list[KernelCase]:
    """The default list of validate: every kernel of the package, cheap ones first."""
    return [*copies(), *matmuls(), *flash_cases(), *flash1_cases(), *standard_cases(), *flash_mma_cases()]


MORE_COPIES = (17, 22, 28)
MORE_FLASH = ((64, False, (32, 128)), (64, True, (128, 32)), (128, False, (64, 32)), (128, True, (64, 128)), (128, True, (32, 32)))
MORE_STANDARD = ((64, False, (64, 32)), (64, True, (128, 32)), (128, True, (64, 64)))
MORE_MMA = (
    *((64, False, tile) for tile in ((64, 32), (64, 128), (128, 64))),
    *((64, True, (128, 32)), (128, False, (64, 32))),
    *((128, True, tile) for tile in ((64, 64), (64, 128), (128, 128))),
)
"""Head dim, mask and tile of families that ``split.held_out`` leaves to fits; of copies, the power of two of their bytes."""


def calibrated_cases() -> list[KernelCase]:
    """The default list of calibrate: that of validate, and as many families more as fits of every kernel ask for."""
    more = [KernelCase("numba-copy", "fp32", {"bytes": 1 << power}) for power in MORE_COPIES]
    problems = (*((heads, (n, n)) for heads, n in SQUARES), RAGGED)
    for name, families in (("numba-flash", MORE_FLASH), ("numba-standard", MORE_STANDARD), ("numba-flash-mma", MORE_MMA)):
        dtype = "fp16" if name == "numba-flash-mma" else "fp32"
        more += [attention_case(name, *problem, d, tile, causal, dtype) for d, causal, tile in families for problem in problems]
    return [*timed_cases(), *more]


def copies() -> list[KernelCase]:
    """64 KiB to 1 GiB."""
    return [KernelCase("numba-copy", "fp32", {"bytes": 1 << power}) for power in (16, 20, 24, 27, 30)]


def matmuls() -> list[KernelCase]:
    """Square, and partial tiles; without shared memory for comparison."""
    sizes = ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (1000, 3000, 2000))
    tiled = [_matmul("numba-matmul", mnk, tile) for tile, mnk in product((64, 128), sizes)]
    naive = [_matmul("numba-matmul-naive", (edge, edge, edge), 1) for edge in (1024, 1536, 2048, 3072)]
    small = [_matmul("numba-matmul", mnk, 32) for mnk in (sizes[1], (768, 2304, 1000), (512, 512, 4096))]
    wide = [_matmul("numba-matmul", (2048, 5000, 1000), tile) for tile in (64, 128)]
    return [*naive, *small, *wide, *tiled]


def _matmul(implementation: str, mnk: tuple[int, int, int], tile: int) -> KernelCase:
    return KernelCase(implementation, "fp32", dict(zip("mnk", mnk, strict=True)), {"br": tile, "bc": tile})


def flash_cases() -> list[KernelCase]:
    """Every tile on small, ragged and large problems, with and without mask."""
    found = []
    for d, tiles in FLASH.items():
        for at, tile in enumerate(tiles):
            for causal in (False, True) if at < 2 else ((at + d // 64) % 2 == 1,):
                found += [attention_case("numba-flash", heads, (n, n), d, tile, causal, "fp32") for heads, n in SQUARES]
                found.append(attention_case("numba-flash", *RAGGED, d, tile, causal, "fp32"))
            if at == 0:
                found.append(attention_case("numba-flash", *WIDE, d, tile, True, "fp32"))
    return found


FLASH1_TILES = (
    (64, False, ((32, 32), (32, 128), (64, 32), (128, 64))),
    (64, True, ((32, 128), (128, 32))),
    (128, False, ((32, 32), (128, 64))),
    (128, True, ((64, 64), (32, 128))),
)


def flash1_cases() -> list[KernelCase]:
    """One block per head, so as many heads as a large device has multiprocessors, fewer, and more."""
    shapes = (((1, 132, 132), (512, 512), 64, False), ((1, 132, 132), (1024, 1024), 64, False), ((1, 132, 132), (2048, 2048), 64, True))
    ragged = (((1, 64, 16), (1000, 1500), 64, True), ((1, 64, 64), (2000, 2000), 128, False), ((1, 8, 8), (256, 256), 128, False))
    found = [
        attention_case("numba-flash1", heads, lengths, d, (64, 64), causal, "fp32") for heads, lengths, d, causal in (*shapes, *ragged)
    ]
    for d, causal, tiles in FLASH1_TILES:
        for tile, (heads, n) in product(tiles, ((64, 512), (132, 1024), (300, 512))):
            found.append(attention_case("numba-flash1", (1, heads, heads), (n, n), d, tile, causal, "fp32"))
    return found


def standard_cases() -> list[KernelCase]:
    """Scores in memory: up to 2 GiB of them."""
    shapes = (((1, 8, 8), (512, 512)), ((1, 16, 4), (1000, 3000)), ((1, 16, 16), (4096, 4096)))
    found = []
    for (heads, lengths), d in product(shapes, (64, 128)):
        found.append(attention_case("numba-standard", heads, lengths, d, (128, 64), causal=d == 64, dtype="fp32"))
    found += [attention_case("numba-standard", (1, 16, 16), (n, n), 128, (128, 64), True, "fp32") for n in (512, 1024, 2048)]
    return [*found, attention_case("numba-standard", (1, 16, 16), (512, 8192), 64, (128, 64), False, "fp32")]


def flash_mma_cases() -> list[KernelCase]:
    """Tensor cores: FlashAttention-2's tiles, and smaller ones, in both 16-bit types."""
    shapes = (*(((b, h, k), (n, n)) for (b, h, k), n in SQUARES), RAGGED, WIDE)
    kernels = (
        (64, (128, 128), False, "fp16"),
        (64, (128, 128), True, "bf16"),
        (128, (128, 64), False, "bf16"),
        (128, (128, 64), True, "fp16"),
    )
    found = [attention_case("numba-flash-mma", *shape, d, tile, causal, dtype) for d, tile, causal, dtype in kernels for shape in shapes]
    return [*found, *(attention_case("numba-flash-mma", *shape, 64, (64, 64), True, "fp16") for shape in shapes[1:3])]


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
    found = [attention_case("numba-flash", *shape, d, tile, causal, "fp32") for shape, d, tile, masks in flash for causal in masks]
    flash1 = [
        (n, causal) for n, causal in ((512, False), (640, False), (768, False), (896, False), (1024, False), (1024, True), (2048, True))
    ]
    found += [attention_case("numba-flash1", (1, 132, 132), (n, n), 64, (64, 64), causal, "fp32") for n, causal in flash1]
    found.append(attention_case("numba-flash1", (1, 66, 66), (1024, 1024), 64, (64, 64), False, "fp32"))
    return [*found, attention_case("numba-flash1", (1, 64, 16), (1000, 1500), 64, (64, 64), True, "fp32")]
