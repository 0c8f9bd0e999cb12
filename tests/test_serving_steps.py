"""Steps of a serving engine: counts of prompts beside decoding sequences, and tables of times against exact passes."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import lru_cache

import pytest

from perfmodel.catalog import find_device, find_engine, find_model, model_names
from perfmodel.serving.engine import Overhead
from perfmodel.serving.iteration import Iteration
from perfmodel.serving.steps import KernelTimes, step_times
from perfmodel.transformer import op_time
from perfmodel.transformer.op import WEIGHTS, total_bytes
from perfmodel.transformer.ops import EMBEDDING, sequence_ops, step_ops
from perfmodel.transformer.parallel import hand_over
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import DECODE, PREFILL, ModelPass, Split

DECODING = ModelPass(DECODE, 24, 1, 1500, fused=True)
CHUNK = ModelPass(PREFILL, 2, 300, 800, fused=True, beside=DECODING)


@lru_cache
def _short(name: str) -> ModelSpec:
    """A model with one layer of each kind."""
    model = find_model(name)
    return replace(model, layers=tuple(layer for layer, _ in model.layer_kinds))


@lru_cache
def _times(name: str, engine: str, tp: int = 1, overhead: Overhead | None = None) -> KernelTimes:
    """By default of the kernels alone."""
    used = replace(find_engine(engine), overhead=overhead or Overhead())
    return step_times(find_model(name), find_device("h200"), used, ModelPass(PREFILL, 1, 1, 1, split=Split(tp=tp)))


def _flops(model: ModelSpec, step: ModelPass) -> float:
    return sum(op.count * op.kernel.flops for op in step_ops(model, step))


def _weights(model: ModelSpec, step: ModelPass) -> float:
    return total_bytes((op for op in step_ops(model, step) if op.name != EMBEDDING), WEIGHTS)


@pytest.mark.parametrize("name", ["llama-3-8b", "gemma-2-9b", "gpt2", "mixtral-8x7b", "deepseek-v2", "qwen3-30b-a3b"])
def test_flops_of_a_mixed_step_are_those_of_both_its_parts(name):
    model = _short(name)
    assert _flops(model, CHUNK) == _flops(model, replace(CHUNK, beside=None)) + _flops(model, DECODING)


@pytest.mark.parametrize("name", ["llama-3-8b", "gemma-2-9b", "gpt2"])
def test_a_mixed_step_reads_each_weight_once(name):
    model = _short(name)
    assert _weights(model, CHUNK) == _weights(model, DECODING) == _weights(model, replace(CHUNK, beside=None))


def test_the_head_sees_the_end_of_each_prompt_and_every_draft():
    model = _short("llama-3-8b")
    for step, heads in ((CHUNK, 2 + 24), (replace(DECODING, n=4), 4 * 24), (replace(CHUNK, beside=None), 2)):
        rows = {op.name: op for op in [*step_ops(model, step), *hand_over(model, replace(step, split=Split(tp=2)))]}
        assert rows["LM head"].kernel.flops == 2 * heads * model.hidden * model.vocab
        assert rows["all-gather"].exchange.bytes == 2 * heads * model.vocab


def test_a_mixed_step_of_latent_attention_expands_prompts_and_absorbs_the_others():
    found = {op.name: op for op in sequence_ops(_short("deepseek-v2"), CHUNK)}
    assert {"KV up projection", "Q times W_UK", "W_UV of the result"} < set(found)
    attention = find_model("deepseek-v2").layers[0].attention
    rows = CHUNK.batch * CHUNK.kv_len
    features = attention.heads * (attention.qk_nope_head_dim + attention.v_head_dim)
    assert found["KV up projection"].kernel.flops == 2 * rows * attention.kv_lora_rank * features
    absorbed = 2 * DECODING.batch * attention.heads * attention.kv_lora_rank
    assert found["Q times W_UK"].kernel.flops == absorbed * attention.qk_nope_head_dim
    assert found["W_UV of the result"].kernel.flops == absorbed * attention.v_head_dim


@pytest.mark.parametrize("step", [DECODING, CHUNK, replace(DECODING, n=4), replace(CHUNK, beside=None, split=Split(tp=2))])
def test_rows_by_sequence_are_those_of_the_pass(step):
    for name in model_names()[::3]:
        model = _short(name)
        if step.split.tp > 1 and any(layer.attention.heads % step.split.tp for layer in model.layers):
            continue
        wanted = [op for op in step_ops(model, step) if op.by_sequence]
        assert sequence_ops(model, step) == wanted, name


def _drawn(seed: int, count: int) -> list[Iteration]:
    rng, found = random.Random(seed), []
    while len(found) < count:
        prompts, each, decodes = rng.randint(1, 3), rng.choice([0, rng.randint(16, 2000)]), rng.choice([0, rng.randint(1, 200)])
        if each or decodes:
            before = rng.choice([0, rng.randint(1, 4000)])
            context, queries = rng.randint(100, 6000), rng.choice([1, 1, 2])
            found.append(Iteration(prompts * each, (each + before) if each else 0, prompts, decodes, context, queries))
    return found


CASES = [("llama-3.1-8b", "vllm", 1), ("llama-3.1-8b", "sglang", 4), ("deepseek-v2", "vllm", 8), ("qwen3-30b-a3b", "tensorrt-llm", 1)]


@pytest.mark.parametrize(("name", "engine", "tp"), CASES)
def test_tables_follow_exact_passes(name, engine, tp):
    times, errors = _times(name, engine, tp), []
    for step in _drawn(5, 12):
        exact = times.estimate(step)
        seconds, low, high = times.interval(step)
        errors.append(abs(seconds / sum(row.seconds for row in exact.rows) - 1))
        assert low <= seconds <= high
        assert seconds >= op_time.busy_s(exact.cost, times.device)
        assert seconds >= float(exact.cost.lower_warm_s)
    assert sorted(errors)[len(errors) // 2] < 0.01
    assert max(errors) < 0.06


def test_tables_are_exact_at_nodes():
    times = _times("llama-3.1-8b", "vllm")
    for step in (Iteration(decodes=64, context=1024), Iteration(chunk=2048, chunk_context=2048, prompts=1)):
        exact = sum(row.seconds for row in times.estimate(step).rows)
        assert times.seconds(step) == pytest.approx(exact, rel=2e-3)


def test_a_step_adds_what_the_engine_takes_for_it():
    step, model = Iteration(300, 300, 3, 64, 1000), find_model("llama-3.1-8b")
    kernels = sum(op.count for op in step_ops(model, replace(DECODING, batch=1, n=1, kv_len=1)))
    own = _times("llama-3.1-8b", "vllm", overhead=Overhead(step_s=1e-3, kernel_s=1e-6, sequence_s=1e-5))
    assert own.seconds(step) == pytest.approx(_times("llama-3.1-8b", "vllm").seconds(step) + 1e-3 + kernels * 1e-6 + 67e-5)


def test_nothing_to_do_takes_no_time_and_more_takes_longer():
    times = _times("llama-3.1-8b", "vllm")
    assert times.seconds(Iteration()) == 0
    steps = [Iteration(decodes=64, context=1000), Iteration(decodes=64, context=1000, queries=4)]
    steps += [steps[0]._replace(chunk=size, chunk_context=size) for size in (512, 2048, 8192)]
    found = [times.seconds(step) for step in steps]
    assert found == sorted(found)
    contexts = [times.seconds(Iteration(decodes=64, context=context)) for context in range(500, 6000, 500)]
    assert contexts == sorted(contexts)


def test_steps_of_groups_are_those_of_exact_passes_where_prompts_fill_some_groups_alone():
    split, model = Split(tp=1, dp=2, ep=2), find_model("mixtral-8x7b")
    times = step_times(
        model, find_device("h200"), replace(find_engine("vllm"), overhead=Overhead()), ModelPass(PREFILL, 1, 1, 1, split=split)
    )
    for prompts, chunk, decodes in ((2, 1024, 9), (3, 500, 17), (1, 500, 43), (3, 2730, 54)):
        step = Iteration(prompts * chunk, chunk, prompts, decodes, 1500)
        assert times.seconds(step) == pytest.approx(sum(row.seconds for row in times.estimate(step).rows), rel=0.005), step


def test_a_cuda_graph_holds_the_tokens_of_one_data_parallel_group():
    split, engine, device = Split(tp=1, dp=4, ep=4), find_engine("vllm"), find_device("h200")
    own, larger = (
        step_times(find_model("mixtral-8x7b"), device, replace(engine, graph_batch=size), ModelPass(PREFILL, 1, 1, 1, split=split))
        for size in (32, 2**20)
    )
    for sequences, alike in ((4 * 32, True), (4 * 32 + 4, False)):
        step = Iteration(decodes=sequences, context=1000)
        assert (own.estimate(step).seconds == larger.estimate(step).seconds) == alike
        assert (own.seconds(step) == pytest.approx(larger.seconds(step))) == alike
