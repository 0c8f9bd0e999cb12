"""``numba-flash-mma``: FlashAttention-2's forward pass on tensor cores, 16-bit inputs, fp32 accumulation.

There is one thread block per query tile of one query head; with grouped heads, each query head reads K and V separately. The numba kernel
computes its tile, its addresses and the number of visible key tiles, then calls a CUDA C++ device function (``flash_mma.cu``), compiled and
linked at run time. The device function keeps scores, probabilities and outputs in registers: two score fragments of mma.m16n8k16 serve as a
left operand of P V without moving data. Asynchronous copies load K and V, each element once per query tile, into a ring of ``slots`` tiles.
It needs the numba-cuda package and compute capability 8.0. Source: Dao 2023, arXiv 2307.08691, Algorithm 1 and section 3.3 (work between
warps); PTX ISA 8.7, mma.m16n8k16 and ldmatrix.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda as _cuda
from numba import types

from perfmodel.core.errors import UnavailableError, UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.workload import Attention
from perfmodel.validation.kernels._steps import U, launcher, seen_keys
from perfmodel.validation.kernels.flash import extras, log2_scale, logsumexp

cuda: Any = _cuda  # numba is untyped, and its stand-in for machines without a GPU lacks most names

__all__ = ["KERNELS", "MmaGeometry", "build", "extras", "geometry", "logsumexp", "main", "prepare", "source"]

KERNELS = ("flash_mma",)
SIZE = 2
"""Bytes of an element of Q, K, V and O."""
STATISTIC_SIZE = 4
FRAGMENT = 16
"""Query rows of one mma.m16n8k16 (its m), and keys per instruction of P V (its k)."""
SWIZZLE = 64
"""Elements of a row (128 B) in which 16-byte chunks are permuted to avoid bank conflicts of ldmatrix; it divides the head dim."""
MAX_SHARED_BYTES = 227 * 1024
"""Largest shared memory of a block, in bytes, compute capability 9.0. Source: CUDA C++ Programming Guide, technical specifications."""
DTYPES = {"fp16": "f16", "bf16": "bf16"}
"""Names of the input types in PTX."""
SOURCE_FILE = Path(__file__).with_suffix(".cu")


@dataclass(frozen=True, slots=True)
class MmaGeometry:
    """Geometry of a kernel: tile ``br`` x ``bc``, head dim ``d``, ``warps`` that share the query rows.

    ``slots``: tiles of K or V in shared memory, one in use, the others being loaded. ``blocks``: thread blocks per multiprocessor
    that the compiler must leave registers for.
    """

    d: int
    br: int
    bc: int
    dtype: str = "fp16"
    warps: int = 4
    slots: int = 2
    blocks: int = 2

    def __post_init__(self) -> None:
        per_round = 8 * self.threads  # elements that all threads copy at once
        uneven = self.br * self.d % per_round or self.bc * self.d % per_round or per_round % self.d
        problems = {
            f"inputs are {self.dtype}, not {' or '.join(DTYPES)}": self.dtype not in DTYPES,
            f"head dim {self.d} is no multiple of {SWIZZLE}": self.d % SWIZZLE or self.d < SWIZZLE,
            f"{self.br} query rows do not split into fragments of {FRAGMENT} for {self.warps} warps": self.br % (FRAGMENT * self.warps),
            f"{self.bc} keys do not split into fragments of {FRAGMENT}": self.bc % FRAGMENT or self.bc < FRAGMENT,
            f"{self.threads} threads cannot share a tile evenly": uneven,
            f"{self.slots} slots: one tile is used while another arrives": self.slots < 2,
            f"{self.shared_bytes} B of shared memory, a block has {MAX_SHARED_BYTES}": self.shared_bytes > MAX_SHARED_BYTES,
        }
        for problem, occurs in problems.items():
            if occurs:
                raise UsageError(f"flash_mma: {problem}", "choose another tile, e.g. geometry(d, 128, 64)")

    @property
    def threads(self) -> int:
        """Threads per block."""
        return 32 * self.warps

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block: Q_i (O replaces it at the end) and ``slots`` tiles; FlashAttention-2 has two, K_j and V_j."""
        return SIZE * self.d * (self.br + self.slots * self.bc)

    def grid(self, n: int, heads: int, batch: int) -> tuple[int, int]:
        """Thread blocks: query tiles by query heads. Neighbours share K and V in L2."""
        return -(-n // self.br), heads * batch


def geometry(d: int, br: int, bc: int, dtype: str = "fp16") -> MmaGeometry:
    """The fast geometry for a tile: four warps, and four slots, or two if two blocks with four slots do not fit one multiprocessor.

    With four warps, each fragment of K or V serves ``br`` / 64 fragments of query rows.

    >>> geometry(64, 128, 128).slots, geometry(128, 128, 64).slots, geometry(128, 128, 128).slots
    (4, 4, 2)
    """
    roomy = SIZE * d * (br + 4 * bc) <= MAX_SHARED_BYTES // 2
    return MmaGeometry(d, br, bc, dtype, slots=4 if roomy else 2)


def source(shape: MmaGeometry, causal: bool) -> str:
    """CUDA C++ of the device function for one tile shape.

    >>> for line in source(MmaGeometry(64, 128, 128), causal=True).splitlines()[:7]:
    ...     print(line)
    #define D 64
    #define BR 128
    #define BC 128
    #define WARPS 4
    #define SLOTS 2
    #define CAUSAL 1
    #define DTYPE f16
    """
    constants = {
        "D": shape.d,
        "BR": shape.br,
        "BC": shape.bc,
        "WARPS": shape.warps,
        "SLOTS": shape.slots,
        "CAUSAL": int(causal),
        "DTYPE": DTYPES[shape.dtype],
    }
    return "".join(f"#define {name} {value}\n" for name, value in constants.items()) + SOURCE_FILE.read_text(encoding="utf-8")


def _linked(shape: MmaGeometry, causal: bool) -> Any:
    """The device function, declared for numba: five addresses, four lengths and the scale; see ``flash_mma.cu``."""
    if "link" not in inspect.signature(cuda.declare_device).parameters:
        raise UnavailableError("flash_mma links CUDA C++, which numba's built-in CUDA target cannot", "pip install 'numba-cuda[cu13]'")
    address, length = types.uint64, types.int32
    signature = types.int32(*[address] * 5, *[length] * 4, types.float32)
    return cuda.declare_device("flash_mma_tile", signature, link=cuda.CUSource(source(shape, causal), name="flash_mma.cu"))


@cache
def build(shape: MmaGeometry, causal: bool) -> Any:
    """The kernel ``(Q, K, V, O, logsumexp, n, kv_len, group, scale)`` for one tile shape.

    The first five are addresses of contiguous tensors: Q, O [batch * heads, n, d] and K, V [batch * kv_heads, kv_len, d] of
    16-bit elements, logsumexp [batch * heads, n] in fp32. ``group`` query heads share a KV head. ``scale`` = log2(e) / sqrt(d):
    exponentials are powers of two.
    """
    attend = _linked(shape, causal)
    br, bc, row_bytes, statistic_bytes = U(shape.br), U(shape.bc), U(shape.d * SIZE), U(STATISTIC_SIZE)

    def flash_mma(q: Any, k: Any, v: Any, o: Any, lse: Any, n: Any, kv_len: Any, group: Any, scale: Any) -> None:
        head = U(cuda.blockIdx.y)
        tile = U(cuda.gridDim.x) - U(1) - U(cuda.blockIdx.x)  # the longest causal rows first
        start = tile * br
        rows = min(br, n - start)
        row = head * n + start
        keys = head // group * kv_len * row_bytes
        visible = seen_keys(start + rows, n, kv_len) if causal else kv_len
        seen_by_first_row = np.int32(start + kv_len + U(1)) - np.int32(n)
        tiles = (visible + bc - U(1)) // bc
        q_tile, k_head, v_head, o_tile = q + row * row_bytes, k + keys, v + keys, o + row * row_bytes
        lse_tile, n_rows, n_tiles = lse + row * statistic_bytes, np.int32(rows), np.int32(tiles)
        attend(q_tile, k_head, v_head, o_tile, lse_tile, n_rows, np.int32(kv_len), n_tiles, seen_by_first_row, scale)

    return cuda.jit(flash_mma, launch_bounds=(shape.threads, shape.blocks))


def _address(name: str, array: Any, elements: int, size: int) -> Any:
    """Device address of ``array``; UsageError unless it has ``elements`` contiguous elements of ``size`` bytes, aligned to 16 B."""
    interface = array.__cuda_array_interface__
    held, width = math.prod(interface["shape"]), np.dtype(interface["typestr"]).itemsize
    address: int = interface["data"][0]
    if held != elements or width != size or interface.get("strides") is not None or address % 16:
        expected = f"{elements} contiguous elements of {size} B, aligned to 16 B"
        raise UsageError(f"flash_mma: {name} has {held} elements of {width} B at {address:#x}", f"give {expected}")
    return U(address)


def prepare(w: Attention, shape: MmaGeometry, q: Any, k: Any, v: Any, o: Any, lse: Any) -> Callable[[], None]:
    """A function that launches the kernel. Arrays need ``__cuda_array_interface__`` (bf16 as any 16-bit type) and must outlive it.

    ``w``: lengths and heads; dv = d, no mask, window or dropout. ``shape``: the geometry, with the element type.
    """
    if w.d != shape.d or w.dv != shape.d:
        raise UsageError(f"flash_mma: head dims {w.d} and {w.dv} in a kernel for {shape.d}", "build a MmaGeometry for this head dim")
    if w.dtype.name != shape.dtype:
        raise UsageError(f"flash_mma: {w.dtype.name} inputs in a kernel for {shape.dtype}", "build a MmaGeometry for this type")
    queries, keys = w.query_heads * w.n, w.stored_kv_heads * w.kv_len
    addresses = (
        _address("Q", q, queries * w.d, SIZE),
        _address("K", k, keys * w.d, SIZE),
        _address("V", v, keys * w.d, SIZE),
        _address("O", o, queries * w.d, SIZE),
        _address("logsumexp", lse, queries, STATISTIC_SIZE),
    )
    args = (*addresses, U(w.n), U(w.kv_len), U(w.group), log2_scale(shape.d))
    grid = shape.grid(w.n, w.heads, w.batch)
    return launcher(build(shape, w.causal), grid, shape.threads, shape.shared_bytes, *args)


def main(shape: MmaGeometry, causal: bool) -> tuple[Any, int]:
    """The compiled kernel, and the bytes of shared memory of a block."""
    return build(shape, causal), shape.shared_bytes
