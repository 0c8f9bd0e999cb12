"""Possible gains in a program: waits for the host, slow kernels, unaligned rows, fp32 products, chains of kernels, copies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

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
from perfmodel.program.profile import Operator
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
    candidates = [*_host(answer), *_slow(answer), _padded_products(answer), _tf32_products(answer), _fused(answer), _copies(answer)]
    listed = [gain for gain in candidates if gain is not None and gain.seconds >= WORTH * answer.step_s]
    return sorted(listed, key=lambda gain: -gain.seconds)


def _host(answer: ProgramAnswer) -> list[Gain]:
    """Gains from less waiting for the host: launching as a graph, which leaves its own gaps, and shorter long pauses."""
    steps = answer.profile.steps
    in_graphs = {id(kernel) for operator in answer.profile.operators if operator.graph for kernel in operator.kernels}
    waits = [(kernel, seconds) for kernel, seconds, host_was_late in answer.profile.gaps() if host_was_late and id(kernel) not in in_graphs]
    pauses = [(kernel, seconds) for kernel, seconds in waits if seconds > PAUSE_S]
    short_s = sum(seconds for _, seconds in waits if seconds <= PAUSE_S) / steps
    kernels = len(answer.profile.kernels) / steps
    graph_s = kernels * graph_gap_s(answer.device)
    graph = "HIP graph" if answer.device.vendor == "AMD" else "CUDA graph"
    listed = []
    if short_s > graph_s:
        why = f"the GPU waits {format_time(short_s, 3)} for launches; "
        why += f"{kernels:,.0f} kernels of a {graph} would leave {format_time(graph_s, 2)}"
        listed.append(Gain(f"launch as a {graph}", short_s - graph_s, why))
    if pauses:
        kernel, longest_s = max(pauses, key=lambda pause: pause[1])
        why = f"{len(pauses)} pause{'s' * (len(pauses) > 1)}, the longest {format_time(longest_s, 3)} before {kernel.name[:40]}"
        listed.append(Gain("shorten pauses of the host", sum(seconds for _, seconds in pauses) / steps, why))
    return listed


def _slow(answer: ProgramAnswer) -> list[Gain]:
    """Gains from kernels that are slower than the interval of the best library kernel for their shape, one per operator."""
    slow: dict[str, list[Priced]] = defaultdict(list)
    for row in answer.predicted:
        if row.prediction and row.group.measured_s > row.group.count * row.prediction.high and padded(row.group) is None:
            slow[row.group.call.name].append(row)
    listed = []
    for name, rows in slow.items():
        measured_s, predicted_s, first = sum(row.group.measured_s for row in rows), sum(row.predicted_s for row in rows), rows[0]
        kernel = first.prediction.calibration.implementation if first.prediction else ""
        why = f"{measured_s / predicted_s:.2g}x the {format_time(predicted_s, 3)} predicted for {kernel} on {largest(first.group)}"
        if len(rows) > 1:
            why += f" and {len(rows) - 1} other shape{'s' * (len(rows) > 2)}"
        if first.group.ops[0].group == COLLECTIVE:
            why += "; the wait of ranks for one another counts in"
        listed.append(Gain(f"faster {name.rpartition('::')[2]}", measured_s - predicted_s, why))
    return listed


def largest(group: OperatorGroup) -> str:
    """The largest tensor of ``group`` in short form."""
    return shown(max(group.call.tensors(), key=lambda tensor: tensor.elements, default="no tensor"))


# Products


def _workload_of(group: OperatorGroup) -> Any:
    """The workload of the only kernel of ``group``; None if it has several or no time model."""
    return group.ops[0].timed.workload if len(group.ops) == 1 and group.ops[0].timed else None


def product_of(group: OperatorGroup) -> Matmul | None:
    """The product of ``group``; None if it is another kernel, or several."""
    w = _workload_of(group)
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
    replaced = _replaced(answer, padded)
    if not replaced.groups:
        return None
    sizes: set[int] = set()
    for w in map(product_of, replaced.groups):
        if w is not None:
            sizes.update(size for size in (w.m, w.n, w.k) if size % (ROW_BYTES // w.dtype.size))
    paddings = " and ".join(f"{size:,} to {8 * ceil_div(size, 8):,}" for size in sorted(sizes)[-2:])
    why = f"products whose rows are no multiple of {ROW_BYTES} bytes take {format_time(replaced.measured_s, 3)}; pad {paddings}"
    return Gain("pad products", replaced.saved_s, why)


def _tf32_products(answer: ProgramAnswer) -> Gain | None:
    def in_tf32(group: OperatorGroup) -> Op | None:
        w = product_of(group)
        return _product(group, w.m, w.n, w.k, "tf32", w.batch) if w is not None and w.dtype.name == "fp32" else None

    if "tf32" not in answer.device.peaks_of("tensor"):
        return None
    replaced = _replaced(answer, in_tf32)
    why = f"products in fp32 take {format_time(replaced.measured_s, 3)} on the vector units; torch.set_float32_matmul_precision('high')"
    return Gain("tf32 products", replaced.saved_s, why) if replaced.groups else None


class _Replaced(NamedTuple):
    """Operators that another kernel would run faster: seconds that it saves, seconds that they take, and their groups."""

    saved_s: float
    measured_s: float
    groups: list[OperatorGroup]


def _replaced(answer: ProgramAnswer, replacement: Callable[[OperatorGroup], Op | None]) -> _Replaced:
    """The operators for which ``replacement`` gives a kernel that is predicted to be faster."""
    saved_s, measured_s, groups = 0.0, 0.0, []
    for row in answer.predicted:
        op = replacement(row.group)
        seconds = None if op is None else _seconds(answer, op)
        if seconds is not None and row.group.count * seconds < row.group.measured_s:
            saved_s = saved_s + row.group.measured_s - row.group.count * seconds
            measured_s += row.group.measured_s
            groups.append(row.group)
    return _Replaced(saved_s, measured_s, groups)


def _seconds(answer: ProgramAnswer, op: Op) -> float | None:
    """Predicted seconds of one run of ``op``; None without a prediction."""
    try:
        return operator_prediction(op, op_estimate(op, answer.device), answer.device, answer.fallbacks).seconds
    except PerfmodelError:
        return None


# Passes over memory


def pass_of(group: OperatorGroup) -> Pass | None:
    """The pass over memory of ``group``; None if it is another kernel."""
    w = _workload_of(group)
    return w if isinstance(w, Pass) else None


def _fused(answer: ProgramAnswer) -> Gain | None:
    """Gain from running each chain of passes as one kernel."""
    saved_s, saved_kernels, steps = 0.0, 0, answer.profile.steps
    for chain, times in _chains(answer).items():
        fused_s = _seconds(answer, _as_one(chain))
        if fused_s is not None and sum(times) > len(times) * fused_s:
            saved_s = saved_s + sum(times) - len(times) * fused_s
            saved_kernels += len(times) * (len(chain) - 1)
    why = f"chains of element-wise kernels, each as one kernel: {saved_kernels / steps:,.0f} fewer; torch.compile"
    return Gain("fuse passes", saved_s / steps, why) if saved_s else None


def _chains(answer: ProgramAnswer) -> dict[tuple[Pass, ...], list[float]]:
    """Chains of passes that a compiler can fuse, with the seconds of each run."""
    passes = {group.call: pass_of(group) for group in answer.groups}

    def fusable(operator: Operator) -> bool:
        w = passes.get(operator.call)
        return w is not None and w.kind in FUSABLE

    chains: dict[tuple[Pass, ...], list[float]] = defaultdict(list)
    for is_chain, operators in groupby(answer.profile.operators, fusable):
        chain = list(operators)
        if is_chain and len(chain) > 1:
            parts = tuple(w for operator in chain if (w := passes[operator.call]) is not None)
            chains[parts].append(sum(sum(kernel.seconds for kernel in operator.kernels) for operator in chain))
    return chains


def _as_one(parts: Sequence[Pass]) -> Op:
    """``parts`` fused into one kernel: tensors between them are neither written nor read."""
    read = sum(max(0, later.read_bytes - before.write_bytes) for before, later in pairwise(parts))
    elements = max(part.write_bytes // part.dtype.size for part in parts)
    return passed(Call("fused", ()), "triton-elements", parts[0].read_bytes + read, parts[-1].write_bytes, max(1, elements))


def _copies(answer: ProgramAnswer) -> Gain | None:
    """Gain from avoiding copies that only change the order in memory."""
    copies = [group for group in answer.groups if group.call.name == "aten::copy_"]
    reordering = [group for group in copies if (w := pass_of(group)) and w.kind in REORDERED]
    if not reordering:
        return None
    why = f"{sum(group.count for group in reordering):,.0f} copies to another order of dimensions, most of {largest(reordering[0])}"
    return Gain("keep one layout", sum(group.measured_s for group in reordering), why)
