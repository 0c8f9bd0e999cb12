"""Power in reports: watts, clock and joules of a call repeated for seconds, and a meter of the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.report.charts.format_number import text
from perfmodel.report.document import Meter
from perfmodel.report.metrics import Metric

if TYPE_CHECKING:
    from perfmodel.core.power import PowerState
    from perfmodel.transformer.step_power import StepPower

    Drawn = PowerState | StepPower

EXPLAINED = (
    "Power, clock and energy are of calls that run for seconds: the clock is the highest at which power stays within {limit:g} W. "
    "The predicted time is {clock}."
)
WHEN = {"burst": ", run for seconds", "sustained": ""}
"""Text after watts by the clock of the headline, as watts are always those of calls repeated for seconds."""
CLOCK_WORDS = {"burst": "of a burst, alone after a pause", "sustained": "sustained, at that clock"}


def of_power(state: Drawn | None, tokens: int = 0) -> list[Metric]:
    """Metrics of power, clock and energy of a kernel, passes or a training step of ``tokens``; empty without a power model.

    ``clock`` is that of the predicted time. Watts, clock and joules under ``sustained`` are of a call repeated for seconds.
    """
    if state is None:
        return []
    return [
        Metric("time_s.burst", state.burst_s, "time alone, after a pause", "s"),
        Metric("time_s.sustained", state.sustained_s, "time, run for seconds", "s"),
        Metric("sustained.power_w", state.watts, "power, run for seconds", "W", after=f" of {state.limit_w:g} W"),
        Metric("sustained.sm_hz", state.sm_hz, "clock, run for seconds", "Hz"),
        Metric("sustained.energy_j", state.joules, "energy per call", "J"),
        Metric("sustained.power_limit_w", state.limit_w),
        Metric("clock", state.clock),
        *([Metric("sustained.energy_per_token_j", state.joules / tokens, "energy per token", "J")] if tokens else []),
    ]


def with_power(meters: list[Meter], state: Drawn | None, tokens: int = 0, token_j: float | None = None) -> list[Meter]:
    """``meters`` with one for the power limit, its clock, and the energy of a token: ``token_j``, or that of a call over its ``tokens``."""
    if state is None:
        return meters
    token_j = state.joules / tokens if tokens else token_j
    phrase = WHEN[state.clock] if token_j is None else f", {text(token_j, 'J')} a token"
    at = f"{state.watts:.0f} of {state.limit_w:g} W at {state.sm_hz / 1e6:,.0f} MHz{phrase}"
    return [*meters, Meter("power", state.watts / state.limit_w, at)]


def power_note(state: Drawn | None) -> list[str]:
    """Note on the conditions of power, clock and the headline time."""
    return [] if state is None else [EXPLAINED.format(limit=state.limit_w, clock=CLOCK_WORDS[state.clock])]
