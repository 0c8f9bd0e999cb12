"""Device profiles: the schema of ``hardware_specs/*.yaml`` and what calculators ask of it.

Every number is a Quantity: a value with its unit, the kind of evidence behind it and a key of ``sources``. Nominal and
measured values are separate fields. Peaks are dense, an FMA counts 2 FLOP. What is unknown is absent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, fields, is_dataclass, replace
from typing import Any, Literal

from perfmodel.core import units
from perfmodel.core.dtypes import NEEDS, PEAK_OF
from perfmodel.core.errors import UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.core.units import Bandwidth, Count, Duration, Frequency, OpRate, Power, ProfilePart, Quantity, Rate, Size

LevelName = Literal["sram", "l2", "llc", "dram"]
FloatDtype = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]


@dataclass(frozen=True)
class Clocks(ProfilePart):
    """Clocks of the datasheet's tensor and vector peaks; ``max``: the highest clock that the driver allows; GeForce cards boost to it."""

    tensor: Frequency | None = None
    vector: Frequency | None = None
    max: Frequency | None = None
    base: Frequency | None = None


@dataclass(frozen=True)
class MemoryLevel(ProfilePart):
    """A memory level: ``capacity`` and ``per_block`` are per instance of its scope, bandwidths are summed over the device.

    ``max_bandwidth``: at the highest memory clock, if that is above the datasheet's bandwidth.
    """

    level: LevelName
    scope: Literal["multiprocessor", "device"]
    name: str
    capacity: Size | None = None
    per_block: Size | None = None
    bandwidth: Bandwidth | None = None
    measured_bandwidth: Bandwidth | None = None
    max_bandwidth: Bandwidth | None = None

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """Bandwidth in B/s: nominal if known, else measured, else None."""
        bandwidth = self.bandwidth or self.measured_bandwidth
        return None if bandwidth is None else bandwidth.number


@dataclass(frozen=True)
class Peaks(ProfilePart):
    """Dense peaks by number format of the matrix unit and the vector unit; exponentials of the SFU."""

    tensor: dict[FloatDtype, Rate] = field(default_factory=dict)
    vector: dict[FloatDtype, Rate] = field(default_factory=dict)
    tensor_int: dict[Literal["int8", "int4"], OpRate] = field(default_factory=dict)
    exp: OpRate | None = None


@dataclass(frozen=True)
class Limits(ProfilePart):
    """Limits of what a multiprocessor and a thread block can hold."""

    max_threads_per_multiprocessor: Count | None = None
    max_blocks_per_multiprocessor: Count | None = None
    max_threads_per_block: Count | None = None
    registers_per_multiprocessor: Count | None = None
    max_registers_per_thread: Count | None = None
    warp_size: Count | None = None


@dataclass(frozen=True)
class Interconnect(ProfilePart):
    """Links to other devices; bandwidth per direction, summed over the links.

    ``joined``: number of devices that the links join; ``host``: number of devices in one host; ``network``: bandwidth per device and
    direction between such domains. ``mesh``: each link ends at one peer without a switch, so a small group can use only some of the links.
    ``pcie``: the links are PCIe slots, and all devices share the host's root.
    """

    name: str
    bandwidth_per_direction: Bandwidth
    links: Count | None = None
    joined: Count | None = None
    host: Count | None = None
    network: Bandwidth | None = None
    mesh: bool = False
    pcie: bool = False


@dataclass(frozen=True)
class LaunchOverhead(ProfilePart):
    """Time per kernel in a saturated queue, not CPU-to-GPU latency."""

    stream: Duration
    graph: Duration | None = None


@dataclass(frozen=True)
class Microbenchmark(ProfilePart):
    """Result of a probe on the device: ``value`` with its unit; ``spread``: (p90 - p10) / median of ``runs``; ``size`` in bytes.

    ``shape``: m, n and k of a matrix product. Published figures without a statement of noise have spread 0 and one run.
    """

    name: str
    value: str
    spread: float
    runs: int
    source: str
    date: str
    size: int | None = None
    shape: dict[str, int] | None = None


@dataclass(frozen=True)
class Calibration(ProfilePart):
    """A time model fitted to one implementation, with its errors.

    ``parameters`` of ``model`` by name. ``low`` and ``high``: the 10 % and 90 % quantiles of measured / predicted, each of the ``points``
    predicted by a fit without it or kept out of the fit. The same quantiles under other conditions: ``borrowed_*`` on devices that no point
    comes from, ``probed_*`` on those of them with known microbenchmarks, ``warm_*`` in warm runs. ``held_out``: points that no fit saw,
    with median and 90 % quantile of |predicted / measured - 1|.
    """

    implementation: str
    workload: str
    model: str
    dtypes: list[str]
    parameters: dict[str, float]
    points: int
    low: float
    high: float
    source: str
    date: str
    versions: str
    direction: Literal["forward", "backward"] = "forward"
    borrowed_low: float | None = None
    borrowed_high: float | None = None
    probed_low: float | None = None
    probed_high: float | None = None
    warm_low: float | None = None
    warm_high: float | None = None
    median_error: float | None = None
    held_out: int = 0
    held_out_median_error: float | None = None
    held_out_p90_error: float | None = None


@dataclass(frozen=True)
class PowerFit(ProfilePart):
    """Power model of a device, evaluated by ``perfmodel/core/power.py`` and fitted to measured watts and clocks.

    ``static_w``: watts that are drawn whatever runs. ``picojoules``: energy of an operation by unit and format (``tensor.bf16``,
    ``vector``), more of a tensor operation on registers (``mma.sync``), and of a byte from the L2 (``l2``) and from DRAM (``dram``), at the
    highest clock. Tensor operations lie on a line over the bytes of an operand, bf16 below it. ``busy_w``: watts of all
    multiprocessors at work, by kind of kernel. ``clock_exponent``: the energy of an operation falls as the clock to this power.
    ``burst_over_limit``: highest momentary power over the limit. Errors: quantiles of |predicted / measured - 1| of watts, each point
    predicted by a fit without it.
    """

    kind: Literal["fitted"]
    static_w: float
    picojoules: dict[str, float]
    busy_w: dict[str, float]
    clock_exponent: float
    burst_over_limit: float
    points: int
    median_error: float
    p90_error: float
    records: str
    source: str
    date: str


@dataclass(frozen=True)
class Device(ProfilePart):
    """A device profile. ``memory`` is ordered from the SRAM outwards.

    ``chip``: its die. Devices with one chip have the same rates per clock and multiprocessor, so measurements of one serve the others.
    ``matrix_edge``: rows and columns of a systolic matrix unit, which multiplies whole squares.
    """

    schema_version: Literal[1]
    id: str
    name: str
    vendor: str
    architecture: str
    sources: dict[str, str]
    memory: list[MemoryLevel]
    peaks: Peaks
    compute_capability: str | None = None
    chip: str | None = None
    multiprocessors: Count | None = None
    matrix_edge: Count | None = None
    clocks: Clocks = field(default_factory=Clocks)
    limits: Limits = field(default_factory=Limits)
    interconnect: Interconnect | None = None
    launch_overhead: LaunchOverhead | None = None
    tdp: Power | None = None
    power: PowerFit | None = None
    notes: list[str] = field(default_factory=list)
    microbenchmarks: list[Microbenchmark] = field(default_factory=list)
    calibration: list[Calibration] = field(default_factory=list)

    def level(self, name: str) -> MemoryLevel | None:
        """The memory level called ``name``, None if the profile has none."""
        return next((level for level in self.memory if level.level == name), None)

    @property
    def over_pcie(self) -> bool:
        """Whether devices of this kind are joined only by the host's PCIe."""
        return self.interconnect is not None and self.interconnect.pcie

    @property
    def dram(self) -> MemoryLevel:
        """The outermost level."""
        return self.memory[-1]

    @property
    def cache_bytes(self) -> int | None:
        """Capacity of the last cache that the whole device shares; None if unknown."""
        caches = [level for level in self.memory if level.level in ("l2", "llc") and level.scope == "device"]
        size = caches[-1].capacity if caches else None
        return None if size is None else int(size.number)

    @property
    def capability(self) -> float:
        """Compute capability of an NVIDIA device; 0 for others and if it is unknown."""
        return float(self.compute_capability or 0) if self.vendor == "NVIDIA" else 0.0

    @property
    def sram_per_block(self) -> int:
        """M in bytes: SRAM that one thread block can use; without thread blocks all of the SRAM, or the L2 of a CPU's core.

        UnavailableError if it has none.
        """
        sram, l2, room = self.level("sram"), self.level("l2"), None
        if sram is not None:
            room = sram.per_block or (sram.capacity if sram.scope == "device" else None)
        elif l2 is not None and l2.scope == "multiprocessor":  # of a core
            room = l2.capacity
        if room is None:
            raise UnavailableError(f"{self.id} has no SRAM size per block in its profile", "give one with --sram, such as --sram 163KiB")
        return int(room.number)

    def origin(self, quantity: Quantity) -> str:
        """Origin of ``quantity`` in the profile: its id, the kind of evidence, the source."""
        return f"{self.id}, {quantity.kind}: {self.sources[quantity.source]}"

    def fits(self, size: float) -> bool | None:
        """Whether ``size`` bytes fit its DRAM; None if unknown."""
        capacity = self.dram.capacity
        return None if capacity is None else size <= capacity.number

    def peaks_of(self, unit: str) -> dict[str, Quantity]:
        """Dense floating-point peaks of the ``tensor`` or the ``vector`` unit, by number format."""
        peaks = self.peaks.tensor if unit == "tensor" else self.peaks.vector
        return {name: peak for name, peak in peaks.items()}  # noqa: C416 - the keys widen to str

    def products_of(self, unit: str) -> dict[str, Quantity]:
        """Dense peaks of matrix products on ``unit`` by number format: ``peaks_of``, integers, and formats in ``PEAK_OF``."""
        peaks = self.peaks_of(unit)
        if unit == "tensor" and "int8" in self.peaks.tensor_int:
            peaks["int8"] = self.peaks.tensor_int["int8"]
        for name, peak_name in PEAK_OF.items():
            if peak_name in peaks and (name != "nvfp4" or self.vendor == "NVIDIA"):
                peaks[name] = peaks[peak_name]
        return peaks

    def matmul_unit(self, dtype: str, preferred: str) -> str:
        """The unit that multiplies matrices of ``dtype``: the ``preferred`` one, else the other if only that has a peak.

        UnavailableError lists the formats that the device has.
        """
        for unit in sorted(UNITS, key=lambda unit: unit != preferred):
            if dtype in self.products_of(unit):
                return unit
        peaks = ", ".join(f"{name} ({unit})" for unit in UNITS for name in self.products_of(unit)) or "none at all"
        needs = f"; {NEEDS[dtype]}" if dtype in NEEDS else ""
        raise UnavailableError(f"{self.id} has no {dtype} peak", f"its profile has {peaks}{needs}")

    def matmul_peak(self, dtype: str, unit: str) -> Quantity:
        """Dense peak for ``dtype`` on ``unit``, or on the other unit if only that has one."""
        return self.products_of(self.matmul_unit(dtype, unit))[dtype]

    def stated_clock(self, dtype: str, unit: str) -> Quantity | None:
        """The clock at which the datasheet quotes that peak; FP64 of the tensor unit is quoted at the vector unit's clock."""
        return self.clocks.tensor if unit == "tensor" and dtype != "fp64" else self.clocks.vector

    def clock_ratio(self, dtype: str, unit: str) -> float:
        """The clock of that peak over the vector unit's clock, for which the profile states exponentials and on-chip bandwidths."""
        stated, vector = self.stated_clock(dtype, unit), self.clocks.vector
        return 1.0 if stated is None or vector is None else stated.number / vector.number

    @property
    def best_dram_rate(self) -> float | None:
        """DRAM bandwidth in B/s at the highest memory clock."""
        usual, highest = self.dram.bandwidth_bytes_per_s, self.dram.max_bandwidth
        return usual if usual is None or highest is None else max(usual, highest.number)

    def best_matmul_rate(self, dtype: str) -> float:
        """FLOP/s of the fastest unit that takes ``dtype``, at the device's highest clock; never below the datasheet."""
        return max(self._rate_at_max_clock(dtype, unit) for unit in UNITS if dtype in self.products_of(unit))

    def _rate_at_max_clock(self, dtype: str, unit: str) -> float:
        peak, highest, stated = self.products_of(unit)[dtype], self.clocks.max, self.stated_clock(dtype, unit)
        if highest is None:
            return peak.number
        if peak.per_clk is not None and self.multiprocessors is not None:
            return max(peak.number, peak.per_clk * self.multiprocessors.number * highest.number)
        return peak.number if stated is None else max(peak.number, peak.number * highest.number / stated.number)


UNITS = ("tensor", "vector")
_PARTS = {
    "clocks": Clocks,
    "memory": MemoryLevel,
    "peaks": Peaks,
    "limits": Limits,
    "interconnect": Interconnect,
    "launch_overhead": LaunchOverhead,
    "power": PowerFit,
}
RECORDS = {"microbenchmarks": Microbenchmark, "calibration": Calibration}
"""Parts of a profile that are lists of records, without quantities."""


def trusted(raw: dict[str, Any]) -> Device:
    """The device that ``raw`` describes, built without checks: ten times as fast, for the shipped profiles, which tests validate."""
    device: Device = _built(Device, raw)
    return device


def _built(kind: Any, raw: dict[str, Any]) -> Any:
    return kind(**{key: _value(key, value) for key, value in raw.items()})


def _value(key: str, raw: Any) -> Any:
    if isinstance(raw, list):
        return [_value(key, item) for item in raw]
    if not isinstance(raw, dict):
        return raw
    if key in _PARTS:
        return _built(_PARTS[key], raw)
    if "value" in raw:
        value = raw["value"]
        return Quantity(**raw, number=value if isinstance(value, int) else units.parse_any(value))
    return {name: _value(name, item) for name, item in raw.items()}


def whole(device: Device) -> Device:
    """``device`` with its records read into plain lists, for code that writes every field."""
    return replace(device, microbenchmarks=[*device.microbenchmarks], calibration=[*device.calibration])


def quantities(record: Any, place: str = "") -> list[tuple[str, Quantity]]:
    """Every quantity in ``record``, a part of a profile, with its path, such as ``memory.1.capacity``."""
    if isinstance(record, Quantity):
        return [(place, record)]
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(record, list):
        parts = enumerate(record)
    elif isinstance(record, dict):
        parts = record.items()
    elif is_dataclass(record):
        parts = [(item.name, getattr(record, item.name)) for item in fields(record)]
    return [inner for name, part in parts for inner in quantities(part, f"{place}.{name}" if place else str(name))]


def named_quantities(device: Device) -> list[tuple[str, Quantity]]:
    """Quantities of ``device`` by field; memory goes by the name of its level, as in ``memory.dram.capacity``."""
    named = []
    for place, quantity in quantities(device):
        part, *path = place.split(".")
        if part == "memory":
            path[0] = device.memory[int(path[0])].level
        named.append((".".join([part, *path]), quantity))
    return named
