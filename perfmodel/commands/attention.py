"""Standard attention and FlashAttention: counts, bound, roof, time."""

from __future__ import annotations

from perfmodel.commands._command import ExplainedPicture, command, device_for
from perfmodel.core.frozen import dataclass
from perfmodel.core.question import Common, Question, as_in, option
from perfmodel.kernels.attention.question import RARER, AttentionQuestion


@dataclass(frozen=True, slots=True)
class AttentionRun(Question):
    """Options of this command that are not part of the question."""

    config: str | None = option("Options of a shipped configuration or YAML file.", group=RARER)
    hardware: str | None = as_in(Common, "hardware")
    implementation: str | None = as_in(Common, "implementation")
    cache: str = as_in(Common, "cache")
    power_limit: str | None = as_in(Common, "power_limit", group=RARER)
    clock: str | None = as_in(Common, "clock", group=RARER)
    measured: str | None = as_in(Common, "measured", group=RARER)
    crossover: bool = option("Where tiling pays, by accesses and roof: N, d and M.", default=False, group=RARER)


@command
def attention(options: AttentionQuestion, run: AttentionRun, to: ExplainedPicture) -> None:
    """Compare standard attention with FlashAttention: FLOP, IO, bound, roofline and predicted time.

    Example: perfmodel attention --n 4096 --d 64 --heads 16 --batch 8
    """
    from perfmodel.catalog import calibrated_devices, load_config
    from perfmodel.core.checks import measured_s
    from perfmodel.report.attention import report
    from perfmodel.timing.base import check_state_read, state_named
    from perfmodel.timing.select_kernel import answered

    if run.config:
        options = load_config(run.config, "attention", AttentionQuestion).updated(options.given())
    comparison = options.compare(device_for(options.hardware))
    comparison, predictions, missing = answered(comparison, run.implementation, calibrated_devices, state_named(run.cache))
    check_state_read(run.cache, bool(predictions))
    if comparison.device.power is not None or run.power_limit or run.clock:
        from perfmodel.timing.power import attention_with_power

        predictions = attention_with_power(comparison, predictions, run.power_limit, run.clock)
    measured = measured_s(run.measured)
    document = report(
        comparison,
        predictions=predictions,
        unpredicted=missing,
        explained=to.explained,
        crossover=run.crossover,
        pictures=to.pictures,
        measured_s=measured,
    )
    to.emit(document)
