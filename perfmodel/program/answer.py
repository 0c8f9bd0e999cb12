"""What a profile tells of a program: how busy the device is, what its kernels take beside the best known ones, what can be won."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from perfmodel.core.arith import ceil_div
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Device
from perfmodel.core.units import format_time
from perfmodel.core.workload import Pass
from perfmodel.kernels.matmul import Matmul
from perfmodel.program.calls import Operand
from perfmodel.program.capture import Captured, predicted_profile
from perfmodel.program.operators._counts import product
from perfmodel.program.price import OperatorGroup, Priced, grouped, operator_prediction, priced
from perfmodel.program.profile import ProgramProfile
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.transformer.op import MATMUL, Op

FUSABLE = frozenset({"elements", "functions", "cast", "strided", "strided-cast"})
"""Kinds of passes that a compiler fuses with those beside them."""
ROW_BYTES = 16
"""Bytes that rows of operands are multiples of where the fastest kernels of products take them."""
GRAPH_GAP_S = 1.4e-6
"""Between two kernels of a CUDA graph where the profile of the device has none."""
WORTH = 0.002
"""Share of a step from which on a gain is named."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Seconds of a step that can be won, by ``what``, and ``why``."""

    what: str
    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class OnDevice:
    """A step of the program on another device: seconds with the ends of their 80 % interval, and how many times faster than measured.

    ``same``: share of the measured time whose kernels run there too, so that their measured times count.
    """

    device: Device
    seconds: float
    low: float
    high: float
    speedup: float
    same: float


@dataclass(frozen=True)
class ProgramAnswer:
    """A profile on the device that it was taken on; all times are those of one step.

    ``captured``: the program that ran on no device; its times are predicted ones, and a step's between ``step_ends_s``.
    """

    profile: ProgramProfile
    device: Device
    fallbacks: FallbackDevices
    captured: Captured | None = None
    step_ends_s: tuple[float, float] = (0.0, 0.0)

    @cached_property
    def groups(self) -> list[OperatorGroup]:
        """Operators by shape, the longest first."""
        return grouped(self.profile)

    @cached_property
    def priced(self) -> list[Priced]:
        """Operators whose work is known, priced on the device."""
        return priced(self.groups, self.device, self.fallbacks)

    @property
    def predicted(self) -> list[Priced]:
        """Operators that have a predicted time."""
        return [one for one in self.priced if one.prediction is not None]

    @property
    def step_s(self) -> float:
        """Seconds of a step, waits included."""
        return self.profile.span_s / self.profile.steps

    @property
    def measured_s(self) -> float:
        """Seconds of all kernels, one after another."""
        return sum(one.measured_s for one in self.groups)

    @property
    def waits(self) -> dict[str, float]:
        """Seconds of a step in which nothing runs, by what is waited for."""
        return {name: seconds / self.profile.steps for name, seconds in self.profile.waits().items()}

    @property
    def known_share(self) -> float:
        """Share of the kernels' time of which FLOP and bytes are known."""
        return self._share(one.measured_s for one in self.groups if one.ops)

    @property
    def predicted_share(self) -> float:
        """Share of the kernels' time that has a prediction."""
        return self._share(one.group.measured_s for one in self.predicted)

    def _share(self, seconds: Iterable[float]) -> float:
        return sum(seconds) / self.measured_s if self.measured_s else 0.0

    @property
    def compared_s(self) -> float:
        """Measured seconds of the kernels that have a prediction."""
        return sum(one.group.measured_s for one in self.predicted)

    def predicted_s(self, end: str = "seconds") -> float:
        """Predicted seconds of these kernels; ``low`` or ``high``: the ends of their interval, as if all errors went together."""
        return float(sum(one.group.count * getattr(one.prediction, end) for one in self.predicted))

    @property
    def lower_s(self) -> float:
        """Lower bound of the kernels whose work is known."""
        return sum(one.lower_s for one in self.priced)

    # What can be won

    @cached_property
    def gains(self) -> list[Gain]:
        """What can be won, the most first; gains overlap where one kernel has several."""
        found = [self._host(), *self._slow(), *self._aligned(), *self._wider_format(), self._fused(), self._copied()]
        worth = [one for one in found if one is not None and one.seconds >= WORTH * self.step_s]
        return sorted(worth, key=lambda one: -one.seconds)

    def _host(self) -> Gain | None:
        waiting, count = self.waits["host"], sum(len(one.kernels) for one in self.profile.operators) / self.profile.steps
        known = self.device.launch_overhead
        gap = known.graph.number if known is not None and known.graph is not None else GRAPH_GAP_S
        left = min(waiting, count * float(gap))
        if waiting <= left:
            return None
        graphed = f"{count:,.0f} kernels of a CUDA graph would leave {format_time(left, 2)}"
        return Gain("launch as a CUDA graph", waiting - left, f"the device waits {format_time(waiting, 3)} for the host; {graphed}")

    def _slow(self) -> list[Gain]:
        """Kernels above the interval of the best library kernel of their shape, those of one operator together."""
        late: dict[str, list[Priced]] = defaultdict(list)
        for one in self.predicted:
            assert one.prediction is not None
            if one.group.measured_s > one.group.count * one.prediction.high and not (
                one.group.ops[0].group == MATMUL and self._padded(one)
            ):
                late[one.group.call.name].append(one)
        gains = []
        for name, those in late.items():
            takes, could = sum(one.group.measured_s for one in those), sum(one.predicted_s for one in those)
            kernel = those[0].prediction.calibration.implementation  # type: ignore[union-attr]
            why = f"{takes / could:.2g}x the {format_time(could, 3)} predicted for {kernel} on {_shapes(those)}"
            gains.append(Gain(f"faster {name.rpartition('::')[2]}", takes - could, why))
        return gains

    def _padded(self, one: Priced) -> Op | None:
        """The product with its rows padded to whole vectors; None where they are, or where it is no product of 16 bits."""
        w = one.group.ops[0].timed.workload if one.group.ops[0].timed else None
        step = ROW_BYTES // (w.dtype.size if isinstance(w, Matmul) else ROW_BYTES)
        if (
            not isinstance(w, Matmul)
            or len(one.group.ops) > 1
            or w.dtype.size > 2
            or not w.aligned
            or w.aligned % step == 0
            or 1 in (w.m, w.n, w.k)
        ):
            return None
        m, n, k = (step * ceil_div(size, step) for size in (w.m, w.n, w.k))
        operands = Operand((m, k), w.dtype.name), Operand((k, n), w.dtype.name)
        return product(one.group.call, m, n, k, operands, w.batch)

    def _aligned(self) -> list[Gain]:
        won, takes, odd = 0.0, 0.0, set[int]()
        for one in self.predicted:
            op = self._padded(one)
            if op is not None and (seconds := self._seconds(op)) is not None and one.group.measured_s > one.group.count * seconds:
                won, takes = won + one.group.measured_s - one.group.count * seconds, takes + one.group.measured_s
                w = one.group.ops[0].timed.workload  # type: ignore[union-attr]
                odd |= {size for size in (w.m, w.n, w.k) if size % (ROW_BYTES // w.dtype.size)}
        if not odd:
            return []
        sizes = " and ".join(f"{size:,} to {8 * ceil_div(size, 8):,}" for size in sorted(odd)[-2:])
        return [Gain("pad products", won, f"products of odd rows take {format_time(takes, 3)}; pad {sizes}")]

    def _wider_format(self) -> list[Gain]:
        """Products in fp32 that the tensor cores would run in tf32."""
        won, takes = 0.0, 0.0
        for one in self.predicted:
            w = one.group.ops[0].timed.workload if one.group.ops[0].timed else None
            if isinstance(w, Matmul) and w.dtype.name == "fp32" and "tf32" in self.device.peaks_of("tensor"):
                op = product(one.group.call, w.m, w.n, w.k, (Operand((w.m, w.k), "tf32"), Operand((w.k, w.n), "tf32")), w.batch)
                seconds = self._seconds(op)
                if seconds is not None and one.group.measured_s > one.group.count * seconds:
                    won, takes = won + one.group.measured_s - one.group.count * seconds, takes + one.group.measured_s
        why = f"products in fp32 take {format_time(takes, 3)} on the vector units; torch.set_float32_matmul_precision('high')"
        return [Gain("tf32 products", won, why)] if won else []

    def _fused(self) -> Gain | None:
        """Chains of passes one behind the other, each as one kernel."""
        chains: dict[tuple[Pass, ...], list[float]] = defaultdict(list)
        chain: list[tuple[Pass, float]] = []
        passes = {(one.call.name, one.call.arguments): _pass(one) for one in self.groups}
        for one in [*self.profile.operators, None]:
            w = passes.get((one.call.name, one.call.arguments)) if one is not None else None
            if one is not None and w is not None and w.kind in FUSABLE:
                chain.append((w, sum(kernel.seconds for kernel in one.kernels)))
                continue
            if len(chain) > 1:
                chains[tuple(w for w, _ in chain)].append(sum(seconds for _, seconds in chain))
            chain = []
        won, kernels = 0.0, 0
        for parts, seconds in chains.items():
            together = self._seconds_of_pass(_as_one(parts))
            if together is not None and sum(seconds) > len(seconds) * together:
                won, kernels = won + sum(seconds) - len(seconds) * together, kernels + len(seconds) * (len(parts) - 1)
        steps = self.profile.steps
        if not won:
            return None
        return Gain(
            "fuse passes", won / steps, f"chains of element-wise kernels, each as one kernel: {kernels / steps:,.0f} fewer; torch.compile"
        )

    def _copied(self) -> Gain | None:
        """Copies whose only work is another order in memory."""
        ordered = [
            one for one in self.groups if one.call.name == "aten::copy_" and (w := _pass(one)) and w.kind in ("strided", "transposed")
        ]
        seconds, count = sum(one.measured_s for one in ordered), sum(one.count for one in ordered)
        if not ordered:
            return None
        return Gain("keep one layout", seconds, f"{count:,.0f} copies to another order of dimensions, most of {_shown(ordered[0])}")

    def _seconds(self, op: Op) -> float | None:
        try:
            return operator_prediction(op, self.device, self.fallbacks)[1].seconds
        except PerfmodelError:
            return None

    def _seconds_of_pass(self, w: Pass) -> float | None:
        from perfmodel.program.calls import Call
        from perfmodel.program.operators._counts import passed

        return self._seconds(passed(Call("fused", ()), w.kind, w.read_bytes, w.write_bytes, w.elements))

    # Other devices

    def on(self, device: Device) -> OnDevice:
        """The step on ``device``; the host as measured. Kernels without a prediction there take the share of all others."""
        there = {id(one.group): one.prediction for one in priced(self.groups, device, self.fallbacks)}
        seconds = low = high = compared = same = 0.0
        for one in self.predicted:
            moved, here, group = there.get(id(one.group)), one.prediction, one.group
            if moved is None or here is None:
                continue
            compared += group.measured_s
            alike = moved.calibration.implementation == here.calibration.implementation
            same += alike * group.measured_s
            takes = group.measured_s * moved.seconds / here.seconds if alike else group.count * moved.seconds
            seconds, low, high = (
                total + takes * end / moved.seconds for total, end in ((seconds, moved.seconds), (low, moved.low), (high, moved.high))
            )
        rest, waits = (self.measured_s / compared if compared else 0.0), sum(self.waits.values())
        overlap = max(0.0, self.measured_s + waits - self.step_s)
        ends = [max(0.0, rest * end - overlap * seconds / max(compared, 1e-12)) + waits for end in (seconds, low, high)]
        takes, low, high = ends
        return OnDevice(device, takes, low, high, self.step_s / takes if takes else 0.0, same / compared if compared else 0.0)


def captured_answer(program: Captured, device: Device, fallbacks: FallbackDevices) -> ProgramAnswer:
    """The answer of a program that was captured, on ``device``."""
    profile, ends_s = predicted_profile(program, device, fallbacks)
    return ProgramAnswer(profile, device, fallbacks, program, ends_s)


def _pass(group: OperatorGroup) -> Pass | None:
    """The pass over memory that ``group`` is; None if it is another kernel."""
    w = group.ops[0].timed.workload if len(group.ops) == 1 and group.ops[0].timed else None
    return w if isinstance(w, Pass) else None


def _as_one(parts: Sequence[Pass]) -> Pass:
    """Passes as one kernel of a compiler: what one leaves for the next is neither written nor read."""
    first, last = parts[0], parts[-1]
    read = first.read_bytes + sum(max(0, later.read_bytes - before.write_bytes) for before, later in pairwise(parts))
    elements = max(one.write_bytes // one.dtype.size for one in parts)
    return Pass("triton-elements", max(1, elements), last.write_bytes, read, DTYPES[first.dtype.name])


def _shown(group: OperatorGroup) -> str:
    """The shape of the largest tensor of ``group``."""
    from perfmodel.program.calls import shown

    return shown(max(group.call.tensors(), key=lambda one: one.elements, default="no tensor"))


def _shapes(those: Sequence[Priced]) -> str:
    """The shape that takes the most time, and how many others there are."""
    others = len(those) - 1
    return _shown(those[0].group) + (f" and {others} other shape{'s' * (others > 1)}" if others else "")
