"""Workloads: shapes and options of computations, checked once, used everywhere."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from perfmodel.core.arith import Number
from perfmodel.core.cost import READ, WRITE, Kernel, Tile, matmul_work, once
from perfmodel.core.dtypes import DTYPES, Dtype
from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.trace import label

FORWARD, BACKWARD = "forward", "backward"
LARGEST_SIZE = 10**15
"""Largest length, head count or batch taken: counts stay exact far beyond it, times stay finite."""


class BlockCounts(NamedTuple):
    """Counts of one walk over the blocks of a score matrix that a block-sparse kernel computes.

    ``streamed_rows``: query rows summed over the blocks. ``distinct_rows``: query rows with at least one block; ``seeing_rows``: query rows
    with at least one unmasked key in a block. ``scores``: entries of the blocks, partial blocks at their real size; ``visible_scores``:
    unmasked entries.
    """

    streamed_rows: Number
    distinct_rows: Number
    seeing_rows: Number
    scores: Number
    visible_scores: Number


class BlockPattern(Protocol):
    """Pattern of the blocks of a T_r x T_c grid that are computed."""

    @property
    def name(self) -> str:
        """Name in reports."""

    def obstacle(self, w: Attention) -> str | None:
        """Reason why its blocks cannot be counted for this workload, and what would help; None if they can."""

    def counts(self, w: Attention, br: Number, bc: Number) -> BlockCounts:
        """Counts of one walk in blocks of ``br`` x ``bc``."""


VIEWS, CONTIGUOUS = LAYOUTS = ("bnhd", "bhnd")
"""Layouts of attention's operands: heads of a token side by side, as views of one projection are; or each head's tokens side by side."""


@dataclass(frozen=True, slots=True)
class Attention:
    """softmax(Q K^T / sqrt(d)) V.

    Shapes: Q [batch, heads, n, d], K [batch, kv_heads, kv_len, d], V [batch, kv_heads, kv_len, dv], O [batch, heads, n, dv]. A causal mask
    is aligned to the last query and the last key (bottom right). ``packed``: the query heads that share a KV head form one tall Q, so that
    K and V are read once per KV head; otherwise once per query head. ``window``: with a causal mask, a query sees at most this many of its
    last keys; None for all. ``splits``: parts into which a split-KV kernel cuts the keys; None lets it choose. ``sparsity``: which score
    blocks a block-sparse kernel computes. ``mask``: an additive n x kv_len mask of the workload's dtype, broadcast over batch and heads, an
    input. ``masked_fill``: the causal mask is a boolean matrix that a separate kernel applies if the algorithm leaves scores in memory.
    ``dropout``: probability, 0 for none. ``unfused_scale``: 1/sqrt(d) is a separate kernel if the algorithm leaves scores in memory.
    ``printed_backward``: count the loads of FlashAttention-2's backward pass as Algorithm 2 prints them. ``layout``: order of the operands'
    dimensions in memory, one of ``LAYOUTS``.
    """

    n: Number
    kv_len: Number
    d: Number
    dv: Number
    batch: Number = 1
    heads: Number = 1
    kv_heads: Number = 1
    dtype: Dtype = DTYPES["fp16"]
    causal: bool = False
    mask: bool = False
    masked_fill: bool = False
    dropout: float = 0.0
    unfused_scale: bool = False
    packed: bool = False
    window: Number | None = None
    splits: int | None = None
    sparsity: BlockPattern | None = None
    printed_backward: bool = False
    layout: str = VIEWS

    @property
    def group(self) -> Number:
        """Query heads per KV head."""
        return label("g", "query heads per KV head", self.heads // self.kv_heads)

    @property
    def query_heads(self) -> Number:
        """Query heads over the whole batch."""
        return self.batch * self.heads

    @property
    def stored_kv_heads(self) -> Number:
        """KV heads over the whole batch."""
        return self.batch * self.kv_heads

    @property
    def row_heads(self) -> Number:
        """Heads of the tile walk: one per KV head if packed, else one per query head."""
        return self.stored_kv_heads if self.packed else self.query_heads

    @property
    def row_group(self) -> Number:
        """Query heads stacked into one walk: the group if packed, else 1."""
        return self.group if self.packed else 1

    def check(self) -> Attention:
        """This workload, if every value has a meaning; else UsageError names the option and the fix."""
        for option in ("n", "kv_len", "d", "dv", "batch", "heads", "kv_heads"):
            value = getattr(self, option)
            if not 1 <= value <= LARGEST_SIZE:
                problem = f"is {value}" if value < 1 else "is too large"
                raise UsageError(f"--{option.replace('_', '-')} {problem}", f"give a whole number from 1 to {LARGEST_SIZE:.0e}")
        if self.heads % self.kv_heads:
            fits = [h for h in range(1, min(self.heads, 1024) + 1) if self.heads % h == 0]
            nearest = sorted(sorted(fits, key=lambda h: abs(h - self.kv_heads))[:3])
            raise UsageError(
                f"--kv-heads {self.kv_heads} does not divide --heads {self.heads}", f"use one that does: {', '.join(map(str, nearest))}"
            )
        for option, value in (("window", self.window), ("splits", self.splits)):
            if value is not None and not 1 <= value <= LARGEST_SIZE:
                raise UsageError(f"--{option} is {value}", f"give a whole number from 1 to {LARGEST_SIZE:.0e}")
        if self.layout not in LAYOUTS:
            raise UsageError(f"--layout: unknown layout {self.layout!r}", f"known: {', '.join(LAYOUTS)}")
        if self.masked_fill and not self.causal:
            raise UsageError("--masked-fill applies a causal mask", "add --causal; for a mask that is an input, give --mask")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"--dropout is {self.dropout}", "give a probability from 0 up to, not including, 1")
        return self


@dataclass(frozen=True, slots=True)
class Stream:
    """A kernel that passes once over ``rows`` x ``cols`` elements: copies, element-wise operations, softmax, norms.

    ``inputs`` operands of that size are read and ``outputs`` are written; ``shared`` elements (a norm's weights, a mask that is
    broadcast) are read beside them.
    """

    op: str
    rows: Number
    cols: Number
    inputs: int = 1
    outputs: int = 1
    shared: Number = 0
    dtype: Dtype = DTYPES["fp16"]

    @property
    def read_bytes(self) -> Number:
        """Bytes read at least."""
        return (self.inputs * self.rows * self.cols + self.shared) * self.dtype.size

    @property
    def write_bytes(self) -> Number:
        """Bytes written in one pass."""
        return self.outputs * self.rows * self.cols * self.dtype.size

    def kernels(self, tile: Tile) -> list[Kernel]:
        """The kernel of one pass; ``tile`` does not matter."""
        accesses = (once("inputs", READ, self.read_bytes, 1), once("outputs", WRITE, self.write_bytes, 1))
        return [Kernel(self.op, self.dtype, accesses)]


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution, forward or backward.

    Each of ``places`` output positions has ``groups`` x ``filters`` values, each a sum over ``window`` input positions x ``channels``.
    ``passes``: 1 forward; backward the number of gradients, each as large a product. Bytes are those of one pass: operands and result.
    """

    places: Number
    filters: Number
    channels: Number
    window: Number
    read_bytes: Number
    write_bytes: Number
    groups: Number = 1
    passes: int = 1
    dtype: Dtype = DTYPES["bf16"]

    def kernels(self, tile: Tile) -> list[Kernel]:
        """The passes as one kernel; ``tile`` does not matter."""
        flop = 2 * self.passes * self.places * self.filters * self.groups * self.channels * self.window
        inputs = once("inputs", READ, self.passes * self.read_bytes, 1)
        outputs = once("outputs", WRITE, self.passes * self.write_bytes, 1)
        work = matmul_work(self.dtype, flop)
        return [Kernel("convolution", self.dtype, (inputs, outputs), flop, flop, work, work)]


LOOKUPS = frozenset({"gather", "scatter", "embedding-backward", "embedding-backward-few", "layout"})
"""Kinds of passes that read a table by index, or channels padded to tiles; their reads are uncertain, so none is compulsory."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A kernel of one ``kind`` that works on ``elements`` and moves its bytes once: any operator except products and attention.

    ``divisions``: integer divisions per element that locate operands which are broadcast or have gaps. ``rows``: rows, one per thread
    block or warp, so that few rows leave multiprocessors idle; 0 if blocks share the elements evenly. ``parts``: blocks that share a result
    and are added up one after the other.
    """

    kind: str
    elements: Number
    write_bytes: Number
    read_bytes: Number = 0
    dtype: Dtype = DTYPES["fp32"]
    divisions: int = 0
    rows: Number = 0
    parts: int = 0

    def kernels(self, tile: Tile) -> list[Kernel]:
        """The kernel of one pass; ``tile`` does not matter."""
        read = once("inputs", READ, self.read_bytes, 1, compulsory=0 if self.kind in LOOKUPS else None)
        accesses = (read, once("outputs", WRITE, self.write_bytes, 1))
        return [Kernel(self.kind, self.dtype, accesses)]
