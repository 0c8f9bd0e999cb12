"""The shipped device profiles: schema, sanity rules, and every number against the recorded facts.

``data/hardware_facts.json`` holds, per device and field, the published value in base units. A memory size printed in GB is
recorded as the binary size that it means, a driver's figure where one was read, bandwidth as memory clock x bus where known.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from each import each
from tables import table

from perfmodel import catalog
from perfmodel.core import sanity
from perfmodel.core.errors import UsageError
from perfmodel.core.files import read_yaml
from perfmodel.core.hardware import Device, quantities
from perfmodel.core.sanity import validated

FOLDER = catalog.data_folder("hardware_specs")
IDS = catalog.device_ids()
FACTS: dict[str, dict[str, float]] = json.loads((Path(__file__).parent / "data" / "hardware_facts.json").read_text())
TOLERANCE = 1e-3

RECORDED = [name for name in IDS if name in FACTS]
"""Profiles with recorded facts: all but those that were added since."""

# (device, field): why the profile departs from the recorded value
DELIBERATE = {
    ("nvidia-v100-sxm-32gb", "memory.sram.measured_bandwidth"): "recorded 13.87 TB/s is of a PCIe card at 1380 MHz, and this runs at 1530",
    ("nvidia-v100-sxm-32gb", "memory.l2.measured_bandwidth"): "recorded 2.4 TB/s is of a PCIe card at 1380 MHz, and this runs at 1530",
    ("nvidia-a10", "peaks.vector.fp64"): "recorded from one database; compute capability 8.6 does 4 FLOP/clk/SM, half of it",
    ("nvidia-b300-sxm", "peaks.tensor.fp4"): "recorded 14 PFLOP/s is rounded; HGX B300 prints 108 PFLOP/s for 8, 6 x FP16",
    ("nvidia-gh200-96gb", "memory.l2.measured_bandwidth"): "recorded 10.9 TB/s is on 3 MB and helped by L1; the H200's 9.7 is not",
    ("amd-mi325x", "memory.dram.capacity"): "recorded 252 GiB comes from a description under another part's name; the vendor has 256",
    ("amd-epyc-9654", "peaks.tensor_int.int8"): "VNNI is a vector instruction; the schema has no integer vector peak",
}


@cache
def device(name: str) -> Device:
    return catalog.load_device(FOLDER / f"{name}.yaml")


def values(profile: Device) -> dict[str, float]:
    """Every number of a profile by its field, memory levels by name."""
    found: dict[str, float] = {}
    for place, quantity in quantities(profile):
        parts = place.split(".")
        if parts[0] == "memory":
            parts[1] = profile.memory[int(parts[1])].level
        found[".".join(parts)] = quantity.number
    if profile.peaks.exp is not None and profile.peaks.exp.per_clk is not None:
        found["peaks.exp.per_clk"] = profile.peaks.exp.per_clk
    return found


def departures(name: str, found: dict[str, float]) -> set[str]:
    """Fields whose value is not the recorded one, or that only one side has."""
    recorded = FACTS[name]
    same = {field for field in found.keys() & recorded.keys() if found[field] == pytest.approx(recorded[field], rel=TOLERANCE, abs=0)}
    return (found.keys() | recorded.keys()) - same


def changed(name: str, changes: dict[str, Any]) -> Device:
    """The profile with values replaced; None removes. A path part that names a memory level finds it."""
    raw, _ = read_yaml(FOLDER / f"{name}.yaml")
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = raw
        for part in parents:
            place = next(level for level in place if level["level"] == part) if isinstance(place, list) else place[part]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return validated(raw)


# The shipped set


def test_all_devices_have_a_profile() -> None:
    assert len(FACTS) == 41
    assert sorted(FACTS) == RECORDED


@each("name", IDS)
def test_id_is_the_file_name_and_finds_the_device(name: str) -> None:
    """In any spelling of its words."""
    for spelled in (name, name.upper(), name.replace("-", "_"), name.replace("_", "-"), name.replace("-", " ")):
        assert catalog.find_device(spelled).id == device(name).id == name


@each("name", IDS)
def test_profile_is_sane(name: str) -> None:
    assert sanity.check(device(name)) == []


@each("name", IDS)
def test_every_source_is_cited(name: str) -> None:
    own = device(name)
    assert set(own.sources) == {quantity.source for _, quantity in quantities(own)} | {
        block.source for block in [*own.microbenchmarks, *own.calibration, *([own.power] if own.power else [])]
    }


@each("name", IDS)
def test_rate_per_clock_is_an_architectural_number(name: str) -> None:
    for place, quantity in quantities(device(name)):
        if quantity.per_clk is not None:
            assert place.startswith("peaks.")
            odd = quantity.per_clk // (quantity.per_clk & -quantity.per_clk)
            assert odd == (3 if place == "peaks.tensor.fp4" and device(name).compute_capability == "10.3" else 1), place


# Values


@each("name", RECORDED)
def test_values_are_the_recorded_facts(name: str) -> None:
    assert departures(name, values(device(name))) == {field for known, field in DELIBERATE if known == name}


@each("name", RECORDED)
def test_a_change_of_one_percent_in_any_value_is_noticed(name: str) -> None:
    found = values(device(name))
    for field in found.keys() & FACTS[name].keys() - {field for known, field in DELIBERATE if known == name}:
        assert field in departures(name, found | {field: found[field] * 1.01})


def test_a_mistyped_value_in_a_file_is_noticed(tmp_path: Path) -> None:
    text = (FOLDER / "nvidia-h200-sxm.yaml").read_text()
    assert text.count("value: 4.8 TB/s") == 1
    mistyped = tmp_path / "mistyped.yaml"
    mistyped.write_text(text.replace("value: 4.8 TB/s", "value: 4.848 TB/s"))
    assert departures("nvidia-h200-sxm", values(catalog.load_device(mistyped))) == {"memory.dram.bandwidth"}


def test_a_left_out_value_is_noticed() -> None:
    assert departures("nvidia-l4", values(changed("nvidia-l4", {"tdp": None}))) == {"tdp"}


# Sanity rules


BROKEN: dict[str, list[tuple[str, dict[str, Any], str]]] = table("broken_profiles")


@each(("rule", "name", "changes", "words"), [(rule, *row) for rule, rows in BROKEN.items() for row in rows])
def test_broken_profile_is_told(rule: str, name: str, changes: dict[str, Any], words: str) -> None:
    broken = changed(name, changes)
    told = getattr(sanity, rule)(broken)
    assert any(words in message for message in told), told
    assert set(told) <= set(sanity.check(broken))


@pytest.mark.parametrize(("dtype", "dense"), [("bf16", 1), ("fp8", 2), ("tf32", 0.5)])
@pytest.mark.parametrize(("more", "told"), [(1.025, False), (1.035, True)])
def test_peaks_may_be_rounded_by_three_percent(dtype: str, dense: float, more: float, told: bool) -> None:
    """132 multiprocessors of 4096 FLOP a clock at 1830 MHz are 989.4 TFLOP/s."""
    value = f"{989.4 * dense * more:.2f} TFLOP/s"
    other = changed("nvidia-h200-sxm", {f"peaks.tensor.{dtype}.value": value, f"peaks.tensor.{dtype}.per_clk": None})
    assert [message.split(":")[0] for message in sanity.check(other)] == [f"peaks.tensor.{dtype}"] * told


def test_a_part_limited_for_export_is_below_its_chip_and_sound() -> None:
    """Without a rate per clock a peak may be lower than the chip's; higher is still told."""
    h20, limits = device("nvidia-h20-sxm-96gb"), {"peaks.tensor.bf16.per_clk": 4096}
    assert sanity.fp16_peak_is_dense(h20) == []
    assert "expected 4096 dense" in sanity.fp16_peak_is_dense(changed("nvidia-h20-sxm-96gb", limits))[0]
    assert "sparse" in sanity.fp16_peak_is_dense(changed("nvidia-h20-sxm-96gb", {"peaks.tensor.bf16.value": "1.2 PFLOP/s"}))[0]


def test_each_rule_has_a_broken_profile() -> None:
    assert {rule.__name__ for rule in sanity.RULES} == set(BROKEN)


def test_rules_stay_silent_where_values_are_unknown() -> None:
    bare = {"schema_version": 1, "id": "x", "name": "X", "vendor": "NVIDIA", "architecture": "?", "sources": {}, "peaks": {}}
    assert sanity.check(validated({**bare, "memory": [{"level": "dram", "scope": "device", "name": "?"}]})) == []


# Finding a profile


@pytest.mark.parametrize(("name", "found"), table("short_name_finds_one_device"))
def test_short_name_finds_one_device(name: str, found: str) -> None:
    assert catalog.find_device(name).id == found


def test_ambiguous_name_lists_the_candidates() -> None:
    with pytest.raises(UsageError, match="any of 2 devices") as raised:
        catalog.find_device("a100-pcie")
    assert "nvidia-a100-pcie-40gb, nvidia-a100-pcie-80gb" in str(raised.value)


def test_of_one_module_and_its_cards_the_module_is_meant() -> None:
    assert catalog.find_device("a100-80gb").id == "nvidia-a100-sxm-80gb"


def test_unknown_name_suggests_near_ones() -> None:
    with pytest.raises(UsageError, match="no device is called 'nvidia-h201-sxm'") as raised:
        catalog.find_device("nvidia-h201-sxm")
    assert "did you mean nvidia-h200-sxm" in str(raised.value)


@each("name", catalog.device_ids())
def test_trusted_profiles_are_the_validated_ones(name: str) -> None:
    """Shipped profiles are read without checks; the result is the same object that the checks accept."""
    assert catalog.find_device(name) == catalog.load_device(catalog.data_folder("hardware_specs") / f"{name}.yaml")
