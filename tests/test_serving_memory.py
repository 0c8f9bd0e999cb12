"""Layouts that engines accept, sequences that fit their memory, and rounds of a pipeline."""

from __future__ import annotations

from random import Random

import pytest

from perfmodel.catalog import find_device, find_model
from perfmodel.core.hardware import Device
from perfmodel.serving.engine import Batching, Engine
from perfmodel.serving.iteration import Iteration, micro_batches, round_s, slowest_share
from perfmodel.serving.layouts import candidates, layouts, why_refused
from perfmodel.serving.memory import Memory
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import DECODE, ModelPass, Split

MODELS = ("llama-3-8b", "gemma-2-9b", "mixtral-8x7b", "deepseek-v2", "gpt-oss-20b")


ROOMY = {"batching": Batching(max_sequences=10**6)}


def _memory(name: str, split: Split, device: str = "h200", **options: object) -> Memory:
    engine = Engine("some", "Some", **options)  # type: ignore[arg-type]
    return Memory(find_model(name), find_device(device), engine, ModelPass(DECODE, 1, 1, 1, split=split))


def refused(model: ModelSpec, gpus: int, device: Device) -> dict[Split, str]:
    """Why no engine takes the layouts that are left out."""
    return {split: reason for split in candidates(model, gpus) if (reason := why_refused(model, split, device))}


def test_a_layout_is_accepted_or_refused_with_a_reason():
    device = find_device("h200")
    for name in (*MODELS, "deepseek-v3", "llama-3-70b"):
        model = find_model(name)
        for gpus in (1, 6, 16):
            taken, left = layouts(model, gpus, device), refused(model, gpus, device)
            assert {*taken, *left} == {*candidates(model, gpus)}
            assert len(taken) + len(left) == len({*candidates(model, gpus)})
            assert all(split.gpus == gpus and split.check(model) for split in taken)
            assert all(left.values())


def test_reasons_name_what_does_not_divide():
    def reasons(name: str, gpus: int, device: str = "h200") -> dict[tuple[int, int, int, int], str]:
        found = refused(find_model(name), gpus, find_device(device))
        return {(one.tp, one.ep, one.pp, one.dp): reason for one, reason in found.items()}

    assert reasons("llama-3-8b", 6)[6, 1, 1, 1] == "--tp 6 does not divide 32 heads"
    assert (
        reasons("deepseek-v3", 32)[32, 1, 1, 1]
        == "a GPU's 576 of 18432 rows or columns of gate are no whole blocks of 128 with a scale each"
    )
    assert (16, 16, 1, 1) not in reasons("deepseek-v3", 16)  # two nodes
    assert reasons("mixtral-8x7b", 16)[16, 16, 1, 1] == "--ep 16 does not divide 8 experts"
    assert "no interconnect" in reasons("llama-3-8b", 2, "t4")[2, 1, 1, 1]
    assert (1, 1, 1, 2) not in reasons("llama-3-8b", 2, "t4")  # two copies that exchange nothing


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt2"])
def test_each_group_runs_steps_of_its_own_budget(name: str) -> None:
    """So as many activations are on a GPU, however many groups there are."""
    assert len({_memory(name, Split(dp=groups)).activations for groups in (1, 2, 8)}) == 1


def test_an_engine_that_keeps_no_room_for_tokens_to_come_runs_more():
    """A request holds its prompt and half its output on average; one that may not be put back holds all from the start."""
    kept, loose, most = (_memory("llama-3-8b", Split(1), reserved=share, **ROOMY) for share in (1.0, 0.0, 0.5))
    assert kept.slots(1000, 1000) == kept.most_running(2000)
    assert loose.slots(1000, 1000) == loose.most_running(1500)
    assert most.slots(1000, 1000) == most.most_running(1750)
    assert kept.slots(1000, 1000, 0.5) == kept.most_running(1500)  # the mean request is shorter than the longest
    assert kept.slots(1000, 1000) < most.slots(1000, 1000) < loose.slots(1000, 1000)


def test_memory_is_never_over_capacity():
    r, device = Random(5), find_device("h200")
    for _ in range(40):
        name = r.choice(MODELS)
        split = r.choice(layouts(find_model(name), r.choice([1, 2, 4, 8]), device))
        batching = Batching(token_budget=r.choice([512, 2048, 8192]), max_sequences=r.choice([1, 64, 10**6]))
        share, block = r.choice([0.5, 0.85, 0.9, 1.0]), r.choice([1, 16, 64])
        one = _memory(name, split, batching=batching, memory_share=share, kv_block=block, reserve=r.choice([0, 10**9]))
        for length in (1, r.randrange(1, 20_000), 10**6):
            most = one.most_running(length)
            assert most % split.dp == 0
            assert most <= batching.max_sequences * split.dp
            if most:
                assert one.total(most, length) <= one.usable <= one.capacity
            if most < batching.max_sequences * split.dp:
                assert one.total(most + 1, length) > one.usable


def test_the_cache_has_whole_blocks_and_windows_keep_what_they_see():
    one = _memory("gemma-2-9b", Split(), kv_block=16)
    a, b = (layer.attention for layer in one.model.layers[:2])
    assert sorted((a.window is None, b.window is None)) == [False, True]
    token, half = a.kept * 2, len(one.model.layers) // 2
    assert one.fit(17).sequence == 2 * half * 32 * token
    assert one.fit(100_000).sequence == half * (100_000 + 4096 + 16) * token  # known: a window of 4,096 touches 257 blocks
    for name, tp in (("llama-3-8b", 8), ("deepseek-v2", 1)):  # latents are on every GPU
        assert _memory(name, Split()).fit(4096).sequence == tp * _memory(name, Split(tp=8)).fit(4096).sequence
    spread = _memory("deepseek-v2", Split(tp=1, ep=8))
    fit = spread.fit(4096)
    assert spread.most_running(4096) == fit.max_batch == 8 * (fit.free // fit.sequence)


@pytest.mark.parametrize("in_flight", [1, 2, 3, 4, 7])
def test_micro_batches_lose_no_sequence_and_no_token(in_flight):
    for step in (Iteration(1000, 500, 3, 10, 64), Iteration(decodes=5, context=9), Iteration(7, 7, 1), Iteration(999, 500, 5, 1, 64)):
        parts = micro_batches(step, in_flight)
        assert sum(one.chunk for one in parts) == step.chunk
        assert sum(one.decodes for one in parts) == step.decodes
        assert sum(one.prompts for one in parts if one.chunk) == (step.prompts if step.chunk else 0)
        assert len(parts) <= in_flight
        assert all(one.chunk or one.decodes for one in parts)


def test_a_round_keeps_all_stages_busy_and_no_token_faster():
    per_token = [float(one.decodes) for one in micro_batches(Iteration(decodes=64, context=10), 4)]
    assert round_s(per_token, 0.25) == 16.0  # time by tokens: four stages do four times as much
    assert round_s([1.0] * 4, 0.25) == 1.0  # time of weights alone: no token is sooner
    assert slowest_share(find_model("llama-3-8b"), 1) == 1.0
    for pp in (2, 3, 8):
        assert 1 / pp < slowest_share(find_model("llama-3-8b"), pp) <= 1
