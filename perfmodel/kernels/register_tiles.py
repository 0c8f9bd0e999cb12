"""Tiles of fp32 matrix products that stay in registers, with operands in shared memory: the layout of all of the project's own kernels.

A block computes ``br`` rows. ``lanes`` neighbouring threads share each row, and each thread has ``rows`` rows at a distance of ``step``.
The columns go to the lanes in turn, one by one or in groups of four. All widths, lanes and steps are powers of two. Source: the kernels'
own loops, ``validation/kernels``.
"""

from __future__ import annotations

from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass

WARP = 32  # known
BANK_GROUPS = 8  # known: 16-byte columns of shared memory
FLOAT_BYTES = 4  # known
HEAD_DIMS = (64, 128)  # known
EDGES = (32, 64, 128)  # known
SHARED_LIMIT = 227 * 1024  # known: bytes a block can ask for on compute capability 9.0


@dataclass(frozen=True, slots=True)
class TileLayout:
    """Owners of the rows of a tile of ``br``: see the module's text."""

    br: int
    lanes: int
    rows: int = 8

    @property
    def threads(self) -> int:
        """Threads of the block."""
        return self.br // self.rows * self.lanes

    @property
    def step(self) -> int:
        """Distance between the rows of a thread: the rows that one instruction of a warp covers."""
        return min(WARP, self.threads) // self.lanes

    def row_spread(self, width: int) -> int:
        """Period of the swizzle of a tile of ``width`` floats that threads read by their rows.

        Row r keeps group c of four floats at c xor (r mod period), so that the rows which a warp reads at once lie in different banks.
        """
        return min(self.step, BANK_GROUPS, width // 4)

    def column_spread(self, width: int) -> int:
        """The same for a tile that the lanes of a row read: its rows are the columns of the product."""
        return min(self.lanes, BANK_GROUPS, width // 4)


@dataclass(frozen=True, slots=True)
class Geometry:
    """One kernel's shape: tile ``br`` x ``bc``, head dim ``d``, ``lanes`` threads per row and ``rows`` rows per thread.

    A key tile is computed ``chunk`` keys at a time, at most ``max_scores`` scores of a row in each thread's registers.
    """

    d: int
    br: int
    bc: int
    lanes: int
    rows: int = 8
    max_scores: int = 8
    max_registers: int | None = None

    @property
    def layout(self) -> TileLayout:
        """Owners of rows and columns."""
        return TileLayout(self.br, self.lanes, self.rows)

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.layout.threads

    @property
    def chunk(self) -> int:
        """Keys computed at once."""
        return min(self.bc, self.max_scores * self.lanes)

    @property
    def scores_per_row(self) -> int:
        """Scores of a row in each thread."""
        return self.chunk // self.lanes

    @property
    def outputs_per_row(self) -> int:
        """Outputs of a row in each thread."""
        return self.d // self.lanes

    @property
    def p_pitch(self) -> int:
        """Floats per row of probabilities in shared memory, padded so that the rows of a warp store to different banks."""
        return self.chunk + self.lanes

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: Q, K, V, and the probabilities of one chunk."""
        return FLOAT_BYTES * ((self.br + 2 * self.bc) * self.d + self.br * self.p_pitch)


def geometry(d: int, br: int, bc: int) -> Geometry:
    """The fast layout of a tile: 8 x 8 results per thread where ``bc`` allows.

    >>> geometry(64, 128, 64).threads, geometry(64, 128, 64).shared_bytes
    (128, 102400)
    """
    if d not in HEAD_DIMS or br not in EDGES or bc not in EDGES:
        raise UsageError(f"tile {br} x {bc} with d {d}: no such kernel", f"give d in {HEAD_DIMS}, B_r and B_c in {EDGES}")
    shape = Geometry(d, br, bc, lanes=d // 8)
    if shape.shared_bytes > SHARED_LIMIT:
        raise UsageError(f"tile {br} x {bc} with d {d} needs {shape.shared_bytes} B of shared memory", "give a smaller B_r or B_c")
    return shape


@dataclass(frozen=True, slots=True)
class Instructions:
    """Instructions that each warp executes for one key tile; ``scores`` per thread."""

    multiply_adds: int
    loads: int
    scores: int
    copies: float


def instructions(shape: Geometry) -> Instructions:
    """Instructions of one key tile.

    >>> instructions(geometry(64, 128, 64))
    Instructions(multiply_adds=8192, loads=512, scores=64, copies=16.0)
    """
    chunks, rows = shape.bc // shape.chunk, shape.rows
    # loads of four floats: of Q and K per four head dims, then of P and V per four keys
    per_chunk = shape.d // 4 * (rows + shape.scores_per_row) + shape.chunk // 4 * (rows + shape.outputs_per_row)
    scores = rows * shape.bc // shape.lanes
    copies = 2 * shape.bc * shape.d / 4 / shape.threads  # K and V from global memory, four floats each
    return Instructions(2 * scores * shape.d, chunks * per_chunk, scores, copies)
