"""Lower bound of a workload in seconds: no schedule of it is faster, on one device at its highest clocks.

A workload is a list of kernels in the order in which they can run. Any schedule may cut it into parts (some sequences, heads, rows) and run
every kernel of one part before the next part begins, so that tensors between kernels never leave the caches; and one part may compute while
another loads. The bound counts only what every schedule needs:

- arithmetic: the needed matmul work of all kernels together, at the highest clock. Exponentials can move from the SFU to
  polynomials on the vector unit: they bound an implementation;
- DRAM: each input read once, each output written once. A tensor that one kernel writes and a later one reads counts nothing;
- links: the bytes that a GPU has to receive.

The bound is the largest of the three totals. So it is at most the sum of the bounds of the workload's parts, and no roof of parts
that run one after another lies under it. It does not depend on tiles.
Source: the roofline model of Williams, Waterman & Patterson 2009, on compulsory traffic.

Cold: inputs start in DRAM and outputs end there. Warm: the same buffers are used again and again, and from one time to the next the caches
keep what they hold, once for the whole workload. Flushed: the caches start without the inputs, and may keep the last outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import reduce
from operator import add

from perfmodel.core.arith import Number, largest, maximum
from perfmodel.core.cache import held_bytes
from perfmodel.core.cost import READ, WRITE, Kernel
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device


@dataclass(frozen=True, slots=True)
class Needs:
    """Needs of every schedule: ``work_s`` seconds of arithmetic, ``link_s`` of links, and DRAM bytes by (kind of access, tensor).

    ``written``: every tensor that the workload writes, which a later kernel need not read from DRAM. ``bandwidth`` of DRAM in B/s.
    ``held``: capacity of the caches in bytes; if None (unknown), the warm bounds count no DRAM traffic.
    """

    work_s: Number = 0.0
    link_s: Number = 0.0
    tensors: Mapping[tuple[str, str], Number] = field(default_factory=dict)
    written: frozenset[str] = frozenset()
    bandwidth: Number | None = None
    held: Number | None = None

    def __add__(self, later: Needs) -> Needs:
        return in_turn([self, later])

    def disjoint_sum(self, other: Needs) -> Needs:
        """Needs of both as one workload without shared tensors: their bytes add up."""
        both = self + other
        return replace(
            both, tensors={key: self.tensors.get(key, 0) + other.tensors.get(key, 0) for key in {**self.tensors, **other.tensors}}
        )

    def times(self, count: Number) -> Needs:
        """Needs of ``count`` copies of this workload, each on its own tensors."""
        tensors = {key: count * size for key, size in self.tensors.items()}
        return replace(self, work_s=count * self.work_s, link_s=count * self.link_s, tensors=tensors)

    @property
    def dram_bytes(self) -> Number:
        """Bytes of inputs and outputs."""
        return sum(self.tensors.values())

    @property
    def cold_s(self) -> Number:
        """Lower bound in seconds with inputs in DRAM before, and outputs there after."""
        return self._largest(self.dram_bytes)

    @property
    def warm_s(self) -> Number:
        """Lower bound in seconds if the same buffers are used again and again."""
        return self._largest(self._beyond(self.dram_bytes))

    @property
    def flushed_s(self) -> Number:
        """Lower bound in seconds of a run after which outputs may still lie in the caches, as in a measurement that flushes them before."""
        written = sum(size for (kind, _), size in self.tensors.items() if kind == WRITE)
        return self._largest(self.dram_bytes - written + self._beyond(written))

    def _beyond(self, size: Number) -> Number:
        return 0 * size if self.held is None else maximum(size - self.held, 0)

    def _largest(self, dram_bytes: Number) -> Number:
        moved = () if self.bandwidth is None else (dram_bytes / self.bandwidth,)
        return largest([seconds for seconds in (self.work_s, self.link_s, *moved) if not _is_zero(seconds)])


def in_turn(listed: Sequence[Needs]) -> Needs:
    """Needs of all of ``listed`` in turn. A tensor that several read or write counts once; none need read what one before wrote."""
    tensors: dict[tuple[str, str], Number] = {}
    written: set[str] = set()
    for needs in listed:
        for key, size in needs.tensors.items():
            if key[0] != READ or key[1] not in written:
                tensors[key] = maximum(tensors[key], size) if key in tensors else size
        written |= needs.written
    work_s, link_s = (reduce(add, [getattr(needs, name) for needs in listed]) for name in ("work_s", "link_s"))
    known = [[size for needs in listed if (size := getattr(needs, name)) is not None] for name in ("bandwidth", "held")]
    bandwidth, held = (next(iter(sizes), None) for sizes in known)
    return Needs(work_s, link_s, tensors, frozenset(written), bandwidth, held)


def needs_of(kernel: Kernel, device: Device, bandwidth: Number, matmul_rate: Number) -> Needs:
    """The needs of one kernel. ``bandwidth`` of DRAM in B/s and ``matmul_rate`` in FLOP/s, both the highest of ``device``."""
    tensors: dict[tuple[str, str], Number] = {}
    for access in kernel.accesses:
        if access.kind in (READ, WRITE) and not access.handoff:
            key = (access.kind, access.tensor)
            tensors[key] = tensors.get(key, 0) + access.compulsory * access.element_size
    written = frozenset(access.tensor for access in kernel.accesses if access.kind == WRITE)
    work_s = (kernel.needed.tensor + kernel.needed.vector) / matmul_rate
    return Needs(work_s, 0.0, tensors, written, bandwidth, held_bytes(device, sum(tensors.values())))


def _is_zero(seconds: Number) -> bool:
    return isinstance(seconds, (int, float)) and seconds == 0
