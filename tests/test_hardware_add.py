"""Profiles of cards that are not shipped, made of what is given and of the device nearest to them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from each import each

from perfmodel import catalog
from perfmodel.core import sanity
from perfmodel.core.custom_device import FIELDS, USER, device_like
from perfmodel.core.device_scaling import REFERENCE
from perfmodel.core.hardware import Device, Microbenchmark, named_quantities

CARD = "hardware add my-card --like l4 --dram-bandwidth 432GB/s --dram-capacity 32GiB --sms 76 --clock 2.2GHz"
DEVICES = [catalog.find_device(name) for name in catalog.device_ids()]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def numbers(device: Device) -> dict[str, float]:
    return {place: quantity.number for place, quantity in named_quantities(device)}


def test_the_profile_is_sound_and_answers(run) -> None:
    made = run(CARD)
    assert (made.code, made.err) == (0, ""), made
    assert "--hardware my-card.yaml" in made.out
    assert "is sound" in run("hardware check my-card.yaml").out
    attention = json.loads(run("attention --n 4096 --d 64 --heads 16 --hardware my-card.yaml --json").out)
    assert attention["hardware"]["id"] == "my-card"
    assert "predicted" in run("attention --n 4096 --d 64 --heads 16 --hardware my-card.yaml").out
    lines = [f"matmul -m 1 -n 8192 -k 8192 --hardware {name} --json" for name in ("l4", "my-card.yaml")]
    slow, fast = (json.loads(run(line).out)["results"][0]["time_s"]["lower"] for line in lines)
    assert slow / fast == pytest.approx(432 / 300.05, rel=1e-3), "DRAM decides"
    assert "432" in run("roofline --matmul 512x512x512 --hardware my-card.yaml --full").out


def test_rates_go_with_clock_and_multiprocessors_and_nothing_measured_is_taken(run) -> None:
    run(CARD)
    reference, made = catalog.find_device("l4"), catalog.load_device(Path("my-card.yaml"))
    found, its = numbers(made), numbers(reference)
    more = 76 / 58 * 2200 / 2040
    assert found["multiprocessors"] == 76
    for place in ("peaks.tensor.fp16", "peaks.tensor_int.int8", "peaks.vector.fp32", "peaks.exp", "memory.sram.bandwidth"):
        assert found[place] == pytest.approx(its[place] * more, rel=1e-5), place
    assert found["clocks.max"] == 2.2e9
    assert found["memory.l2.capacity"] == its["memory.l2.capacity"]
    assert its.keys() - found.keys() == {"clocks.base", "launch_overhead.stream", "launch_overhead.graph"}
    origin = {place: quantity.source for place, quantity in named_quantities(made)}
    given = {"multiprocessors", "clocks.vector", "memory.dram.bandwidth", "memory.dram.capacity"}
    assert {place for place, source in origin.items() if source == USER} == given
    assert {source for place, source in origin.items() if place not in given} == {REFERENCE}
    assert [made.calibration, made.microbenchmarks, made.power] == [[], [], None]


def test_other_peaks_of_the_unit_follow_one_that_is_given() -> None:
    reference = catalog.find_device("l40s")
    found, its = numbers(device_like(reference, "half", {"fp16": "181 TFLOP/s"})), numbers(reference)
    share = 181 / 362.05
    for place in ("peaks.tensor.bf16", "peaks.tensor.fp8", "peaks.tensor_int.int8"):
        assert found[place] == pytest.approx(its[place] * share, rel=1e-5), place
    assert found["peaks.vector.fp32"] == its["peaks.vector.fp32"]
    assert found["memory.l2.measured_bandwidth"] == its["memory.l2.measured_bandwidth"], "no unit of the L2"


@each("reference", DEVICES)
def test_every_device_lends_a_sound_profile(reference: Device) -> None:
    """Alone with a bandwidth, and with fewer multiprocessors at a lower clock; what is given reads back as it was."""
    bandwidth = reference.dram.bandwidth_bytes_per_s
    assert bandwidth is not None
    given: dict[str, str | int] = {"dram_bandwidth": f"{bandwidth * 0.8:.0f} B/s"}
    slower = {"sms": max(1, int(reference.multiprocessors.number * 0.9))} if reference.multiprocessors else {}
    slower |= {"clock": f"{reference.clocks.vector.number * 0.9:.0f} Hz"} if reference.clocks.vector else {}
    for more in ({}, slower):
        made = device_like(reference, "my-card", given | more)
        assert sanity.check(made) == []
        assert (made.interconnect is None) == (reference.interconnect is None)
        assert made.interconnect is None or made.interconnect.mesh == reference.interconnect.mesh  # type: ignore[union-attr]
        assert set(made.sources) == {quantity.source for _, quantity in named_quantities(made)}
        assert numbers(made)["memory.dram.bandwidth"] == pytest.approx(bandwidth * 0.8, rel=1e-6)
        assert not [place for place, quantity in named_quantities(made) if quantity.kind == "measured"]


@pytest.mark.parametrize("name", ["l4", "l40s", "a10", "h100-pcie", "rtx-5090", "h200", "b200", "a100-sxm-80gb", "rtx-3090", "tpu-v6e"])
def test_the_same_card_again_takes_the_same_time(run, name: str) -> None:
    """Given a bandwidth that rounds to the reference's: what was measured on the reference carries over."""
    bandwidth = catalog.find_device(name).dram.bandwidth_bytes_per_s
    run(f"hardware add again --like {name} --dram-bandwidth {bandwidth * 0.9995:.0f}B/s")
    attention = "attention --n 4096 --d 64 --heads 16 --batch 8" + " --implementation fa2" * (name == "b200")  # its fastest is borrowed
    for line in ("matmul -m 4096 -n 4096 -k 4096", attention, "model llama-3.2-1b --phase decode"):
        card, again = (json.loads(run(f"{line} --json --hardware {one}").out) for one in (name, "again.yaml"))
        for one, other in zip(card.get("results", [card.get("totals")]), again.get("results", [again.get("totals")]), strict=True):
            assert other["time_s"]["predicted"] == pytest.approx(one["time_s"]["predicted"], rel=5e-3), line


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"dram_capacity": "20 GB"}, {"launch", "DRAM", "matmul"}),
        ({"dram_bandwidth": "400 GB/s"}, {"launch", "matmul"}),
        ({"tdp": "90 W"}, {"launch", "DRAM"}),
        ({"clock": "1800 MHz"}, {"DRAM"}),
    ],
)
def test_what_was_measured_carries_over_where_it_depends_on_nothing_given(given: dict[str, str], kept: set[str]) -> None:
    launched = Microbenchmark("launch, stream", "3 us", 0.0, 1, "whitepaper", "2026-01-01")
    reference = catalog.find_device("l4")
    made = device_like(replace(reference, microbenchmarks=[*reference.microbenchmarks, launched]), "my-card", given)
    assert {probe.name.split()[0].strip(",") for probe in made.microbenchmarks} == kept
    assert {probe.source for probe in made.microbenchmarks} == {REFERENCE}


def test_a_file_that_is_there_is_replaced_if_told_to(run) -> None:
    Path("mine.yaml").write_text("mine")
    refused = run("hardware add my-card --like l4 --tdp 90W -o mine.yaml")
    assert refused.code == 2
    assert "mine.yaml is there already" in refused.err
    assert "--force" in refused.err
    assert Path("mine.yaml").read_text() == "mine"
    assert run("hardware add my-card --like l4 --tdp 90W -o mine.yaml --force").code == 0
    assert catalog.load_device(Path("mine.yaml")).id == "my-card"


def test_every_option_of_the_command_is_a_field(run) -> None:
    shown = run("hardware add --help").out
    assert all(f"--{option.replace('_', '-')} " in shown for option in FIELDS)
    assert len(shown.splitlines()) <= 50
