"""What a kernel does, before any device is chosen: additive records of work and memory accesses.

All counts are totals over batch and heads. A field holds an int, or a NumPy array in a sweep.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from perfmodel.core.arith import Number, ceil_div, maximum
from perfmodel.core.dtypes import TENSOR, Dtype
from perfmodel.core.frozen import dataclass

READ, WRITE, ZERO_FILL, GROUP_SUM = "read", "write", "zero_fill", "group_sum"
"""Kinds of access. Zero fill of accumulators and the sum of dK, dV over a query group are counted separately."""


class Work(NamedTuple):
    """Executed operations by unit: FLOP on ``tensor`` and ``vector``, exponentials on ``sfu``."""

    tensor: Number = 0
    vector: Number = 0
    sfu: Number = 0

    def __add__(self, other: Work) -> Work:  # type: ignore[override] # adds fields
        return Work(self.tensor + other.tensor, self.vector + other.vector, self.sfu + other.sfu)

    def items(self) -> tuple[tuple[str, Number], ...]:
        """Pairs of unit and amount."""
        return (("tensor", self.tensor), ("vector", self.vector), ("sfu", self.sfu))


def matmul_work(dtype: Dtype, flop: Number, vector: Number = 0, sfu: Number = 0) -> Work:
    """Work of ``flop`` matmul operations on the unit that ``dtype`` uses, plus ``vector`` and ``sfu`` operations."""
    return Work(flop, vector, sfu) if dtype.matmul_unit == TENSOR else Work(0, vector + flop, sfu)


class Access(NamedTuple):
    """Traffic of one tensor across the SRAM boundary in one kernel.

    ``elements``: loads or stores, re-reads included. ``footprint``: distinct elements among them, what DRAM sees if the L2 catches every
    re-read. ``compulsory``: elements that no implementation of the kernel can avoid moving. ``handoff``: the kernel before has just touched
    the tensor, or the next one reads it; it does not reach DRAM if it fits the L2. ``reread``: tiles stream the same elements again;
    whether the L2 still holds them depends on its size. Elements beyond the footprint without ``reread`` (K for the other query heads of a
    group) are read side by side and hit. ``scans``: how often the whole tensor is scanned if every head reads it (a mask); None for a
    tensor of one head.
    """

    tensor: str
    kind: str
    elements: Number
    element_size: float
    footprint: Number
    compulsory: Number
    handoff: bool = False
    reread: bool = False
    scans: Number | None = None

    @property
    def bytes(self) -> Number:
        """Bytes across the SRAM boundary."""
        return self.elements * self.element_size


def once(tensor: str, kind: str, elements: Number, size: float, *, compulsory: Number | None = None, handoff: bool = False) -> Access:
    """An access that touches each of its elements exactly once."""
    return Access(tensor, kind, elements, size, elements, elements if compulsory is None else compulsory, handoff)


class Tile(NamedTuple):
    """A tile of ``br`` query rows by ``bc`` key rows, for a block of ``threads``. ``head_dim``: the one its kernel is compiled for, or 0.

    ``splits``: blocks that share the key tiles of a query tile, or the k of a product. ``cluster``: blocks of a product that share the
    loads of one operand. Sizes are ints, or deferred numbers in a sweep.
    """

    br: Number
    bc: Number
    threads: Number = 128
    origin: str = "given"
    head_dim: Number = 0
    splits: Number = 1
    cluster: int = 1


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch geometry of a tiled kernel.

    ``blocks``: thread blocks; ``groups``: groups of blocks that stream the same tensors (the tiles of one head, or of the query heads that
    share a KV head); ``sram_bytes``, ``threads``: shared memory and threads per block. ``lockstep``: blocks of a group have the same
    length, so those that start together read the same tile at about the same time. ``length_spread``: how much shorter the shortest block
    of a group is than the longest, relative to the longest: how far they drift apart if not in lockstep. ``exclusive_stream``: a group is
    one block, so its tensors pass through one half of a split L2. ``causal_share``: share of the re-reads that belong to scans which a
    causal mask shortens. ``serial``: heads run one after another.
    """

    blocks: Number
    groups: Number
    sram_bytes: Number
    threads: Number
    lockstep: bool
    length_spread: Number = 1
    exclusive_stream: bool = False
    causal_share: Number = 0
    serial: bool = False


class Kernel(NamedTuple):
    """A named cost with its launch geometry.

    ``flops``: matmul FLOP on visible scores. ``executed_flops``: matmul FLOP as run, with recomputation, masked parts of
    tiles and padding. ``needed``: the work that no implementation of the algorithm can leave out.
    """

    name: str
    dtype: Dtype
    accesses: tuple[Access, ...]
    flops: Number = 0
    executed_flops: Number = 0
    work: Work = Work()
    needed: Work = Work()
    launch: Launch | None = None

    def elements(self, *kinds: str) -> Number:
        """Elements moved by accesses of these kinds."""
        return sum(access.elements for access in self.accesses if access.kind in kinds)

    def bytes(self, *kinds: str) -> Number:
        """Bytes moved across the SRAM boundary by accesses of these kinds."""
        return sum(access.bytes for access in self.accesses if access.kind in kinds)


def tensor_bytes(kernels: Iterable[Kernel]) -> dict[str, Number]:
    """Bytes of each tensor that ``kernels`` touch: the largest footprint of any access."""
    sizes: dict[str, Number] = {}
    for kernel in kernels:
        for access in kernel.accesses:
            size = access.footprint * access.element_size
            sizes[access.tensor] = maximum(sizes[access.tensor], size) if access.tensor in sizes else size
    return sizes


def memory_bytes(kernels: Iterable[Kernel]) -> Number:
    """Bytes of all tensors of ``kernels``, alive at once."""
    return sum(tensor_bytes(kernels).values())


def stored(tensor: str, kind: str, elements: Number, bits: int) -> Access:
    """An access that touches each of ``elements`` of ``bits`` once; formats that do not fill bytes are counted in bytes."""
    return once(tensor, kind, elements, bits // 8) if bits % 8 == 0 else once(tensor, kind, ceil_div(elements * bits, 8), 1)


def in_bits(access: Access, tensor: str, bits: int) -> Access:
    """``access`` to the tensor called ``tensor``, with elements of ``bits``."""
    if bits % 8 == 0:
        return access._replace(tensor=tensor, element_size=bits // 8)
    sizes = {name: ceil_div(getattr(access, name) * bits, 8) for name in ("elements", "footprint", "compulsory")}
    return access._replace(tensor=tensor, element_size=1, **sizes)
