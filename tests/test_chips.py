"""Devices with one chip, the clocks of bounds and roofs, and measurements that come nearest to a bound."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, groupby, product
from pathlib import Path

import pytest
from each import each

from perfmodel.catalog import device_ids, find_device
from perfmodel.core.cost import Kernel, Tile
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.hardware import Device, quantities
from perfmodel.core.roofline import estimate, rates_of, total
from perfmodel.core.sanity import CLOCK_TOLERANCE
from perfmodel.core.units import Quantity
from perfmodel.core.workload import Attention
from perfmodel.kernels.attention.algorithms import find
from perfmodel.kernels.matmul import Matmul
from perfmodel.validation.compare import RecordRow, compare_files

DEVICES = [find_device(name) for name in device_ids()]
BY_CHIP = sorted((device for device in DEVICES if device.chip), key=lambda device: str(device.chip))
PAIRS = [pair for _, group in groupby(BY_CHIP, key=lambda device: device.chip) for pair in combinations(group, 2)]
WHOLE = [(a, b) for a, b in PAIRS if a.multiprocessors and b.multiprocessors and a.multiprocessors.number == b.multiprocessors.number]
"""Pairs of which neither has more of the chip switched on."""


def geforce(device: Device) -> bool:
    return "GeForce" in device.name


ALIKE = [(a, b) for a, b in WHOLE if geforce(a) == geforce(b)]
"""Those with one tensor rate per clock: GeForce parts halve it."""


def test_architectures_that_name_a_chip_have_it() -> None:
    """Two NVIDIA profiles of one die cannot miss each other: the die is the last word of the architecture, GL on professional boards."""
    own = [device for device in DEVICES if device.vendor == "NVIDIA"]
    assert {device.id for device in own if device.architecture.split()[-1].removesuffix("GL") != device.chip} == set()
    assert {frozenset((a.id, b.id)) for a, b in PAIRS} >= {
        frozenset(("nvidia-h100-sxm-80gb", "nvidia-h200-sxm")),
        frozenset(("nvidia-a100-sxm-40gb", "nvidia-a100-sxm-80gb")),
        frozenset(("nvidia-b200-sxm", "nvidia-gb200")),
        frozenset(("amd-mi300x", "amd-mi325x")),
    }


@each("pair", PAIRS)
def test_one_chip_has_one_rate_per_clock_and_multiprocessor(pair: tuple[Device, Device]) -> None:
    """GeForce parts of a die multiply with FP32 accumulate at half its rate."""
    a, b = ({place: q.per_clk for place, q in quantities(device) if q.per_clk is not None} for device in pair)
    halved = geforce(pair[0]) != geforce(pair[1])
    same = {place for place in a.keys() & b.keys() if not (halved and place.startswith("peaks.tensor"))}
    assert {place: a[place] for place in same} == {place: b[place] for place in same}
    assert all((device.peaks.exp is None) == (pair[0].peaks.exp is None) for device in pair)


@each("pair", WHOLE)
def test_what_was_measured_on_one_is_lent_to_the_other(pair: tuple[Device, Device]) -> None:
    """On-chip bandwidths, nominal and measured, at each one's clock; DRAM and L2 capacity are the board's own."""
    for name in ("sram", "l2"):
        for field in ("bandwidth", "measured_bandwidth"):
            per_clock = []
            for device in pair:
                level, clock = device.level(name), device.clocks.vector
                rate = getattr(level, field) if level else None
                per_clock.append(None if rate is None or clock is None else rate.number / clock.number)
            first, second = per_clock
            assert first == (None if second is None else pytest.approx(second, rel=1e-3)), (name, field)


def named(device: Device) -> dict[str, Quantity]:
    """Every number by its field, memory levels by name."""
    levels = {f"memory.{index}": level.level for index, level in enumerate(device.memory)}
    return {
        next((place.replace(start, name) for start, name in levels.items() if place.startswith(start)), place): q
        for place, q in quantities(device)
    }


def test_what_is_lent_says_from_where() -> None:
    lent = [
        (device, place, quantity) for device in DEVICES for place, quantity in named(device).items() if quantity.measured_on is not None
    ]
    assert len(lent) >= 10
    for device, place, quantity in lent:
        lender = find_device(str(quantity.measured_on))
        assert lender.chip == device.chip, (device.id, place)
        assert named(lender)[place].measured_on is None, "what is lent was measured there"


def questions(dtype: str) -> list[list[Kernel]]:
    half, found = DTYPES[dtype], []
    for m, n, k in product((16, 256, 4096), (256, 1024, 8192), (128, 1024, 8192)):
        found.append(Matmul(m, n, k, dtype=half).kernels(Tile(128, 128)))
    for n in (256, 1024, 4096):
        w = Attention(n=n, kv_len=n, d=64, dv=64, heads=16, kv_heads=16, batch=4, dtype=half)
        found += [find(name).forward(w, Tile(64, 64)) for name in ("standard", "flash1", "flash2")]
    return found


@each("pair", ALIKE)
def test_one_question_has_one_bound_on_one_chip(pair: tuple[Device, Device]) -> None:
    """Unless DRAM decides, whose bandwidth is the board's: on-chip terms stand to each other as on the other device."""
    compared = 0
    for kernels in questions("bf16" if all("bf16" in device.peaks.tensor for device in pair) else "fp16"):
        for kernel in kernels:
            a, b = (estimate(kernel, device) for device in pair)
            chips = [{name: term for name, term in cost.terms.items() if name != "dram"} for cost in (a, b)]
            if a.bound == b.bound == "dram" or not all(chips) or chips[0].keys() != chips[1].keys():
                continue
            compared += 1
            assert max(chips[0], key=chips[0].__getitem__) == max(chips[1], key=chips[1].__getitem__)
            assert a.bound == b.bound or "dram" in (a.bound, b.bound)
    assert compared


@each("device", [device for device in DEVICES if device.clocks.vector])
def test_all_roofs_of_a_question_use_one_clock(device: Device) -> None:
    """Rates per clock are those of the profile, whichever clock each was stated at."""
    vector = device.clocks.vector
    assert vector is not None
    for name in sorted({*device.peaks.tensor, *device.peaks.vector} & DTYPES.keys()):
        dtype = DTYPES[name]
        unit = device.matmul_unit(name, dtype.matmul_unit)
        rates, clock = rates_of(device, dtype), device.stated_clock(name, unit)
        if clock is None:
            continue
        peak, count = device.peaks_of(unit)[name], device.multiprocessors
        if peak.per_clk is not None and count is not None:
            assert rates.matmul / clock.number == pytest.approx(peak.per_clk * count.number, rel=CLOCK_TOLERANCE)
        l2 = device.level("l2")
        stated = {"vector": device.peaks.vector.get("fp32"), "sfu": device.peaks.exp, "l2": l2 and (l2.bandwidth or l2.measured_bandwidth)}
        for what, quantity in stated.items():
            if quantity is not None:
                assert getattr(rates, what) / clock.number == pytest.approx(quantity.number / vector.number)


def test_the_bound_uses_the_highest_clocks() -> None:
    for device in DEVICES:
        clocks = [clock.number for clock in (device.clocks.tensor, device.clocks.vector) if clock]
        assert device.clocks.max is None or device.clocks.max.number >= max(clocks, default=0)
        if geforce(device):
            assert getattr(device.clocks.max, "number", 0) > max(clocks), "boost goes beyond what is advertised"
        assert device.best_dram_rate == max(rate.number for rate in (device.dram.bandwidth, device.dram.max_bandwidth) if rate)
    h200 = find_device("nvidia-h200-sxm")
    read = total(estimate(kernel, h200) for kernel in Matmul(1, 8192, 8192).kernels(Tile(128, 128)))
    assert read.lower_s == pytest.approx(2 * (8192**2 + 2 * 8192) / (3201e6 * 2 * 6144 / 8))


# Measurements

NEAREST = Path(__file__).parent / "data" / "nearest_to_the_bound.jsonl"


def rows(clocks: str = "max") -> list[RecordRow]:
    """Compared at the highest clocks, or at the advertised ones."""

    def device(name: str) -> Device:
        found = find_device(name)
        return found if clocks == "max" else replace(found, clocks=replace(found.clocks, max=found.clocks.tensor))

    return compare_files([NEAREST], device)


def test_no_measurement_beats_its_bound() -> None:
    """The nearest of 5,138 public rows of four devices: none is over, and the bound is no idle one."""
    found = rows()
    assert {row.record.hardware for row in found} == {"nvidia-rtx-3090", "nvidia-l4", "nvidia-t4", "nvidia-a100-pcie-40gb"}
    assert [row.record.shape for row in found if row.violates] == []
    for name in {row.record.hardware for row in found}:
        assert 0.75 < max(row.share_of_bound or 0 for row in found if row.record.hardware == name) <= 1


def test_at_the_advertised_clock_some_would() -> None:
    assert {row.record.hardware for row in rows("advertised") if row.violates} == {"nvidia-rtx-3090"}
