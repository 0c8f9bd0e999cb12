"""Time of matrix products by tuned kernels of AMD's CDNA (AITER, hipBLASLt, Composable Kernel): the fastest of their tiles.

**Launch.** A workgroup holds a tile of C in the registers of one compute unit (CU); as many share one as fit: slices in its LDS, sums in
its registers. Tiles are those that AITER compiles for the format. Workgroups are dealt to the XCDs in turn, so that CUs fill evenly. AITER
takes the fastest kernel for each shape from a table of tuned ones, and the model chooses likewise.

**Stage.** A slice of k of 128 bytes passes through the LDS. Its multiplication by MFMA and its loads from the XCD's L2 overlap in part.
Each slice also takes a fixed step, which workgroups that share a CU hide from each other. C is stored after the last slice.

Operands come from DRAM in a warm run too: AITER's tuner rotates over copies of them that fill 32 GiB, up to its 101 runs. Formats have
kernels of their own, and parameters: bf16, fp8 with a scale per row, int8, fp8 with scales of blocks, MXFP4.

Sources: ROCm/aiter @e404860, aiter/test_common.py (rotation), csrc/ck_gemm_*/ and hsa/gfx950/ (tiles); AMD CDNA 3 architecture whitepaper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from perfmodel.core.arith import ceil_div
from perfmodel.core.dtypes import ACTIVATION_SIZE
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.matmul import Matmul, scale_block, scales
from perfmodel.kernels.tile import ACCUMULATOR_SIZE
from perfmodel.timing import products
from perfmodel.timing.base import ALONE, Case, Model, dram_bandwidth, numbers_of
from perfmodel.timing.products import CallTimes, Costs, Tile, TilePlan, plan_of, worth_timing

ROWS, COLUMNS = (16, 32, 64, 96, 128, 192, 256), (32, 64, 128, 192, 256)  # known
"""Sides of the tiles of C that AITER compiles for bf16, fp8 and int8; it has more in between."""
MXFP4_ROWS, MXFP4_COLUMNS = (32, 64, 96, 128, 160, 192, 224, 256), (128, 256, 384, 512)  # known
LARGE_BLOCK_TILES, SMALL_BLOCK_SIDES = ((128, 128), (128, 64), (64, 128), (64, 64), (64, 256)), (64, 128, 256)  # known
"""Tiles of Composable Kernel in fp8 with block scales, on both devices; and columns of the tiles with 16 and 32 rows."""
LARGEST_TILE = 256 * 256  # known
"""Most elements of a tile of C: its fp32 sums fill half the registers of a CU."""
SPLITS, SPLIT_COLUMNS = (1, 2, 4, 8, 16), 64  # known
"""Numbers of parts of k that are tried, and the multiple of columns that kernels with split k need. Kernels in MXFP4 do not split k."""
SLICE_BYTES = 128  # known
"""Depth of a slice of k: what a row of a tile brings in one step."""
L2_CYCLE_BYTES = 64  # known
"""Bytes per cycle that a CU takes from its L2 if the profile has no bandwidth. Source: CDNA 3 whitepaper, L1 bandwidth."""
HYPOT = 2  # known
"""Norm that joins multiplications and loads of a slice: they overlap in part."""


class _OnCdna(NamedTuple):
    """A case on a device before any parameter; seconds per FLOP, byte or cycle of one compute unit."""

    plans: tuple[TilePlan, ...]
    flop_s: float
    load_s: float
    cycle_s: float
    dram_s: float
    part_s: float


def tiles(implementation: str, dtype: str) -> tuple[Tile, ...]:
    """Rows and columns of C of the kernels that run a format."""
    if scale_block(implementation, dtype):
        return (*LARGE_BLOCK_TILES, *((br, bc) for br in (16, 32) for bc in SMALL_BLOCK_SIDES))
    rows, columns = (MXFP4_ROWS, MXFP4_COLUMNS) if dtype == "mxfp4" else (ROWS, COLUMNS)
    return tuple((br, bc) for br in rows for bc in columns if br * bc <= LARGEST_TILE)


def resident(br: int, bc: int, sram: float, registers: float) -> int:
    """Workgroups that share a CU: slices must fit its LDS; sums and as many other values must fit its registers.

    >>> resident(256, 256, 64 * 1024, 131072), resident(64, 64, 160 * 1024, 131072)
    (1, 10)
    """
    return max(int(min(sram // ((br + bc) * SLICE_BYTES), registers // (2 * br * bc))), 1)


@cached_by_identity
def _work(case: Case, device: Device) -> _OnCdna:
    w: Matmul = case.workload
    count, clock = numbers_of(device, "multiprocessors", "tensor clock")
    l2, bandwidth = device.level("l2"), dram_bandwidth(device)
    rate = (l2 and l2.bandwidth_bytes_per_s) or L2_CYCLE_BYTES * count * clock
    peak = device.matmul_peak(w.dtype.name, w.dtype.matmul_unit).number
    moved, part_s = moved_bytes(w, case.implementation), w.outputs * ACCUMULATOR_SIZE / bandwidth
    return _OnCdna(worth_timing(_plans(case, device, int(count))), count / peak, count / rate, 1 / clock, moved / bandwidth, part_s)


def moved_bytes(w: Matmul, implementation: str) -> float:
    """Bytes of A and B, with their scales, and of C in 16 bits.

    >>> from perfmodel.core.dtypes import PRODUCTS
    >>> moved_bytes(Matmul(16, 256, 512, dtype=PRODUCTS["fp8"]), "aiter-blockscale")
    147744.0
    """
    block = w.scale_block or scale_block(implementation, w.dtype.name)
    operands = w.batch * (w.m + w.n) * w.k * w.dtype.bytes
    beside = sum(access.bytes for access in scales(w.m, w.n, w.k, w.batch, block))
    return float(operands + beside + w.outputs * max(w.dtype.result_size, ACTIVATION_SIZE))


def _plans(case: Case, device: Device, count: int) -> Iterator[TilePlan]:
    """Plans on ``count`` compute units; with only the tile of ``case.launch`` (br, bc) and only the workload's split, if given."""
    w: Matmul = case.workload
    given = ((case.launch["br"], case.launch["bc"]),) if "br" in case.launch and "bc" in case.launch else None
    splits = (w.split_k,) if w.split_k > 1 else (1,) if w.dtype.packed or w.n % SPLIT_COLUMNS else SPLITS
    registers, depth = device.limits.registers_per_multiprocessor, SLICE_BYTES * 8 // int(8 * w.dtype.bytes)
    held, slices = LARGEST_TILE * 2 if registers is None else registers.number, ceil_div(w.k, depth)
    for br, bc in given or tiles(case.implementation, w.dtype.name):
        shared = resident(br, bc, device.sram_per_block, held)
        for parts in splits:
            if ceil_div(slices, parts) * (parts - 1) * depth < w.k:  # else the last part would be empty
                sizes = w.dtype.bytes, ACTIVATION_SIZE if parts == 1 else ACCUMULATOR_SIZE
                yield plan_of((w.m, w.n, w.k, w.batch), (br, bc), parts, resident=shared, slots=count, depth=depth, sizes=sizes)


def fastest(case: Case, device: Device, p: Mapping[str, float]) -> tuple[float, TilePlan]:
    """Seconds of the fastest candidate, and its plan.

    UnavailableError without compute units, a clock, a peak for the format or an LDS, and if k has fewer slices than parts.
    """
    work = _work(case, device)
    if not work.plans:
        w = case.workload
        raise UnavailableError(f"{case.implementation} cannot split k of {w.k:,} in {w.split_k}", "give a smaller --split-k")
    cycle_s = work.cycle_s
    store_s, wait_s = cycle_s / p["stored_bytes_per_cycle"], cycle_s * p["slice_cycles"]
    costs = Costs(work.flop_s / p["multiply_share"], work.load_s / p["load_share"], store_s, wait_s, HYPOT)
    run = CallTimes(p["launch_us"] * 1e-6, work.dram_s / p["dram_share"], 0.0, p["overlap"], p["split_us"] * 1e-6, work.part_s)
    return products.fastest(work.plans, [costs], run)


def seconds(case: Case, device: Device, parameters: Mapping[str, float]) -> float:
    """Seconds of one (batched) product; UnavailableError as ``fastest``."""
    return fastest(case, device, parameters)[0]


def of_formats(*formats: str) -> Callable[[Case], bool]:
    """Function that says whether a case is a forward product in one of some formats."""

    def covers(case: Case) -> bool:
        """A forward product in that format."""
        return isinstance(case.workload, Matmul) and case.direction == FORWARD and case.workload.dtype.name in formats

    return covers


_GEMM = Model(
    "amd-gemm",
    "amd-gemm",
    of_formats("bf16", "fp16"),
    seconds,
    "tiles of AITER and Composable Kernel: ROCm/aiter @e404860; XCDs, L2 and Infinity Cache: AMD CDNA 3 architecture whitepaper",
    assumes=f"{ALONE}; the fastest kernel of the library, as its tuner finds it; operands in DRAM in warm runs too, whose copies rotate",
    implementations=("aiter",),
    family="amd-gemm",
)
MODELS = {
    model.name: model
    for model in (
        _GEMM,
        *(_GEMM._replace(name=f"amd-gemm-{dtype}", covers=of_formats(dtype)) for dtype in ("fp8", "int8")),
        *(
            _GEMM._replace(name=name, covers=of_formats(dtype), implementations=("aiter-blockscale",))
            for name, dtype in (("amd-gemm-blockscale", "fp8"), ("amd-gemm-mxfp4", "mxfp4"))
        ),
    )
}
