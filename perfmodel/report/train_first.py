"""What the report of a training step says first: whether it fits, how long a step takes, what limits it, its charts."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.units import format_si, format_time
from perfmodel.report.answer import fitting
from perfmodel.report.charts.format_number import percent
from perfmodel.report.charts.schema import Chart
from perfmodel.report.document import Figure, Report
from perfmodel.report.metrics import BOUND_WORDS
from perfmodel.report.power import with_power
from perfmodel.report.step import StepPart, limited, longest, op_roofline, part_bar, step_meters, taken, time_bars, tokens
from perfmodel.transformer.step_power import TrainingPower
from perfmodel.transformer.training.step.estimate import TrainingEstimate
from perfmodel.transformer.training.step.step_time import BUBBLE, HOST

KERNELS = ("forward", "recompute", "backward", "gradients added up", "optimizer", "gradients cleared")
"""Parts of a step that are sums of kernels."""
SLOWED = 1.02
"""Time of steps under a power limit over that of measured ones from which on it is worth a word."""


def answered(plain: Report, found: TrainingEstimate, pictures: bool, power: TrainingPower | None = None) -> Report:
    """``plain`` with what it says first, and its ``pictures``; ``power``: as steps run one after another."""
    rows = _kernels(found)
    return replace(
        plain,
        verdict=_verdict(found, rows, power),
        reasons=_reasons(found, rows),
        meters=with_power(step_meters(found.cost, rows, found.seconds, _beside(found)), power, found.training.batch * found.training.n),
        metered="predicted training step" if found.prediction else "training step, at roofs where not calibrated",
        figures=_figures(found),
        charts=_charts(found, rows) if pictures else [],
    )


def _kernels(found: TrainingEstimate) -> list[StepPart]:
    return [StepPart(line.op.name, line.op, line.cost, line.interval, line.seconds) for line in found.lines]


def _beside(found: TrainingEstimate) -> dict[str, float]:
    """Shares of exchanges that no kernel hides, and of waits."""
    return {name: seconds / found.seconds for name, seconds in found.time.parts.items() if name not in KERNELS and seconds}


def _took(found: TrainingEstimate) -> str:
    return taken(found.seconds, found.prediction, "" if found.prediction else "at least ")


def _most(found: TrainingEstimate) -> str:
    return "" if found.prediction else "at most "


def _verdict(found: TrainingEstimate, rows: list[StepPart], power: TrainingPower | None) -> list[str]:
    """Whether it fits, how long a step takes, and under a lower power limit, and what limits it."""
    rate = f"{_most(found)}{tokens(found.tokens_per_s)}, MFU {found.utilization[0]:.1%}"
    takes = "takes" if found.fits is not False else "would take"
    slowed = power is not None and power.sustained_s > SLOWED * found.seconds
    under = f"; {format_time(power.sustained_s, 3)} under {power.limit_w:g} W" if power is not None and slowed else ""
    return [_fitting(found), f"A step {takes} {_took(found)}: {rate}{under}.", limited(rows, found.seconds, _beside(found))]


def _fitting(found: TrainingEstimate) -> str:
    if found.memory is None:
        return "Whether it fits is unknown: the memory of this layout is not."
    held, gpus = fitting(found.memory.bytes, found.device), found.training.parallel.gpus
    if not held:
        return f"{format_si(found.memory.bytes, 'B')} at the peak; the profile of {found.device.id} has no capacity."
    where = f"on the fullest of {gpus:,} GPUs" if gpus > 1 else "at the peak"
    return f"{held} {where}{'; try --search' * (found.fits is False)}."


def _figures(found: TrainingEstimate) -> list[Figure]:
    memory = found.memory
    held = "unknown" if memory is None else format_si(memory.bytes, "B")
    mfu, hfu = found.utilization
    return [
        Figure("time of a step", _took(found)),
        Figure("throughput", f"{_most(found)}{tokens(found.tokens_per_s)}"),
        Figure("MFU", f"{_most(found)}{mfu:.1%}"),
        Figure("HFU", f"{_most(found)}{hfu:.1%}"),
        Figure("memory of the fullest GPU", held + (f" of {format_si(found.capacity, 'B')}" if found.capacity and memory else "")),
    ]


def _reasons(found: TrainingEstimate, rows: list[StepPart]) -> list[str]:
    """What takes most, how near to the bound, what the shares count, and who waits."""
    parts, cost = found.time.parts, found.cost
    largest = max(parts, key=lambda name: parts[name])
    term = f"the largest term of the roof is {BOUND_WORDS.get(cost.bound or '', 'unknown')}"
    hfu = f"HFU {found.utilization[1]:.1%}"
    words = [f"{largest.capitalize()} takes {percent(parts[largest] / found.seconds)} of a step. {longest(rows, found.seconds)}"]
    words += [f"The bound of its needed work is {format_time(cost.lower_s)}; {term}."]
    words += [f"{hfu}; MFU: FLOP on visible scores, HFU: executed."]
    waits = [f"{name} takes {100 * parts[name] / found.seconds:.3g} %" for name in (BUBBLE, HOST) if parts[name] > 0.05 * found.seconds]
    words += [f"{'; '.join(waits).capitalize()}."] if waits else []
    return words


def _charts(found: TrainingEstimate, rows: list[StepPart]) -> list[Chart]:
    parts = part_bar("Where a step goes", found.time.parts.items())
    return [parts, time_bars(rows, "Time by kernel"), *op_roofline(rows, found.device, found.job.micro_batch.forward.dtype)]
