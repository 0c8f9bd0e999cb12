"""What a screen says first: at most three sentences, a meter per resource, the rows that decide; pictures and how a file was made."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from tables import table

from perfmodel import __version__
from perfmodel.core.hardware import Device
from perfmodel.report.answer import few_blocks, limit_sentence, slow_start
from perfmodel.report.charts.chart_tables import numbers
from perfmodel.report.charts.schema import Bar, BarChart
from perfmodel.report.document import Meter, Report, captioned
from perfmodel.report.formats.svg import scene, size_of
from perfmodel.report.formats.txt import title_lines
from perfmodel.report.metrics import Metric, as_table

BIG = "attention --n 4096 --d 64 --heads 16 --batch 8 --hardware h200"
LINES = [
    "attention --n 4096 --d 64",
    BIG,
    "matmul -m 8192 -n 128 -k 8192",
    "matmul -m 4096 -n 4096 -k 4096 --dtype bf16 --hardware h200",
    "softmax --rows 4096 --cols 32768",
    "mlp --batch 4096 --d-in 1024 --d-hidden 4096 --d-out 1024",
    "fuse --elements 1048576 --ops 30",
    "recompute --bytes 64MiB --flops 10GFLOP",
    "occupancy --threads 256 --registers 64 --sram 48KiB --stride 2",
    "hardware show h200",
]
NUMBER = re.compile(r"\d")


@pytest.mark.parametrize("line", [line for line in LINES if not line.startswith("hardware")])
def test_every_resource_has_a_meter(run, line: str) -> None:
    said = run(line).out
    assert "\nshare of the " in said
    meters = re.findall(r"^(.+?)  [█·]{20} +(<?\d+)%", said, re.MULTILINE)
    assert len(meters) >= 2
    assert len({name for name, _ in meters}) == len(meters)


@pytest.mark.parametrize(
    "line",
    [
        "attention --n 131072 --d 64 --heads 16 --batch 8 --algorithm standard",
        "attention --n 16777216 --d 128 --heads 128 --batch 8",
        "matmul -m 400000 -n 400000 -k 4096",
        "mlp --batch 40000000 --d-in 1024 --d-hidden 4096 --d-out 1024",
        "softmax --rows 4000000 --cols 32768",
    ],
)
def test_what_does_not_fit_says_so_first_and_marks_its_time(run, line: str) -> None:
    said = run(line).out.splitlines()
    assert re.match(r"Does not fit(; |: (standard|flash2) needs [\d.]+ TB of 85\.1 GB\.$)", said[1])
    assert re.match(r"If it fitted: (predicted [\d,.]+ s |not predicted; roof )", said[2])


# What limits


def meter(name: str, share: float) -> Meter:
    return Meter(name, share)


@pytest.mark.parametrize(("meters", "causes", "said"), table("what_limits_is_said_in_true_words"))
def test_what_limits_is_said_in_true_words(meters, causes, said: str) -> None:
    assert limit_sentence([meter(*one) for one in meters], causes) == said


def test_a_resource_without_a_known_rate_may_be_the_busy_one() -> None:
    assert limit_sentence([meter("tensor unit", 0.17)], unknown={"l2"}) == "Nothing whose rate is known is over 17% busy"


def test_at_a_roof_what_it_leaves_out_leads() -> None:
    assert limit_sentence([meter("tensor unit", 0.96)], roof=True) == "Limited by the tensor unit, 96% of the roof"
    assert limit_sentence([meter("tensor unit", 1.0)], ["the launch"], roof=True) == "Limited by the launch, left out of the roof"


@pytest.mark.parametrize("line", ["softmax --rows 8 --cols 512", "attention --n 8192 --d 64 --heads 16 --algorithm memory-efficient"])
def test_no_meter_limits_where_the_roof_leaves_out_what_does(run, line: str) -> None:
    said = run(line).out
    assert ", left out of the roof." in said
    assert "< limits" not in said


def test_nearly_as_many_blocks_as_multiprocessors_are_no_cause(run, h200: Device) -> None:
    assert few_blocks(98, h200)
    assert few_blocks(99, h200) == []
    line = "attention --n 1024 --d 64 --heads {} --algorithm flash1 --hardware h100-sxm --json"
    assert run(line.format(128)).json["verdict"][2] == "Limited by DRAM bandwidth, at the roof."
    assert run(line.format(64)).json["verdict"][2] == "Too small: 64 blocks for 132 SMs, left out of the roof."


def test_a_long_title_breaks_before_the_device() -> None:
    title = "Attention forward: batch 8, heads 16, n 4096, d 64, fp16 on NVIDIA A100 SXM 80 GB"
    assert title_lines(title, 80) == ["Attention forward: batch 8, heads 16, n 4096, d 64, fp16", "on NVIDIA A100 SXM 80 GB"]
    assert title_lines(title, 90) == [title]


def test_a_picture_below_the_verdict_does_not_repeat_it() -> None:
    chart = BarChart("times", "s", [Bar("a", [("t", 1.0)])], caption="Fused is 2x faster.")
    report = Report("x", ["Fits; fused is 2x faster.", "Predicted 1 s."], [], charts=[chart, chart])
    assert [one.caption for one in captioned(report)] == ["", "Fused is 2x faster."]


def test_unknown_counts_make_no_cause(h200: Device) -> None:
    assert few_blocks(0, h200) == []
    assert slow_start(None) == []


@pytest.fixture
def h200() -> Device:
    from perfmodel.catalog import find_device

    return find_device("h200")


# Rows


def test_a_row_without_the_one_above_it_names_it() -> None:
    metrics = [Metric("a", 1, "accesses"), Metric("b", 2, "  in bytes"), Metric("c", 3, "  zero fill"), Metric("d", 4, "time")]
    labels = [row[0] for row in as_table("", {"x": metrics}, labels=("d", "b", "c")).rows]
    assert labels == ["time", "accesses, in bytes", "  zero fill"]
    assert [row[0] for row in as_table("", {"x": metrics}, labels=("a", "b")).rows] == ["accesses", "  in bytes"]


# SRAM


@pytest.mark.parametrize("line", ["attention --n 4096 --d 64", "matmul -m 512 -n 512 -k 512", "occupancy --threads 256"])
def test_dram_is_no_sram(run, line: str) -> None:
    outcome = run(f"{line} --sram 80GB")
    assert outcome.code == 2
    assert "--sram is 80000000000 B, more than a block on nvidia-a100-sxm-80gb can have" in outcome.err
    assert "at most 166912 B" in outcome.err
    assert run(f"attention --n 4096 --d 64 --sram 192KiB --sram 1MiB --sram {160 * 1024}B").code == 0  # what more would buy


# Files


def asked_by(line: str, folder: Path, run, *suffixes: str) -> dict[str, str]:
    files = [folder / f"x.{suffix}" for suffix in suffixes]
    words = shlex.split(line)
    outcome = run(words[0], *words[1:], *(word for file in files for word in ("-o", str(file))), "--full")
    assert (outcome.code, outcome.err) == (0, "")
    return {file.suffix: file.read_text() for file in files}


@pytest.mark.parametrize("line", LINES)
def test_every_file_says_how_it_was_made_and_shows_a_picture(run, tmp_path: Path, line: str) -> None:
    found = asked_by(line, tmp_path, run, "txt", "md", "html", "svg", "json")
    made = json.loads(found[".json"])["provenance"]
    assert made["command"] == f"perfmodel {line}"
    assert made["version"] == __version__
    [profile] = made["profiles"]
    assert len(profile["sha256"]) == 64
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", profile["calibrated"])
    for suffix in (".txt", ".md", ".html", ".svg"):
        text = found[suffix]
        assert all(word in text for word in (f"perfmodel {line}", profile["id"], profile["sha256"][:12], profile["calibrated"])), suffix
    assert '<svg class="picture"' in found[".html"]
    verdict = json.loads(found[".json"])["verdict"]
    for text in (found[".txt"], found[".md"].replace("\\", ""), found[".html"]):
        assert all(NUMBER.split(sentence)[0].split("'")[0] in text for sentence in verdict)


def test_a_profile_of_ones_own_is_named_with_its_hash(run, tmp_path: Path) -> None:
    from hashlib import sha256

    from perfmodel.catalog import data_folder

    path = tmp_path / "mine.yaml"
    path.write_text((data_folder("hardware_specs") / "nvidia-h200-sxm.yaml").read_text().replace("id: nvidia-h200-sxm", "id: mine"))
    found = asked_by(f"attention --n 512 --d 64 --hardware {path}", tmp_path, run, "json")
    [profile] = json.loads(found[".json"])["provenance"]["profiles"]
    assert (profile["id"], profile["sha256"]) == ("mine", sha256(path.read_bytes()).hexdigest())


def test_an_interval_is_drawn_and_in_the_table() -> None:
    chart = BarChart(
        "times", "s", [Bar("flash2", [("roof", 1e-3), ("beyond its roof", 1e-3)], 1.8e-3, 2.4e-3), Bar("none", [("roof", 1e-3)])]
    )
    drawn = scene(chart, size_of(chart))
    assert sum(getattr(shape, "role", "") == "interval" for shape in drawn.children) == 3
    assert "2 ms (1.8 to 2.4 ms)" in drawn.description
    assert [(column.key, column.low, column.high) for column in numbers(chart).columns][3] == ("total", "low", "high")
    assert numbers(chart).rows[0][-3:] == [2e-3, 1.8e-3, 2.4e-3]


def test_bandwidths_of_a_list_are_in_one_unit(run) -> None:
    rows = re.findall(r"^[a-z]+-\S+ +\S+ GiB +(.+?/s) ", run("hardware list --full").out, re.MULTILINE)
    assert len(rows) >= 40
    assert all(re.fullmatch(r"[\d.]+ TB/s", row) for row in rows), rows
    names = re.findall(r"[\w-]+-?\w*(?=\*?,|\*?  )", run("hardware list").out)
    assert len(names) >= 40  # all of them, by maker
