"""The Python interface: its public names, what it returns, and that tables take its columns without a copy."""

from __future__ import annotations

import ast
import copy
import inspect
import json
import os
import pickle
import pydoc
import re
import shlex
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from each import each
from fuzz_seeds import MEASURING
from fuzzing import answer, examples

import perfmodel
from perfmodel.cli import command_names
from perfmodel.core.errors import UnavailableError, UsageError
from perfmodel.report.document import Report, Table
from tools.commands import all_commands, command
from tools.refresh import function_types

PUBLIC = ["Report", "Result", "__version__", "answer", "api", "attention", "capture", "compare_attention", "sweep"]
REPORTING = [name for name in all_commands() if name != "hardware check"]
"""Commands that give a report; the other one prints a line."""
LINES = MEASURING | {"compare": "compare a100-sxm-80gb h200 --model 'llama-3-8b decode'"}


def test_public_names() -> None:
    assert sorted(perfmodel.__all__) == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(perfmodel, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'attentoin'"):
        perfmodel.attentoin  # noqa: B018


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys; import perfmodel; print(sorted(name for name in sys.modules if name.startswith(('perfmodel.', 'numpy', 'yaml'))))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_functions_stand_where_packages_do() -> None:
    """Importing a package puts it in the place of a function of the same name, so the package is what is called."""
    code = (
        "import perfmodel\n"
        "first = perfmodel.attention(n=64, d=64)\n"
        "from perfmodel.sweep import grid\n"
        "print(perfmodel.attention(n=64, d=64) == first, perfmodel.sweep(n=64, d=64).rows, grid.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True 2 perfmodel.sweep.grid\n"
    assert isinstance(perfmodel.sweep, ModuleType)


def test_attention_is_exact_and_says_what_it_does_not_know() -> None:
    found = perfmodel.compare_attention(n=10**12, d=64, algorithm="flash", hardware="h200", direction="both")
    assert found.results[0].total.flops == 4 * 10**24 * 64
    assert [result.direction for result in found.results] == ["forward", "backward", "both"]
    for function in (perfmodel.attention, perfmodel.compare_attention):
        with pytest.raises(UsageError, match="no option 'kvheads'"):
            function(n=64, d=64, kvheads=3)


def asked(name: str) -> tuple[str, list[str], dict[str, Any]]:
    """The command, its group's, and the options of its example, as its parser reads them, by the name of their field."""
    line = shlex.split(LINES[name]) if name in LINES else examples(name)[0]
    words = line[len(name.split()) :]
    found = command(name).make_context(name, list(words)).params
    first, *group = name.replace("-", "_").split()
    return first, group, {key: value for key, value in found.items() if value not in (None, (), [])}


@cache
def result_of(name: str) -> perfmodel.Result:
    first, group, options = asked(name)
    return perfmodel.api.result(first, *group, **options)


@pytest.mark.parametrize("name", REPORTING)
def test_a_command_is_a_function_that_gives_its_json(name: str, tmp_path, monkeypatch) -> None:
    """As one kind of result, whose fields, attributes and dict are that object."""
    monkeypatch.chdir(tmp_path)
    first, group, options = asked(name)
    line = shlex.split(LINES[name]) if name in LINES else examples(name)[0]
    wanted = json.loads(answer([*line, "--json"])[1])
    assert perfmodel.answer(first, *group, **options) == wanted
    found = result_of(name)
    if first != "sweep":
        assert getattr(perfmodel, first)(*group, **options) == found
    assert found == found.to_dict() == wanted
    assert json.loads(json.dumps(found.to_dict())) == wanted
    assert {name: getattr(found, name) for name in wanted} == wanted
    assert wanted.keys() <= set(dir(found))
    with pytest.raises(UsageError, match="has no option 'foo'"):
        perfmodel.answer(first, *group, **options, foo=3)


@pytest.mark.parametrize("name", REPORTING)
def test_a_result_is_short_where_it_is_shown(name: str, tmp_path, monkeypatch) -> None:
    """A few lines in a shell, a part of a page in a notebook, a row per answer as a table; every format as a file."""
    monkeypatch.chdir(tmp_path)
    found, first = result_of(name), asked(name)[0]
    lines = repr(found).splitlines()
    assert lines[0] == found.report.title
    assert 2 <= len(lines) <= 5
    assert max(map(len, lines)) <= 160
    assert found.report.verdict[0][:40] in lines[1]
    page = found._repr_html_()
    assert len(page) < 80_000
    assert page.startswith("<div>")
    assert page.endswith("</div>")
    assert not re.search(r"<(script|style|iframe|link)", page)
    assert all(page.count(f"<{tag}>") + page.count(f"<{tag} ") == page.count(f"</{tag}>") for tag in ("div", "li", "table", "tr", "td"))
    frame = found.to_frame()
    assert len(frame) == len(found.records()) > -(name == "calibrate")
    assert not any(isinstance(value, (list, dict)) for row in found.records() for value in row.values())
    assert pickle.loads(pickle.dumps(found)) == copy.deepcopy(found) == found
    assert found.report == pickle.loads(pickle.dumps(found)).report
    for suffix in ("html", "json", "md", *(["svg"] if found.report.charts else [])):
        assert found.save(tmp_path / f"saved.{suffix}").stat().st_size > 100
    made = json.loads((tmp_path / "saved.json").read_text())
    assert {**made, "provenance": 0} == {**found.to_dict(), "provenance": 0}
    if not found.report.provenance:
        assert made["provenance"]["command"].startswith(f"perfmodel.{first}(")


@pytest.mark.parametrize("first", sorted({name.split()[0].replace("-", "_") for name in REPORTING} - {"sweep"}))
def test_signature_and_help_name_every_option(first: str) -> None:
    """With the defaults of the command line; every example of the help is a call of the function."""
    function = perfmodel.api.function(first)
    shown = inspect.signature(function)
    assert inspect.signature(getattr(perfmodel, first)) == shown
    assert shown.return_annotation is perfmodel.Result
    for name in (name for name in REPORTING if name.split()[0].replace("-", "_") == first):
        for param in command(name).params:
            if param.name in ("json", "full", "help"):
                continue
            own = shown.parameters[param.name]
            assert own.default in ((inspect.Parameter.empty, None) if param.required else (param.default,))
            assert f"\n    {param.name}: " in function.__doc__
    calls = re.findall(rf"^    (perfmodel\.{first}\(.*\))$", function.__doc__, re.MULTILINE)
    assert calls
    assert "perfmodel " not in function.__doc__
    for call in calls:
        node = ast.parse(call, mode="eval").body
        assert isinstance(node, ast.Call)
        places = [ast.literal_eval(one) for one in node.args]
        shown.bind(*places, **{str(one.arg): ast.literal_eval(one.value) for one in node.keywords})


@pytest.mark.parametrize("name", ["claims", "remat", "report", "sweep"])
def test_help_of_a_command_whose_name_a_module_has(name: str) -> None:
    """The module's own words, then what a call of it takes."""
    module = import_module(f"perfmodel.{name}")
    text = pydoc.render_doc(module, renderer=pydoc.plaintext)
    assert f"perfmodel.{name}(" in text
    assert inspect.getdoc(perfmodel.api.function(name)) in inspect.getdoc(module)


def test_types_for_editors_are_those_of_the_functions() -> None:
    """Of every option that they have; one that was added since need not be there yet."""
    made, now = function_types.options(function_types.FILE.read_text()), function_types.options(function_types.stub())
    assert made.keys() <= now.keys()
    assert {name: {key: kind for key, kind in now[name].items() if key in known} for name, known in made.items()} == made, (
        "refresh with: python -m tools.refresh.docs"
    )
    assert made["attention"]["n"] == "int | str | None"


def test_a_type_checker_knows_the_options(tmp_path) -> None:
    path = tmp_path / "asked.py"
    path.write_text("import perfmodel\nfound = perfmodel.attention(n=4096, d=64)\nfound.save('a.md')\nperfmodel.matmul(m=1, foo=2)\n")
    root = Path(perfmodel.__file__).parents[1]
    line = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path), str(path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, "MYPYPATH": str(root)})
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 1, done.stdout + done.stderr
    assert "asked.py:4" in errors[0]
    assert '"foo"' in errors[0]


def test_the_package_lists_its_commands() -> None:
    assert set(dir(perfmodel)) == {*PUBLIC, *command_names()}
    text = pydoc.render_doc(perfmodel, renderer=pydoc.plaintext)
    assert "help(perfmodel.matmul)" in text
    assert (Path(perfmodel.__file__).parent / "py.typed").exists()


def test_fields_of_a_result_have_their_types() -> None:
    found = perfmodel.attention(n=4096, d=64, hardware="h200")
    flash = found.results[1]
    assert [type(value) for value in (flash.flops, flash.time_s.predicted, flash.fits, flash.bound)] == [int, float, bool, str]
    assert flash.time_s.low < flash.time_s.predicted < flash.time_s["high"]
    assert repr(flash.time_s).startswith("<lower: ")
    assert flash.time_s.to_dict() == found["results"][1]["time_s"]
    assert "data:image/svg+xml;base64," in found._repr_html_()
    frame = found.to_frame()
    assert frame["algorithm"].tolist() == ["standard", "flash2"]
    assert frame["time_s.predicted"].tolist() == [one.time_s.predicted for one in found.results]
    for act in (
        lambda: setattr(found, "inputs", 3),
        lambda: delattr(found, "inputs"),
        lambda: setattr(flash, "flops", 3),
        lambda: found.flops,
        lambda: found._foo,
        lambda: flash.foo,
    ):
        with pytest.raises(AttributeError):
            act()
    with pytest.raises(KeyError):
        found["flops"]
    found.to_dict()["inputs"]["n"] = 3
    assert found.inputs.n == 4096


def test_a_result_whose_words_steer_is_shown_plainly() -> None:
    report = Report("\x1b[2J<b>title</b>", ["<script>alert(1)</script>"], [Table("<i>", ["a<", "b"], [["&", "\x9b0m"]])])
    found = perfmodel.Result(report)
    assert "\x1b" not in repr(found)
    page = found._repr_html_()
    assert "<script" not in page
    assert "<b>title" not in page
    assert "<i>" not in page
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", page)
    assert found.records() == []


def test_without_pandas_a_frame_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for found in (perfmodel.softmax(rows=64, cols=64), perfmodel.sweep(n=64, d=64)):
        with pytest.raises(UnavailableError, match="needs pandas") as caught:
            found.to_frame()
        assert caught.value.fix == "pip install pandas"


def test_a_result_is_not_saved_where_it_cannot_be(tmp_path) -> None:
    found = perfmodel.softmax(rows=64, cols=64)
    for wrong in ("report.foo", "no/such/folder.html", "."):
        with pytest.raises(UsageError):
            found.save(tmp_path / wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_saved_result_says_how_it_was_made(tmp_path) -> None:
    """The call, and the profiles by their hashes, one of a file among them."""
    own = tmp_path / "mine.yaml"
    own.write_text((Path(perfmodel.__file__).parents[1] / "hardware_specs" / "nvidia-l4.yaml").read_text().replace("nvidia-l4", "mine"))
    for hardware in ("h200", str(own)):
        found = perfmodel.softmax(rows=64, cols=64, hardware=hardware)
        made = json.loads(found.save(tmp_path / "made.json").read_text())["provenance"]
        assert made["command"] == f"perfmodel.softmax(rows=64, cols=64, hardware={hardware!r})"
        assert [one["id"] for one in made["profiles"]] == [found.hardware.id]
        assert len(made["profiles"][0]["sha256"]) == 64
    assert "perfmodel.softmax(" in found.save(tmp_path / "made.html").read_text()


def test_arguments_of_a_command_are_given_by_place() -> None:
    assert perfmodel.kv_cache("llama-3-8b", n=64) == perfmodel.kv_cache(model="llama-3-8b", n=64)
    assert perfmodel.claims("S029") == perfmodel.claims(ids=["S029"])
    for wrong, words in (
        (lambda: perfmodel.matmul(64, n=64, k=64), "matmul takes 0 values without a name"),
        (perfmodel.batch, "batch needs name"),
        (lambda: perfmodel.matmul(m=-1, n=64, k=64), "m is -1"),
        (lambda: perfmodel.remat(layers=10, relu=True), "--relu goes with --autograd"),
        (lambda: perfmodel.hardware("h200"), "hardware h200 is no command"),
        (lambda: perfmodel.answer("foo"), "there is no command 'foo'"),
        (lambda: perfmodel.roofline(ncu_command=True), "only prints a command"),
        (lambda: perfmodel.hardware("check", "h200"), "gives no report"),
    ):
        with pytest.raises(UsageError, match=words):
            wrong()


def test_the_page_on_python_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[1] / "docs" / "python.md").read_text()
    code = [block.partition("\n")[2] for block in page.split("```")[1::2]]
    assert len(code) == 3
    exec("".join(code), {})


@pytest.mark.parametrize("implementation", ["torch-sdpa-cudnn", "torch-eager"])
def test_attention_by_a_named_kernel_is_the_command(implementation: str) -> None:
    """Its traffic and roof, and predicted times; one that does not exist, or runs nothing here, is refused."""
    words = "--n 1000 --d 64 --heads 8 --pass both --hardware h200 --implementation"
    asked = json.loads(answer(["attention", *words.split(), implementation, "--json"])[1])["results"]
    found = perfmodel.compare_attention(n=1000, d=64, heads=8, direction="both", hardware="h200", implementation=implementation)
    for wanted, result in zip(asked, found.results, strict=True):
        assert (result.implementation or result.algorithm.name) == wanted["traffic_of"]
        assert (result.total.sram.read, result.total.sram.write) == tuple(
            wanted["traffic"]["sram"][name] for name in ("read_bytes", "write_bytes")
        )
        predicted = found.predictions[result.algorithm.name, result.direction]
        assert (result.total.roofline_s, predicted.seconds) == (wanted["time_s"]["roofline"], wanted["time_s"]["predicted"])
    assert {result.implementation for result in found.results} == {None, implementation}
    for name, words in (("torch-sdpa", "none is called"), ("", "none is called"), (3, "give a text"), ("fa1", "runs flash1, which is not")):
        with pytest.raises(UsageError) as caught:
            perfmodel.compare_attention(n=64, d=64, hardware="h200", implementation=name)  # type: ignore[arg-type]
        assert words in f"{caught.value.message} {caught.value.fix}"


def test_columns() -> None:
    found = perfmodel.sweep(n=[64, 128], d=64, causal="both", hardware=["h200", "l40s"], columns=["roofline_s"])
    assert list(found) == ["hardware", "algorithm", "causal", "n", "d", "roofline_s"]
    assert (found.rows, len(found), found.units["roofline_s"], found.units["n"]) == (16, 6, "s", "")
    assert [found[name].dtype for name in ("n", "causal", "roofline_s")] == [np.int64, np.bool_, np.float64]
    codes, words = found.codes("hardware")
    assert words == ("nvidia-h200-sxm", "nvidia-l40s")
    assert [words[code] for code in codes] == found["hardware"].tolist()
    assert "16 rows" in repr(found)
    for name in ("flops", "foo"):
        with pytest.raises(KeyError):
            found[name]
    with pytest.raises(KeyError):
        found.codes("n")


def test_tables_take_columns_without_a_copy() -> None:
    found = perfmodel.sweep(n="1:1000:+1", d=64, causal="both")
    frame = pd.DataFrame(dict(found), copy=False)
    other = pl.DataFrame(dict(found))
    assert len(frame) == len(other) == found.rows == 4000
    for name in ("n", "flops", "roofline_s"):
        assert np.shares_memory(frame[name].to_numpy(), found[name])
        assert np.shares_memory(other[name].to_numpy(), found[name])
        assert np.shares_memory(pa.array(found[name]).to_numpy(), found[name])
    assert frame["algorithm"].tolist() == other["algorithm"].to_list() == found["algorithm"].tolist()
    codes, words = found.codes("algorithm")
    assert pd.Categorical.from_codes(codes, words).tolist() == found["algorithm"].tolist()


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="rows take") as caught:
        perfmodel.sweep(n="1:1000000:+1", d=64, batch="1:1000:+1")
    assert "-o rows.parquet" in str(caught.value)
    assert perfmodel.sweep(n="1:100:+1", d=64, most_bytes=1 << 20).rows == 200
    with pytest.raises(UsageError):
        perfmodel.sweep(n="1:100:+1", d=64, most_bytes=1 << 10)


def test_numbers_of_numpy_are_numbers() -> None:
    found = perfmodel.sweep(n=np.arange(1, 4), d=np.int64(64), causal=np.True_, hardware=np.array(["h200"]), columns="flops, roofline_s")
    same = perfmodel.sweep(n=[1, 2, 3], d=64, causal=True, hardware="h200", columns=["flops", "roofline_s"])
    assert list(found) == list(same)
    assert all((found[name] == same[name]).all() for name in same)
    options = {"n": np.int64(512), "d": np.int32(64), "causal": np.True_, "dropout": np.float64(0.1), "batch": 2.0}
    for function in (perfmodel.attention, perfmodel.compare_attention):
        assert function(**options) == function(n=512, d=64, causal=True, dropout=0.1, batch=2)
    device = perfmodel.compare_attention(n=64, d=64).device
    assert perfmodel.compare_attention(n=64, d=64, hardware=device) == perfmodel.compare_attention(n=64, d=64)


WITHOUT_MEANING = [
    *(({"n": n}, f"n is {said}") for n, said in (("512 tokens", "'512 tokens'"), (512.5, "512.5"), (float("nan"), "nan"))),
    *(({"n": n}, f"n is {said}") for n, said in ((float("inf"), "inf"), (True, "True"), (np.array([1, 2]), "array"))),
    *(({"causal": "no"}, "causal is 'no'"), ({"dropout": "10%"}, "dropout is '10%'"), ({"dtype": 3}, "dtype is 3")),
    *(({"algorithm": [3]}, "algorithm is"), ({"hardware": 3}, "hardware is 3"), ({"hardware": ""}, "no device is called ''")),
]
OF_A_SWEEP = [
    *(({"n": n}, said) for n, said in ((b"64", "b'64' is no number"), ({"a": 1}, "is no number"), (object(), "is no number"))),
    *(({"where": 3}, "where is 3"), ({"where": ["n < 3", 3]}, "where is 3"), ({"hardware": 3}, "--hardware is 3")),
    *(({"columns": 3}, "columns is 3"), ({"columns": "flop"}, "no column 'flop'"), ({"workload": 3}, "no sweep over 3")),
    ({"most_bytes": "1 GB"}, "most_bytes is '1 GB'"),
]


@each(
    ("function", "options", "words"),
    [
        *((function, *row) for function in ("attention", "compare_attention") for row in WITHOUT_MEANING),
        *(("sweep", *row) for row in OF_A_SWEEP),
    ],
)
def test_what_has_no_meaning_is_a_usage_error(function: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        getattr(perfmodel, function)(**{"n": 64, "d": 64, **options})
    assert words in caught.value.message
    assert caught.value.fix


def test_constraints_on_results() -> None:
    found = perfmodel.sweep(n="64:8192:x2", d=64, where=["io < 10 MB", "n > 64"], columns=["flops"])
    assert found.excluded == 16 - found.rows
    assert (found["sram_bytes"] < 10e6).all()
    assert found["n"].min() == 128
