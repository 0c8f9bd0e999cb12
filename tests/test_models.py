"""Model files and config.json: exact parameter counts, the traps of the format, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
from each import each
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import table
from test_architecture import loaded

from perfmodel.catalog import config_names, data_folder, find_model, load_model, model_names
from perfmodel.core.errors import DataError, UsageError
from perfmodel.core.files import read_yaml
from perfmodel.transformer.architectures import known
from perfmodel.transformer.architectures.llama import BUILDS
from perfmodel.transformer.hf import HARMLESS, parse
from perfmodel.transformer.parameters import active, layer_matrices, layer_parts, total
from perfmodel.transformer.spec import DenseMlp, GroupedAttention, Layer, ModelSpec, MoeMlp

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "intermediate_size": 128,
    "vocab_size": 100,
}


def built(**fields: Any) -> ModelSpec:
    return parse({**LLAMA, **fields}, "test", "test")


# Shipped models


@each("name", model_names())
def test_shipped_file_is_valid_and_meets_its_published_count(name):
    path = data_folder("configs") / "models" / f"{name}.yaml"
    raw, _ = read_yaml(path)
    spec = find_model(name)
    assert load_model(path) == spec
    assert spec.source
    assert spec.name == name
    assert total(spec) == raw.get("parameters", total(spec))
    assert 0 < active(spec) <= total(spec)
    if spec.learned_positions:  # a token looks one of them up
        assert active(replace(spec, max_positions=2 * spec.max_positions)) == active(spec)


def test_models_and_configurations_have_places_of_their_own():
    assert len(model_names()) >= 41
    assert not set(model_names()) & set(config_names())


@each(("name", "whole", "used"), table("stated_total_and_active_parameters"))
def test_stated_total_and_active_parameters(name, whole, used):
    for stated, count in ((whole, total(find_model(name))), (used, active(find_model(name)))):
        digits = len(stated.rstrip("B").partition(".")[2])
        assert f"{count / 1e9:.{digits}f}B" == stated


@pytest.mark.parametrize(("kind", "sizes", "more", "parameters"), table("published_parameters_of_other_architectures"))
def test_published_parameters_of_other_architectures(kind, sizes, more, parameters):
    """Counts on the pages of the models."""
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
    assert total(parse({"model_type": kind, **dict(zip(names, sizes, strict=True)), **more}, "x", "x")) == parameters


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "width"),
    [(8, 8, 128, 8192), (8, 1, 128, 9088), (1, 1, 128, 9984), (2, 2, 64, 9984), (4, 4, 32, 9984), (8, 8, 16, 9984)],
)
def test_shazeers_six_layers_are_equally_large(heads, kv_heads, head_dim, width):
    """Shazeer 2019 (arXiv 1911.02150), Table 3, d_model 1024."""
    layer = Layer(GroupedAttention(heads, kv_heads, head_dim), DenseMlp(width, gated=False))
    spec = ModelSpec("shazeer", "none", 1024, 32768, (layer,))
    assert layer_parts(spec, layer)["attention"] + layer_parts(spec, layer)["mlp"] == 20_971_520 == layer_matrices(spec, layer)


# Against a walk over the tensors of a checkpoint, as its own modules name them


def llama_tensors(c: dict[str, Any]) -> list[tuple[int, ...]]:
    h, d, f = c["hidden_size"], c["head_dim"], c["intermediate_size"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    layer = [(q, h), (kv, h), (kv, h), (h, q), (f, h), (f, h), (h, f), (h,), (h,)]
    if c["model_type"] == "qwen2":
        layer += [(q,), (kv,), (kv,)]
    if c["model_type"] == "qwen3":
        layer += [(d,), (d,)]
    if c["model_type"] == "gemma2":
        layer += [(h,), (h,)]
    tied = c["model_type"] == "gemma2"
    return [(c["vocab_size"], h)] * (1 if tied else 2) + layer * c["num_hidden_layers"] + [(h,)]


def gpt2_tensors(c: dict[str, Any]) -> list[tuple[int, ...]]:
    h, f = c["n_embd"], c["n_inner"]
    layer = [(h, 3 * h), (3 * h,), (h, h), (h,), (h, f), (f,), (f, h), (h,), (h,), (h,), (h,), (h,)]
    return [(c["vocab_size"], h), (c["n_positions"], h), *layer * c["n_layer"], (h,), (h,)]


def gpt_oss_tensors(c: dict[str, Any]) -> list[tuple[int, ...]]:
    h, d, f, e = c["hidden_size"], c["head_dim"], c["intermediate_size"], c["num_local_experts"]
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"] * d
    layer = [(heads * d, h), (heads * d,), (kv, h), (kv,), (kv, h), (kv,), (h, heads * d), (h,), (heads,), (h,), (h,)]
    layer += [(e, h), (e,), (e, h, 2 * f), (e, 2 * f), (e, f, h), (e, h)]
    return [(c["vocab_size"], h)] * 2 + layer * c["num_hidden_layers"] + [(h,)]


def deepseek_tensors(c: dict[str, Any]) -> list[tuple[int, ...]]:
    h, heads, nope, rope, v = (c[k] for k in ("hidden_size", "num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    r, rq, e, f = c["kv_lora_rank"], c["q_lora_rank"], c["n_routed_experts"], c["moe_intermediate_size"]
    head = [(heads * (nope + rope), h)] if rq is None else [(rq, h), (rq,), (heads * (nope + rope), rq)]
    attention = [*head, (r + rope, h), (r,), (heads * (nope + v), r), (h, heads * v), (h,), (h,)]
    dense = [(c["intermediate_size"], h)] * 3
    sparse = [(f, h)] * 3 * e + [(f * c["n_shared_experts"], h)] * 3 + [(e, h), (e,)]
    first = c["first_k_dense_replace"]
    layers = (attention + dense) * first + (attention + sparse) * (c["num_hidden_layers"] - first)
    return [(c["vocab_size"], h)] * 2 + layers + [(h,)]


SIZE = st.integers(1, 40)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["llama", "mistral", "qwen2", "qwen3", "gemma2", "gpt2", "gpt_oss", "deepseek_v3"]),
    st.integers(1, 4),
    st.lists(SIZE, min_size=12, max_size=12),
    st.booleans(),
)
def test_every_tensor_is_counted(kind, kv_heads, sizes, plain_q):
    h, d, f, vocab, group, layers, experts, rope, nope, v, r, rq = sizes
    c: dict[str, Any] = {"model_type": kind, "hidden_size": h, "vocab_size": vocab, "num_hidden_layers": layers, "intermediate_size": f}
    c |= {"num_attention_heads": group * kv_heads, "num_key_value_heads": kv_heads, "head_dim": d}
    tensors = llama_tensors
    if kind == "gpt2":
        heads = kv_heads
        c = {
            "model_type": kind,
            "n_embd": h * heads,
            "n_head": heads,
            "n_layer": layers,
            "n_inner": f,
            "vocab_size": vocab,
            "n_positions": d,
        }
        tensors = gpt2_tensors
    elif kind == "gpt_oss":
        c |= {"num_local_experts": experts, "num_experts_per_tok": 1}
        tensors = gpt_oss_tensors
    elif kind == "deepseek_v3":
        c |= {"n_routed_experts": experts, "num_experts_per_tok": 1, "n_shared_experts": group - 1, "moe_intermediate_size": f + 1}
        c |= {
            "qk_rope_head_dim": rope,
            "qk_nope_head_dim": nope,
            "v_head_dim": v,
            "kv_lora_rank": r,
            "q_lora_rank": None if plain_q else rq,
        }
        c["first_k_dense_replace"] = min(layers, kv_heads - 1)
        tensors = deepseek_tensors
    assert total(parse(c, "x", "x")) == sum(prod(shape) for shape in tensors(c))


# Traps of the format


def test_head_dim_may_differ_from_the_share_of_a_head():
    attention = built(head_dim=32).layers[0].attention
    assert (attention.head_dim, attention.kv_heads) == (32, 4)
    assert built().layers[0].attention.head_dim == 16
    assert built(head_dim=None).layers[0].attention.head_dim == 16
    assert built(model_type="qwen3").layers[0].attention.head_dim == 128


def test_the_language_model_may_be_nested():
    nested = {"model_type": "gemma4", "tie_word_embeddings": True, "vision_config": {"hidden_size": 7}, "text_config": LLAMA}
    assert parse(nested, "x", "x").tied_embeddings
    assert parse({**nested, "text_config": {**LLAMA, "tie_word_embeddings": False}}, "x", "x").tied_embeddings is False
    with pytest.raises(DataError, match=r'text_config\.hidden_size is "64": it should be a whole number\n  write it like 4096'):
        parse({"text_config": {**LLAMA, "hidden_size": "64"}}, "x", "x")


@pytest.mark.parametrize(
    ("kind", "tied"),
    [("llama", False), ("mistral", False), ("qwen2", False), ("qwen3", False), ("gemma", True), ("gemma2", True), ("gemma3_text", True)],
)
def test_tying_has_a_default_per_architecture(kind, tied):
    assert built(model_type=kind).tied_embeddings is tied
    assert built(model_type=kind, tie_word_embeddings=not tied).tied_embeddings is not tied


def windows(**fields: Any) -> list[Any]:
    return [layer.attention.window for layer in built(**fields).layers]


def test_windows():
    assert windows(sliding_window=8) == [None] * 3  # Llama reads no such field
    assert windows(model_type="mistral") == [4096] * 3
    assert windows(model_type="mistral", sliding_window=None) == [None] * 3
    assert windows(model_type="mistral", sliding_window=8) == [8] * 3
    assert windows(model_type="mixtral", num_experts=4) == [None] * 3
    assert windows(model_type="gemma2", sliding_window=8) == [8, None, 8]
    assert windows(model_type="gemma3_text", num_hidden_layers=7, sliding_window=8) == [8, 8, 8, 8, 8, None, 8]
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    assert windows(model_type="gemma2", sliding_window=8, layer_types=kinds) == [None, 8, None]


def test_experts_on_some_layers():
    spec = built(
        model_type="qwen3_moe",
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=8,
        num_hidden_layers=4,
        decoder_sparse_step=2,
        mlp_only_layers=[3],
    )
    assert [isinstance(layer.mlp, MoeMlp) for layer in spec.layers] == [False, True, False, False]
    few = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
    spec = built(model_type="qwen2_moe", mlp_only_layers=[0], **few)
    assert [isinstance(layer.mlp, MoeMlp) for layer in spec.layers] == [False, True, True]
    spec = built(model_type="llama4_text", num_local_experts=4, interleave_moe_layer_step=2, intermediate_size_mlp=256)
    assert [(layer.mlp.width, isinstance(layer.mlp, MoeMlp)) for layer in spec.layers] == [(256, False), (128, True), (256, False)]
    spec = built(model_type="gemma4_text", hidden_size_per_layer_input=0)
    assert [(isinstance(layer.mlp, DenseMlp), layer.norms) for layer in spec.layers] == [(True, 4)] * 3
    first = find_model("deepseek-v3")
    assert [isinstance(layer.mlp, DenseMlp) for layer in first.layers[:4]] == [True, True, True, False]


# Finding them


def test_gpt2_has_names_of_its_own():
    raw = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 100, "n_ctx": 32}
    spec = parse(raw, "x", "x")
    assert (spec.hidden, spec.max_positions, spec.tied_embeddings, spec.norm) == (64, 32, True, "layer")
    assert spec.layers[0].mlp.width == 256
    assert parse({**raw, "n_inner": 100}, "x", "x").layers[0].mlp.width == 100


def test_a_model_is_found_by_words_or_path(tmp_path):
    assert find_model("Mistral 7B").name == "mistral-7b-v0.1"
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert find_model(str(folder)) == find_model(str(folder / "config.json"))
    assert find_model(str(folder)).name == "my-model"
    with pytest.raises(UsageError, match=r"llama-3-70b, llama-3-8b"):
        find_model("llama-3")
    with pytest.raises(UsageError, match="no model is called"):
        find_model("")


def test_an_edited_shipped_file_says_what_is_wrong(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.yaml").write_text("source: me\nconfig: {model_type: llama}\n")
    monkeypatch.setattr("perfmodel.catalog.data_folder", lambda name: tmp_path)
    with pytest.raises(DataError, match=r"mine\.yaml: num_attention_heads: missing"):
        find_model("mine")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["line 1"]),
        ("[]", ["not a mapping", "give the config.json of a transformers model"]),
        ('{"model_type": "llama",}', ["line 1"]),
        ('{"a": 1, "a": 2}', ["'a' appears twice"]),
        ('{"a": ' + "[" * 5000, ["nested deeper"]),
        ('{"a": ' + "9" * 5000 + "}", ["digits"]),
        ("{}", ["model_type: missing", "no rule can be chosen"]),
        ('{"model_type": "rwkv"}', ["no rule for the architecture 'rwkv'", "llama"]),
        ('{"model_type": "lama"}', ["no rule", "did you mean llama"]),
        (json.dumps({**LLAMA, "model_type": 7}), ["model_type is 7: it should be text"]),
        (json.dumps({k: v for k, v in LLAMA.items() if k != "vocab_size"}), ["vocab_size: missing", "'llama' needs it"]),
        (json.dumps({**LLAMA, "hidden_size": 64.5}), ["hidden_size is 64.5: it should be a whole number"]),
        (json.dumps({**LLAMA, "hidden_size": True}), ["hidden_size is true: it should be a whole number"]),
        (json.dumps({**LLAMA, "hidden_size": "4096"}), ['hidden_size is "4096"', "write it like 4096, without quotes"]),
        (json.dumps({**LLAMA, "hidden_size": 1e3}), ["hidden_size is 1000.0", "without quotes, fraction or exponent"]),
        (json.dumps({**LLAMA, "hidden_size": [1] * 999}), ["hidden_size is [1, 1, 1", " 1, ...: it should be"]),
        (json.dumps({**LLAMA, "quantization_config": "fp8"}), ['quantization_config is "fp8"', "object", "write it as"]),
        (json.dumps({**LLAMA, "hidden_size": 0}), ["hidden_size is 0"]),
        (json.dumps({**LLAMA, "hidden_size": 10**12}), ["hidden_size is 1000000000000"]),
        (json.dumps({**LLAMA, "num_hidden_layers": 10**6}), ["num_hidden_layers is 1000000"]),
        (json.dumps({**LLAMA, "num_attention_heads": 6}), ["head_dim: missing", "does not divide by 6"]),
        (json.dumps({**LLAMA, "num_key_value_heads": 3}), ["num_key_value_heads is 3"]),
        (
            json.dumps({**LLAMA, "tie_word_embeddings": "no"}),
            ['tie_word_embeddings is "no": it should be true or false', "write it like true"],
        ),
        (json.dumps({**LLAMA, "layer_types": ["linear_attention"] * 3}), ["layer_types.0", "'linear_attention'"]),
        (json.dumps({**LLAMA, "model_type": "gemma2", "layer_types": ["mamba"] * 3}), ["layer_types.0: no rule for 'mamba'"]),
        (json.dumps({**LLAMA, "model_type": "gemma2", "layer_types": ["full_attention"]}), ["layer_types", "3 layers"]),
        (json.dumps({**LLAMA, "model_type": "mixtral"}), ["num_experts or n_routed_experts or num_local_experts: missing"]),
        (json.dumps({**LLAMA, "model_type": "mixtral", "num_experts": 1}), ["num_experts_per_tok is 2", "1 experts"]),
        (json.dumps({**LLAMA, "model_type": "gemma4_text"}), ["hidden_size_per_layer_input", "no rule yet"]),
        (json.dumps({**LLAMA, "model_type": "llama4_text", "no_rope_layers": [1]}), ["no_rope_layers", "list of 3"]),
    ],
)
def test_a_wrong_file_is_one_message_with_its_place(run, tmp_path, text, words):
    path = tmp_path / "config.json"
    path.write_text(text)
    outcome = run(f"kv-cache {path} --n 8")
    assert outcome.code == 1, outcome
    assert outcome.out == ""
    for word in (str(path), *words):
        assert word in outcome.err
    assert "Traceback" not in outcome.err


def test_a_file_that_is_not_there(run):
    outcome = run("model ./nope.json")
    assert (outcome.code, outcome.out) == (1, "")
    assert "nope.json: No such file\n  give the path of a config.json, or a model's name" in outcome.err


@each("kind", known())
def test_every_architecture_names_the_first_field_it_lacks(kind):
    with pytest.raises(DataError, match=f"missing, and the rule for model_type '{kind}' needs it|no rule yet"):
        parse({"model_type": kind}, "x", "x")


def test_a_shipped_model_starts_fast():
    found = loaded("kv-cache", "llama-3-8b", "--n", "2048")
    assert isinstance(found["modules"], list)
    assert {"numpy", "numba", "pydantic.main", "matplotlib", "rich.table"} & set(found["modules"]) == set()


# Fields that no rule reads

REFERENCE = [json.loads(line) for line in (Path(__file__).parent / "data/model_configs.jsonl").read_text().splitlines()]
USUAL = {
    "architectures": ["X"],
    "rope_theta": 1e6,
    "rope_scaling": {"factor": 8.0},
    "rms_norm_eps": 1e-6,
    "eos_token_id": [1, 2],
    "torch_dtype": "bfloat16",
    "attention_dropout": 0.1,
    "norm_topk_prob": True,
    "use_cache": True,
}


@each("row", REFERENCE)
def test_every_field_of_a_published_model_is_read_or_harmless(row):
    found = parse({**row["config"], **USUAL}, row["name"], row["source"])
    assert found.unread == ()
    assert total(found) == (row["parameters"] or total(found))


@each("row", REFERENCE)
def test_no_field_that_changes_the_counts_is_called_harmless(row):
    """Doubled, a harmless field changes nothing; one that changes a count is read."""
    plain = parse(row["config"], "x", "x")
    for name, value in row["config"].items():
        if type(value) is int and name in HARMLESS:
            assert parse({**row["config"], name: 2 * value}, "x", "x") == plain
    for name in HARMLESS - {"model_type", "torch_dtype", "dtype", "hidden_act", "hidden_activation"}:
        assert parse({**row["config"], name: 3}, "x", "x") == plain, name


@pytest.mark.parametrize("row", REFERENCE[::10], ids=lambda row: row["name"])
def test_a_field_that_nobody_reads_is_named(run, tmp_path, row):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**row["config"], "memory_heads": 4, "is_off": False, "no_size": None}))
    name = load_model(path).name
    words = f"No rule reads memory_heads in the file of {name}: if they change its sizes, the counts here are wrong."
    for line in (f"kv-cache {path} --n 32", f"model {path} --n 32", f"batch {path} --kv-len 32", f"memory {path} --n 32"):
        short, full = (run(f"{line}{more}").out for more in ("", " --full"))
        assert words in " ".join(short.split()), line
        assert words in " ".join(full.split()), line


def test_an_architecture_reads_what_the_file_has(monkeypatch):
    """A new architecture that asks for a field of its own gets it, whatever other rules know."""
    plain = BUILDS["llama"]

    def build(facts):
        return replace(plain(facts), hidden=facts.whole("hidden_size") * facts.whole("widening", default=1))

    monkeypatch.setitem(BUILDS, "llama", build)
    assert built(widening=3).hidden == 3 * 64
    assert built(widening=3).unread == ()
    assert built().hidden == 64


def test_the_parts_of_a_larger_model_that_are_not_counted_are_named():
    raw = {"model_type": "x", "text_config": LLAMA, "vision_config": {"hidden_size": 8}, "torch_dtype": "bfloat16"}
    assert parse(raw, "x", "x").unread == ("vision_config",)
