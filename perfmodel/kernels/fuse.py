"""A chain of elementwise operations: one kernel each, the same kernels in a CUDA graph, or all of them fused into one.

Each operation reads one or more tensors of ``elements`` and writes one. Operands beyond the first are earlier results of the
chain, so that a fused kernel reads the input once and writes the output once. A kernel takes the longer of its launch and
its roof; kernels wait for each other, so their times add up. An intermediate that fits the caches costs no DRAM traffic and
is priced at L2 bandwidth.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from perfmodel.core.arith import Number, maximum
from perfmodel.core.checks import positive_int
from perfmodel.core.cost import READ, WRITE, Access, Kernel, Work, once
from perfmodel.core.dtypes import DTYPES, Dtype
from perfmodel.core.explain import sourced
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.lower_bound import Needs
from perfmodel.core.roofline import Estimate, Traffic, estimate, rates_of
from perfmodel.core.trace import FormulaStep, Trace
from perfmodel.core.units import Quantity

SOURCE = "one read per operand and one write per operation, each kernel max(launch, roof)"
LAUNCH_SOURCE = "launch overhead of the profile, time per kernel in a saturated queue"


@dataclass(frozen=True, slots=True)
class FusedChain:
    """``pattern``: operands of each operation of one round, repeated ``rounds`` times."""

    elements: Number
    pattern: tuple[int, ...] = (1,)
    rounds: Number = 1
    dtype: Dtype = DTYPES["fp16"]

    def check(self) -> FusedChain:
        """This workload, if every value has a meaning; else UsageError names the option and the fix."""
        positive_int("elements", self.elements)
        positive_int("ops", self.rounds)
        for operands in self.pattern:
            positive_int("reads-per-op", operands)
        return self

    @property
    def ops(self) -> Number:
        """Number of operations, which is the number of kernels if none are fused.

        >>> FusedChain(1024, (1, 1, 2), 10).ops
        30
        """
        return len(self.pattern) * self.rounds

    @property
    def tensor_reads(self) -> Number:
        """Tensors read by all operations.

        >>> FusedChain(1024, (1, 1, 2), 10).tensor_reads
        40
        """
        return sum(self.pattern) * self.rounds


@dataclass(frozen=True, slots=True)
class Launches:
    """``count`` launches of one kernel."""

    kernel: Kernel
    count: Number


def _kernel(w: FusedChain, name: str, operands: int, *, first: bool = False, last: bool = False, ops: Number = 1) -> Kernel:
    """A kernel of ``ops`` operations of the chain. The ``first`` reads its input from memory, the ``last`` writes its output there."""
    size, accesses = w.dtype.size, []
    if first:
        accesses.append(once("input", READ, w.elements, size))
    if operands > first:
        handed = (operands - first) * w.elements
        accesses.append(Access("operands", READ, handed, size, handed, 0, handoff=True))
    if last:
        accesses.append(once("output", WRITE, w.elements, size))
    else:
        accesses.append(once("result", WRITE, w.elements, size, compulsory=0, handoff=True))
    return Kernel(name, w.dtype, tuple(accesses), work=Work(0, ops * w.elements))


def unfused(w: FusedChain) -> list[Launches]:
    """One kernel per operation; equal ones are joined, except the first and the last.

    >>> [(launches.kernel.name, launches.count) for launches in unfused(FusedChain(1024, (1,), 30))]
    [('first', 1), ('middle', 28), ('last', 1)]
    """
    if w.ops == 1:
        return [Launches(_kernel(w, "only", w.pattern[0], first=True, last=True), 1)]
    middle_counts: Counter[int] = Counter()  # by number of operands
    for operands in w.pattern:
        middle_counts[operands] += w.rounds
    middle_counts[w.pattern[0]] -= 1
    middle_counts[w.pattern[-1]] -= 1
    launches = [Launches(_kernel(w, "first", w.pattern[0], first=True), 1)]
    for operands, count in sorted(middle_counts.items()):
        name = "middle" if len(middle_counts) == 1 else f"middle of {operands}"
        if count > 0:
            launches.append(Launches(_kernel(w, name, operands), count))
    return [*launches, Launches(_kernel(w, "last", w.pattern[-1], last=True), 1)]


def fused(w: FusedChain) -> list[Launches]:
    """One kernel: the input read once, the output written once, every operation computed.

    >>> [launches] = fused(FusedChain(1024, (1,), 30))
    >>> launches.kernel.elements("read", "write")
    2048
    """
    return [Launches(_kernel(w, "fused", 1, first=True, last=True, ops=w.ops), 1)]


@dataclass(frozen=True, slots=True)
class ChainResult:
    """One way to run the chain.

    Seconds: ``launch_s`` per kernel and ``total_s`` (None if the profile has no launch overhead), and ``memory_s`` without launches.
    ``sram``, ``dram``: bytes at that level.
    """

    name: str
    parts: list[tuple[Launches, Estimate]]
    launches: int
    sram: Traffic
    dram: Traffic
    launch_s: float | None
    memory_s: float
    total_s: float | None
    lower_s: float
    unknown: frozenset[str]

    @property
    def launch_bound(self) -> int | None:
        """Number of kernels that take no longer than their launch."""
        if self.launch_s is None:
            return None
        return int(sum(part.count for part, cost in self.parts if cost.roofline_s <= self.launch_s))


VARIANTS = {"unfused": (unfused, "stream"), "cuda-graph": (unfused, "graph"), "fused": (fused, "stream")}
"""Ways to run the chain by name: the function that gives the kernels, and the kind of launch overhead."""


def evaluate(w: FusedChain, device: Device) -> list[ChainResult]:
    """Results of the chain unfused, as a CUDA graph, and fused. UnavailableError if the device has no peak for the dtype."""
    results = []
    for name, (kernels_of, overhead_kind) in VARIANTS.items():
        parts = [(launches, estimate(launches.kernel, device)) for launches in kernels_of(w)]
        overhead: Quantity | None = getattr(device.launch_overhead, overhead_kind, None)
        launch_s = None if overhead is None else float(overhead.number)
        result = ChainResult(
            name=name,
            parts=parts,
            launches=sum(launches.count for launches, _ in parts),
            sram=moved(parts, "sram"),
            dram=moved(parts, "dram"),
            launch_s=launch_s,
            memory_s=sum(launches.count * cost.roofline_s for launches, cost in parts),
            total_s=None if launch_s is None else with_launches(parts, launch_s),
            lower_s=lower_bound(parts),
            unknown=frozenset().union(*(cost.unknown for _, cost in parts)),
        )
        results.append(result)
    return results


def lower_bound(parts: list[tuple[Launches, Estimate]]) -> Number:
    """Lower bound in seconds of any way to run the chain: its input read and its output written."""
    return sum((cost.needs.times(launches.count) for launches, cost in parts), Needs()).cold_s


def moved(parts: list[tuple[Launches, Estimate]], level: str) -> Traffic:
    """Bytes of all launches at ``level``, sram or dram."""
    counted = [(launches.count, getattr(cost, level)) for launches, cost in parts]
    return sum((Traffic(count * traffic.read, count * traffic.write) for count, traffic in counted), Traffic())


def with_launches(parts: list[tuple[Launches, Estimate]], launch_s: Number) -> Number:
    """Seconds of kernels that run one after another, each for the longer of its launch and its roof."""
    return sum(launches.count * maximum(launch_s, cost.roofline_s) for launches, cost in parts)


def explain(result: ChainResult, w: FusedChain, device: Device) -> list[FormulaStep]:
    """The formula of every number of ``result``, as steps; a step uses the results of earlier ones."""
    trace = Trace()
    kernels_of, overhead_kind = VARIANTS[result.name]
    elements: Number = trace.symbol("E", w.elements, "elements of a tensor", "given")
    w = replace(w, elements=elements)
    rates = rates_of(device, w.dtype, trace)
    parts = []
    for launches in kernels_of(w):
        kernel = launches.kernel
        count: Number = trace.symbol(f"launches of [{kernel.name}]", launches.count, "kernels of this kind", SOURCE)
        label = f"[{kernel.name}] "
        parts.append((Launches(kernel, count), estimate(kernel, device, rates, label)))
    trace.define("launches", "kernels", sum(launches.count for launches, _ in parts))
    for name in ("SRAM", "DRAM"):
        traffic = moved(parts, name.lower())
        trace.define(f"total {name} read bytes", "sum over kernels", traffic.read, SOURCE)
        trace.define(f"total {name} write bytes", "sum over kernels", traffic.write, SOURCE)
    trace.define("total roofline", "s, without launches", sum(launches.count * cost.roofline_s for launches, cost in parts), SOURCE)
    trace.define("total lower bound", "s", lower_bound(parts), SOURCE)
    overhead: Quantity | None = getattr(device.launch_overhead, overhead_kind, None)
    if overhead is not None:
        launch = trace.symbol("launch", float(overhead.number), f"s per kernel in a {overhead_kind}", device.origin(overhead))
        trace.define("time", "s", with_launches(parts, launch), LAUNCH_SOURCE)
    return sourced(trace, SOURCE)


# The example of the lecture notes


@dataclass(frozen=True, slots=True)
class Published:
    """Published times in seconds for ``calls`` calls; the device is unknown.

    ``graph_s``: compiled, with CUDA graphs. ``fused_s``: compiled into one kernel, without them.
    """

    calls: int
    eager_s: float
    graph_s: float
    fused_s: float
    printed_graph_speedup: float
    printed_speedup: float
    source: str


SIN_COS = FusedChain(2**20, (1, 1, 2), 10, DTYPES["fp32"])
"""x = sin(x) + cos(x), ten times, on 1024 x 1024 fp32: 30 kernels, 70 tensors of 4.2 MB moved."""
SIN_COS_TIMES = Published(100, 0.0157, 0.0856, 0.0025, 0.18, 6.32, "lecture notes on CUDA graphs, 100 calls, device not named")
EXAMPLES = {"sin-cos": (SIN_COS, SIN_COS_TIMES)}
