"""Device profiles: the schema of ``hardware_specs/*.yaml`` and what calculators ask of it.

Every number is a Quantity: a value with its unit, the kind of evidence behind it and a key of ``sources``. Nominal and
measured values are separate fields. Peaks are dense, an FMA counts 2 FLOP. What is unknown is absent.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from perfmodel import units
from perfmodel.errors import DataError, UnavailableError

SCHEMA_VERSION = 1


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Quantity(_Record):
    """``number`` is ``value`` in base units; ``per_clk`` the operations per clock and multiprocessor behind a peak."""

    value: str | int
    kind: Literal["datasheet", "derived", "measured"]
    source: str
    note: str | None = None
    per_clk: int | None = None
    number: float | int


def _in(base: str) -> BeforeValidator:
    def convert(raw: Any) -> Any:
        if not isinstance(raw, dict) or "value" not in raw:
            raise ValueError("expected a mapping with value, kind and source")
        if "number" in raw:
            raise ValueError("'number' is computed from 'value'; leave it out")
        return {**raw, "number": _convert(raw["value"], base)}

    return BeforeValidator(convert)


def _convert(value: Any, base: str) -> int | float:
    if not base:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{value!r} is not a whole number of at least 1")
        return value
    if not isinstance(value, str):
        raise ValueError(f"{value!r} has no unit; write it like {units.example(base)!r}")
    try:
        number = units.parse(value, base)
    except DataError as error:
        raise ValueError(f"{error.message}; {error.fix}") from None
    if number <= 0:
        raise ValueError(f"{value!r} is not positive; leave out what is unknown")
    return number


Count = Annotated[Quantity, _in("")]
Size = Annotated[Quantity, _in("B")]
Bandwidth = Annotated[Quantity, _in("B/s")]
Frequency = Annotated[Quantity, _in("Hz")]
Rate = Annotated[Quantity, _in("FLOP/s")]
OpRate = Annotated[Quantity, _in("OP/s")]
Duration = Annotated[Quantity, _in("s")]
Power = Annotated[Quantity, _in("W")]

LevelName = Literal["sram", "l2", "llc", "dram"]
FloatDtype = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]


class Clocks(_Record):
    """Clocks of the datasheet's tensor and vector peaks, and the highest the part runs at."""

    tensor: Frequency | None = None
    vector: Frequency | None = None
    max: Frequency | None = None
    base: Frequency | None = None


class MemoryLevel(_Record):
    """One level; ``capacity`` and ``per_block`` per instance of the scope, bandwidths summed over the device."""

    level: LevelName
    scope: Literal["multiprocessor", "device"]
    name: str
    capacity: Size | None = None
    per_block: Size | None = None
    bandwidth: Bandwidth | None = None
    measured_bandwidth: Bandwidth | None = None

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """Nominal where known, else measured, else None."""
        known = self.bandwidth or self.measured_bandwidth
        return None if known is None else known.number


class Peaks(_Record):
    """Dense peaks by number format of the matrix unit and the vector unit; exponentials of the SFU."""

    tensor: dict[FloatDtype, Rate] = {}
    vector: dict[FloatDtype, Rate] = {}
    tensor_int: dict[Literal["int8", "int4"], OpRate] = {}
    exp: OpRate | None = None


class Limits(_Record):
    """What a multiprocessor and a thread block can hold."""

    max_threads_per_multiprocessor: Count | None = None
    max_blocks_per_multiprocessor: Count | None = None
    max_threads_per_block: Count | None = None
    registers_per_multiprocessor: Count | None = None
    max_registers_per_thread: Count | None = None
    warp_size: Count | None = None


class Interconnect(_Record):
    """Links to other devices; bandwidth per direction, summed over the links."""

    name: str
    links: Count | None = None
    bandwidth_per_direction: Bandwidth


class LaunchOverhead(_Record):
    """Time per kernel in a saturated queue, not CPU-to-GPU latency."""

    stream: Duration
    graph: Duration | None = None


class Device(_Record):
    """A device profile. ``memory`` is ordered from the SRAM outwards."""

    schema_version: Literal[1]
    id: str
    name: str
    vendor: str
    architecture: str
    compute_capability: str | None = None
    sources: dict[str, str]
    multiprocessors: Count | None = None
    clocks: Clocks = Clocks()
    memory: list[MemoryLevel]
    peaks: Peaks
    limits: Limits = Limits()
    interconnect: Interconnect | None = None
    launch_overhead: LaunchOverhead | None = None
    tdp: Power | None = None
    notes: list[str] = []

    @model_validator(mode="after")
    def _check_references(self) -> Device:
        for place, quantity in quantities(self):
            if quantity.source not in self.sources:
                raise ValueError(f"{place}: source {quantity.source!r} is not in 'sources' ({', '.join(self.sources)})")
        names = [level.level for level in self.memory]
        if len(set(names)) < len(names):
            raise ValueError(f"memory: a level appears twice in {', '.join(names)}")
        if not names or names[-1] != "dram" or names != sorted(names, key=_ORDER.index):
            raise ValueError("memory: order the levels sram, l2, llc, dram; dram is required")
        return self

    def level(self, name: str) -> MemoryLevel | None:
        """The memory level called ``name``, None if the profile has none."""
        return next((level for level in self.memory if level.level == name), None)

    @cached_property
    def dram(self) -> MemoryLevel:
        """The outermost level."""
        return self.memory[-1]

    @property
    def cache_bytes(self) -> int | None:
        """Capacity of the last cache that the whole device shares; None where there is none or its size is unknown."""
        caches = [level for level in self.memory if level.level in ("l2", "llc") and level.scope == "device"]
        size = caches[-1].capacity if caches else None
        return None if size is None else int(size.number)

    @property
    def sram_per_block(self) -> int:
        """M in bytes: what one thread block can hold. UnavailableError if the profile has none."""
        sram = self.level("sram")
        if sram is None or sram.per_block is None:
            raise UnavailableError(f"{self.id} has no SRAM size per block in its profile", "give one with --sram, such as --sram 163KiB")
        return int(sram.per_block.number)

    def matmul_peak(self, dtype: str, unit: str) -> Quantity:
        """Dense peak of ``unit`` for ``dtype``; UnavailableError lists the formats that the device has."""
        table = self.peaks.tensor if unit == "tensor" else self.peaks.vector
        for name, peak in table.items():
            if name == dtype:
                return peak
        has = [f"{name} ({kind})" for kind, peaks in (("tensor", self.peaks.tensor), ("vector", self.peaks.vector)) for name in peaks]
        raise UnavailableError(f"{self.id} has no {dtype} peak on its {unit} unit", f"it has {', '.join(has)}")

    def rate_at_max_clock(self, peak: Quantity) -> float:
        """What ``peak`` becomes at the device's highest clock; never below the datasheet."""
        if peak.per_clk is None or self.multiprocessors is None or self.clocks.max is None:
            return peak.number
        return max(peak.number, peak.per_clk * self.multiprocessors.number * self.clocks.max.number)


_ORDER = ["sram", "l2", "llc", "dram"]


def quantities(record: BaseModel, place: str = "") -> list[tuple[str, Quantity]]:
    """Every Quantity in ``record`` with its path, such as ``memory.1.capacity``."""
    if isinstance(record, Quantity):
        return [(place, record)]
    found: list[tuple[str, Quantity]] = []
    for name in type(record).model_fields:
        value = getattr(record, name)
        items: list[tuple[str, Any]] = [(name, value)]
        if isinstance(value, dict):
            items = [(f"{name}.{key}", item) for key, item in value.items()]
        elif isinstance(value, list):
            items = [(f"{name}.{index}", item) for index, item in enumerate(value)]
        for key, item in items:
            if isinstance(item, BaseModel):
                found += quantities(item, f"{place}.{key}" if place else key)
    return found
