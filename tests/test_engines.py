"""Presets of serving engines: shipped ones, a user's own file, one more dropped in place, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tables import table

from perfmodel import catalog
from perfmodel.catalog import data_folder, engine_names, find_device, find_engine, find_model
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.files import read_yaml
from perfmodel.serving.engine import trusted, validated
from perfmodel.serving.iteration import Iteration
from perfmodel.serving.steps import step_times
from perfmodel.transformer.step import DECODE, ModelPass, Split


@pytest.mark.parametrize("name", engine_names())
def test_shipped_presets_are_valid_and_say_their_sources(name):
    raw = read_yaml(data_folder("configs") / "engines" / f"{name}.yaml")[0]
    assert validated(raw) == trusted(raw) == find_engine(name)
    assert raw["id"] == name
    engine = find_engine(name)
    assert engine.kernels.all_reduce[-1] == "nccl"
    if "overhead" in raw:  # fitted, so others rely on it
        assert {"arguments", "memory" if engine.in_stages else "all_reduce"} <= set(raw["sources"])


@pytest.mark.parametrize(
    ("engine", "device", "budget", "sequences"),
    [
        ("vllm", "h200", 8192, 1024),
        ("vllm", "b200", 8192, 1024),
        ("vllm", "a100-sxm-80gb", 2048, 256),
        ("vllm", "rtx-4090", 2048, 256),
        ("sglang", "rtx-4090", 2048, 2048),
        ("sglang", "h200", 8192, 2048),
        ("sglang", "b200", 16384, 2048),
        ("tensorrt-llm", "rtx-4090", 8192, 2048),
    ],
)
def test_defaults_go_by_the_device(engine, device, budget, sequences):
    batching = find_engine(engine).for_device(find_device(device)).batching
    assert (batching.token_budget, batching.max_sequences) == (budget, sequences)


@pytest.mark.parametrize(("asked", "meant"), [("trtllm", "tensorrt-llm"), ("vLLM", "vllm"), ("sglang", "sglang")])
def test_names(asked, meant):
    assert find_engine(asked).id == meant


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(PerfmodelError, match="vllm"):
        find_engine("vlm")


MINIMAL = "id: mine\nname: Mine\n"


@pytest.mark.parametrize(("text", "words"), table("a_bad_field_gets_one_clear_message"))
def test_a_bad_field_gets_one_clear_message(tmp_path, text, words):
    path = tmp_path / "mine.yaml"
    path.write_text(MINIMAL + text)
    with pytest.raises(PerfmodelError) as found:
        find_engine(str(path))
    assert words in str(found.value)
    assert str(path) in str(found.value)


def test_an_engine_is_one_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    own = tmp_path / "configs"
    shutil.copytree(data_folder("configs") / "engines", own / "engines")
    (own / "engines" / "mine.yaml").write_text(MINIMAL + "batching: {mixed: false}\n")
    monkeypatch.setattr(catalog, "data_folder", lambda _name: own)
    assert "mine" in engine_names()
    assert not find_engine("mine").batching.mixed
    assert find_engine(str(own / "engines" / "mine.yaml")) == find_engine("mine")


def _model(run, line: str) -> dict:
    return json.loads(run(f"model llama-3.1-8b --hardware h200 --phase decode --batch 8 --kv-len 1024 --json {line}").out)


def test_model_runs_the_kernels_of_an_engine(run):
    plain, engine, same = _model(run, "--tp 8"), _model(run, "--tp 8 --engine vllm"), _model(run, "--tp 8 --fused")
    assert plain["inputs"]["kernels"]["all_reduce"] == ["nccl"]
    assert engine["inputs"]["kernels"]["all_reduce"] == ["vllm-allreduce", "nccl"]
    assert engine["inputs"]["fused_elementwise"]
    used = {op["name"]: op["implementation"] for op in engine["ops"]}
    assert used["all-reduce"] == "vllm-allreduce"
    assert [op["name"] for op in engine["ops"]] == [op["name"] for op in same["ops"]] != [op["name"] for op in plain["ops"]]
    assert engine["totals"]["flops"] == plain["totals"]["flops"]


def test_a_batch_beyond_the_graphs_is_launched_kernel_by_kernel(run, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(MINIMAL + "graph_batch: 4\n")
    assert _model(run, f"--engine {path}")["inputs"]["cuda_graph"] == {"decode": False}
    assert _model(run, "--engine vllm")["inputs"]["cuda_graph"] == {"decode": True}


def names_of_a_step(model: str, split: Split) -> set[str]:
    """Rows of a decode step under SGLang on an H200."""
    like = ModelPass(DECODE, 1, 1, 1, DTYPES["bf16"], split=split)
    times = step_times(find_model(model), find_device("h200"), find_engine("sglang"), like)
    return {row.op.name for row in times.estimate(Iteration(decodes=4, context=100)).rows}


def test_what_sglang_joins() -> None:
    """Latents in one matmul; the shared expert among 256 routed ones, where they are not dealt out, and small all-reduces on one node."""
    cut, dealt = names_of_a_step("deepseek-v3", Split(8)), names_of_a_step("deepseek-v3", Split(8, 8))
    assert "Q and KV down projection" in cut & dealt
    assert not {"Q down projection", "KV down projection"} & (cut | dealt)
    assert not any(name.startswith("shared expert") for name in cut)
    assert any(name.startswith("shared expert") for name in dealt)
    assert any(name.startswith("shared expert") for name in names_of_a_step("kimi-k2", Split(8)))
    assert "all-reduce, residual add and norm" in cut
    assert "all-reduce, residual add and norm" not in names_of_a_step("deepseek-v3", Split(8, 8, 1, 8)) | names_of_a_step(
        "qwen3-32b", Split(8)
    )
