"""Studies: every shipped one in every format, what their sections compute, and what a wrong one is told."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import pytest
from reports import study

from perfmodel.catalog import calibrated_devices, data_folder, find_device, find_model
from perfmodel.core.arith import quantile
from perfmodel.core.errors import UsageError
from perfmodel.kernels.attention.algorithms import find
from perfmodel.kernels.attention.crossover import crossover
from perfmodel.kernels.attention.question import AttentionQuestion
from perfmodel.report import render_for
from perfmodel.report.charts.draw import clean
from perfmodel.report.charts.format_number import formula_text
from perfmodel.report.document import Report, read_report
from perfmodel.study.kinds.sweep import SweepSection as Sweep
from perfmodel.study.recorded import RecordChoice, rows_of
from perfmodel.study.schema import MOST_FORMULAS, Scope, kind_names, read_section, study_names
from perfmodel.study.workloads import with_kv_heads
from perfmodel.transformer.generation import curve
from perfmodel.transformer.question import BatchQuestion
from tools.refresh.studies import FOLDER, GOLDEN, rendered

TEXTS = ("html", "md", "svg", "json", "txt")
A100 = "nvidia-a100-sxm-80gb"
H200, H200_NAME = "nvidia-h200-sxm", "NVIDIA H200 SXM"
PAGE_BYTES = 300_000
SHIPPED_BYTES = 270_000


def table(report: Report, title: str) -> list[dict[str, object]]:
    [found] = [one for one in report.data_tables if one.title == title]
    return [dict(zip([column.key for column in found.columns], row, strict=True)) for row in found.rows]


# Shipped studies


def test_at_least_six_are_shipped() -> None:
    assert len(study_names()) >= 6
    kinds = {line.split("kind:")[1].strip() for name in study_names() for line in config(name).splitlines() if "kind:" in line}
    assert kinds == set(kind_names())


def config(name: str) -> str:
    return (data_folder("configs") / f"{name}.yaml").read_text(encoding="utf-8")


def test_every_format_of_a_study(run, tmp_path: Path) -> None:
    suffixes = [*TEXTS, "png"]
    files = [tmp_path / f"report.{suffix}" for suffix in suffixes]
    outcome = run("report kv-cache-heads", *(word for file in files for word in ("-o", str(file))))
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    assert all(file.stat().st_size > 500 for file in files)


def test_a_page_has_every_formula_and_each_source_once() -> None:
    report = study("standard-vs-flash")
    page = render_for(Path("report.html"), report)
    assert isinstance(page, str)
    assert len(page.encode()) < SHIPPED_BYTES
    assert len(report.formulas) > 100
    shown = page.split("Formulas: ", 1)[1]
    assert all(clean(formula_text(formula)) in shown for formula in report.formulas)
    assert all(shown.count(f"] {clean(source)}</li>") == 1 for source in {formula.source for formula in report.formulas if formula.source})
    given = [formula for formula in report.formulas if (formula.name, formula.formula) == ("H", "")]
    assert len(given) == 2
    assert shown.count(f"<dt>{formula_text(given[0])}<") == 1
    assert f"<dt>as in {clean(given[0].group)}</dt><dd>" in shown


@pytest.mark.parametrize("name", study_names())
def test_every_study_asks_and_answers(name: str) -> None:
    report = study(name)
    assert report.question.endswith("?")
    assert len(report.figures) == 3
    assert all(chart.caption.endswith(".") for chart in report.charts)
    assert len(report.sensitivity) <= 4


@pytest.mark.parametrize("name", study_names())
def test_what_every_study_tells(name: str) -> None:
    report = study(name)
    assert report.verdict
    assert all(said.endswith(".") for said in report.verdict)
    assert len(report.formulas) <= MOST_FORMULAS
    assert report.provenance is not None
    assert report.provenance.inputs[f"{name}.yaml"] == hashlib.sha256(config(name).encode()).hexdigest()
    for use in report.provenance.profiles:
        file = data_folder("hardware_specs") / f"{use.id}.yaml"
        assert use.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    numbers = [point.number for chart in report.rooflines for point in chart.points]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("name", study_names())
def test_a_saved_report_renders_the_same(tmp_path: Path, name: str) -> None:
    saved = tmp_path / "saved.json"
    saved.write_text(str(render_for(saved, study(name))), encoding="utf-8")
    again = read_report(saved)
    for suffix in TEXTS:
        text = str(render_for(Path(f"x.{suffix}"), again))
        assert text == render_for(Path(f"x.{suffix}"), study(name)), suffix
        assert 500 < len(text.encode()) < (PAGE_BYTES if suffix == "html" else math.inf), suffix


def test_a_saved_report_is_not_computed_again(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(f"report {FOLDER / 'small.yaml'} -o {tmp_path / 'a.json'} -o {tmp_path / 'a.md'}").code == 0
    monkeypatch.setattr("perfmodel.study.document.build", None)
    assert run(f"report {tmp_path / 'a.json'} -o {tmp_path / 'b.md'}").code == 0
    assert (tmp_path / "a.md").read_bytes() == (tmp_path / "b.md").read_bytes()


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_files(name: str) -> None:
    assert rendered(name) == (FOLDER / name).read_text(encoding="utf-8"), "if it is meant: python -m tools.refresh.studies"
    assert rendered(name) == rendered(name)


def test_the_paths_of_all_configurations_are_studies(run) -> None:
    outcome = run("report nosuch")
    assert outcome.code == 2
    assert all(name in outcome.err for name in study_names())
    assert "did you mean standard-vs-flash?" in run("report standard-vs-flsh").err
    assert run("report").code == 2


# What sections compute


def test_a_sweep_turns_where_the_crossover_is() -> None:
    title = "wide heads, where the first FlashAttention stops paying: time"
    [chart] = [chart for chart in study("standard-vs-flash").charts if chart.title == title]
    device = find_device(A100)
    w = AttentionQuestion(n=4096, d=64, heads=16, batch=8).workload()
    known = crossover(find("flash1"), w, device, device.sram_per_block, "roofline")
    assert [(mark.x, mark.label) for mark in chart.marks] == [(known.last_d + 1, f"standard has the lower roof from {known.last_d + 1}")]
    assert f"slower than standard from d {known.last_d + 1} on" in " ".join(study("standard-vs-flash").reasons)


def test_a_sweep_compares_where_both_fit_the_memory() -> None:
    rows = table(study("standard-vs-flash"), "attention, 8 x 16 heads of 64")
    for device in (A100, H200):
        capacity = find_device(device).dram.capacity
        own = [row for row in rows if (row["series"], row["device"]) == ("standard", device)]
        assert capacity is not None
        assert [row["fits"] for row in own] == ["yes" if int(str(row["memory"])) <= capacity.number else "NO" for row in own]
        last = max(int(str(row["value"])) for row in own if row["fits"] == "yes")
        assert last < max(int(str(row["value"])) for row in own)
        head = f"attention, 8 x 16 heads of 64, {find_device(device).name}: flash2 is "
        [said] = [said for said in study("standard-vs-flash").reasons if said.startswith(head)]
        assert f" at n {last:,}, the largest of them at which both fit the memory" in said


def test_what_never_fits_is_compared_as_if_it_did() -> None:
    asked = {"attention": {"n": 4096, "d": 64, "heads": 64, "batch": 512, "algorithm": ["standard", "flash2"]}}
    section = read_section({"kind": "sweep", "devices": [A100], "workload": asked, "over": "n", "values": [8192, 16384]})
    said = section.build(Scope()).reasons
    assert "faster than standard at n 16,384" in said[0]
    assert "standard does not fit the memory from n 8,192 on" in said[1]


def test_a_sweep_leaves_out_what_cannot_be() -> None:
    section = read_section(
        {
            "kind": "sweep",
            "devices": [A100],
            "workload": {"attention": {"n": 64, "d": 64, "heads": 8, "algorithm": "flash2"}},
            "over": "kv_heads",
            "values": [1, 2, 3, 4],
        }
    )
    assert isinstance(section, Sweep)
    part = section.build(Scope())
    assert [row[1] for row in part.data_tables[0].rows] == [1, 2, 4]
    assert any("kv_heads 3" in note and "does not divide" in note for note in part.notes)
    assert "flash2 takes" in part.reasons[0]


def test_block_sizes_move_what_the_algorithm_counts() -> None:
    rows = table(study("flashattention-fig2"), "block size, forward")
    w = AttentionQuestion(n=1024, d=64, heads=16, batch=64).workload()
    flash, standard = find("flash1"), find("standard")
    from perfmodel.core.cost import Tile

    for row in rows[:-1]:
        [kernel] = flash.forward(w, Tile(int(str(row["br"])), int(str(row["bc"]))))
        assert row["accesses"] == kernel.bytes("read", "write")
        assert row["br"] == min(int(str(row["bc"])), 64)
    whole = sum(kernel.bytes("read", "write") for kernel in standard.forward(w, Tile(1, 1)))
    assert rows[-1]["accesses"] == whole
    assert rows[-2]["of_standard"] == pytest.approx(whole / int(str(rows[-2]["accesses"])))


def test_blocks_that_do_not_fit_are_told() -> None:
    asked = {"kind": "block-size", "devices": [A100], "attention": {"n": 1024, "d": 64}, "block_kv": [64, 4096]}
    part = read_section(asked).build(Scope())
    assert len(part.data_tables[0].rows) == 2
    assert part.notes[0].startswith("B_c 4096: flash1 forward")


def test_a_batch_has_the_knee_of_the_batch_command() -> None:
    device = find_device(H200)
    request = BatchQuestion("llama-3-8b", kv_len=2048, dtype="bf16").request_for(find_model("llama-3-8b"), device)
    found = curve(request, calibrated_devices)
    rows = [row for row in table(study("batch-saturation"), "Llama-3-8B at 2,048 tokens") if row["name"] == "NVIDIA H200 SXM"]
    assert [row["batch"] for row in rows] == [point.batch for point in found.points]
    assert [row["batch"] for row in rows if row["mark"] == "knee"] == [found.knee]
    assert [row["tokens_per_s"] for row in rows] == [pytest.approx(point.tokens_per_s) for point in found.points]


def test_kv_heads_must_divide() -> None:
    model = find_model("llama-3-8b")
    assert {layer.attention.kv_heads for layer in with_kv_heads(model, 4).layers} == {4}  # type: ignore[union-attr]
    with pytest.raises(Exception, match="does not divide the 32 heads"):
        with_kv_heads(model, 5)
    with pytest.raises(Exception, match="deepseek-v3 has layers without KV heads"):
        with_kv_heads(find_model("deepseek-v3"), 4)


def test_predicted_against_measured() -> None:
    report = study("predicted-vs-measured-h200")
    choice = RecordChoice(hardware=H200, workload="matmul", implementation=["torch-matmul", "cublas"], held_out=True)
    rows = rows_of(choice, Scope())
    [row] = [row for row in table(report, "Matmuls, by group") if row["group"] == "matmul/torch-matmul/forward"]
    own = [row for row in rows if row.record.group == "matmul/torch-matmul/forward"]
    assert row["records"] == len(own)
    assert row["median"] == pytest.approx(quantile([abs(one.error) for one in own if one.error is not None], 0.5))
    [chart] = [chart for chart in report.charts if chart.kind == "scatter" and chart.title == "Matmuls"]
    assert len(chart.pairs) <= 80
    ratios = sorted(one.record.time_s.median / one.prediction.seconds for one in rows if one.prediction)
    assert chart.low == pytest.approx(quantile(ratios, 0.1))
    assert chart.low < 1 < chart.high  # type: ignore[operator]


def test_training_memory_adds_up() -> None:
    rows = table(study("training-memory"), "memory of a step on one GPU")
    for row in rows:
        parts = [row[name] for name in ("weights", "gradients", "optimizer", "activations", "temporary")]
        assert sum(int(str(part)) for part in parts if part is not None) == row["peak"]


# Wrong studies

HEAD = "study:\n  title: x\n  sections:\n    - kind: "
WRONG = [
    ("study: {title: x, sections: []}", "the study has no sections"),
    ("study: {titel: x, sections: []}", "line 1: study.titel: unknown field; did you mean title?"),
    ("study: {title: x, sections: [3]}", "study.sections.0: a section is a mapping with a kind"),
    (HEAD + "sweeep", "line 4: study.sections.0.kind: no kind of section is called 'sweeep'; did you mean sweep?"),
    (
        HEAD + "roofline\n      devices: [h200]\n      workloads:\n        - attention: {n: 1, d: 1, hed: 2}",
        "line 7: study.sections.0.workloads.0.attention.hed: unknown field; did you mean",
    ),
    (HEAD + "roofline\n      devices: [h2000]", "line 5: study.sections.0.devices.0: no device is called 'h2000'"),
    (HEAD + "roofline\n      devices: [h200]\n      workloads: [{name: a}]", "a workload is one of attention, matmul, model"),
    (
        HEAD + "sweep\n      devices: [h200]\n      workload: {matmul: {m: 1, n: 1, k: 1}}\n      over: o\n      values: [1, 2]",
        "line 7: study.sections.0.over: matmul has no size 'o'\n  known: m, n, k, batch, tile_m, tile_n, split_k",
    ),
    (
        HEAD
        + "roofline\n      devices: [h200]\n      workloads:\n        - matmul: {m: 1, n: 1, k: 1}\n        - matmul: {m: -1, n: 1, k: 1}",
        "line 8: study.sections.0.workloads.1.matmul.m: m is -1",
    ),
    (
        HEAD + "roofline\n      devices: [h200]\n      workloads:\n        - attention: {n: 64, d: 64,\n            dtype: fp17}",
        "line 8: study.sections.0.workloads.0.attention.dtype: unknown dtype 'fp17'",
    ),
    (
        HEAD + "comparison\n      device: h200\n      between: [h200]",
        "line 6: study.sections.0.between: a comparison is between two, not 1",
    ),
    (HEAD + "batch\n      devices: [h200]\n      models: [{name: lama-3-8b}]", "did you mean llama-3-8b"),
    (HEAD + "predicted-vs-measured\n      records: {hardware: h200, implementation: torch-sdpa-flsh}", "torch-sdpa-flash"),
    ("attention: {n: 4}", "no mapping 'study' in it"),
]


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_wrong_studies(run, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(text, encoding="utf-8")
    outcome = run(f"report {file}")
    assert (outcome.code, outcome.out) == (1, "")
    assert said in outcome.err
    assert str(file) in outcome.err


def test_sections_of_one_device_or_none(run) -> None:
    run_of = {"kind": "sweep", "devices": [A100], "workload": {"matmul": {"m": 512, "n": 512, "k": 512, "dtype": "bf16"}}}
    part = read_section({**run_of, "over": "m", "values": [512, 8192], "show": ["rate", "l2"], "title": "m"}).build(Scope())
    assert [(chart.title, chart.y_unit) for chart in part.charts] == [("m: FLOP per second", "FLOP/s"), ("m: bytes through the L2", "B")]
    assert part.reasons[0].startswith("m: matmul takes ")
    with pytest.raises(Exception, match="at least two"):
        read_section({**run_of, "over": "m", "values": [512]}).build(Scope())
    with pytest.raises(Exception, match="more than a picture shows"):
        read_section({**run_of, "over": "m", "values": list(range(1, 500))}).build(Scope())
    with pytest.raises(Exception, match="most is 0"):
        rows_of(RecordChoice(hardware=H200, most=0), Scope())
    with pytest.raises(Exception, match="has no blocks"):
        read_section(
            {"kind": "block-size", "devices": [A100], "attention": {"n": 64, "d": 64}, "block_kv": [8], "algorithm": "standard"}
        ).build(Scope())
    with pytest.raises(Exception, match="devices is missing"):
        read_section({"kind": "roofline", "workloads": []}).build(Scope())
    with pytest.raises(Exception, match="between two"):
        read_section({"kind": "comparison", "between": ["h200"]}).build(Scope())


@pytest.mark.parametrize(
    ("missing", "section"),
    [
        ("devices", {"kind": "kv-cache", "caches": [{"model": "llama-3-8b"}], "n": [512]}),
        ("devices", {"kind": "training-memory", "runs": [{"model": "gpt2"}]}),
        ("devices", {"kind": "serving", "model": "llama-3-8b", "engines": ["vllm"]}),
        ("devices", {"kind": "batch", "models": [{"name": "llama-3-8b"}]}),
        ("devices", {"kind": "block-size", "attention": {"n": 64, "d": 64}, "block_kv": [8]}),
        ("devices", {"kind": "sweep", "workload": {"matmul": {"m": 1, "n": 1, "k": 1}}, "over": "m", "values": [1, 2]}),
        ("runs", {"kind": "training-memory", "devices": [H200]}),
        ("models", {"kind": "batch", "devices": [H200], "models": []}),
        ("engines", {"kind": "serving", "devices": [H200], "model": "llama-3-8b", "engines": []}),
    ],
)
def test_a_section_without_what_it_asks_of_says_so(missing: str, section: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=rf"^{missing}\b"):
        read_section({"devices": [], **section}).build(Scope())


def test_many_devices_are_told_apart_in_every_sentence() -> None:
    asked = {"kind": "roofline", "devices": [A100, H200], "workloads": [{"matmul": {"m": 64, "n": 64, "k": 64}}]}
    part = read_section(asked).build(Scope())
    assert [said.split(":")[0] for said in part.reasons] == ["NVIDIA A100 SXM 80 GB", "NVIDIA H200 SXM"]


def test_a_training_run_takes_the_options_of_perfmodel_memory(run) -> None:
    step = {"batch": 8, "n": 512, "gradients": "both", "lora": 8, "lora_targets": "qv", "cp": 2}
    words = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in step.items())
    asked = {"kind": "training-memory", "devices": [H200]}
    [row] = read_section({**asked, "runs": [{"model": "gpt2", **step}]}).build(Scope()).data_tables[0].records()
    assert row["peak"] == run(f"memory gpt2 {words} --hardware h200 --json").json["bytes"]["peak"]
    for wrong, said in (({"lora_targets": "qv"}, "is for adapters"), ({"hardware": "h200"}, "hardware stands in the runs")):
        with pytest.raises(UsageError, match=said):
            read_section({**asked, "runs": [{"model": "gpt2", **wrong}]}).build(Scope())
