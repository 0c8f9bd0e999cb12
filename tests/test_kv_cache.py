"""The KV cache: every published size, a walk over blocks and steps, what fits, and the command."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import table

from perfmodel.catalog import find_device, find_model
from perfmodel.transformer.answer import answer
from perfmodel.transformer.cache_plan import CacheWorkload, evaluate
from perfmodel.transformer.estimate import run_pass
from perfmodel.transformer.generation import scores, scores_anew
from perfmodel.transformer.kv_cache import (
    BITS,
    CacheFormat,
    attention_kinds,
    equivalent_kv_heads,
    layer_token_bytes,
    longest_context,
    most_stored_tokens,
    sequence_bytes,
    stored_tokens,
    token_bytes,
    vector_bytes,
)
from perfmodel.transformer.spec import DenseMlp, GroupedAttention, LatentAttention, Layer, ModelSpec, score_flops
from perfmodel.transformer.step import Request


@pytest.fixture
def run(run_full):
    """Tables and notes are in the output, whatever a screen shows first."""
    return run_full


SIXTEEN = CacheFormat("bf16")


def model(*attentions: GroupedAttention | LatentAttention) -> ModelSpec:
    return ModelSpec("small", "none", 16, 32, tuple(Layer(attention, DenseMlp(8)) for attention in attentions))


# Published sizes


@pytest.mark.parametrize(("name", "size"), table("bytes_per_token"))
def test_bytes_per_token(name, size):
    assert token_bytes(find_model(name), SIXTEEN) == size == sequence_bytes(find_model(name), 1, SIXTEEN)


def test_deepseek_v2_latent():
    """34,560 elements per token (section 2.1.4); as large as grouped attention with 2.25 groups (caption of Table 1)."""
    latent = find_model("deepseek-v2")
    (attention, layers) = attention_kinds(latent)[0]
    assert isinstance(attention, LatentAttention)
    assert layers * attention.kept == 34_560
    assert equivalent_kv_heads(attention) == 2.25


def test_flashmla_fp8_cache():
    """656 B per token and layer: 512 fp8, 4 scales of 4 B, 64 bf16 (README of FlashMLA)."""
    attention, _ = attention_kinds(find_model("deepseek-v3"))[0]
    assert layer_token_bytes(attention, CacheFormat("fp8", "bf16", scale_group=128)) == 656
    assert layer_token_bytes(attention, CacheFormat("fp8")) == 576


@pytest.mark.parametrize(("heads", "intensity"), [(128, "241.8"), (16, "30.2")])
def test_intensity_of_latent_attention(heads, intensity):
    attention = LatentAttention(heads, 512, 1536, 64, 128, 128)
    assert f"{score_flops(attention, cached=True) / layer_token_bytes(attention, SIXTEEN):.1f}" == intensity


# Formats, blocks, windows


@pytest.mark.parametrize(("dtype", "size"), [("fp32", 32), ("fp16", 16), ("bf16", 16), ("fp8", 8), ("int8", 8), ("int4", 4)])
def test_formats(dtype, size):
    assert BITS[dtype] == size
    assert layer_token_bytes(GroupedAttention(4, 2, 64), CacheFormat(dtype)) == 2 * 2 * 64 * size // 8


def test_scales_are_per_head():
    assert vector_bytes(100, 8, 64) == 100 + 2 * 4
    assert vector_bytes(3, 4) == 2
    assert layer_token_bytes(GroupedAttention(4, 2, 64), CacheFormat("int4", scale_group=32)) == 2 * 2 * (32 + 2 * 4)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 200), st.none() | st.integers(1, 60), st.integers(1, 17))
def test_blocks_against_a_walk(n, window, block):
    def held(length: int) -> int:
        first = 0 if window is None else max(0, length - window)
        return block * len({token // block for token in range(first, length)})

    assert stored_tokens(n, window, block) == held(n)
    assert most_stored_tokens(n, window, block) == max(held(length) for length in range(1, n + 1))


# What fits


KINDS = st.sampled_from([(None, None), (5, None), (5, 5), (1, 9)])


@settings(max_examples=80, deadline=None)
@given(KINDS, st.integers(1, 9), st.integers(1, 4), st.integers(0, 60_000))
def test_longest_context_fits_and_the_next_does_not(kinds, block, batch, room):
    spec = model(*(GroupedAttention(2, 1, 4, window) for window in kinds))
    form = CacheFormat("fp16", block_size=block)

    def peak(n: int) -> int:
        return max(batch * sequence_bytes(spec, length, form) for length in range(1, n + 1))

    longest = longest_context(room, spec, batch, form)
    if longest is None:
        assert None not in kinds
        assert peak(100) <= room
    else:
        assert longest == 0 or peak(longest) <= room
        assert sum(batch * 16 * most_stored_tokens(longest + 1, window, block) for window in kinds) > room


@pytest.mark.parametrize(("name", "hardware"), [("llama-2-7b", "nvidia-a100-sxm-80gb"), ("gemma-2-9b", "nvidia-l4"), ("gpt2", "nvidia-t4")])
def test_largest_batch_fits_and_the_next_does_not(name, hardware):
    spec, device = find_model(name), find_device(hardware)
    result = evaluate(CacheWorkload(spec, 1000, 1, CacheFormat(block_size=16), reserve=10**9), device)
    assert result.batch is not None
    assert result.batch > 0
    assert result.capacity is not None
    left = result.capacity - result.weights - 10**9
    assert result.batch * result.per_sequence <= left < (result.batch + 1) * result.per_sequence
    assert result.weights == 2 * result.parameters


# Generation


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.none() | st.integers(1, 30))
def test_scores_against_a_loop(n, window):
    seen = [min(t, window or t) for t in range(1, n + 1)]
    assert scores(n, window) == sum(seen)
    assert scores_anew(n, window) == sum(sum(seen[:t]) for t in range(1, n + 1))


# The command


LINES = [
    "kv-cache gpt2 --n 100 --batch 3 --kv-dtype fp32 --hardware t4",
    "kv-cache gemma-2-9b --n 8200 --block-size 16 --kv-dtype int4 --scale-group 64",
    "kv-cache deepseek-v3 --n 4096 --kv-dtype fp8 --scale-group 128 --rope-dtype bf16 --weights-dtype int4",
    "kv-cache gpt-oss-20b --n 1000 --reserve 2GiB --hardware h200",
    "kv-cache qwen2.5-72b --n 1000 --weights-dtype int8 --hardware h100-sxm",
    "kv-cache gemma-4-26b-a4b --n 3000 --block-size 32",
    "kv-cache llama-4-scout --n 9000 --weights-dtype int4",
]


@pytest.mark.parametrize("line", LINES)
def test_explanations_end_in_the_numbers_of_the_report(run, line):
    found = run(f"{line} --explain all --json").json
    values = {step["name"]: step["value"] for step in found["explanation"][0]["steps"]}
    sources = [step["source"] for step in found["explanation"][0]["steps"]]
    assert all(sources)
    for name, key in (("bytes per token", "bytes_per_token"), ("bytes per sequence", "bytes_per_sequence"), ("bytes", "bytes")):
        assert values[name] == found[key]
    assert values["P"] == found["parameters"]
    assert values["weights"] == found["memory"]["weights_bytes"]
    assert values["room"] == found["memory"]["room_bytes"]
    assert values.get("max batch", 0) == found["max_batch"]
    for label, key in (("with", "with_cache"), ("without", "without_cache")):
        for part in ("layers", "head", "attention"):
            assert values[f"{label} cache, {part}"] == found["generation"][key][f"{part}_flops"]


def test_what_cannot_fit_says_so(run):
    outcome = run("kv-cache deepseek-v3 --n 2048")
    assert "leave no room" in outcome.out
    found = run("kv-cache deepseek-v3 --n 2048 --json").json
    assert (found["max_batch"], found["max_context"], found["memory"]["fits"]) == (0, 0, False)


def test_a_window_on_every_layer_has_no_longest_context(run):
    found = run("kv-cache mistral-7b --n 8192 --json").json
    assert (found["max_context"], found["any_context_fits"]) == (None, True)
    assert "any length" in run("kv-cache mistral-7b --n 8192").out


def test_fp8_weights_are_multiplied_in_fp8_where_the_device_does(run):
    for device, form in (("h200", "fp8 and fp16"), ("a100-sxm-80gb", "fp16")):  # the head stays in 16 bits
        line = f"kv-cache llama-3-8b --n 64 --weights-dtype fp8 --hardware {device}"
        assert f"fp8, multiplied in {form}." in run(line).out
        assert run(f"{line} --json").json["generation"]["with_cache"]["roofline_s"] > 0


def test_what_the_profile_lacks_is_said(run):
    assert "no bf16 peak" in run("kv-cache llama-2-7b --n 8 --kv-dtype bf16 --hardware t4").out
    found = run("kv-cache gpt2 --n 8 --kv-dtype fp32 --hardware amd-epyc-9654")
    assert "not in the profile" in found.out
    found = run("kv-cache gpt2 --n 8 --kv-dtype fp32 --hardware amd-epyc-9654 --json").json
    assert (found["max_batch"], found["max_context"], found["any_context_fits"], found["bytes"]) == (None, None, False, 8 * 73_728)


def test_a_model_without_a_length_needs_one(run, tmp_path):
    raw = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    (tmp_path / "config.json").write_text(json.dumps({**raw, "vocab_size": 8}))
    outcome = run(f"kv-cache {tmp_path}")
    assert outcome.code == 2
    assert "--n is missing" in outcome.err
    assert run(f"kv-cache {tmp_path} --n 5 --kv-dtype int4 --json").json["bytes"] == 5 * 2 * 2 * 2


# One question, one answer

SAME = [
    ("gpt2", 1000, "fp32", "t4"),
    ("llama-3-8b", 3, "fp16", "h200"),
    ("gemma-2-2b", 5, "bf16", "h100-sxm"),
    ("gpt-oss-20b", 150, "fp16", "b200"),
    ("deepseek-v3", 2, "bf16", "a100-sxm-80gb"),
    ("mixtral-8x7b", 4, "fp16", "mi300x"),
]


@pytest.mark.parametrize(("model", "n", "dtype", "device"), SAME)
def test_kv_cache_and_model_answer_the_same_question_alike(run, model, n, dtype, device):
    """To generate n tokens is to run at 1, 2, ... n tokens: what ``model`` calls a prefill of 1 and decode to n + 1."""
    found = run(f"kv-cache {model} --n {n} --kv-dtype {dtype} --hardware {device} --json").json
    for key, option in (("with_cache", ""), ("without_cache", "--no-kv-cache")):
        one = found["generation"][key]
        line = f"model {model} --phase generate --n 1 --kv-len {n + 1} --dtype {dtype} --hardware {device} {option} --json"
        other = run(line).json
        times = other["totals"]["time_s"]
        assert one["flops"] == other["model_flops"] == other["totals"]["flops"] == sum(op["flops"] for op in other["ops"])
        assert (one["roofline_s"], one["lower_s"], one["seconds"]) == (times["roofline"], times["lower"], times["at_least"])
        assert (one["predicted_s"], one["times_from"]) == (times["predicted"], other["times_from"])
        read = sum(op["weight_bytes"] for op in other["ops"] if op["name"] != "embedding lookup")
        assert read >= one["weights_read_bytes"] * (1 - 1e-8)  # shares of an uneven router are floats
        if key == "with_cache" and model != "gpt2":  # positions are looked up, and so not among what is read
            assert read == pytest.approx(one["weights_read_bytes"], rel=1e-3)
    assert found["memory"]["weights_bytes"] == other["memory"]["weights"]


@settings(max_examples=6, deadline=None)
@given(st.integers(1, 20), st.integers(17, 60), st.none() | st.integers(2, 50), st.booleans())
def test_a_generation_is_the_sum_of_its_steps(first, more, window, cached):
    """FLOP exactly, whatever stands for what; times at most the sum, so that a bound stays one."""
    spec = model(GroupedAttention(4, 2, 8), GroupedAttention(4, 2, 8, window=window))
    device = find_device("h200")
    request = Request("generate", 2, first, first + more, cached=cached, model=spec, device=device)
    found = answer(request)
    steps = [request.step("prefill"), *(request.step("decode", length) for length in range(first + 1, first + more))]
    passes = [run_pass(spec, step, device) for step in steps]
    assert found.flops == found.cost.flops == sum(sum(one.flops_by_format.values()) for one in passes)
    assert sum(line.cost.flops for line in found.lines) == found.flops
    assert found.cost.lower_s <= sum(one.cost.lower_s for one in passes) * (1 + 1e-12)


def test_the_published_t4_times_are_no_faster_than_the_one_answer(run):
    found = run("kv-cache gpt2 --n 1000 --kv-dtype fp32 --hardware t4 --json").json["generation"]
    t4 = next(row for row in found["measured"] if "T4" in row["device"])
    assert t4["with_cache_s"][0] > found["with_cache"]["seconds"]
    assert t4["without_cache_s"][0] > found["without_cache"]["seconds"]


@pytest.mark.parametrize(
    ("line", "said", "kinds"),
    [
        (
            "gpt2 --n 1000 --kv-dtype fp32 --hardware t4",
            r"in at least [\d.]+ s; without a cache in at least [\d.]+ s\.$",
            {"predicted and roofline"},
        ),
        ("llama-3-8b --n 1000 --hardware h200", r"x that time\.$", {"predicted"}),
    ],
)
def test_a_cache_gains_a_ratio_only_where_both_times_are_predicted(run, line, said, kinds):
    found = run(f"kv-cache {line} --json").json
    assert found["verdict"][-1].startswith("One sequence is generated in ")
    assert re.search(said, found["verdict"][-1])
    assert {found["generation"][key]["times_from"] for key in ("with_cache", "without_cache")} <= kinds
