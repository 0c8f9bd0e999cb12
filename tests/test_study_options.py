"""A study from options, its file and its schema; names with formats; which way is good; what does not fit; progress; short answers."""

from __future__ import annotations

import json
import shlex

import pytest
import yaml

from perfmodel.catalog import find_device, find_model
from perfmodel.commands._progress import ProgressBar
from perfmodel.core.errors import UsageError
from perfmodel.study.described import schema
from perfmodel.study.options import swept
from perfmodel.study.schema import kind_names, read_study, study_names
from perfmodel.sweep.study import WORKLOADS, SweepStudy, workload_named
from perfmodel.validation.compare import device_or_error


@pytest.fixture
def run(run):
    """The command of a line with quotes."""
    return lambda line: run("", *shlex.split(line))


ASKED = "report --attention 'n=1024:65536:x2 d=64 heads=16 batch=8' --hardware h100 --hardware h200"


def test_options_make_a_study_that_its_file_makes_again(run, tmp_path):
    path = tmp_path / "mine.yaml"
    said = run(f"{ASKED} --save-study {path}").out
    assert said == run(f"report {path}").out
    [sweep, roofline] = yaml.safe_load(path.read_text())["study"]["sections"]
    assert (sweep["over"], sweep["values"]) == ("n", [1024 * 2**step for step in range(7)])
    assert [one["attention"]["n"] for one in roofline["workloads"]] == [1024, 8192, 65536]
    assert "does not fit" in said
    assert read_study(str(path)).study.title.startswith("attention, n 1,024 to 65,536")


def test_several_values_are_a_sweep_too():
    workload, over, values = swept("attention", "d=64 n=1024,4096")
    assert (over, values, workload.attention.n) == ("n", [1024, 4096], 1024)
    assert swept("matmul", "8192x128x8192")[1:] == ("", ())


def test_the_schema_knows_what_shipped_studies_say(run):
    printed = json.loads(run("report --schema").out)
    assert printed == schema()
    known = printed["$defs"]
    assert set(kind_names()) <= set(known)
    for name in study_names():
        for section in yaml.safe_load(read_study(name).path.read_text())["study"]["sections"]:
            one = known[section["kind"]]
            assert set(section) <= set(one["properties"]), name
            assert set(one["required"]) <= set(section), name
            for workload in [section.get("workload") or {}, *section.get("workloads", [])]:
                asked = workload.get("attention", {})
                assert set(asked) <= set(known["AttentionQuestion"]["properties"])


def test_a_name_without_its_form_is_the_module():
    assert find_device("h100").id == "nvidia-h100-sxm-80gb"
    with pytest.raises(UsageError, match="could be any of"):
        find_device("a100-pcie")


SHORT = {"a100": "nvidia-a100-sxm-80gb", "NVIDIA-A100": "nvidia-a100-sxm-80gb", "mi300": "amd-mi300x", "mi355": "amd-mi355x"}


@pytest.mark.parametrize(("name", "meant"), SHORT.items())
def test_a_short_name_is_one_device_and_a_note_says_which(run, name, meant):
    outcome = run(f"attention --n 512 --d 64 --hardware {name} --json")
    assert (outcome.code, outcome.json["hardware"]["id"]) == (0, meant)
    assert outcome.err == f"note: {name} is taken as {meant}; --hardware {meant} leaves out this note\n"
    assert run(f"hardware show {name} --json").json["device"]["id"] == meant
    assert meant in run(f"compare {name} h200 --matmul 64x64x64").err
    assert run(f"attention --n 512 --d 64 --hardware {meant}").err == ""


def test_a_record_names_its_device_in_full():
    """A measurement of an A100 may be of any of its cards, and nobody reads a note."""
    assert "may be several devices" in device_or_error("a100", find_device).message
    assert device_or_error("h200", find_device).id == "nvidia-h200-sxm"


def test_no_short_name_is_given_to_another_card(run):
    """An L40 is no L40S: its tensor cores are half as fast."""
    assert "did you mean l40s" in run("attention --n 512 --d 64 --hardware l40").err
    assert run("attention --n 512 --d 64 --hardware l40").code == 2


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_rate_and_every_time_knows_which_way_is_good(name):
    for one in workload_named(name).columns:
        if one.unit == "s" or one.unit.endswith("/s") or one.name in ("fits", "mfu", "max_batch"):
            assert one.better == (-1 if one.unit == "s" else 1), one.name


def test_more_tokens_are_better(run):
    line = "sweep model --model llama-3-8b --batch 1,8,64 --kv-len 2048 --phase decode --hardware h200"
    rows = run(f"{line} --maximize tokens_per_s --json").json
    best = [row["tokens_per_s"] for row in rows["maximize"]["rows"]]
    assert best == sorted(best, reverse=True)
    assert len(run(f"{line} --pareto tpot_s,tokens_per_s --json").json["pareto"]["rows"]) == 3
    with pytest.raises(UsageError, match="more of it is better"):
        SweepStudy("model", {"model": "llama-3-8b"}, minimize="tokens_per_s").complete()


def test_a_sweep_marks_what_does_not_fit(run, tmp_path):
    line = "sweep attention --n 4096,65536 --d 64 --heads 16 --batch 8 --algorithm standard,flash2 --hardware h200"
    found = run(f"{line} --json").json
    assert {(row["algorithm"], row["n"]): row["fits"] for row in found["rows"]}["standard", 65536] == 0
    assert "1 does not fit the memory" in found["verdict"][-1]
    page = tmp_path / "x.svg"
    run(f"{line} -o {page}")
    assert "does not fit" in page.read_text()


def test_a_bar_waits_a_second_and_reads_numbers(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with ProgressBar(lambda: now[0]) as bar:
        bar("1/4 a case")
        assert bar.rich is None
        now[0] = 2.0
        bar("2/4 another")
        assert bar.rich is not None
        assert bar.share == 0.5
    assert "another" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "meant"), [("rtx4090", "nvidia-rtx-4090"), ("H100PCIe", "nvidia-h100-pcie-80gb"), ("m3max", "apple-m3-max")]
)
def test_two_words_of_a_name_may_be_written_as_one(name: str, meant: str) -> None:
    assert find_device(name).id == meant
    assert find_model("llama3-8b") == find_model("llama-3-8b")
