"""Layouts of a model on GPUs as serving engines have them: weights, FLOP, exchanges and memory over all GPUs."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product

import pytest

from perfmodel.catalog import find_model
from perfmodel.core.errors import UsageError
from perfmodel.transformer import parameters
from perfmodel.transformer.kernel_choice import GATHERING, KernelChoice
from perfmodel.transformer.op import COLLECTIVE
from perfmodel.transformer.ops import step_ops
from perfmodel.transformer.parallel import kv_bytes, weight_bytes
from perfmodel.transformer.spec import GroupedAttention, LatentAttention, ModelSpec, MoeMlp
from perfmodel.transformer.step import Split, decode, prefill

MODELS = ("llama-3-8b", "mixtral-8x7b", "deepseek-v2", "qwen3-30b-a3b")
LAYOUTS = [Split(tp, ep, 1, dp) for tp, dp, ep in product((1, 2, 4), (1, 2, 4), (1, 2, 4, 8, 16)) if tp * dp % ep == 0]


@lru_cache
def _short(name: str) -> ModelSpec:
    """A model with its first layers only, dense and routed ones among them."""
    model = find_model(name)
    return replace(model, layers=model.layers[:3])


def _layouts(model: ModelSpec) -> list[Split]:
    return [one for one in LAYOUTS if one.ep == 1 or (model.is_moe and 8 % one.ep == 0)]


def _held(model: ModelSpec, split: Split) -> int:
    """Weights over all GPUs of a stage, added up GPU by GPU from how often each part has to be there."""
    sizes, total = parameters.parts(model), 0
    for _ in range(split.stage):
        for part, size in sizes.items():
            whole = part in ("norms", "router", "positions")
            ways = {"experts": split.stage}.get(part, 1 if whole else split.tp)
            total += size // ways if part != "attention" else _attention(model, split.tp)
    return total


def _attention(model: ModelSpec, tp: int) -> int:
    """Attention's parameters on one of ``tp`` GPUs: KV heads copied beyond one each, what makes latents on every GPU."""
    found = 0
    for layer in model.layers:
        a, hidden = layer.attention, model.hidden
        if isinstance(a, GroupedAttention):
            columns = a.heads // tp * a.head_dim * 2 + 2 * max(a.kv_heads // tp, 1) * a.head_dim
            found += hidden * columns + (2 * a.head_dim if a.qk_norm else 0)
        elif isinstance(a, LatentAttention):
            down, queries = hidden * (a.kv_lora_rank + a.qk_rope_head_dim), a.heads // tp * a.qk_head_dim
            made = hidden * a.q_lora_rank + a.q_lora_rank + a.q_lora_rank * queries if a.q_lora_rank else hidden * queries
            up = a.kv_lora_rank * a.heads // tp * (a.qk_nope_head_dim + a.v_head_dim)
            found += down + a.kv_lora_rank + made + up + a.heads // tp * a.v_head_dim * hidden
    return found


@pytest.mark.parametrize("name", MODELS)
def test_gpus_of_a_layout_hold_all_weights_as_often_as_they_are_copied(name):
    model = _short(name)
    for split in _layouts(model):
        assert split.stage * weight_bytes(model, decode(1, 64, split=split.check(model))) == 2 * _held(model, split), split


COPIED = ("router", "Q down projection", "KV down projection")
"""Products that every GPU of a tensor-parallel group computes on all its tokens."""


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("make", [lambda split: decode(64, 96, split=split), lambda split: prefill(16, 32, split=split)])
def test_gpus_of_a_layout_compute_what_one_would(name, make):
    model = _short(name)
    whole = {op.name: op.count * op.kernel.flops for op in step_ops(model, make(Split()))}
    for split in _layouts(model):
        for op in step_ops(model, make(split)):
            copies = split.tp if op.name in COPIED else 1
            if op.group != COLLECTIVE:
                assert split.stage * op.count * op.kernel.flops == copies * whole[op.name], (split, op.name)


def _exchanges(model: ModelSpec, **options: object) -> dict[str, tuple[int, int, int]]:
    """By name: how often, among how many, bytes."""
    found = [op for op in step_ops(model, decode(64, 96, **options)) if op.exchange is not None]
    return {op.name: (op.count, op.exchange.world, op.exchange.bytes) for op in found if op.exchange is not None}


def test_one_group_adds_up_and_several_send_tokens_to_their_experts():
    model, hidden = _short("mixtral-8x7b"), 2 * 4096
    layers = sum(isinstance(layer.mlp, MoeMlp) for layer in model.layers)
    assert _exchanges(model, split=Split(8, 8)) == {"all-reduce": (2 * layers + 1, 8, 64 * hidden)}
    assert _exchanges(model, split=Split(1, 8)) == {"all-to-all": (2 * layers, 8, 8 * 2 * hidden)}
    several = _exchanges(model, split=Split(2, 8))
    assert several["all-to-all"] == (2 * layers, 8, 8 * 2 * hidden)  # of a group's 16 tokens each GPU sends half, to 2 experts each
    assert several["all-reduce"] == (2 * layers + 1, 2, 16 * hidden)
    gathered = {"all-gather": (layers, 4, 64 * hidden), "reduce-scatter": (layers, 4, 64 * hidden)}
    for options in ({"split": Split(2, 8), "kernels": KernelChoice(all_to_all=(GATHERING,))}, {"split": Split(2, 1, dp=4)}):
        found = _exchanges(model, **options)
        assert {name: found.get(name) for name in gathered} == gathered
        assert "all-to-all" not in found


def test_groups_divide_the_cache_and_latents_are_on_every_gpu():
    for name, shares in (("mixtral-8x7b", (1, 2, 8, 8)), ("deepseek-v2", (1, 1, 4, 8))):
        model = _short(name)
        splits = (Split(), Split(tp=2), Split(tp=2, dp=4), Split(ep=8))
        whole, *rest = (kv_bytes(model, decode(64, 96, split=split)) for split in splits)
        assert [whole // one for one in rest] == list(shares[1:])


def test_experts_are_on_the_gpus_that_share_the_attention():
    assert [Split(tp, ep).gpus for tp, ep in ((8, 8), (1, 8), (4, 8), (8, 1), (8, 4))] == [8, 8, 8, 8, 8]
    assert Split(8, 8, pp=2).gpus == 16
    for split, words in ((Split(4, 6), "--ep 6 does not divide the 4 GPUs"), (Split(8, 8, dp=-1), "--dp is -1")):
        with pytest.raises(UsageError, match=words):
            split.check(find_model("mixtral-8x7b"))
