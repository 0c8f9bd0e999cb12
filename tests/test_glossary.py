"""One vocabulary: labels, columns and titles are terms of docs/glossary.md, or made of their words; its keys, columns and options exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from each import each

import perfmodel
from perfmodel.core.roofline import Estimate
from perfmodel.report.metrics import of_cost
from perfmodel.sweep.study import WORKLOADS, workload_named
from tools.commands import all_commands, command

PAGE = (Path(__file__).parents[1] / "docs" / "glossary.md").read_text(encoding="utf-8")
PLACES = {"Metric": 2, "Column": 1, "Meter": 0, "Figure": 0, "BarChart": 0, "LineChart": 0, "ScatterChart": 0}
PLACES |= {"Table": 0, "DataTable": 0, "as_table": 0, "as_rows": 0}
"""Where a call of it has its label, column or title."""


def words_of(text: str) -> set[str]:
    """Words of three letters and more, singular."""
    found = re.findall(r"[a-z]{3,}", re.sub(r"\{\w*\}", " ", text.lower()))
    return {re.sub(r"(?<=ch)es$|(?<!s)s$", "", word) for word in found}


def texts(node: ast.expr) -> Iterator[str]:
    """What an expression that is a text begins and ends with, as far as it is written down."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)  # type: ignore[misc]
    elif isinstance(node, ast.IfExp):
        yield from (*texts(node.body), *texts(node.orelse))
    elif isinstance(node, ast.List):
        yield from (text for one in node.elts for text in texts(one))


def labels() -> Iterator[tuple[str, str]]:
    """Place and text of every label, column and title in the code of reports and studies."""
    folder = Path(perfmodel.__file__).parent
    for path in [*folder.glob("report/**/*.py"), *folder.glob("study/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name not in PLACES:
                continue
            asked = [*node.args[PLACES[name] : PLACES[name] + 1], *(node.args[1:2] if name == "Table" else [])]
            asked += [one.value for one in node.keywords if one.arg in ("label", "title")]
            yield from ((f"{path.name}:{node.lineno}", text) for one in asked for text in texts(one))


def test_labels_are_made_of_the_words_of_the_glossary() -> None:
    terms = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| ")]
    known, found = words_of(" ".join([*terms, PAGE.partition("## Further words of labels")[2]])), list(labels())
    assert len(found) > 300
    unknown = {text: (place, words_of(text) - known) for place, text in found if words_of(text) - known}
    assert unknown == {}


def test_old_names_are_gone_from_labels() -> None:
    for place, text in labels():
        assert not re.search(r"SRAM traffic$|L2 bytes|HBM|two-level", text), (place, text)


def test_every_key_of_a_cost_has_its_term() -> None:
    """Term, label and key are of one row."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    for metric in of_cost(Estimate()):
        if metric.key and metric.label:
            [row] = [row for row in rows if f"`{metric.key}`" in row and row.split("|")[3].count("`")]
            assert words_of(metric.label) <= words_of(row), metric


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_column_of_a_sweep_has_its_term(name: str) -> None:
    for one in workload_named(name).columns:
        assert f"`{one.name}`" in PAGE, one


def test_every_option_with_an_old_name_is_listed() -> None:
    """And every option that is listed is one of some command."""
    options = {opt for name in all_commands() for param in command(name).params for opt in (*param.opts, *param.secondary_opts)}
    renamed = {old: new for name in all_commands() for old, new in command(name).callback.renamed.items()}
    for old, new in renamed.items():
        if not old.startswith("--no-"):
            assert re.search(rf"^\| `{new}` \| `{old}` \|", PAGE, re.MULTILINE), (old, new)
    for listed in re.findall(r"^\| `(--[a-z-]+)", PAGE, re.MULTILINE):
        assert listed in options, listed


OLD_AND_NEW = {
    "model llama-3-8b --phase decode --graph": "model llama-3-8b --phase decode --cuda-graph",
    "batch llama-3-8b --kv-len 64 --graph": "batch llama-3-8b --kv-len 64 --cuda-graph",
    "kv-cache llama-3-8b --dtype fp8": "kv-cache llama-3-8b --kv-dtype fp8",
    "memory gpt2 --dropout --implementation huggingface": "memory gpt2 --dropout-masks --model-code huggingface",
    "memory gpt2 --no-dropout": "memory gpt2 --no-dropout-masks",
    "model gpt2 --phase train --dropout --hardware h200": "model gpt2 --phase train --dropout-masks --hardware h200",
    "remat --layers 8 --memory 6": "remat --layers 8 --budget 6",
    "sweep --n 64 --d 64 --memory=512MiB": "sweep --n 64 --d 64 --row-memory=512MiB",
    "sweep kv-cache --model gpt2 --dtype fp8": "sweep kv-cache --model gpt2 --kv-dtype fp8",
    "sweep model --model gpt2 --phase decode --graph": "sweep model --model gpt2 --phase decode --cuda-graph",
    "sweep --n 64,128 --d 64 --minimize time": "sweep --n 64,128 --d 64 --minimize roofline_s",
}


@each("old", OLD_AND_NEW)
def test_an_old_name_gives_the_same_answer_and_a_note(run, old: str) -> None:
    before, after = run(f"{old} --json"), run(f"{OLD_AND_NEW[old]} --json")
    assert after.err == ""
    assert before.out == after.out
    assert before.code == after.code == 0
    assert before.err.startswith("note: ")
    assert "one more version" in before.err


def test_python_takes_both_names() -> None:
    assert perfmodel.kv_cache("gpt2", kv_dtype="fp8") == perfmodel.kv_cache("gpt2", dtype="fp8")
    assert perfmodel.memory("gpt2", model_code="huggingface") == perfmodel.memory("gpt2", implementation="huggingface")
    both = [perfmodel.sweep("kv-cache", model="gpt2", **{name: "fp8"})["cache_bytes"].tolist() for name in ("dtype", "kv_dtype")]
    assert both[0] == both[1]
