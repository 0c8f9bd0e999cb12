"""``perfmodel compare``: reports, printed objects, devices, algorithms and implementations, before and after."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tables import table

from perfmodel.report.compare import BETTER, FASTER, LESS, MORE, SAME, SLOWER, WORSE, Compared, MetricComparison, changes
from perfmodel.report.document import SCHEMA, from_data
from perfmodel.report.metrics import Metric, unit_by_name
from perfmodel.report.saved_metrics import LEFT_OUT, NAMES, metrics_of
from perfmodel.sweep.study import WORKLOADS, workload_named
from tools.refresh.answers import kept, lines

ATTENTION = "n=4096 d=64 heads=16 batch=8"


def comparison(before: Sequence[Metric], after: Sequence[Metric]) -> MetricComparison:
    return MetricComparison(Compared("a", before), Compared("b", after))


def document(run: Any, path: Path, *words: str) -> Any:
    assert run("", *words, "-o", str(path)).code in (0, 3)
    return json.loads(path.read_text(encoding="utf-8"))


def rows(report: Any) -> dict[tuple[str, str], tuple[float, float, float, str]]:
    found = {}
    for shown in report.data_tables:
        for what, quantity, before, after, ratio, word in shown.rows:
            found[what, quantity] = (before, after, ratio, word)
    return found


# The comparison itself


@pytest.mark.parametrize(
    ("before", "after", "unit", "word"),
    [
        (1.0, 1.04, "s", SAME),
        (1.0, 1.06, "s", SLOWER),
        (1.0, 0.96, "s", SAME),
        (1.0, 0.94, "s", FASTER),
        (100.0, 110.0, "B/s", FASTER),
        (100.0, 90.0, "B/s", SLOWER),
        (8, 9, "B", MORE),
        (8, 7, "B", LESS),
        (0, 0, "B", SAME),
        (0, 5, "B", MORE),
    ],
)
def test_words(before: float, after: float, unit: str, word: str) -> None:
    [one] = changes([Metric("x", before, "t", unit)], [Metric("x", after, "t", unit)], 0.05)
    assert one.word == word
    assert one.ratio == (pytest.approx(after / before) if before else (1.0 if before == after else None))


def test_noise_widens_the_threshold() -> None:
    old, new = (Metric("x", value, "time, measured", "s", *ends) for value, ends in ((1.0, (0.9, 1.1)), (1.15, ())))
    assert changes([old], [new], 0.05)[0].word == SAME
    assert changes([new], [Metric("x", 1.5, "time, measured", "s")], 0.05)[0].word == SLOWER


def test_gains_turn_with_the_way_that_is_better() -> None:
    slower = changes([Metric("x", 1.0, "t", "s")], [Metric("x", 2.0, "t", "s")])
    faster = changes([Metric("x", 1.0, "t", "B/s")], [Metric("x", 2.0, "t", "B/s")])
    assert (slower[0].gain, faster[0].gain) == (0.5, 2.0)


# Documents


@pytest.mark.parametrize(("gate", "code"), [("slower", 1), ("changed", 1), ("never", 0)])
def test_a_gate_that_could_compare_nothing_does_not_pass(run, tmp_path: Path, gate: str, code: int) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    for path, size in ((old, 1024), (new, 2048)):
        document(run, path, "roofline", "--matmul", f"{size}x{size}x{size}", "--hardware", "h200")
    outcome = run(f"compare {old} {new} --fail-on {gate}")
    assert outcome.code == code
    assert "nothing in common to compare" in outcome.out
    assert ("nothing was checked" in outcome.err) == bool(code)


def test_a_gate_on_slower_needs_a_time_or_a_rate(run, tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    made = document(run, old, "roofline", "--matmul", "1024x1024x1024", "--hardware", "h200")
    point = made["charts"][0]["points"][0]
    point |= {"predicted": None, "roofline_s": None, "lower_s": None, "terms": {}}
    new.write_text(json.dumps(made), encoding="utf-8")
    assert "no time or rate in common" in run(f"compare {new} {new} --fail-on slower").err
    assert run(f"compare {new} {new} --fail-on changed").code == 0


def test_a_baseline_without_a_common_point_is_told(run, tmp_path: Path) -> None:
    saved = tmp_path / "before.json"
    document(run, saved, "roofline", "--matmul", "1024x1024x1024", "--hardware", "h200")
    for size, told in ((1024, False), (2048, True)):
        outcome = run(f"roofline --matmul {size}x{size}x{size} --hardware h200 --baseline {saved} --json")
        assert outcome.code == 0
        assert outcome.json["verdict"][0].startswith("NOTHING TO COMPARE WITH: no point of this report is in before") == told


def test_two_reports_of_which_one_is_slower(run, tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    made = document(run, old, "roofline", "--attention", ATTENTION, "--hardware", "h200")
    point = made["charts"][0]["points"][1]
    point["predicted"]["value"] *= 1.3
    point["bytes"]["dram"] *= 2
    made["version"] = "99.0"
    new.write_text(json.dumps(made), encoding="utf-8")
    outcome = run(f"compare {old} {new} --fail-on slower --json")
    assert outcome.code == 3
    report = from_data(outcome.json)
    name = "flash2, n 4096 d 64 b 8 h 16"
    assert rows(report)[name, "time, predicted"][2:] == (pytest.approx(1.3), SLOWER)
    assert rows(report)[name, "DRAM traffic"][2:] == (pytest.approx(2), MORE)
    assert rows(report)["standard, n 4096 d 64 b 8 h 16", "time, predicted"][3] == SAME
    assert any(said.startswith(f"SLOWER: {name}: new is predicted 1.3x slower than old (") for said in report.reasons)
    assert f"{new}: made by perfmodel 99.0." in report.notes
    assert run(f"compare {old} {new}").code == 0
    assert run(f"compare {new} {old} --fail-on slower").code == 0
    assert run(f"compare {new} {old} --fail-on changed").code == 3
    assert run(f"compare {old} {new} --fail-on slower --threshold 40%").code == 0


LINES = [line for line in lines() if not line.startswith(("hardware list", "claims"))]
"""Those with numbers in their answers: two list names and words."""


@pytest.mark.parametrize("line", LINES)
def test_every_number_of_an_answer_is_kept_and_the_same_as_itself(run, line: str) -> None:
    saved = kept(line)
    answer = json.loads(saved.read_text())
    assert run(f"compare {saved} {saved} --fail-on changed").code == 0
    metrics = metrics_of(answer, "x")
    assert {one.word for one in changes(metrics, metrics)} == {SAME}
    assert set(numbers_in(answer, answer.get("inputs", {}).get("axes", ()))) <= {one.value for one in metrics}


def numbers_in(value: Any, axes: Collection[str]) -> Iterator[float]:
    """Every number of a printed object that is no part of the question; of a saved report those of its tables, without intervals."""
    if isinstance(value, dict) and value.get("schema") == SCHEMA:
        for table in value.get("data_tables", ()):
            ends = {column.get(end) for column in table["columns"] for end in ("low", "high")}
            for row in table["rows"]:
                cells = [cell for column, cell in zip(table["columns"], row, strict=True) if column["key"] not in ends]
                units = [column["unit"] for column in table["columns"] if column["key"] not in ends]
                yield from numbers_in([cell for unit, cell in zip(units, cells, strict=True) if unit in ("s", "B", "FLOP", "ratio")], ())
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in (*LEFT_OUT, *axes) and not (key in NAMES and isinstance(item, int)):
                yield from numbers_in(item, axes)
    elif isinstance(value, list):
        for item in value:
            yield from numbers_in(item, axes)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value


@pytest.mark.parametrize(
    ("path", "higher", "shown"),
    [
        ("requests_per_s", True, "requests/s"),
        ("tokens_per_s", True, "tokens/s"),
        ("tokens_per_s_per_user", True, "tokens/s"),
        ("ttft_s.p99", False, "ms"),
        ("tpot_s.mean", False, "ms"),
    ],
)
def test_a_gate_on_slower_knows_which_way_is_better(run, tmp_path: Path, path: str, higher: bool, shown: str) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    answer = document(run, old, *shlex.split("serve llama-3.1-8b --hardware h200 --concurrency 16"))
    *head, name = path.split(".")
    place = answer[head[0]] if head else answer
    assert answer["metric_units"][path].endswith("higher is better" if higher else "lower is better")
    place[name] *= 1.2
    new.write_text(json.dumps(answer), encoding="utf-8")
    for first, second, worse in ((old, new, not higher), (new, old, higher)):
        outcome = run(f"compare {first} {second} --fail-on slower --json")
        assert outcome.code == (3 if worse else 0)
        [changed] = [row for row in rows(from_data(outcome.json)).values() if row[3] != SAME]
        assert changed[3] == (SLOWER if worse else FASTER)
        assert shown in run(f"compare {first} {second} --full").out


@pytest.mark.parametrize(("line", "units"), table("units_are_those_of_the_number_at_that_place"))
def test_units_are_those_of_the_number_at_that_place(run, line: str, units: dict[str, str | None]) -> None:
    """Numbers of one name may have different units: the total of the parameters is a count, that of the memory is in bytes."""
    known = run(f"{line} --json").json["metric_units"]
    assert {place: known.get(place) for place in units} == units


@pytest.mark.parametrize("name", WORKLOADS)
def test_columns_of_a_sweep_have_the_units_of_their_names(name: str) -> None:
    for one in workload_named(name).columns:
        assert unit_by_name(one.name) in ("count", one.unit), one.name


def test_an_answer_of_an_older_version_has_the_units_of_the_other(run, tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    answer = document(run, new, "matmul", "-m", "512", "-n", "512", "-k", "512")
    del answer["metric_units"]
    old.write_text(json.dumps(answer), encoding="utf-8")
    assert run(f"compare {old} {new} --fail-on changed").code == 0
    assert "its numbers have no units" in run(f"compare {old} {old}").err


def test_energy_is_better_or_worse() -> None:
    words = [changes([Metric("x", 1.0, "t", "J")], [Metric("x", value, "t", "J")])[0].word for value in (0.5, 1.0, 2.0)]
    assert words == [BETTER, SAME, WORSE]


def test_records_of_a_sweep_table_are_compared_by_their_row(run, tmp_path: Path) -> None:
    saved = tmp_path / "a.json"
    made = document(run, saved, "report", str(Path(__file__).parent / "data" / "studies" / "small.yaml"))
    [table] = [table for table in made["data_tables"] if table["title"] == "lengths"]
    place = [column["key"] for column in table["columns"]].index("roofline_s")
    table["rows"][0][place] /= 2
    other = tmp_path / "b.json"
    other.write_text(json.dumps(made), encoding="utf-8")
    changed = {key: row for key, row in rows(from_data(run(f"compare {saved} {other} --json").json)).items() if row[3] != SAME}
    assert changed == {
        ("lengths, standard, n 128", "roofline"): (pytest.approx(2 * table["rows"][0][place]), table["rows"][0][place], 0.5, FASTER)
    }


# Names


def test_two_devices_by_their_profiles(run) -> None:
    found = rows(from_data(run("compare a100-sxm-80gb h200 --json").json))
    assert found["DRAM", "bandwidth"][:2] == (pytest.approx(2039e9, rel=1e-3), 4800e9)
    assert found["DRAM", "bandwidth"][3] == FASTER
    assert found["tensor fp16", "ridge point, DRAM"][1] == pytest.approx(989.4e12 / 4.8e12)


def test_two_algorithms_on_one_device_with_an_arrow(run, tmp_path: Path) -> None:
    page = tmp_path / "x.html"
    outcome = run(f"compare standard flash --hardware h200 --json -o {page}", "--attention", ATTENTION)
    report = from_data(outcome.json)
    [chart] = report.rooflines
    [point] = chart.points
    known = run("attention --n 4096 --d 64 --heads 16 --batch 8 --hardware h200 --json").json["results"]
    assert point.before.time_s == known[0]["time_s"]["predicted"]
    assert point.predicted.value == known[1]["time_s"]["predicted"]
    assert rows(report)["n 4096 d 64 b 8 h 16", "time, predicted"][3] == FASTER
    assert page.stat().st_size > 10_000


def test_a_thing_counts_once_by_its_best_time() -> None:
    def sides(*values: float) -> list[Metric]:
        names = ("time, predicted", "time at the roof", "lower bound")
        return [Metric("x", value, name, "s") for name, value in zip(names, values, strict=True)]

    roof_alone = Metric("y", 1.0, "time at the roof", "s")
    faster = Metric("y", 0.5, "time at the roof", "s")
    said = comparison([*sides(2.0, 1.0, 0.5), roof_alone], [*sides(1.0, 1.0, 0.5), faster]).summary()
    assert said[0] == (
        "b against a: 1 FASTER of 1 predicted time (within 5% is SAME); in the median 2x faster; "
        "1 FASTER of 1 time at the roof; in the median 2x faster, ratio of roofs."
    )
    said = comparison(sides(2.0, 1.0, 0.5), sides(1.0, 1.0, 0.5)).summary()
    assert said[0] == "b against a: 1 FASTER of 1 predicted time (within 5% is SAME); in the median 2x faster."
    said = comparison(sides(2.0, 1.0, 0.5)[1:], sides(1.0, 1.0, 0.5)[1:]).summary()
    assert said[0] == "b against a: 1 SAME of 1 time at the roof (within 5% is SAME); in the median as fast, ratio of roofs."


@pytest.mark.parametrize(("after", "said"), table("the_headline_names_gains_and_losses"))
def test_the_headline_names_gains_and_losses(after: dict[str, float], said: str) -> None:
    before = [Metric(name, 1.0, "time, predicted", "s") for name in after]
    found = comparison(before, [Metric(name, value, "time, predicted", "s") for name, value in after.items()])
    assert found.headline() == said


def test_what_cannot_run_is_told(run) -> None:
    line = ("--attention", "n=32768 d=64 heads=16 batch=8")
    report = from_data(run("compare standard flash2 --hardware a100-sxm-80gb --json", *line).json)
    assert any(said.startswith("standard, n 32768 d 64 b 8 h 16 CANNOT RUN: it needs ") for said in report.reasons)
    assert not any("flash2, n 32768" in said for said in report.reasons)


def test_unlike_rates_have_no_median(run) -> None:
    report = from_data(run("compare a100-sxm-80gb h200 --json").json)
    assert "median" not in report.reasons[0]
    gains = [ratio for _, _, ratio, word in rows(report).values() if word == FASTER]
    assert f"ratios of roofs {min(gains):.3g}x to {max(gains):.3g}x" in report.reasons[0]
    assert "1 is LESS" in " ".join(report.reasons)


def test_a_document_of_another_kind_is_refused(run, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text('{"schema": "other/1"}', encoding="utf-8")
    outcome = run(f"compare {file} {file}")
    assert outcome.code == 1
    assert "neither a report nor what --json prints" in outcome.err


@pytest.mark.parametrize(("line", "reason"), table("kernels_have_a_verdict_on_predictions_alone"))
def test_kernels_have_a_verdict_on_predictions_alone(run: Any, line: str, reason: str) -> None:
    """Without one of both there is no number to compare, and the verdict says why."""
    found = from_data(run(f"compare {line} --json").json)
    said, kernels = " ".join(found.reasons), line.split()[:2]
    assert "not predicted" in said
    if reason:
        assert (found.data_tables, found.charts) == ([], [])
        assert not any(word in said for word in (SAME, FASTER, SLOWER, LESS, MORE, "counts"))
        for kernel in kernels:
            assert f"{kernel}: " in said
            assert reason.format("is not predicted:", kernel) in said
        assert run(f"compare {line} --fail-on slower").code == 1
    else:
        assert {what for what, _ in rows(found)} == {"n 4096 d 64 b 8"}


@pytest.mark.parametrize("pair", ["h100 h200", "h200 h100", "a100-sxm-80gb h200", "h200 b200"])
def test_two_devices_are_compared_by_one_implementation(run: Any, pair: str) -> None:
    """Each device would choose another kernel; the times are those of one, as ``attention --implementation`` gives them."""
    outcome = run(f"compare {pair} --attention n=8192,d=64,heads=16,batch=8,algorithm=standard --json")
    report = from_data(outcome.json)
    assert "standard is predicted for torch-eager on each device." in report.verdict
    shown = rows(report)["standard, n 8192 d 64 b 8 h 16", "time, predicted"][:2]
    for device, time in zip(pair.split(), shown, strict=True):
        line = f"attention --n 8192 --d 64 --heads 16 --batch 8 --implementation torch-eager --hardware {device} --json"
        assert time == pytest.approx(run(line).json["results"][0]["time_s"]["predicted"], rel=1e-9)


def test_devices_without_a_common_kernel_are_not_compared_by_time(run: Any) -> None:
    report = from_data(run("compare h200 mi300x --attention n=4096,d=128,algorithm=flash2 --json").json)
    assert report.verdict[0].startswith("flash2 CANNOT BE COMPARED by time: no kernel of it is predicted on each of NVIDIA H200")
    assert ("flash2, n 4096 d 128", "time, predicted") not in rows(report)
    assert ("flash2, n 4096 d 128", "time at the roof") in rows(report)


@pytest.mark.parametrize(("devices", "told"), [(("h100", "h200"), True), (("h200", "h200"), False), (("h200",), False)])
@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("report --attention n=2048:4096:x2,d=64,heads=16,batch=8,algorithm=standard", "standard"),
        ("report --attention n=8192,d=64,heads=16,batch=8", "standard, n 8192 d 64 b 8 h 16"),
        ("roofline --attention n=8192,d=64,heads=16,batch=8,algorithm=standard", "standard, n 8192 d 64 b 8 h 16"),
    ],
)
def test_several_devices_on_a_page_tell_of_different_kernels(run: Any, line: str, what: str, devices: tuple[str, ...], told: bool) -> None:
    out = run(" ".join([line, *(f"--hardware {device}" for device in devices)])).out
    said = (
        f"Do not compare these times across devices: {what} is by torch-standard on NVIDIA H100 SXM 80 GB and by torch-eager on NVIDIA H200"
    )
    assert (said in out) == told


def test_a_sweep_ranks_no_devices_by_different_kernels_in_silence(run: Any) -> None:
    line = "sweep attention --n 8192 --d 64 --heads 16 --batch 8 --algorithm standard --minimize predicted_s"
    said = "Devices may be predicted for different kernels: take one with --implementation."
    assert said in run(f"{line} --hardware h100,h200").out
    assert said not in run(f"{line} --hardware h200").out
    alike = run(f"{line} --hardware h100,h200 --implementation torch-eager")
    assert said not in alike.out
    assert "at nvidia-h200-sxm" in alike.out


def test_models_on_a_page_tell_of_different_kernels(run: Any) -> None:
    for phase in ("decode batch=8", "decode batch=1:8:x2"):
        out = run("report --hardware a100-sxm-80gb --hardware h200 --model", f"llama-3-8b {phase}").out
        assert "6 of 13 operations run by different kernels (QKV projection by cublas on NVIDIA A100 SXM 80 GB and by torch-matmul" in out


def test_a_model_by_different_kernels_is_told_of(run: Any) -> None:
    report = from_data(run("compare a100-sxm-80gb h200 --json --model", "llama-3-8b decode").json)
    assert any("operations run by different kernels (" in said for said in report.reasons)
    same = from_data(run("compare h200 h200 --json --model", "llama-3-8b decode").json)
    assert not any("different kernels" in said for said in same.reasons)


def test_the_same_is_said_to_be_the_same(run) -> None:
    said = run("compare h200 h200").out
    assert "By the ratio of roofs the H200 has the same rates as the H200." in said
    assert re.search(r"^(\d+) SAME of \1 rates \(within 5% is SAME\)\.$", said, re.MULTILINE)
    assert "all as fast." in run("compare h200 h200 --full").out
