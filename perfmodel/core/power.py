"""Energy, power and clock of kernels: the roofline of energy beside that of time.

    energy(f) = static power x time(f) + operations x joules x f^a + DRAM bytes x joules + power of busy multiprocessors x f^(a+1) x time(f)

with f the clock over the highest one. An operation switches the same charge at any clock, at a voltage that falls with it: its joules fall
as f^a, a between 1 and 2. DRAM has a supply and a clock of its own. Under a limit the clock is the highest at which power stays within it.
What waits for the multiprocessors takes 1/f as long, what waits for DRAM as long as before.

Source: Choi, Bedard, Fowler and Vuduc, "A roofline model of energy", IPDPS 2013, doi:10.1109/IPDPS.2013.77; the clock under a limit
is theirs of a power cap (section V), with a voltage that follows the clock in place of throttled issue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from perfmodel.core.arith import Number
from perfmodel.core.checks import power_limit
from perfmodel.core.errors import UnavailableError, UsageError, suggest
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device, PowerFit

OVERLAP = 2.0  # known
"""Exponent of the norm that joins the times of DRAM and of the multiprocessors: 1 would add them up, infinity hide the shorter one."""
LOWEST = 0.1  # known
"""Lowest clock over the highest one: no GPU at work runs slower, whatever the limit."""
SETTLES_S = 0.02  # tuned
"""Seconds that a call may draw more than the limit before the clock falls: of a call of T seconds, the share T / (T + SETTLES_S) runs at
the clock that the limit leaves. Prefills of 13 to 390 ms on an H200 take 5 to 0 % less after a pause than when run for seconds."""
ROUNDS = 8  # known
"""Iterations for the clock of a call alone and the clock under the limit, which depend on each other: the last changes neither by 1e-5."""
HALVINGS = 40  # known
"""Steps of a bisection: 2^-40 of the span is below any digit shown."""
BURST, SUSTAINED = "burst", "sustained"
CLOCKS = (BURST, SUSTAINED)


class Demand(NamedTuple):
    """Energy and power of one kernel, or of several equal ones in turn, at the highest clock.

    ``seconds``: time alone after a pause; ``memory_s``: time of its DRAM traffic by itself. ``switched_j``: joules of operations and of L2
    bytes; ``memory_j``: joules of DRAM bytes. ``busy_w``: watts of multiprocessors at work, whatever they do.
    """

    seconds: float
    memory_s: float
    switched_j: float
    memory_j: float
    busy_w: float

    def core_s(self) -> float:
        """Seconds of the multiprocessors by themselves, which joined with ``memory_s`` give ``seconds``."""
        memory = min(self.memory_s, self.seconds)
        return float((self.seconds**OVERLAP - memory**OVERLAP) ** (1 / OVERLAP))

    def seconds_at(self, slowdown: float) -> float:
        """Seconds if the multiprocessors run ``slowdown`` times slower."""
        return float(time_at(self.core_s(), min(self.memory_s, self.seconds), slowdown))


class Running(NamedTuple):
    """A run of kernels: seconds of ``each``, joules in all, and the mean clock over the highest one.

    ``waits_s``: seconds in which the device waits for the host, at static power.
    """

    each: tuple[float, ...]
    joules: float
    clock: float
    waits_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of all kernels in turn, and of waits."""
        return sum(self.each) + self.waits_s

    @property
    def watts(self) -> float:
        """Mean watts."""
        return self.joules / self.seconds


def time_at(core_s: Number, memory_s: Number, slowdown: Number) -> Number:
    """Seconds if the multiprocessors take ``slowdown`` times as long and DRAM as long as before.

    >>> time_at(3.0, 4.0, 1.0), time_at(3.0, 0.0, 2.0), time_at(0.0, 4.0, 2.0)
    (5.0, 6.0, 4.0)
    """
    return ((core_s * slowdown) ** OVERLAP + memory_s**OVERLAP) ** (1 / OVERLAP)


def energy(seconds: Number, switched_j: Number, memory_j: Number, busy_w: Number, f: Number, static_w: Number, a: Number) -> Number:
    """Joules of a run that takes ``seconds`` at the clock ``f``.

    >>> energy(2.0, 10.0, 5.0, 50.0, 1.0, 100.0, 1.5)
    315.0
    """
    return static_w * seconds + switched_j * f**a + memory_j + busy_w * f ** (a + 1) * seconds


def flops_per_joule(fit: PowerFit, name: str, peak: float, bandwidth: float, intensity: Number) -> Number:
    """Most FLOP per joule at ``intensity`` FLOP per DRAM byte and the highest clock: the arch line of the roofline of energy.

    ``name``: the operation in ``picojoules``; ``peak`` in FLOP/s, ``bandwidth`` in B/s. A FLOP takes the longer of 1 / peak and the time of
    its bytes. It costs static power during that time, its own joules, and those of its bytes.
    """
    seconds = max(1 / peak, 1 / (intensity * bandwidth))
    return 1 / (fit.static_w * seconds + 1e-12 * (fit.picojoules[name] + fit.picojoules["dram"] / intensity))


class PowerState(NamedTuple):
    """A call run ``alone`` after a pause, and repeated for seconds (``sustained``); ``clock`` says which of them is the headline.

    ``alone_s``: seconds alone under the device's own limit. ``highest_hz``: the highest clock, to which other clocks are relative.
    """

    clock: str
    limit_w: float
    alone_s: float
    alone: Running
    sustained: Running
    highest_hz: float

    @property
    def shown(self) -> Running:
        """The run of the headline."""
        return self.alone if self.clock == BURST else self.sustained

    @property
    def burst_s(self) -> float:
        """Seconds of a call alone after a pause."""
        return self.alone.seconds

    @property
    def sustained_s(self) -> float:
        """Seconds of a call at the sustained clock."""
        return self.sustained.seconds

    @property
    def sm_hz(self) -> float:
        """Clock in Hz of calls that run for seconds."""
        return self.sustained.clock * self.highest_hz

    @property
    def watts(self) -> float:
        """Mean watts of calls that run for seconds."""
        return self.sustained.watts

    @property
    def joules(self) -> float:
        """Joules of a call, run for seconds."""
        return self.sustained.joules


def limit_of(device: Device) -> float | None:
    """Power limit of ``device`` in watts, from its datasheet."""
    return None if device.tdp is None else float(device.tdp.number)


class Power:
    """The power model of a device under ``limit_w`` or its own limit. ``host_s``: seconds that the host needs to launch all kernels.

    UnavailableError if the profile has no power model.
    """

    def __init__(self, device: Device, limit_w: float | None = None, host_s: float = 0.0) -> None:
        device_w = limit_of(device)
        if device.power is None or device_w is None:
            fix = "take a device whose profile has one, such as nvidia-h200-sxm"
            if limit_w is not None:
                fix += f", or add it again: perfmodel hardware add mine --like {device.id} --tdp {limit_w:g}W"
            raise UnavailableError(f"{device.id} has no power model", fix)
        self.device, self.fit, self.own_w = device, device.power, device_w
        self.limit_w, self.host_s = device_w if limit_w is None else limit_w, host_s

    def state(self, demands: Sequence[Demand], clock: str) -> PowerState:
        """Runs of ``demands`` in turn, alone and for seconds. UnavailableError if the profile has no clock, or no clock keeps the limit."""
        highest = self.device.clocks.max
        if highest is None:
            raise UnavailableError(f"{self.device.id} has no power model without its highest clock")
        alone, sustained = (self.run(demands, name) for name in CLOCKS)
        return PowerState(clock, self.limit_w, sum(demand.seconds for demand in demands), alone, sustained, float(highest.number))

    def burst_clock(self, demand: Demand) -> float:
        """The clock of a kernel alone after a pause, at which it draws at most ``burst_over_limit`` times the device's own limit."""
        seconds, joules = demand.seconds, self._joules
        return self._highest(lambda f: joules(demand, seconds, f) / seconds, self.fit.burst_over_limit * self.own_w)

    def run(self, demands: Sequence[Demand], clock: str = SUSTAINED) -> Running:
        """A run of ``demands`` in turn, after a pause or for seconds at one clock. UnavailableError if no clock keeps the limit."""
        stated = Power(self.device)._stated_clocks(demands)
        bursts = [self.burst_clock(demand) for demand in demands]
        if self.limit_w < self.own_w:
            bursts = self._limited_bursts(demands, stated, bursts)
        elif clock == BURST:  # that is how the times are stated
            return self._run_at(demands, stated, stated)
        settled = self._settled_clocks(demands, stated, bursts)
        return self._run_at(demands, stated, settled if clock == SUSTAINED else _clocks_after_pause(demands, bursts, settled))

    def _stated_clocks(self, demands: Sequence[Demand]) -> list[float]:
        """The clock at which the seconds of each demand are stated: that of a call after a pause, under the device's own limit.

        At first that is the burst clock, after ``SETTLES_S`` the clock that the limit leaves.
        """
        bursts = [self.burst_clock(demand) for demand in demands]
        stated = bursts
        for _ in range(ROUNDS):
            stated = _clocks_after_pause(demands, bursts, self._settled_clocks(demands, stated, bursts))
        return stated

    def _limited_bursts(self, demands: Sequence[Demand], stated: Sequence[float], bursts: Sequence[float]) -> list[float]:
        """The burst clock of each demand alone under a lower limit than the device's own; ``bursts``: those under its own."""
        burst_w = self.fit.burst_over_limit * self.limit_w
        runs = zip(demands, stated, bursts, strict=True)
        return [self._common_clock([demand], [f], [burst], burst_w, LOWEST) for demand, f, burst in runs]

    def _settled_clocks(self, demands: Sequence[Demand], stated: Sequence[float], bursts: Sequence[float]) -> list[float]:
        """The clock of each demand if they run in turn for seconds, on average within the limit; none exceeds its burst clock."""
        common = self._common_clock(demands, stated, bursts, self.limit_w)
        return [min(common, burst) for burst in bursts]

    def _common_clock(
        self, demands: Sequence[Demand], stated: Sequence[float], bursts: Sequence[float], most: float, otherwise: float | None = None
    ) -> float:
        """The highest common clock at which ``demands`` draw at most ``most`` watts on average; none exceeds its burst clock."""
        common = self._highest(lambda f: self._run_at(demands, stated, [min(f, burst) for burst in bursts]).watts, most, otherwise)
        return min(common, max(bursts))

    def _run_at(self, demands: Sequence[Demand], stated: Sequence[float], clocks: Sequence[float]) -> Running:
        """The run with each demand at its clock of ``clocks``; its own seconds are stated at its clock of ``stated``."""
        runs = list(zip(demands, stated, clocks, strict=True))
        seconds = [demand.seconds if f == stated_f else demand.seconds_at(stated_f / f) for demand, stated_f, f in runs]
        waits = max(self.host_s - sum(seconds), 0.0)
        joules = sum(self._joules(demand, s, f) for demand, s, f in zip(demands, seconds, clocks, strict=True)) + self.fit.static_w * waits
        clock = sum(s * f for s, f in zip(seconds, clocks, strict=True)) / sum(seconds)
        return Running(tuple(seconds), joules, clock, waits)

    def _joules(self, demand: Demand, seconds: float, f: float) -> float:
        return float(energy(seconds, demand.switched_j, demand.memory_j, demand.busy_w, f, self.fit.static_w, self.fit.clock_exponent))

    def _highest(self, watts: Callable[[float], float], most: float, otherwise: float | None = None) -> float:
        """The highest clock at which ``watts(clock)`` is at most ``most``. If none is: ``otherwise``, or UnavailableError without that."""
        if watts(1.0) <= most:
            return 1.0
        if watts(LOWEST) > most:
            if otherwise is not None:
                return otherwise
            draw = f"{watts(LOWEST):.0f} W even at the lowest clock"
            raise UnavailableError(f"{self.device.id} cannot stay within {self.limit_w:g} W: it draws {draw}", "give a higher limit")
        low, high = LOWEST, 1.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if watts(middle) <= most else (low, middle)
        return low


def _clocks_after_pause(demands: Sequence[Demand], bursts: Sequence[float], settled: Sequence[float]) -> list[float]:
    """Mean clock of each demand in a run after a pause, which begins at the clocks ``bursts`` and goes over to ``settled``."""
    alone_s = sum(demand.seconds for demand in demands)
    share = alone_s / (alone_s + SETTLES_S)  # of the run at the settled clock
    return [burst if f == burst else 1 / ((1 - share) / burst + share / f) for burst, f in zip(bursts, settled, strict=True)]


def joules_of(fit: PowerFit, counts: Iterable[tuple[str, Number]]) -> float:
    """Joules of ``counts`` (name in ``picojoules``, number) at the highest clock; UnavailableError for a name that was not fitted."""
    total = 0.0
    for name, count in counts:
        if count and name not in fit.picojoules:
            raise UnavailableError(f"no power model of {name}", f"there is one of {', '.join(fit.picojoules)}")
        total += float(count) * fit.picojoules.get(name, 0.0) * 1e-12
    return total


@dataclass(frozen=True, slots=True)
class PowerOptions:
    """Options of power: the limit as typed (None: the device's own), and the clock of the headline (None: the usual one)."""

    limit: str | None = None
    clock: str | None = None

    @property
    def given(self) -> bool:
        """Whether either option was given; then a device without a power model is an error."""
        return self.limit is not None or self.clock is not None

    def check(self, device: Device) -> PowerOptions:
        """These options; UnavailableError if one is given for a device without a power model."""
        if self.given:
            self.on(device)
        return self

    def on(self, device: Device, host_s: float = 0.0) -> Power:
        """The power model of ``device`` under the limit. ``host_s``: seconds that the host needs to launch all kernels.

        UsageError names a wrong option, UnavailableError a device without a model.
        """
        if self.clock not in (None, *CLOCKS):
            raise UsageError(f"--clock: unknown clock {self.clock!r}", suggest(str(self.clock), list(CLOCKS)))
        return Power(device, None if self.limit is None else power_limit(self.limit, device), host_s)
