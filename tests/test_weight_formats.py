"""Weights as checkpoints store them: bytes of published files, and what the fields of a quantization_config mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from each import each
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import table

from perfmodel.catalog import find_device, find_model, load_model
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import DataError, UsageError
from perfmodel.core.plugins import plugins
from perfmodel.transformer import weight_formats
from perfmodel.transformer.answer import answer
from perfmodel.transformer.hf import parse
from perfmodel.transformer.op import WEIGHTS
from perfmodel.transformer.ops import EMBEDDING
from perfmodel.transformer.parallel import draft_bytes, weight_bytes
from perfmodel.transformer.parameters import total
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import DECODE, Request, formats
from perfmodel.transformer.weight_formats import quantized
from perfmodel.transformer.weight_formats._base import MatrixFormat, matcher

DATA = Path(__file__).parent / "data"
H200 = find_device("h200")
SIZES = [json.loads(line) for line in (DATA / "checkpoint_sizes.jsonl").read_text().splitlines()]
FP16 = DTYPES["fp16"]
SMALL = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000}
MIXTURE = {"num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}


def model_of(row: dict[str, Any]) -> ModelSpec:
    if isinstance(row["config"], str):
        return find_model(row["config"])
    return parse({**row["config"], "quantization_config": row["quantization_config"]}, row["name"], row["source"])


def small(quantization: object, kind: str = "llama", **fields: Any) -> ModelSpec:
    return parse({"model_type": kind, **SMALL, **fields, "quantization_config": quantization}, "small", "test")


def request(model: ModelSpec, batch: int = 1, weights: str | None = None, **options: Any) -> Request:
    form = formats(model, FP16, weights, None)
    return Request(DECODE, batch, 1, 64, FP16, model=model, device=H200, **form, **options).check()


def held(model: ModelSpec, weights: str | None = None) -> int:
    r = request(model, weights=weights)
    return int(weight_bytes(model, r.step(DECODE)))


# Published checkpoints


@each("row", SIZES)
def test_a_published_checkpoint_has_these_bytes(row):
    model = model_of(row)
    assert model.quantized is not None
    assert (model.unread, model.quantized.unread) == ((), ())
    assert held(model) + draft_bytes(model, published=True) == pytest.approx(row["bytes"], rel=0.001)


def test_some_of_them_are_met_to_the_byte():
    exact = ("openai/gpt-oss-20b", "openai/gpt-oss-120b", "Qwen/Qwen3-32B-AWQ", "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic")
    for row in SIZES:
        if row["name"] in (*exact, "RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16"):
            assert held(model_of(row)) == row["bytes"], row["name"]


def test_deepseek_v3_by_dtype():
    """15,104 corrections of the routers are stored in fp32 and counted as bf16; nothing else differs."""
    row = next(row for row in SIZES if "DeepSeek" in row["name"])
    model = model_of(row)
    assert row["bytes"] - held(model) - draft_bytes(model, published=True) == 2 * (58 + 1) * 256


@pytest.mark.parametrize("name", ["gpt-oss-120b", "gpt-oss-20b", "deepseek-v3", "kimi-k2"])
def test_no_checkpoint_is_counted_in_16_bits(name):
    model = find_model(name)
    assert held(model) < 0.55 * held(model, "bf16")


# What a step reads


@each("row", [row for row in SIZES if "30B" not in row["name"]])
def test_a_large_batch_reads_every_matrix_once_as_it_is_stored(row):
    """All weights but the rows of the embedding that it does not look up."""
    model = model_of(row)
    found = answer(request(model, batch=4096))
    read = sum(line.row.op.bytes_of(WEIGHTS) * line.count for line in found.lines if line.row.op.name != EMBEDDING)
    table = 2 * model.vocab * model.hidden
    assert read == pytest.approx(held(model) - table, rel=1e-4)


def test_one_token_reads_its_experts_in_their_own_format():
    """gpt-oss-120b: 4 of 128 experts in MXFP4 and the rest in bf16 are 2.83 GB less the table, not 10.3 GB."""
    found = answer(request(find_model("gpt-oss-120b")))
    experts = [line for line in found.lines if line.row.op.name.startswith("experts")]
    matrices = 3 * 2880 * 2880 * 4.25 / 8
    assert sum(line.row.op.bytes_of(WEIGHTS) for line in experts) == 4 * (matrices + 2 * 3 * 2880)
    assert {line.row.op.compute_dtype.name for line in experts if line.row.op.compute_dtype} == {"fp4"}


# Fields


def int4(size: int | None, *more: tuple[int | None, int | None, int]) -> MatrixFormat:
    return MatrixFormat("int4", 4, ((size, 1, 16), *more))


def packed(**weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, **weights}}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"g": group}, "ignore": ["lm_head"]}


@each(
    ("raw", "expected"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, int4(64, (64, 1, 4), (1, None, 32))),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, int4(None, (None, 1, 4), (1, None, 32))),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 32}, int4(32, (32, 1, 4))),
        ({"load_in_4bit": True}, MatrixFormat("int4", 4, ((64, 1, 32), (None, None, 544)))),
        ({"load_in_8bit": True, "load_in_4bit": False}, MatrixFormat("int8", 8, ((None, 1, 32),))),
        ({"quant_method": "fp8", "weight_block_size": [64, 32]}, MatrixFormat("fp8", 8, ((32, 64, 32),), "fp8")),
        ({"quant_method": "fp8", "activation_scheme": "static"}, MatrixFormat("fp8", 8, ((None, None, 32), (None, None, 32)), "fp8")),
        ({"quant_method": "fbgemm_fp8"}, MatrixFormat("fp8", 8, ((None, 1, 32),), "fp8")),
        (packed(symmetric=False), int4(128, (128, 1, 4), (None, None, 128))),
        (packed(actorder="static"), int4(128, (None, None, 128))),
        (packed(actorder="group"), int4(128, (None, None, 128), (1, None, 32))),
        (packed(strategy="block", block_structure="128x64"), MatrixFormat("int4", 4, ((64, 128, 16), (None, None, 128)))),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, MatrixFormat("fp8", 8, ((None, None, 64),), "fp8")),
        ({"quantization": {"quant_algo": "FP8_PB_WO"}}, MatrixFormat("fp8", 8, ((128, 128, 32),), "fp8")),
    ],
)
def test_a_field_means_bytes(raw, expected):
    found = quantized(raw)
    assert found is not None
    assert (found.main, found.unread) == (expected, ())


@each(("kept", "module", "stays"), table("patterns_of_modules"))
def test_patterns_of_modules(kept, module, stays):
    assert bool(matcher([kept]).match(module)) == stays


@pytest.mark.parametrize("kind", ["llama", "mixtral", "qwen3_moe", "gpt_oss", "phi3", "gemma2"])
def test_every_matrix_of_a_layer_can_be_kept_or_stored_narrow(kind):
    """Kept by a name of each architecture's own, all bytes are bf16; not kept, all matrices but routers are one byte."""
    fields = {} if kind in ("llama", "phi3", "gemma2") else MIXTURE
    wide, table = held(small(None, kind, **fields), "bf16"), 1000 * 256
    plain = {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}
    names = ["self_attn", "mlp", "block_sparse_moe", "lm_head"]
    with pytest.raises(UsageError, match="nothing here reads"):
        held(small({**plain, "ignore": names}, kind, **fields))
    for left in ("self_attn", "mlp"):
        kept = [name for name in names if name != left and not (left == "mlp" and name == "block_sparse_moe")]
        assert wide / 2 < held(small({**plain, "ignore": kept}, kind, **fields)) < wide
    assert held(small(plain, kind, **fields)) < 2 * table + 1.1 * (wide / 2 - table)


def test_a_layer_of_its_own_format_is_one_of_its_own():
    model = small({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head", "model.layers.1.mlp*"]})
    assert [len(layer.formats) for layer in model.layers] == [7, 4]  # of Q, K, V, O, gate, up, down
    assert len(model.layer_kinds) == 2
    assert held(model) - held(small({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]})) == 3 * 256 * 512 - 3 * 8


def test_mixed_precision_gives_each_module_its_own():
    names = {f"model.layers.{i}.self_attn.q_proj": {"quant_algo": "FP8"} for i in range(2)}
    names |= {f"model.layers.{i}.mlp": {"quant_algo": "NVFP4", "group_size": 16} for i in range(2)}
    model = small({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": names})
    used = dict(model.layers[0].formats)
    assert {name: form.name for name, form in used.items()} == {
        "self_attn.q_proj": "fp8",
        "mlp.gate_proj": "nvfp4",
        "mlp.up_proj": "nvfp4",
        "mlp.down_proj": "nvfp4",
    }
    assert model.head_format is None


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(["gptq", "awq"]), st.sampled_from([4, 8]), st.sampled_from([32, 64, 128]), st.integers(1, 4), st.booleans())
def test_narrower_never_weighs_more_and_scales_always_weigh_something(method, bits, size, width, lm_head):
    model = small({"quant_method": method, "bits": bits, "group_size": size}, intermediate_size=128 * width, tie_word_embeddings=lm_head)
    plain = held(model, f"int{bits}")
    assert plain < held(model) < held(model, "bf16")
    assert held(small(None, intermediate_size=128 * width, tie_word_embeddings=lm_head), "bf16") == 2 * total(model)


def test_every_family_names_its_methods_once_and_reads_nothing_it_does_not_know():
    methods = [method for method, _ in plugins([weight_formats.__name__], "FAMILY", "FAMILIES")]
    assert len(set(methods)) == len(methods) >= 11
    for method in methods:
        found = quantized({"quant_method": method, "bits": 4, "quant_algo": "FP8", "load_in_4bit": True, "made_up": 7})
        assert found is not None
        assert "made_up" in found.unread


# What nothing here reads


@pytest.mark.parametrize(
    "raw",
    [
        {"quant_method": "aqlm", "nbits_per_codebook": 16},
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
        {"quant_method": "awq", "bits": 3},
        {"quant_method": "mxfp4"},  # of a model without experts
        {"quant_method": "compressed-tensors", "format": "marlin-24", "config_groups": packed()["config_groups"]},
        {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"},
        {"bits": 4},
    ],
)
def test_an_unknown_format_is_refused_not_counted_in_16_bits(run, tmp_path, raw):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **SMALL, "quantization_config": raw}))
    for command in ("model {} --n 32", "kv-cache {} --n 32", "batch {} --kv-len 32"):
        outcome = run(command.format(path))
        assert (outcome.code, outcome.out) == (2, "")
        assert "which nothing here reads\n  give --weights-dtype int4" in outcome.err
    assert run(f"model {path} --n 32 --weights-dtype int4").code == 0


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"quant_method": "gptq", "bits": "4"}, "quantization_config.bits is '4'"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size is 0"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "two whole numbers"),
        ({"quant_method": "awq", "bits": 4, "modules_to_not_convert": [7]}, "no name of a module"),
        ({"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["re:("]}, "no regular expression"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": 1}}, "config_groups.g: not an object"),
        (packed(strategy="diagonal"), "weights.strategy: no rule for 'diagonal'"),
    ],
)
def test_a_field_without_meaning_is_one_message(raw, words):
    with pytest.raises(DataError, match=words.replace("(", "\\(")):
        small(raw)


def test_hf_quant_config_beside_config_json_counts(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SMALL}))
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    found = load_model(tmp_path).quantized
    assert found is not None
    assert (found.words, found.unread) == ("modelopt, FP8", ())


# What does not fit


def test_gpt_oss_fits_the_device_that_it_was_made_for(run):
    found = run("model gpt-oss-120b --phase decode --hardware a100-sxm-80gb --json").json
    assert (found["memory"]["fits"], found["times_as_if_it_fitted"]) == (True, False)
    wide = run("model gpt-oss-120b --phase decode --weights-dtype bf16 --hardware a100-sxm-80gb --json").json
    assert (wide["memory"]["fits"], wide["times_as_if_it_fitted"]) == (False, True)
    assert (found["memory"]["weights"], found["inputs"]["weight_bits"]) == (65_248_815_744, 4)
    words = " ".join(run("model deepseek-v3 --phase decode --hardware h200 --full").out.split())
    assert "Does not fit: needs 673.3 GB of 150.1 GB; --tp 8 would fit." in words
    assert "15.42 GB more predict a further token (1 layer): not loaded" in words
