"""Compare standard attention with FlashAttention: FLOP, IO, bound and roofline."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.commands._command import ExplainedPicture, command, device_for
from perfmodel.core.question import Common, Question, as_in, option
from perfmodel.kernels.attention.question import AttentionQuestion


@dataclass(frozen=True, slots=True)
class AttentionRun(Question):
    """Options of the command alone; the device is one of the question too."""

    config: str | None = option("Take options from a shipped configuration or a YAML file.")
    hardware: str | None = as_in(Common, "hardware")
    implementation: str | None = as_in(Common, "implementation")
    power_limit: str | None = as_in(Common, "power_limit")
    clock: str | None = as_in(Common, "clock")
    crossover: bool = option("Find the N, d and M at which tiling stops paying.", default=False)


@command
def attention(asked: AttentionQuestion, run: AttentionRun, to: ExplainedPicture) -> None:
    """Compare standard attention with FlashAttention: FLOP, IO, bound, roofline and predicted time.

    Counts are exact totals over batch and heads. Example: perfmodel attention --n 4096 --d 64 --heads 16 --batch 8
    """
    from perfmodel.catalog import calibrated_devices, load_config
    from perfmodel.core.power import PowerAsked
    from perfmodel.report.attention import report
    from perfmodel.timing.power import of_comparison
    from perfmodel.timing.select_kernel import answered

    if run.config:
        asked = load_config(run.config, "attention", AttentionQuestion).updated(asked.given())
    comparison = asked.compare(device_for(asked.hardware))
    power = PowerAsked(run.power_limit, run.clock).check(comparison.device)
    comparison, known, missing = answered(comparison, run.implementation, calibrated_devices)
    known = of_comparison(comparison, known, power)
    found = report(comparison, predictions=known, unpredicted=missing, explained=to.explain, crossover=run.crossover, pictures=to.pictures)
    to.emit(found)
