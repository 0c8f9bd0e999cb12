"""``numba-matmul``: C = A B in fp32, through tiles in shared memory and, for comparison, straight from global memory.

With tiles of T x T each element of A is loaded n / T times instead of n, and each of B m / T times instead of m: T times fewer loads.
Source: Hong and Kung 1981 for the bound that such tiling reaches; any CUDA course for the example.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.kernels.register_tiles import FLOAT_BYTES, TileLayout
from perfmodel.validation.kernels import _steps as steps
from perfmodel.validation.kernels._steps import FOUR, ZERO, U, cuda, float32, kernel, launcher


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulGeometry(TileLayout):
    """A tile of C of ``br`` x ``bc``, multiplied ``depth`` steps of k at a time; a thread has ``rows`` x bc / lanes results."""

    bc: int
    depth: int

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: two stages of a tile of A and one of B."""
        return 2 * (self.br + self.bc) * self.depth * FLOAT_BYTES


def geometry(tile: int) -> MatmulGeometry:
    """The fast layout of a tile of 32, 64 or 128: 8 x 8 results per thread, 4 x 4 in the smallest."""
    lanes, rows = (tile // 8, 8) if tile > 32 else (8, 4)
    return MatmulGeometry(tile, lanes, rows, bc=tile, depth=32)


def loads(m: int, n: int, k: int, tile: int) -> int:
    """Elements of A and B loaded from global memory; ``tile`` 1 without shared memory.

    >>> loads(512, 512, 512, 1) // loads(512, 512, 512, 64)
    64
    """
    return m * k * -(-n // tile) + k * n * -(-m // tile)


@cache
def build(shape: MatmulGeometry) -> Any:
    """The tiled kernel ``(A, B, C, m, n, k, group)``: flat fp32 A [batch, m, k], B [batch / group, k, n], C [batch, m, n].

    n and k are multiples of 4; the grid's z is the batch.
    """
    br, bc, depth = shape.br, shape.bc, shape.depth
    spread, width = shape.row_spread(depth), bc // shape.lanes
    first_of = steps.first_row(shape)
    fill_a, fill_b = steps.fill_tile(shape.threads, br, depth, spread), steps.fill_tile(shape.threads, depth, bc, 1)
    add = steps.add_product(shape, width, depth, depth, permuted=True)
    stage, b_start, n_spread = U((br + bc) * depth), U(br * depth), U(spread)  # a stage holds a tile of A, then one of B
    n_rows, n_width, n_lanes, n_step = U(shape.rows), U(width), U(shape.lanes), U(shape.step)
    u_br, u_bc, u_depth, groups, group_pitch = U(br), U(bc), U(depth), U(width // 4), U(4 * shape.lanes)
    c_size, part_size = shape.rows * width, 4 * shape.rows

    def matmul(a: Any, b: Any, c: Any, m: Any, n: Any, k: Any, group: Any) -> None:
        shared = cuda.shared.array(0, float32)
        out = cuda.local.array(c_size, float32)
        part = cuda.local.array(part_size, float32)
        thread, matrix = U(cuda.threadIdx.x), U(cuda.blockIdx.z)
        lane, row = thread % n_lanes, first_of(thread)
        a_from, b_from = steps.keep(row * u_depth + row % n_spread * FOUR), steps.keep(b_start + lane * FOUR)
        top, left = U(cuda.blockIdx.y) * u_br, U(cuda.blockIdx.x) * u_bc
        rows, columns = min(u_br, m - top), min(u_bc, n - left)
        a_row, b_row, c_row = (matrix * m + top) * k, matrix // group * k, matrix * m + top
        for i in range(n_rows * n_width):
            out[i] = ZERO
        fill_a(shared, U(0), a, a_row, k, rows, min(u_depth, k), thread)
        fill_b(shared, b_start, b, b_row * n + left, n, min(u_depth, k), columns, thread)
        current = U(0)  # where the stage that is multiplied begins; the other one begins at stage - current
        for step in range(U(0), k, u_depth):
            steps.copies_done()
            cuda.syncthreads()  # the current stage has arrived, and no thread reads the other one
            after = step + u_depth
            if after < k:
                fill_a(shared, stage - current, a, a_row + after, k, rows, min(u_depth, k - after), thread)
                fill_b(shared, stage - current + b_start, b, (b_row + after) * n + left, n, min(u_depth, k - after), columns, thread)
            add(out, part, shared, current + a_from, current + b_from)
            current = stage - current
        for i in range(n_rows):
            out_row = row + i * n_step
            if out_row < rows:
                for g in range(groups):
                    column = lane * FOUR + g * group_pitch
                    if column < columns:
                        x = i * n_width + g * FOUR
                        steps.store4(c, (c_row + out_row) * n + left + column, out[x], out[x + U(1)], out[x + U(2)], out[x + U(3)])

    return kernel(matmul)


@cache
def build_naive() -> Any:
    """The kernel ``(A, B, C, m, n, k)`` without shared memory: one thread per element of C loads a row and a column."""

    def matmul_naive(a: Any, b: Any, c: Any, m: Any, n: Any, k: Any) -> None:
        column = U(cuda.blockIdx.x) * U(cuda.blockDim.x) + U(cuda.threadIdx.x)
        row = U(cuda.blockIdx.y)
        if column < n:
            total = ZERO
            for step in range(k):
                total += a[row * k + step] * b[step * n + column]
            c[row * n + column] = total

    return kernel(matmul_naive)


def prepare(m: int, n: int, k: int, shape: MatmulGeometry, a: Any, b: Any, c: Any, batch: int = 1, group: int = 1) -> Callable[[], None]:
    """Function that launches the tiled product on flat fp32 arrays; ``group`` matrices of A share one of B."""
    if n % 4 or k % 4:
        raise UsageError(f"numba-matmul with n {n}, k {k}", "give multiples of 4: tiles are copied 16 bytes at a time")
    grid = (-(-n // shape.bc), -(-m // shape.br), batch)
    return launcher(build(shape), grid, shape.threads, shape.shared_bytes, a, b, c, U(m), U(n), U(k), U(group))


def prepare_naive(m: int, n: int, k: int, a: Any, b: Any, c: Any, threads: int = 256) -> Callable[[], None]:
    """Function that launches the product without shared memory."""
    return launcher(build_naive(), (-(-n // threads), m), threads, 0, a, b, c, U(m), U(n), U(k))
