"""What a command refuses: one message with place and fix, exit code 1 or 2, nothing on stdout, no file."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from each import each
from fuzz_seeds import MEASURING
from fuzzing import examples

from tools.commands import all_commands, command


@pytest.fixture
def refused(run, tmp_path, monkeypatch) -> Callable[..., str]:
    """``refused(words)`` -> its message, after the exit code and all else that a refusal is have been checked."""
    monkeypatch.chdir(tmp_path)

    def call(words: list[str], code: int = 2) -> str:
        outcome = run(words[0], *words[1:])
        assert (outcome.code, outcome.out) == (code, ""), outcome
        assert len(outcome.err.splitlines()) <= 4
        assert "Traceback" not in outcome.err
        assert list(Path().iterdir()) == []
        return str(outcome.err)

    return call


# Laws of every option


def options() -> Iterator[tuple[str, Any, list[str]]]:
    """Each option that has a value, with its command and that command's example without it."""
    for name in all_commands():
        for param in command(name).params:
            if param.param_type_name != "argument" and not param.is_flag:
                words = examples(name)[0]
                at = next((at for at, word in enumerate(words) if word in param.opts), len(words))
                yield name, param, words[:at] + words[at + 2 :]


def long(param: Any) -> str:
    """The option as messages name it."""
    return max(param.opts, key=len)


ZERO = ("dropout", "imbalance", "zero", "stride", "prefix", "draft_tokens", "gpu_hour", "require")
"""Options of numbers that may be 0."""


@each(("name", "param", "words"), options)
def test_a_number_is_one_and_in_its_range(refused, name: str, param: Any, words: list[str]) -> None:
    number = param.get_runtime_param().annotation if hasattr(param, "get_runtime_param") else None
    if number not in (int, float) or name in MEASURING:
        return
    wrong = ["-1", "x", "1e16", *["0"] * (param.name not in ZERO), *["1.5"] * (number is int)]
    for value in wrong:
        assert long(param) in refused([*words, long(param), value]), value


@each(("name", "param", "words"), options)
def test_a_name_is_known(refused, name: str, param: Any, words: list[str]) -> None:
    option = long(param)
    if name in MEASURING or name in ("remat", "report", "compare"):
        return
    if param.name == "hardware":
        told = refused([*words, option, "h201"])
        assert "no device is called 'h201'" in told
        assert "did you mean h20" in told
    if param.name in ("dtype", "weights_dtype", "kv_dtype", "rope_dtype"):
        told = refused([*words, option, "int3"])
        assert f"{option}: unknown dtype 'int3'" in told
        assert "did you mean " in told
    if param.name == "output":
        assert "'.pdf' (x.pdf)" in (told := refused([*words, option, "x.pdf"]))
        assert ".json, " in told
        assert "without suffix" in refused([*words, option, "x"])
        assert "no folder no/such/folder" in refused([*words, option, "no/such/folder/x.json"])


@each("name", all_commands)
def test_what_is_needed_is_asked_for_with_an_example(refused, name: str) -> None:
    needed = {"attention": "n d", "matmul": "m n k", "mlp": "batch d_in d_hidden d_out", "softmax": "rows cols", "fuse": "elements ops"}
    needed |= {"occupancy": "threads", "recompute": "bytes flops", "remat": "layers"}
    for option in needed.get(name, "").split():
        typed = f"--{option.replace('_', '-')}"
        [words] = [words for _, param, words in options() if _ == name and long(param) == typed]
        told = refused(words)
        assert f"{typed} is missing" in told
        assert f"such as: perfmodel {name} -" in told
    if {param.param_type_name for param in command(name).params if param.required} == {"argument"}:
        assert "Usage: perfmodel" in refused(name.split())
    assert "--nothing" in refused([*examples(name)[0], "--nothing"])


# Rules of their own


def rows() -> Iterator[tuple[int, str, list[str]]]:
    loader, text = getattr(yaml, "CSafeLoader", yaml.SafeLoader), (Path(__file__).parent / "data" / "refusals.yaml").read_text()
    for code, table in yaml.load(text, loader).items():
        for begun, listed in table.items():
            yield from ((code, f"{begun} {line}", words) for line, *words in listed)


@each(("code", "line", "said"), rows)
def test_one_message_with_place_and_fix(refused, monkeypatch, code: int, line: str, said: list[str]) -> None:
    monkeypatch.setattr("perfmodel.validation.run.best_backend", lambda: "cpu")
    told = refused(shlex.split(line), code)
    assert all(words in told for words in said), told
