"""What can be won in a program: slow kernels, rows that are not aligned, fp32 products, chains that could be one kernel, waiting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.units import format_time
from perfmodel.core.workload import Pass
from perfmodel.kernels.matmul import Matmul
from perfmodel.program.answer import ProgramAnswer
from perfmodel.program.calls import Call, Operand, shown
from perfmodel.program.operators._counts import passed, product
from perfmodel.program.price import OperatorGroup, Priced, operator_prediction
from perfmodel.timing.streaming import graph_gap_s
from perfmodel.transformer.op import Op
from perfmodel.transformer.op_time import op_estimate

FUSABLE = frozenset({"elements", "functions", "cast", "strided", "strided-cast"})
"""Kinds of passes that a compiler fuses with those beside them."""
REORDERED = ("strided", "transposed")
"""Kinds of copies whose only work is another order in memory."""
ROW_BYTES = 16
"""Bytes that rows of operands are multiples of where the fastest kernels of products take them."""
PAUSE_S = 1e-3
"""A gap from which on the host did something else than launch."""
WORTH = 0.002
"""Share of a step from which on a gain is named."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Seconds of a step that can be won, by ``what``, and ``why``."""

    what: str
    seconds: float
    why: str


def gains(found: ProgramAnswer) -> list[Gain]:
    """What can be won in a step, the most first."""
    listed = [*_host(found), *_slow(found), _padded_products(found), _tf32_products(found), _fused(found), _copies(found)]
    return sorted((one for one in listed if one is not None and one.seconds >= WORTH * found.step_s), key=lambda one: -one.seconds)


def _host(found: ProgramAnswer) -> list[Gain]:
    """Waiting for the host, less the gaps that a graph would leave; a single long pause stands for itself."""
    steps = found.profile.steps
    in_graphs = {id(kernel) for one in found.profile.operators if one.graph for kernel in one.kernels}
    late = [(kernel, seconds) for kernel, seconds, late in found.profile.gaps() if late and id(kernel) not in in_graphs]
    pauses = [(seconds, kernel) for kernel, seconds in late if seconds > PAUSE_S]
    waiting, count = sum(seconds for _, seconds in late if seconds <= PAUSE_S) / steps, len(found.profile.kernels) / steps
    left = count * graph_gap_s(found.device)
    graph = "HIP graph" if found.device.vendor == "AMD" else "CUDA graph"
    why = f"the GPU waits {format_time(waiting, 3)} for launches; {count:,.0f} kernels of a {graph} would leave {format_time(left, 2)}"
    listed = [Gain(f"launch as a {graph}", waiting - left, why)] if waiting > left else []
    if pauses:
        longest, kernel = max(pauses, key=lambda one: one[0])
        why = f"{len(pauses)} pause{'s' * (len(pauses) > 1)}, the longest {format_time(longest, 3)} before {kernel.name[:40]}"
        listed.append(Gain("shorten pauses of the host", sum(seconds for seconds, _ in pauses) / steps, why))
    return listed


def _slow(found: ProgramAnswer) -> list[Gain]:
    """Kernels above the interval of the best library kernel of their shape, those of one operator together."""
    late: dict[str, list[Priced]] = defaultdict(list)
    for one in found.predicted:
        if one.prediction and one.group.measured_s > one.group.count * one.prediction.high and padded(one.group) is None:
            late[one.group.call.name].append(one)
    listed = []
    for name, those in late.items():
        takes, could, first = sum(one.group.measured_s for one in those), sum(one.predicted_s for one in those), those[0]
        kernel = first.prediction.calibration.implementation if first.prediction else ""
        others = f" and {len(those) - 1} other shape{'s' * (len(those) > 2)}" if len(those) > 1 else ""
        why = f"{takes / could:.2g}x the {format_time(could, 3)} predicted for {kernel} on {largest(first.group)}{others}"
        listed.append(Gain(f"faster {name.rpartition('::')[2]}", takes - could, why))
    return listed


def largest(group: OperatorGroup) -> str:
    """The largest tensor of ``group``, in short."""
    return shown(max(group.call.tensors(), key=lambda one: one.elements, default="no tensor"))


# Products


def product_of(group: OperatorGroup) -> Matmul | None:
    """The product that ``group`` is; None if it is another kernel, or several."""
    w = group.ops[0].timed.workload if len(group.ops) == 1 and group.ops[0].timed else None
    return w if isinstance(w, Matmul) else None


def padded(group: OperatorGroup) -> Op | None:
    """The product with its rows padded to ``ROW_BYTES``; None where they are, where it has a vector, or is no product of 16 bits."""
    w = product_of(group)
    if w is None or w.dtype.size > 2 or not w.aligned or 1 in (w.m, w.n, w.k):
        return None
    step = ROW_BYTES // w.dtype.size
    if w.aligned % step == 0:
        return None
    m, n, k = (step * ceil_div(size, step) for size in (w.m, w.n, w.k))
    return _product(group, m, n, k, w.dtype.name, w.batch)


def _product(group: OperatorGroup, m: int, n: int, k: int, dtype: str, batch: int) -> Op:
    return product(group.call, m, n, k, (Operand((m, k), dtype), Operand((k, n), dtype)), batch)


def _padded_products(found: ProgramAnswer) -> Gain | None:
    won, takes, groups = _replaced(found, padded)
    if not groups:
        return None
    sizes = {size for group in groups if (w := product_of(group)) for size in (w.m, w.n, w.k) if size % (ROW_BYTES // w.dtype.size)}
    named = " and ".join(f"{size:,} to {8 * ceil_div(size, 8):,}" for size in sorted(sizes)[-2:])
    return Gain("pad products", won, f"products whose rows are no multiple of {ROW_BYTES} bytes take {format_time(takes, 3)}; pad {named}")


def _tf32_products(found: ProgramAnswer) -> Gain | None:
    def in_tf32(group: OperatorGroup) -> Op | None:
        w = product_of(group)
        return _product(group, w.m, w.n, w.k, "tf32", w.batch) if w is not None and w.dtype.name == "fp32" else None

    won, takes, groups = _replaced(found, in_tf32) if "tf32" in found.device.peaks_of("tensor") else (0.0, 0.0, [])
    why = f"products in fp32 take {format_time(takes, 3)} on the vector units; torch.set_float32_matmul_precision('high')"
    return Gain("tf32 products", won, why) if groups else None


def _replaced(found: ProgramAnswer, other: Callable[[OperatorGroup], Op | None]) -> tuple[float, float, list[OperatorGroup]]:
    """Seconds that kernels give back for which ``other`` names a faster one, the seconds that they take, and which they are."""
    won, takes, groups = 0.0, 0.0, []
    for one in found.predicted:
        op, measured = other(one.group), one.group.measured_s
        seconds = None if op is None else _seconds(found, op)
        if seconds is not None and one.group.count * seconds < measured:
            won, takes = won + measured - one.group.count * seconds, takes + measured
            groups.append(one.group)
    return won, takes, groups


def _seconds(found: ProgramAnswer, op: Op) -> float | None:
    """Predicted seconds of one run of ``op``; None where nothing predicts it."""
    try:
        return operator_prediction(op, op_estimate(op, found.device), found.device, found.fallbacks).seconds
    except PerfmodelError:
        return None


# Passes over memory


def pass_of(group: OperatorGroup) -> Pass | None:
    """The pass over memory that ``group`` is; None if it is another kernel."""
    w = group.ops[0].timed.workload if len(group.ops) == 1 and group.ops[0].timed else None
    return w if isinstance(w, Pass) else None


def _fused(found: ProgramAnswer) -> Gain | None:
    """Chains of passes one behind the other, each as one kernel."""
    won, fewer, steps = 0.0, 0, found.profile.steps
    for chain, times in _chains(found).items():
        together = _seconds(found, _as_one(chain))
        if together is not None and sum(times) > len(times) * together:
            won, fewer = won + sum(times) - len(times) * together, fewer + len(times) * (len(chain) - 1)
    why = f"chains of element-wise kernels, each as one kernel: {fewer / steps:,.0f} fewer; torch.compile"
    return Gain("fuse passes", won / steps, why) if won else None


def _chains(found: ProgramAnswer) -> dict[tuple[Pass, ...], list[float]]:
    """Chains of passes that a compiler fuses, with the seconds that each of their runs took."""
    passes = {(one.call.name, one.call.arguments): pass_of(one) for one in found.groups}
    chains: dict[tuple[Pass, ...], list[float]] = defaultdict(list)
    chain: list[Pass] = []
    seconds = 0.0
    for one in found.profile.operators:
        w = passes.get((one.call.name, one.call.arguments))
        if w is not None and w.kind in FUSABLE:
            chain.append(w)
            seconds += sum(kernel.seconds for kernel in one.kernels)
            continue
        _close(chains, chain, seconds)
        chain, seconds = [], 0.0
    _close(chains, chain, seconds)
    return chains


def _close(chains: dict[tuple[Pass, ...], list[float]], chain: Sequence[Pass], seconds: float) -> None:
    if len(chain) > 1:
        chains[tuple(chain)].append(seconds)


def _as_one(parts: Sequence[Pass]) -> Op:
    """Passes as one kernel of a compiler: what one leaves for the next is neither written nor read."""
    read = sum(max(0, later.read_bytes - before.write_bytes) for before, later in pairwise(parts))
    elements = max(one.write_bytes // one.dtype.size for one in parts)
    return passed(Call("fused", ()), "triton-elements", parts[0].read_bytes + read, parts[-1].write_bytes, max(1, elements))


def _copies(found: ProgramAnswer) -> Gain | None:
    """Copies whose only work is another order in memory."""
    ordered = [one for one in found.groups if one.call.name == "aten::copy_" and (w := pass_of(one)) and w.kind in REORDERED]
    if not ordered:
        return None
    why = f"{sum(one.count for one in ordered):,.0f} copies to another order of dimensions, most of {largest(ordered[0])}"
    return Gain("keep one layout", sum(one.measured_s for one in ordered), why)
