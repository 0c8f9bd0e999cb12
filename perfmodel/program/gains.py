"""Possible gains in a program: waits for the host, slow kernels, unaligned rows, fp32 products, chains of kernels, copies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise

from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.frozen import dataclass
from perfmodel.core.units import format_time
from perfmodel.core.workload import Pass
from perfmodel.kernels.matmul import Matmul
from perfmodel.program.answer import ProgramAnswer
from perfmodel.program.calls import Call, Operand, shown
from perfmodel.program.operators._counts import passed, product
from perfmodel.program.price import OperatorGroup, Priced, operator_prediction
from perfmodel.timing.streaming import graph_gap_s
from perfmodel.transformer.op import COLLECTIVE, Op
from perfmodel.transformer.op_time import op_estimate

FUSABLE = frozenset({"elements", "functions", "cast", "strided", "strided-cast"})
"""Kinds of passes that a compiler fuses with their neighbours."""
REORDERED = ("strided", "transposed")
"""Kinds of copies that only change the order in memory."""
ROW_BYTES = 16
"""Alignment in bytes of operand rows that the fastest kernels of products need."""
PAUSE_S = 1e-3
"""Shortest gap in which the host did other work than launching."""
WORTH = 0.002
"""Smallest gain that is reported, as a share of a step."""


@dataclass(frozen=True, slots=True)
class Gain:
    """``seconds`` of a step that could be saved by ``what``, and ``why``."""

    what: str
    seconds: float
    why: str


def gains(answer: ProgramAnswer) -> list[Gain]:
    """Possible gains in a step, the largest first."""
    listed = [*_host(answer), *_slow(answer), _padded_products(answer), _tf32_products(answer), _fused(answer), _copies(answer)]
    return sorted((gain for gain in listed if gain is not None and gain.seconds >= WORTH * answer.step_s), key=lambda gain: -gain.seconds)


def _host(answer: ProgramAnswer) -> list[Gain]:
    """Gains from less waiting for the host: launching as a graph, which leaves its own gaps, and shorter long pauses."""
    steps = answer.profile.steps
    in_graphs = {id(kernel) for operator in answer.profile.operators if operator.graph for kernel in operator.kernels}
    late = [(kernel, seconds) for kernel, seconds, late in answer.profile.gaps() if late and id(kernel) not in in_graphs]
    pauses = [(seconds, kernel) for kernel, seconds in late if seconds > PAUSE_S]
    waiting, count = sum(seconds for _, seconds in late if seconds <= PAUSE_S) / steps, len(answer.profile.kernels) / steps
    gaps_s = count * graph_gap_s(answer.device)
    graph = "HIP graph" if answer.device.vendor == "AMD" else "CUDA graph"
    why = f"the GPU waits {format_time(waiting, 3)} for launches; {count:,.0f} kernels of a {graph} would leave {format_time(gaps_s, 2)}"
    listed = [Gain(f"launch as a {graph}", waiting - gaps_s, why)] if waiting > gaps_s else []
    if pauses:
        longest, kernel = max(pauses, key=lambda pause: pause[0])
        why = f"{len(pauses)} pause{'s' * (len(pauses) > 1)}, the longest {format_time(longest, 3)} before {kernel.name[:40]}"
        listed.append(Gain("shorten pauses of the host", sum(seconds for seconds, _ in pauses) / steps, why))
    return listed


def _slow(answer: ProgramAnswer) -> list[Gain]:
    """Gains from kernels that are slower than the interval of the best library kernel for their shape, one per operator."""
    late: dict[str, list[Priced]] = defaultdict(list)
    for row in answer.predicted:
        if row.prediction and row.group.measured_s > row.group.count * row.prediction.high and padded(row.group) is None:
            late[row.group.call.name].append(row)
    listed = []
    for name, rows in late.items():
        takes, could, first = sum(row.group.measured_s for row in rows), sum(row.predicted_s for row in rows), rows[0]
        kernel = first.prediction.calibration.implementation if first.prediction else ""
        other_shapes = f" and {len(rows) - 1} other shape{'s' * (len(rows) > 2)}" if len(rows) > 1 else ""
        waits = "; the wait of ranks for one another counts in" * (first.group.ops[0].group == COLLECTIVE)
        why = f"{takes / could:.2g}x the {format_time(could, 3)} predicted for {kernel} on {largest(first.group)}{other_shapes}{waits}"
        listed.append(Gain(f"faster {name.rpartition('::')[2]}", takes - could, why))
    return listed


def largest(group: OperatorGroup) -> str:
    """The largest tensor of ``group`` in short form."""
    return shown(max(group.call.tensors(), key=lambda tensor: tensor.elements, default="no tensor"))


# Products


def product_of(group: OperatorGroup) -> Matmul | None:
    """The product of ``group``; None if it is another kernel, or several."""
    w = group.ops[0].timed.workload if len(group.ops) == 1 and group.ops[0].timed else None
    return w if isinstance(w, Matmul) else None


def padded(group: OperatorGroup) -> Op | None:
    """The product with rows padded to ``ROW_BYTES``; None if they are aligned, or it is no 16-bit product of two matrices."""
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


def _padded_products(answer: ProgramAnswer) -> Gain | None:
    won, takes, groups = _replaced(answer, padded)
    if not groups:
        return None
    sizes = {size for group in groups if (w := product_of(group)) for size in (w.m, w.n, w.k) if size % (ROW_BYTES // w.dtype.size)}
    named = " and ".join(f"{size:,} to {8 * ceil_div(size, 8):,}" for size in sorted(sizes)[-2:])
    return Gain("pad products", won, f"products whose rows are no multiple of {ROW_BYTES} bytes take {format_time(takes, 3)}; pad {named}")


def _tf32_products(answer: ProgramAnswer) -> Gain | None:
    def in_tf32(group: OperatorGroup) -> Op | None:
        w = product_of(group)
        return _product(group, w.m, w.n, w.k, "tf32", w.batch) if w is not None and w.dtype.name == "fp32" else None

    won, takes, groups = _replaced(answer, in_tf32) if "tf32" in answer.device.peaks_of("tensor") else (0.0, 0.0, [])
    why = f"products in fp32 take {format_time(takes, 3)} on the vector units; torch.set_float32_matmul_precision('high')"
    return Gain("tf32 products", won, why) if groups else None


def _replaced(answer: ProgramAnswer, other: Callable[[OperatorGroup], Op | None]) -> tuple[float, float, list[OperatorGroup]]:
    """Kernels for which ``other`` gives a faster one: the seconds saved, the seconds that they take, and their groups."""
    won, takes, groups = 0.0, 0.0, []
    for row in answer.predicted:
        op, measured = other(row.group), row.group.measured_s
        seconds = None if op is None else _seconds(answer, op)
        if seconds is not None and row.group.count * seconds < measured:
            won, takes = won + measured - row.group.count * seconds, takes + measured
            groups.append(row.group)
    return won, takes, groups


def _seconds(answer: ProgramAnswer, op: Op) -> float | None:
    """Predicted seconds of one run of ``op``; None without a prediction."""
    try:
        return operator_prediction(op, op_estimate(op, answer.device), answer.device, answer.fallbacks).seconds
    except PerfmodelError:
        return None


# Passes over memory


def pass_of(group: OperatorGroup) -> Pass | None:
    """The pass over memory of ``group``; None if it is another kernel."""
    w = group.ops[0].timed.workload if len(group.ops) == 1 and group.ops[0].timed else None
    return w if isinstance(w, Pass) else None


def _fused(answer: ProgramAnswer) -> Gain | None:
    """Gain from running each chain of passes as one kernel."""
    won, fewer, steps = 0.0, 0, answer.profile.steps
    for chain, times in _chains(answer).items():
        together = _seconds(answer, _as_one(chain))
        if together is not None and sum(times) > len(times) * together:
            won, fewer = won + sum(times) - len(times) * together, fewer + len(times) * (len(chain) - 1)
    why = f"chains of element-wise kernels, each as one kernel: {fewer / steps:,.0f} fewer; torch.compile"
    return Gain("fuse passes", won / steps, why) if won else None


def _chains(answer: ProgramAnswer) -> dict[tuple[Pass, ...], list[float]]:
    """Chains of passes that a compiler can fuse, with the seconds of each run."""
    passes = {group.call: pass_of(group) for group in answer.groups}
    chains: dict[tuple[Pass, ...], list[float]] = defaultdict(list)
    chain: list[Pass] = []
    seconds = 0.0
    for operator in answer.profile.operators:
        w = passes.get(operator.call)
        if w is not None and w.kind in FUSABLE:
            chain.append(w)
            seconds += sum(kernel.seconds for kernel in operator.kernels)
            continue
        _close(chains, chain, seconds)
        chain, seconds = [], 0.0
    _close(chains, chain, seconds)
    return chains


def _close(chains: dict[tuple[Pass, ...], list[float]], chain: Sequence[Pass], seconds: float) -> None:
    if len(chain) > 1:
        chains[tuple(chain)].append(seconds)


def _as_one(parts: Sequence[Pass]) -> Op:
    """``parts`` fused into one kernel: tensors between them are neither written nor read."""
    read = sum(max(0, later.read_bytes - before.write_bytes) for before, later in pairwise(parts))
    elements = max(part.write_bytes // part.dtype.size for part in parts)
    return passed(Call("fused", ()), "triton-elements", parts[0].read_bytes + read, parts[-1].write_bytes, max(1, elements))


def _copies(answer: ProgramAnswer) -> Gain | None:
    """Gain from avoiding copies that only change the order in memory."""
    ordered = [group for group in answer.groups if group.call.name == "aten::copy_" and (w := pass_of(group)) and w.kind in REORDERED]
    if not ordered:
        return None
    why = f"{sum(group.count for group in ordered):,.0f} copies to another order of dimensions, most of {largest(ordered[0])}"
    return Gain("keep one layout", sum(group.measured_s for group in ordered), why)
