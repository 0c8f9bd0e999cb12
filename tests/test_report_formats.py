"""Every format renders from the one document: golden files, the same bytes twice, nothing loaded, nothing escaped into markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.errors import DataError, UsageError
from perfmodel.report import check_output, formats, render_for, write
from perfmodel.report.charts.chart_tables import numbers
from perfmodel.report.charts.schema import Roofline, RooflinePoint, Series
from perfmodel.report.document import SCHEMA, Column, DataTable, Report, Table, from_data, read_report, to_data
from perfmodel.report.formats import html, png, readable
from perfmodel.report.formats._html_parts import data_table as as_html_table
from perfmodel.report.roofline_chart import ceilings as device_ceilings
from perfmodel.report.roofline_chart import point, point_of_row, roofline, verdict_on, with_baseline, with_shares
from perfmodel.report.saved import Interval
from perfmodel.report.terminal import render as as_terminal
from perfmodel.validation.compare import compare
from perfmodel.validation.records import as_record
from tools.refresh.report_example import GOLDEN, crowded, example, long_names

SUFFIXES = [".html", ".json", ".md", ".svg", ".png", ".txt"]


def rendered(suffix: str, report: Report) -> bytes:
    made = render_for(Path(f"report{suffix}"), report)
    return made.encode() if isinstance(made, str) else made


@pytest.mark.parametrize("suffix", [".md", ".svg", ".json"])
def test_golden_files(suffix: str) -> None:
    golden = (GOLDEN / f"example{suffix}").read_bytes()
    assert rendered(suffix, example()) == golden, "if the change is meant: python -m tools.refresh.report_example"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_two_renderings_are_equal(suffix: str) -> None:
    assert rendered(suffix, example()) == rendered(suffix, example())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_saved_report_renders_the_same(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    write(path, example())
    assert rendered(suffix, read_report(path)) == rendered(suffix, example())


# Saving


def test_a_report_with_data_prints_that_and_its_verdict() -> None:
    contract = {"schema": "perfmodel.attention/1", "results": []}
    assert json.loads(rendered(".json", replace(example(), data=contract, provenance=None))) == {
        **contract,
        "metric_units": {},
        "verdict": example().verdict,
    }
    assert json.loads(rendered(".json", example()))["schema"] == SCHEMA


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda raw: raw.update(schema="perfmodel.attention/1"), "not a saved report"),
        (lambda raw: raw.update(surprise=1), "surprise"),
        (lambda raw: raw["charts"][0]["points"][0].update(flops="many"), "charts.0.roofline.points.0.flops"),
        (lambda raw: raw["charts"][0].update(kind="pie"), "charts.0"),
        (lambda raw: raw["tables"][0]["rows"][0].append("x"), "does not have 2 cells"),
        (lambda raw: raw["data_tables"][0]["rows"][0].pop(), "does not have 4 cells"),
        (lambda raw: raw["charts"][1]["points"][0].update(number=1), "two points have the same number"),
        (lambda raw: raw["charts"][0]["points"][2]["measured"].update(value=0), "point 3: measured is 0"),
        (lambda raw: raw["charts"][0]["points"][2]["before"].update(time_s=0), "point 3: before is 0"),
        (lambda raw: raw["charts"][0]["ceilings"][1].update(value=-1), "ceiling tensor bf16 is -1"),
        (lambda raw: raw["charts"][4]["pairs"][0].update(predicted=0), "run 256 is 0"),
    ],
)
def test_a_saved_report_that_is_wrong_is_refused(change, said: str, tmp_path: Path) -> None:
    raw = json.loads(json.dumps(to_data(example())))
    change(raw)
    with pytest.raises(DataError, match=re.escape(said)):
        from_data(raw)
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(DataError, match=re.escape(str(path))):
        read_report(path)


def test_what_is_no_object_is_no_report() -> None:
    with pytest.raises(DataError, match="its schema is None"):
        from_data([])


# Files


def test_pictures_are_offered_only_where_there_are_some(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no format is written to '\.svg'"):
        check_output(tmp_path / "a.svg")
    check_output(tmp_path / "a.svg", ["charts"])
    for suffix in (".svg", ".png"):
        with pytest.raises(UsageError, match="no picture"):
            render_for(tmp_path / f"a{suffix}", Report("none", [], []))


def test_png_names_what_draws_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(png, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="resvg-py") as caught:
        check_output(tmp_path / "a.png", ["charts"])
    assert "pip install resvg-py" in str(caught.value)
    with pytest.raises(UsageError):
        render_for(tmp_path / "a.png", example())


def test_png_is_a_picture_of_slide_size(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    write(path, replace(example(), charts=example().charts[:1]))
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (2240, 1260)
    foreign = replace(example(), charts=[replace(example().charts[0], title="注意力")])
    assert rendered(".png", foreign)[:4] == b"\x89PNG"  # drawn with what fonts the machine has


def test_the_fonts_of_a_page_are_those_of_the_pictures() -> None:
    text = rendered_text(".html", example())
    fonts = re.findall(r"url\(data:font/otf;base64,([^)]+)\)", text)
    assert [base64.b64decode(font) for font in fonts] == [Path(name).read_bytes() for name in png.FONTS]


def test_every_format_is_listed() -> None:
    assert set(SUFFIXES) <= set(formats.suffixes(["charts"]))


# SVG


def test_svg_is_well_formed_and_loads_nothing() -> None:
    text = rendered(".svg", example()).decode()
    root = ET.fromstring(text)
    assert root.tag.endswith("svg")
    assert not re.search(r"(?:href|src|url\()", text.replace('xmlns="http://www.w3.org/2000/svg"', ""))
    assert "<script" not in text
    assert {element.tag.rsplit("}")[1] for element in root.iter()} <= {"svg", "title", "desc", "rect", "g", "path", "text", "circle"}
    assert any(element.text and element.text.startswith("<script>") for element in root.iter())


def test_one_chart_is_one_slide_and_several_are_a_grid() -> None:
    alone = ET.fromstring(rendered(".svg", replace(example(), charts=example().charts[:1])))
    assert (alone.get("width"), alone.get("height")) == ("1120", "630")
    assert ET.fromstring(rendered(".svg", example())).get("width") == "2240"


# HTML


class Page(HTMLParser):
    """Tags with their attributes, texts, ids; errors for tags that do not nest."""

    VOID = frozenset({"meta", "input", "br", "link", "img", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_html_nests_and_its_ids_are_unique() -> None:
    page = Page(rendered(".html", example()).decode())
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {attributes["href"] for tag, attributes in page.tags if tag == "a"}
    assert {link.removeprefix("#") for link in links if link} <= set(ids)
    labels = [attributes["aria-labelledby"] for _, attributes in page.tags if "aria-labelledby" in attributes]
    assert set(" ".join(map(str, labels)).split()) <= set(ids)


def test_html_loads_nothing() -> None:
    text = rendered(".html", example()).decode()
    page = Page(text)
    assert not [value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "srcset", "data", "action")]
    assert {tag for tag, _ in page.tags} & {"link", "iframe", "img", "object", "embed", "base", "form"} == set()
    assert set(re.findall(r"url\((\w+:)", text)) == {"data:"}
    assert "@import" not in text
    assert set(re.findall(r"https?://[^\s\"'<)]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in text


def test_html_runs_its_own_script_and_styles_alone() -> None:
    text = rendered(".html", example()).decode()
    page = Page(text)
    policies = [attributes["content"] or "" for tag, attributes in page.tags if attributes.get("http-equiv") == "Content-Security-Policy"]
    allowed = {name: set(values) for name, *values in (rule.split() for rule in policies[0].split(";"))}
    found: dict[str, set[str]] = {"script-src": set(), "style-src": set()}
    for tag, attributes, content in re.findall(r"<(script|style)([^>]*)>(.*?)</\1>", text, re.DOTALL):
        if "application/json" not in attributes:
            found[f"{tag}-src"].add(f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'")
    assert {name: allowed[name] for name in found} == found
    assert len(policies) == 1
    assert "unsafe" not in policies[0]
    assert allowed["default-src"] == allowed["base-uri"] == allowed["form-action"] == {"'none'"}
    assert not [name for _, attributes in page.tags for name in attributes if name == "style" or name.startswith("on")]


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</script><b>", "a\x00\x08b", "\ud800"])
def test_names_stay_text(name: str) -> None:
    report = example()
    chart = report.charts[0]
    assert isinstance(chart, Roofline)
    renamed = [replace(p, name=name, group=name, note=name) for p in chart.points]
    lines = replace(report.charts[2], title=name, series=[Series(name, [(1, 1.0), (2, 2.0)])], x_label=name)
    hostile = replace(
        report, title=name, verdict=[name], notes=[name], tables=[Table(name, [name], [[name]])],
        charts=[replace(chart, title=name, caption=name, device_name=name, points=renamed), lines],
        data_tables=[DataTable(name, report.data_tables[0].columns, report.data_tables[0].rows)],
    )  # fmt: skip
    page = Page(rendered_text(".html", hostile))
    plain = Page(rendered_text(".html", replace(hostile, title="x")))
    assert sum(tag == "script" for tag, _ in page.tags) == sum(tag == "script" for tag, _ in plain.tags)
    assert {tag for tag, _ in page.tags} & {"img", "b"} <= {"b"}
    assert not [attributes for _, attributes in page.tags if any(key.startswith("on") for key in attributes)]
    ET.fromstring(rendered_text(".svg", hostile))
    outside = rendered_text(".md", hostile)
    assert not re.search(r"(?<!\\)<(?!/?(details|summary)>)", outside)


def rendered_text(suffix: str, report: Report) -> str:
    made = render_for(Path(f"report{suffix}"), report)
    assert isinstance(made, str)
    return made


def test_html_of_fifty_points_is_small() -> None:
    assert len(rendered(".html", crowded(50))) < 300_000


def test_markdown_fits_a_comment() -> None:
    assert len(rendered(".md", crowded(50))) < 65_536
    many = replace(example(), verdict=[f"sentence {n}" for n in range(20)])
    assert "and 8 more" in rendered_text(".md", many)
    shown, _, folded = rendered_text(".html", many).partition("<details><summary>Why</summary>")
    told, why = (re.findall(r"<li>sentence (\d+)</li>", part) for part in (shown, folded.partition("</details>")[0]))
    assert ([*map(int, told)], [*map(int, why)]) == ([*range(6)], [*range(6, 20)])


def test_a_notebook_shows_the_page() -> None:
    framed = example()._repr_html_()
    assert framed.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
    assert len(Page(framed).tags) == 1
    assert html.render(example())[:100].replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;") in framed


# Text


def test_numbers_of_a_picture_stand_once() -> None:
    """In text, a table that has them all takes their place."""
    report = example()
    bars = [chart for chart in report.charts if chart.kind == "bars"]
    own = numbers(bars[0])
    assert formats.tables(replace(report, charts=bars))[0].title == "KV cache"
    titles = [table.title for table in formats.tables(replace(report, charts=bars, data_tables=[replace(own, title="all")]))]
    assert titles == ["KV cache: marks", "all", "by group"]


# From devices, estimates and records


def test_a_roofline_of_a_device_and_its_estimates() -> None:
    from perfmodel.kernels.attention.question import AttentionQuestion
    from perfmodel.timing.select_kernel import predictions

    device = find_device("nvidia-a100-sxm-80gb")
    comparison = AttentionQuestion(n=4096, d=64, batch=8, heads=16, dtype="bf16", algorithm=["standard", "flash"]).compare(device)
    known, _ = predictions(comparison, None, calibrated_devices)
    found = [
        point(number, result.algorithm.name, result.total, device, "bf16", prediction=known.get((result.algorithm.name, "forward")))
        for number, result in enumerate(comparison.results, 1)
    ]
    assert found[1].flops == comparison.results[1].total.flops
    assert found[1].bytes == {"l2": comparison.results[1].total.sram.total, "dram": comparison.results[1].total.dram.total}
    assert found[1].predicted is not None
    assert found[1].predicted.value == known["flash2", "forward"].seconds
    assert (found[0].predicted.value, found[0].unit) == (known["standard", "forward"].seconds, "tensor")
    assert found[1].dtype == "bf16"
    chart = roofline(device, with_shares(found))
    assert sum(p.share or 0 for p in chart.points) == pytest.approx(1)
    assert chart.level == "dram"
    said = [verdict_on(one, chart) for one in chart.points]
    assert said[0].startswith("standard is bound by DRAM bandwidth (2.039 TB/s, derived)")
    assert said[1].startswith("flash2 is bound by the tensor unit (312 TFLOP/s, datasheet), predicted at ")
    assert "% of its roof: reaching it makes it at most " in said[1]
    assert Report("a", said, [], charts=[chart]) == from_data(json.loads(json.dumps(to_data(Report("a", said, [], charts=[chart])))))


def test_ceilings_tell_datasheet_and_measured_apart() -> None:
    found = device_ceilings(find_device("nvidia-h200-sxm"))
    memory = {(c.level, c.evidence): c.value for c in found if c.kind == "memory"}
    device = find_device("nvidia-h200-sxm")
    level = device.level("l2")
    assert level is not None
    assert level.measured_bandwidth is not None
    assert memory["l2", "measured"] == level.measured_bandwidth.number  # the roof that the model uses
    assert memory["dram", "datasheet"] == 4.8e12
    assert memory["dram", "measured"] == 4.5314e12
    assert {c.evidence for c in found if c.dtype == "fp32"} == {"datasheet", "measured"}
    assert all(c.source for c in found)
    assert [c for c in device_ceilings(find_device("nvidia-a100-sxm-80gb")) if c.level == "sram"][1].evidence == "measured"


RECORD = {
    "workload": "softmax", "implementation": "torch-softmax", "hardware": "nvidia-h200-sxm", "dtype": "bf16", "pass": "forward",
    "shape": {"rows": 8192, "cols": 4096}, "time_s": {"median": 4.5e-5, "p10": 4.4e-5, "p90": 4.7e-5},
}  # fmt: skip


def test_a_record_beside_the_model_is_a_point() -> None:
    device = find_device("nvidia-h200-sxm")
    cold, warm = ({**RECORD, "cache": cache} for cache in ("cold", "warm"))
    rows = [compare(raw, as_record(raw), device) for raw in (cold, warm)]
    made = [point_of_row(number, row) for number, row in enumerate(rows, 1)]
    assert made[0] is not None
    assert made[1] is not None
    assert made[0].measured == Interval(4.5e-5, 4.4e-5, 4.7e-5)
    assert made[0].name == "torch-softmax rows 8192 cols 4096"
    assert made[1].bytes["dram"] < made[0].bytes["dram"]  # the caches keep a part of a warm run's bytes
    assert made[1].lower_s == rows[1].lower_s
    unknown = {**RECORD, "workload": "nothing"}
    assert point_of_row(1, compare(unknown, as_record(unknown), device)) is None


def test_shares_and_baselines() -> None:
    now = [RooflinePoint(1, "a", 1, measured=Interval(3.0)), RooflinePoint(2, "b", 1, predicted=Interval(1.0)), RooflinePoint(3, "c", 1)]
    assert [p.share for p in with_shares(now)] == [0.75, 0.25, 0.0]
    assert with_shares([RooflinePoint(1, "a", 1)])[0].share is None
    compared = with_baseline(now, [RooflinePoint(9, "a", 2, {"dram": 5}, measured=Interval(4.0)), RooflinePoint(8, "b", 1)], "v1")
    assert compared[0].before is not None
    assert (compared[0].before.name, compared[0].before.time_s, compared[0].before.flops) == ("v1", 4.0, 2)
    assert [p.before for p in compared[1:]] == [None, None]


STEERING = "\x1b[31mred\x9b0m\x07 \u202egpj.exe\u2066 a\u200bb\r\nnext"


def renamed_to(name: str) -> Report:
    report = example()
    chart = report.charts[0]
    assert isinstance(chart, Roofline)
    points = [replace(p, name=name, group=name, note=name) for p in chart.points]
    return replace(
        report, title=name, verdict=[name], notes=[name], tables=[Table(name, [name], [[name]])],
        charts=[replace(chart, title=name, caption=name, points=points), *report.charts[1:]],
    )  # fmt: skip


@pytest.mark.parametrize("suffix", [".txt", ".md", ".html", ".svg"])
def test_no_character_steers_who_reads(suffix: str) -> None:
    made = rendered_text(suffix, renamed_to(STEERING))
    assert not set(made) & set("\x1b\x9b\x07\r\u202e\u2066\u200b")
    assert "\\x1b[31mred\\x9b0m\\x07 \\u202egpj.exe\\u2066 a\\u200bb next" in made.replace("\\\\", "\\").replace("\\[", "[")


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_json_steers_no_terminal_and_means_the_same(suffix: str) -> None:
    made = rendered_text(suffix, Report("t", [], [], [], data={"name": STEERING}, records=[{"name": STEERING}]))
    assert not set(made) & set("\x1b\x9b\x07\r\u202e\u2066\u200b")
    assert json.loads(made)["name"] == STEERING


def test_the_terminal_gets_its_own_codes_alone() -> None:
    plain = as_terminal(renamed_to(STEERING), 400, color=False)
    assert not set(plain) & set("\x1b\x9b\x07\r\u202e\u2066\u200b")
    assert "\\x1b[31mred" in plain
    coloured = as_terminal(renamed_to(STEERING), 400)
    assert set(re.findall("\x1b\\[[0-9;]*[A-Za-z]", coloured)) == {"\x1b[1m", "\x1b[0m", "\x1b[2m"}


def test_saved_words_keep_every_character_and_their_length() -> None:
    name = STEERING + "x" * 300
    assert from_data(to_data(renamed_to(name))).rooflines[0].points[0].name == name
    unchanged = example()
    assert readable(unchanged) == unchanged


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("[a](javascript:alert)", r"\[a\](javascript:alert)"),
        ("![a](http://b)", r"!\[a\](http\://b)"),
        ("see https://a.b and WWW.a.b", r"see https\://a.b and WWW\.a.b"),
        ("@team, me@a.b and x #12, GH-3", "@&#8203;team, me@&#8203;a.b and x #&#8203;12, GH-&#8203;3"),
        ("&#x202e;x & y", r"\&#x202e;x & y"),
        ("# a", r"\# a"),
        ("- a", r"\- a"),
        ("1. a", r"1\. a"),
        ("-5% and 1.5", "-5% and 1.5"),
    ],
)
def test_markdown_has_no_links_and_no_headings_from_notes(said: str, written: str) -> None:
    made = rendered_text(".md", Report("t", [said], [Table("", ["a"], [[said]])], [said]))
    assert f"\n{written}\n" in made
    assert f"\n- {written}\n" in made
    assert not re.search(r"(?<!\\)\[", made)


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize(
    "name", ["<img src=x onerror=alert(1)>", "a</summary><script>x</script>", "&lt;b&gt; @me #1 https://a.b/c www.a.b"]
)
def test_rendered_markdown_is_the_text_and_nothing_else(name: str, rows: int) -> None:
    report = replace(renamed_to(name), data_tables=[DataTable(name, [Column("name", name, "text")], [[name]] * rows)])
    markdown_it = pytest.importorskip("markdown_it")
    page = Page(markdown_it.MarkdownIt("commonmark").enable("table").render(rendered_text(".md", report)))
    own = {"h2", "h3", "p", "pre", "code", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "strong", "details", "summary"}
    assert {tag for tag, _ in page.tags} <= own
    assert not [attributes for _, attributes in page.tags if set(attributes) - {"class", "style"}]
    assert sum(name in text.replace("\u200b", "") for text in page.texts) > rows
    plain = re.sub(r"`.*?`", "", rendered_text(".md", report), flags=re.DOTALL)
    assert not re.search(r"@\w|(?<!&)#\d", plain)
    assert not re.search(r"[^\\]://|www\.", re.sub("<summary>.*</summary>", "", plain))  # HTML, in which nothing becomes a link


def test_long_names_leave_the_terminal_its_numbers() -> None:
    made = as_terminal(long_names(), 80, color=False)
    assert max(map(len, made.splitlines())) <= 80
    rows = [line for line in made.splitlines() if line.startswith("void_cutlass") and "…" in line]
    assert [words for line in rows if (words := line.split()[1:3]) and words[0].isdigit() and words[1] != "GB"][:2] == [
        ["1", "4"],
        ["64", "10"],
    ]
    whole = rendered_text(".txt", long_names())
    assert long_names().title in whole
    assert "…" not in "".join(line for line in whole.splitlines() if line.startswith("void_"))


def test_numbers_in_a_page_are_those_of_the_table() -> None:
    """Words that repeat stand in a list, and a cell has their place in it."""
    rows: list[list[str | int | float | None]] = [
        ["a long name", 1, 1 / 3],
        ["a long name", 2, None],
        ["another one", 10**15, 0.5],
        ["ab", 4, 2.0],
    ]
    text = as_html_table(DataTable("t", [Column("name", "name"), Column("n", "n", "count"), Column("s", "s", "s")], rows), "t")
    held = json.loads(text.split('data-table="t">')[1].split("</script>")[0])
    assert held["words"] == ["a long name"]
    found = [[held["words"][value[0]] if isinstance(value, list) else value for value in row] for row in held["rows"]]
    assert [row[:2] for row in found] == [row[:2] for row in rows]
    assert [row[2] for row in found] == [pytest.approx(1 / 3, rel=1e-9), None, 0.5, 2.0]
