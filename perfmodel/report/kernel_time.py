"""The time of kernels in a report: sentences on rate and limit, meters, figures and metrics, the same for every kind of kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from perfmodel.core.arith import Number
from perfmodel.core.cost import Work
from perfmodel.core.dtypes import Dtype
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate, Traffic, clock_at_work
from perfmodel.core.units import format_si, format_time
from perfmodel.report.answer import PARTLY, RESOURCES, ROOFS_EVEN, amounts_of, limit_sentence, lower_first, meters, sentence, time_text
from perfmodel.report.charts.format_number import percent
from perfmodel.report.document import Figure, Meter, Report
from perfmodel.report.metrics import Metric, of_cost, of_memory, seconds
from perfmodel.report.op_common import guess_notes, note
from perfmodel.report.power import of_power, power_note, with_power
from perfmodel.report.saved import Interval
from perfmodel.report.speedup import EVEN, Side, gain_text
from perfmodel.timing.predict import Prediction

if TYPE_CHECKING:
    from perfmodel.core.power import PowerState

LIBRARY = "the best library kernel"


@dataclass(frozen=True)
class KernelTime:
    """Kernels in turn on ``device``: their ``cost`` at the roof, their ``prediction`` if any, and ``memory`` in bytes.

    ``name``: name of the kernels if there are others beside them. ``causes``: phrases on causes outside the roof, such as a launch.
    ``least``: least seconds of unpredicted kernels. ``flop``: the FLOP that rates count.
    """

    cost: Estimate
    device: Device
    dtype: Dtype
    memory: Number
    prediction: Prediction | None = None
    name: str = ""
    causes: Sequence[str] = ()
    least: Interval | None = None
    flop: str = "FLOP"

    @cached_property
    def predicted(self) -> Interval | None:
        """Predicted seconds with their interval."""
        return seconds(self.prediction)

    @property
    def power(self) -> PowerState | None:
        """Power of the predicted call; None if unknown."""
        return None if self.prediction is None else self.prediction.power

    @property
    def rows_left_out(self) -> tuple[str, ...]:
        """Keys of rows that the short table leaves out for power; headline and meters state them."""
        return () if self.power is None else ("bound", "memory_bytes")

    @property
    def time(self) -> Interval | None:
        """Predicted seconds, else the least ones; None if only the roof is known."""
        return self.predicted or self.least

    @property
    def seconds(self) -> float:
        """Seconds to which meters and rates refer: the time, else the roof."""
        return float(self.cost.roofline_s if self.time is None else self.time.value)

    @property
    def below_roof(self) -> bool:
        """Whether the time is below the roof of these tiles, because the kernel has others or runs at a higher clock."""
        return self.time is not None and self.time.value < (1 - EVEN) * float(self.cost.roofline_s)

    @cached_property
    def charged(self) -> Estimate:
        """The cost for meters and rates: the cost of these tiles.

        A time below their roof belongs to a kernel that does less, so it gets the needs of any kernel, at the highest clocks.
        """
        if not self.below_roof:
            return self.cost
        needs = self.cost.needs
        terms: dict[str, Number] = {}
        if needs.work_s:
            terms["tensor" if self.cost.work.tensor else "vector"] = needs.work_s
        if needs.bandwidth:
            terms["dram"] = needs.dram_bytes / needs.bandwidth
        return replace(self.cost, terms=terms, work=Work(), sram=Traffic(), dram=Traffic(needs.dram_bytes), multicast=0)

    def added_to(self, plain: Report, subject: str, measured_s: float | None = None) -> Report:
        """``plain`` with meters, figures and notes of this time, called ``subject``; ``measured_s``: a measured time to judge."""
        notes, prediction = list(plain.notes), self.prediction
        if prediction is not None:
            notes += [note(subject, prediction), *guess_notes([prediction]), *power_note(prediction.power)]
        notes += self.below_roof_note(subject)
        report = replace(plain, notes=notes, meters=self.meters, metered=self.metered, figures=self.figures)
        return with_measured(report, measured_s, self.cost, self.predicted)

    def below_roof_note(self, name: str) -> list[str]:
        """Notes on a predicted time of ``name`` below its roof; empty for others."""
        if self.predicted is None or not self.below_roof:
            return []
        times = f"{format_time(self.seconds)} is below its roof of {format_time(float(self.cost.roofline_s))}"
        why = "the kernel that is predicted computes or moves less than these tiles do, or runs at a higher clock than that of the roof"
        return [f"{name}: {times}: {why}. Meters and shares of a peak are of what any kernel needs, at the highest clocks."]

    @cached_property
    def _meters(self) -> list[Meter]:
        meter_list = meters(self.charged.terms, amounts_of(self.charged), self.seconds)
        limited_by_causes = self.prediction is None and bool(self.causes)
        return [replace(meter, limits=meter.limits and not limited_by_causes) for meter in meter_list]

    @property
    def meters(self) -> list[Meter]:
        """Meters of the resources and of power. No resource limits an unpredicted time that has causes outside the roof."""
        return with_power(self._meters, self.power)

    @property
    def metered(self) -> str:
        """Phrase on what the meters are shares of, and on extra FLOP of the tensor unit."""
        time = "predicted time"
        if not self.predicted:
            time = "least time" if self.least else "roof"
        if self.name:
            time += f" of {self.name}"
        if self.predicted and self.below_roof:
            return f"{time}, below its roof: what any kernel needs"
        executed = float(self.cost.work.tensor / self.cost.flops) if self.cost.work.tensor and self.cost.flops else 1.0
        if executed <= 1 + ROOFS_EVEN:
            return time
        return f"{time}{', which executes' if self.name else '; tiles execute'} {executed:.3g}x the {self.flop}"

    @property
    def limit(self) -> str:
        """Sentence without full stop on what limits."""
        return limit_sentence(self._meters, self.causes, self.predicted is None, self.cost.unknown)

    @property
    def rate(self) -> str:
        """Sentence without full stop on the time with its interval, its rate and share of the peak; as if it fitted the memory."""
        if self.predicted is None and self.least:
            return f"Not predicted; at least {format_time(self.seconds, 3)}, with {self.causes[-1]}: at most {self.rate_and_share}"
        sentence = f"Predicted {time_text(self.predicted)}" if self.predicted else f"Not predicted; roof {format_time(self.seconds, 3)}"
        if self.device.fits(int(self.memory)) is False:
            sentence = f"If it fitted: {lower_first(sentence)}"
        return f"{sentence}, {self.rate_and_share}" if self.rate_and_share else sentence

    @cached_property
    def rate_and_share(self) -> str:
        """Phrase on the rate and its share of the peak: of bytes if DRAM bounds it, else of visible matmul FLOP."""
        cost, time = self.charged, self.seconds
        if not time:
            return ""
        dram_s = float(cost.terms.get("dram", 0))
        limited_by_dram = cost.bound == "dram" and dram_s >= PARTLY * time
        if not cost.flops or limited_by_dram:
            is_dram_roof = self.time is None and dram_s >= (1 - ROOFS_EVEN) * time
            share = "" if is_dram_roof else f", {percent(dram_s / time)} of the DRAM peak"
            return format_si(float(cost.dram.total) / time, "B/s", 3) + share
        rate, unit = float(cost.flops) / time, self.device.matmul_unit(self.dtype.name, self.dtype.matmul_unit)
        clock = " at the highest clock" if self.below_roof else ""
        return f"{format_si(rate, 'FLOP/s', 3)}, {percent(self._of_peak(rate, unit))} of the {unit} peak{clock}"

    def _of_peak(self, rate: float, unit: str) -> float:
        """Share of the peak of ``unit`` at the clock at work; for a time below its roof, at the highest clock."""
        if self.below_roof:
            return rate / self.device.best_matmul_rate(self.dtype.name)
        return rate / (self.device.matmul_peak(self.dtype.name, unit).number * clock_at_work(self.device))

    @property
    def figures(self) -> list[Figure]:
        """Figures: time, rate, roof, memory."""
        figures, rate_label = [], "rate at the roof"
        if self.predicted:
            figures, rate_label = [Figure("predicted time", time_text(self.predicted))], "rate"
        elif self.least:
            figures, rate_label = [Figure("least time", time_text(self.least))], "rate at most"
        if self.rate_and_share:
            figures.append(Figure(rate_label, self.rate_and_share))
        bound = f", {RESOURCES[self.cost.bound][0]}" if self.cost.bound else ""
        figures.append(Figure("roof", f"{format_time(float(self.cost.roofline_s), 3)}{bound}"))
        capacity = self.device.dram.capacity
        size = format_si(self.memory, "B", 3)
        figures.append(Figure("memory", f"{size} of {format_si(capacity.number, 'B', 3)}" if capacity else size))
        return figures

    def metrics(self, labels: Mapping[str, str] | None = None, extra: Number | None = None) -> list[Metric]:
        """Metrics of counts, times, power and memory. ``labels``: unusual labels by key; ``extra``: bytes beyond inputs and outputs."""
        return [*of_cost(self.cost, self.predicted, labels), *of_power(self.power), *of_memory(self.memory, self.device, extra)]

    @property
    def rates(self) -> list[Metric]:
        """Metrics of the predicted rate in matmul FLOP/s and its share of the peak."""
        rate = float(self.cost.flops) / self.predicted.value if self.predicted and self.cost.flops else None
        share = None if rate is None else self._of_peak(rate, self.dtype.matmul_unit)
        return [Metric("rate", rate, "rate, predicted", "FLOP/s"), Metric("of_peak", share, "  of the peak", "share")]

    def side(self, name: str = "", left_out: tuple[str, ...] = ()) -> Side:
        """Time and roof as one side of a comparison. ``left_out``: causes outside the roof, by default ``causes``."""
        by = "" if self.prediction is None else self.prediction.calibration.implementation
        causes = (f"{self.name}: {' and '.join(self.causes)}",) if self.causes else ()
        return Side(name or self.name, float(self.cost.roofline_s), self.predicted, by=by, left_out=left_out or causes)


def with_measured(plain: Report, measured_s: float | None, cost: Estimate, predicted: Interval | None, subject: str = LIBRARY) -> Report:
    """``plain`` whose verdict begins with ``measured_s`` as a share of the roof of ``cost``, and against ``predicted`` of ``subject``.

    A time below the roof is compared with the bound. A time below the bound cannot be a time of this work.
    """
    if measured_s is None:
        return plain
    roof, bound, time = float(cost.roofline_s), float(cost.lower_warm_s), format_time(measured_s, 3)
    if measured_s >= roof:
        clause = f"{time} is {percent(roof / measured_s)} of the roof"
    else:
        clause = f"{time} is {percent(bound / measured_s)} of the bound"
    if measured_s < bound:
        clause = f"{time} is less than any kernel takes here, {format_time(bound, 3)}: less was computed or read, or the clock was higher"
    elif predicted is not None:
        in_interval = predicted.low is not None and predicted.high is not None and predicted.low <= measured_s <= predicted.high
        clause += f" and {gain_text(predicted.value / measured_s, subject)}, predicted {time_text(predicted)}"
        clause += ", within its interval" if in_interval else ""
    speedup = None if predicted is None else predicted.value / measured_s
    entry = {"time_s": measured_s, "of_roof": roof / measured_s, "of_bound": bound / measured_s, "speedup": speedup}
    return replace(plain, verdict=[sentence(clause), *plain.verdict], data={**plain.data, "measured": entry})
