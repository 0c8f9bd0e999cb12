"""Kernels of a training step: counts, bounds, the steps measured on an H200, and what follows for layouts of many GPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from each import each
from hypothesis import given
from hypothesis import strategies as st
from tables import table

from perfmodel.catalog import calibrated_devices, find_device, find_model, find_system, system_names
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import DataError, UsageError
from perfmodel.transformer.op import ATTENTION, MATMUL
from perfmodel.transformer.spec import DenseMlp, GroupedAttention, Layer, ModelSpec
from perfmodel.transformer.training.explain import explain_step
from perfmodel.transformer.training.question import (
    BF16,
    BOTH_GRADIENTS,
    EVERY,
    FULL,
    FULL_GRADIENTS,
    NONE,
    SELECTIVE,
    SIXTEEN_BIT,
    Parallel,
    Recomputation,
    TrainingConfig,
)
from perfmodel.transformer.training.state import state_bytes
from perfmodel.transformer.training.step.estimate import BACKWARD, FORWARD, RECOMPUTE, TrainingEstimate, answer, estimate
from perfmodel.transformer.training.step.flops import attention_flops, megatron, palm
from perfmodel.transformer.training.step.job import shared_gradients, shared_weights
from perfmodel.transformer.training.step.layer import layer_ops
from perfmodel.transformer.training.step.row import micro_batch_of
from perfmodel.transformer.training.step.system import (
    DATA,
    STAGES,
    TENSOR,
    Exchange,
    exchange_seconds,
    inside_source,
    of_device,
    span,
    trusted,
    validated,
)
from perfmodel.validation.bounds import case_of
from perfmodel.validation.records import held_out, read_records, shipped_records

DATA_FOLDER = Path(__file__).parent / "data"
PROFILED = json.loads((DATA_FOLDER / "h200_training_kernels.json").read_text())["steps"]
H200 = find_device("nvidia-h200-sxm")


@cache
def fallbacks():
    return calibrated_devices()


def step(training: TrainingConfig, implementation: str = "fused", system: str | None = None, **options) -> TrainingEstimate:
    joined = None if system is None else find_system(system)
    device = H200 if joined is None else find_device(joined.device)
    return estimate(training, device, fallbacks, joined, implementation, **options)


def flops(found: TrainingEstimate, part: str, group: str, *, executed: bool = False) -> int:
    lines = [line for line in found.lines if line.part == part and line.op.group == group]
    return sum(line.cost.executed_flops if executed else line.cost.flops for line in lines)


# Backward passes


@pytest.mark.parametrize("name", ["gpt2-medium", "llama-3-8b", "mixtral-8x7b", "gemma-2-9b", "deepseek-v2"])
def test_matmuls_cost_twice_as_much_backward(name):
    found = step(TrainingConfig(find_model(name), 4, 512))
    assert flops(found, BACKWARD, MATMUL) == 2 * flops(found, FORWARD, MATMUL)
    assert flops(found, BACKWARD, ATTENTION) == 2 * flops(found, FORWARD, ATTENTION)
    ratio = flops(found, BACKWARD, ATTENTION, executed=True) / flops(found, FORWARD, ATTENTION, executed=True)
    assert ratio == pytest.approx(2.5, rel=0.05), "the scores are computed again"


@pytest.mark.parametrize("flash", [True, False])
def test_what_runs_again_is_executed_but_not_needed(flash):
    model = find_model("gpt2-medium")
    plain, selective, full = (
        step(TrainingConfig(model, 4, 512, flash=flash, recompute=Recomputation(kind))) for kind in (NONE, SELECTIVE, FULL)
    )
    assert plain.cost.flops == selective.cost.flops == full.cost.flops
    assert plain.cost.lower_s == selective.cost.lower_s == full.cost.lower_s
    assert full.cost.executed_flops > selective.cost.executed_flops > plain.cost.executed_flops
    again = {line.op.name for line in selective.lines if line.part == RECOMPUTE}
    assert all("projection" not in name for name in again)
    layers = sum(line.cost.executed_flops for line in full.lines if line.part == FORWARD and line.op.name != "LM head")
    assert full.cost.executed_flops - plain.cost.executed_flops == layers
    every = step(TrainingConfig(model, 4, 512, flash=flash, recompute=Recomputation(EVERY, 4)))
    assert every.seconds == pytest.approx(full.seconds), "each layer runs again once, whatever the segments"


def test_frozen_weights_have_no_gradient():
    model = find_model("llama-3-8b")
    whole, adapted, few = (
        step(TrainingConfig(model, 4, 512, lora=rank, lora_targets=targets)) for rank, targets in ((None, "all"), (16, "all"), (16, "qv"))
    )
    names = {line.op.name for line in adapted.lines}
    assert "QKV projection, gradient of weights" not in names
    assert {"adapter of Q, A", "adapter of down, B, gradient of weights", "optimizer"} <= names
    assert few.seconds < adapted.seconds < whole.seconds
    for part, times in ((FORWARD, 2), (BACKWARD, 4)):
        extra = sum(line.cost.flops for line in few.lines if line.part == part and line.op.name.startswith("adapter"))
        attention = model.layers[0].attention
        assert extra == times * 16 * 2048 * 32 * (2 * 4096 + (attention.heads + attention.kv_heads) * 128)


# The steps that were profiled


@pytest.mark.parametrize("row", PROFILED, ids=lambda row: f"{row['attention']}-{row['checkpointing']}")
def test_kernels_are_those_of_the_profiled_steps(row):
    recompute = Recomputation(FULL if row["checkpointing"] else NONE)
    training = TrainingConfig(
        find_model("gpt2-medium"), row["batch"], row["n"], precision=BF16, flash=row["attention"] == "sdpa", recompute=recompute
    )
    found = step(training, "huggingface", attention="torch-sdpa-cudnn" if training.flash else None)
    kernels = [(line.op.group, line.op.timed.kind, line.op.count, line.seconds) for line in found.lines]
    assert sum(count for group, _, count, _ in kernels if group == MATMUL) == row["matmuls"]
    assert sum(count for _, share, count, _ in kernels if share == "sums") in (row["sums"], row["sums"] - 1), "positions have one more"
    assert sum(taken for group, _, _, taken in kernels if group == MATMUL) * 1e6 == pytest.approx(row["matmul_us"], rel=0.08)
    assert sum(taken for _, share, _, taken in kernels if share == "sums") * 1e6 == pytest.approx(row["sums_us"], rel=0.05)
    assert sum(taken for *_, taken in kernels) * 1e6 == pytest.approx(row["device_us"], rel=0.05)


# Sums and bounds

LAYOUTS = [
    ("gpt2-medium", "huggingface", None, {"precision": BF16}),
    ("gpt2-medium", "huggingface", None, {"precision": BF16, "flash": False, "dropout": True, "recompute": Recomputation(FULL)}),
    ("gpt2-medium", "huggingface", None, {"precision": BF16, "micro_batch": 4, "recompute": Recomputation(EVERY, 5)}),
    ("llama-3-8b", "fused", "h200-x8", {"parallel": Parallel(dp=8, zero=3)}),
    ("llama-3-8b", "fused", "h200-x8", {"parallel": Parallel(tp=2, sp=True, pp=2, dp=2, zero=1), "micro_batch": 1, "dropout": True}),
    ("llama-3-8b", "fused", "h200-x8", {"parallel": Parallel(tp=2, pp=4, interleave=2), "micro_batch": 1, "flash": False}),
    ("llama-3-8b", "fused", "h200-x8", {"parallel": Parallel(cp=4, dp=2), "recompute": Recomputation(FULL)}),
    ("mixtral-8x7b", "fused", "h200-x8", {"parallel": Parallel(ep=8, dp=8, zero=1)}),
    ("gemma-2-9b", "fused", "h200-x8", {"parallel": Parallel(pp=3), "micro_batch": 2, "gradients": FULL_GRADIENTS}),
    ("deepseek-v2", "fused", "dgx-h100", {"parallel": Parallel(tp=4, sp=True, ep=8, dp=16, zero=2)}),
]


@each(("name", "implementation", "system", "options"), LAYOUTS)
def test_lines_add_up_to_parts_and_stay_above_their_bounds(name, implementation, system, options):
    found = step(TrainingConfig(find_model(name), 16, 1024, **options), implementation, system)
    parts = found.time.parts
    assert all(seconds >= 0 for seconds in parts.values())
    kernels = ("forward", "recompute", "backward", "gradients added up", "optimizer", "gradients cleared")
    assert sum(line.seconds for line in found.lines) == pytest.approx(sum(parts[part] for part in kernels))
    for part in (FORWARD, RECOMPUTE, BACKWARD):
        assert sum(line.seconds for line in found.lines if line.part == part) == pytest.approx(parts[part])
    for line in found.lines:
        assert line.seconds >= float(line.cost.lower_s) * (1 - 1e-12)
        assert line.cost.lower_s >= line.cost.lower_warm_s * (1 - 1e-12)
    assert found.seconds >= float(found.cost.lower_s) >= float(found.cost.lower_warm_s)
    if found.prediction is not None:
        seconds, low, high = found.prediction
        assert found.cost.lower_warm_s <= low <= seconds <= high


def test_the_explanation_ends_at_the_reported_numbers():
    training = TrainingConfig(
        find_model("llama-3-8b"), 64, 2048, 1, recompute=Recomputation(FULL), parallel=Parallel(tp=2, sp=True, pp=4, interleave=2)
    )
    found = answer(training, H200, fallbacks, find_system("h200-x8"))
    steps = {step.name: step.value for step in explain_step(found)}
    assert steps["step"] == pytest.approx(found.seconds)
    assert steps["tokens/s"] == pytest.approx(found.tokens_per_s)
    by_palm = (steps["of the peak by PaLM"], steps["of the peak by PaLM, with what runs again"])
    assert by_palm == pytest.approx(found.shares["palm"])
    assert (steps["MFU"], steps["HFU"]) == pytest.approx(found.utilization)
    assert steps["model FLOP by PaLM"] == found.counted["palm"].model
    assert steps["hardware FLOP by PaLM"] == found.counted["palm"].hardware


# The host


def test_intervals_hold_measured_steps_that_no_fit_saw():
    [path] = shipped_records("training")
    inside = []
    for record in (record for _, record in read_records(path) if held_out(record)):
        _, low, high = case_of(record).workload.on(H200, fallbacks).prediction
        inside.append(low <= record.time_s.median <= high)
    assert len(inside) > 40
    assert 0.75 <= sum(inside) / len(inside) <= 0.95


def test_small_batches_wait_for_the_host_and_large_ones_do_not():
    small, large = (step(TrainingConfig(find_model("gpt2-medium"), batch, 512, precision=BF16), "huggingface") for batch in (1, 64))
    assert small.time.parts["waiting for the host"] > small.seconds / 2
    assert large.time.parts["waiting for the host"] == pytest.approx(0, abs=1e-9)


# Many GPUs


def uniform(layers: int) -> ModelSpec:
    layer = Layer(GroupedAttention(32, 32, 128), DenseMlp(16384, gated=False))
    return ModelSpec("uniform", "llama", 4096, 256, (layer,) * layers)


@pytest.mark.parametrize(("pp", "turns", "micro_batches"), [(2, 1, 4), (8, 1, 8), (8, 2, 16), (8, 4, 64)])
def test_the_bubble_of_equal_stages(pp, turns, micro_batches):
    """(p - 1) / (v m) of the time without it, apart from the ends of the model, which are small here."""
    training = TrainingConfig(uniform(64), micro_batches, 2048, 1, parallel=Parallel(pp=pp, interleave=turns))
    time = step(training, system="dgx-h100").time
    busy = time.seconds - time.parts["pipeline bubble"] - time.parts["optimizer"] - time.parts["gradients cleared"]
    assert time.parts["pipeline bubble"] / busy == pytest.approx((pp - 1) / turns / micro_batches, rel=0.02)
    once = step(replace(training, parallel=Parallel(pp=pp)), system="dgx-h100").time
    assert time.parts["pipeline hand-over"] == pytest.approx(turns * once.parts["pipeline hand-over"])


def test_zero_moves_the_bytes_of_an_all_reduce_and_half_more_in_its_third_stage():
    model, moved = find_model("llama-3-8b"), {}
    for zero in range(4):
        training = TrainingConfig(model, 8, 1024, parallel=Parallel(dp=8, zero=zero))
        state = state_bytes(training)
        both = [*shared_gradients(training, state), *shared_weights(training, state)]
        moved[zero] = sum(each.bytes * each.count * (2 if each.op == "all_reduce" else 1) for each in both)
    assert moved[0] == pytest.approx(2 * 2 * 8030261248)
    assert moved[1] == moved[2] == pytest.approx(moved[0], rel=1e-6)
    assert moved[3] == pytest.approx(1.5 * moved[0], rel=1e-6)


def test_exchanges_hide_behind_kernels_only_if_they_may():
    training = TrainingConfig(find_model("llama-3-8b"), 16, 4096, 1, parallel=Parallel(cp=2, dp=4, zero=3))
    beside, after = (step(training, system="h200-x8", overlap=overlap) for overlap in (True, False))
    assert beside.time.parts["data parallel"] < after.time.parts["data parallel"] / 5
    assert beside.time.parts["context parallel"] < after.time.parts["context parallel"]
    assert beside.time.parts["forward"] == after.time.parts["forward"]


def test_parts_of_a_sequence_share_its_causal_work():
    model = find_model("llama-3-8b")
    whole, parts = (step(TrainingConfig(model, 1, 32768, parallel=Parallel(cp=cp)), system="h200-x8") for cp in (1, 4))
    for part in (FORWARD, BACKWARD):
        assert flops(parts, part, ATTENTION) == pytest.approx(flops(whole, part, ATTENTION) / 4, rel=1e-3)
        assert flops(parts, part, MATMUL) == flops(whole, part, MATMUL) / 4


@pytest.mark.parametrize("cp", [1, 2])
def test_a_norm_over_the_heads_of_all_gpus_adds_up_its_squares_and_their_gradients(cp):
    """Two numbers per token in fp32, Q's and K's, each way; MiniMax-M3 norms each head alone."""
    found = {}
    for name in ("minimax-m2.5", "minimax-m3"):
        training = TrainingConfig(find_model(name), 1, 512, parallel=Parallel(tp=2, cp=cp))
        rows = layer_ops(training.model.layers[0], micro_batch_of(training, "fused", DTYPES["bf16"]))
        passes = (rows.forward_exchanges, rows.backward_exchanges)
        found[name] = [[one.bytes for one in each if one.op == "all_reduce" and one.bytes < 10_000] for each in passes]
    assert found == {"minimax-m2.5": [[512 // cp * 2 * 4]] * 2, "minimax-m3": [[], []]}


# Systems


@pytest.mark.parametrize("name", system_names())
def test_shipped_systems_are_valid_and_match_their_device(name):
    found = find_system(name)
    device = find_device(found.device)
    assert device.interconnect is not None
    assert found.levels[0].bandwidth.number == device.interconnect.bandwidth_per_direction.number
    for level in found.levels:
        assert level.reached <= level.bandwidth.number


def test_groups_span_the_levels_as_their_ranks_lie():
    selene = find_system("selene")
    p = Parallel(tp=8, pp=8, dp=4)
    assert [(span(selene, p, group).inside, span(selene, p, group).world) for group in (TENSOR, DATA, STAGES)] == [(8, 8), (1, 4), (1, 8)]
    narrow = span(selene, Parallel(tp=2, dp=64), DATA)
    assert (narrow.inside, narrow.level.gpus) == (4, 4480)
    assert span(selene, Parallel(tp=3, dp=2), TENSOR).level.gpus == 4480, "groups of three straddle nodes of eight"
    with pytest.raises(UsageError, match="5,000 GPUs"):
        span(selene, Parallel(dp=5000), DATA)


def test_a_ring_over_nodes_runs_at_the_pace_of_all_its_adapters():
    selene = find_system("selene")
    size = 4_000_000_000
    one, four = (exchange_seconds(Exchange(DATA, "all_gather", size), selene, Parallel(tp=tp, dp=64)) for tp in (8, 2))
    assert one == pytest.approx(size * 63 / 64 / 23.5e9, rel=0.01)
    assert four == pytest.approx(one / 4, rel=0.01)
    halves = sum(exchange_seconds(Exchange(DATA, op, size), selene, Parallel(tp=8, dp=64)) for op in ("all_gather", "reduce_scatter"))
    assert exchange_seconds(Exchange(DATA, "all_reduce", size), selene, Parallel(tp=8, dp=64)) <= halves * 1.1


@pytest.mark.parametrize(
    ("change", "words"),
    [({"gpus": 9}, "each joins more GPUs"), ({"levels": []}, "each joins more GPUs"), ({"sources": {}}, "no source is called")],
)
def test_a_wrong_system_is_refused(change, words):
    level = {"name": "links", "gpus": 8, "bandwidth": {"value": "300 GB/s", "kind": "datasheet", "source": "sheet"}}
    raw = {"name": "node", "device": "nvidia-a100-sxm-80gb", "gpus": 8, "sources": {"sheet": "a datasheet"}, "levels": [level]}
    assert validated(raw).levels[0].reached == trusted(raw).levels[0].reached == 300e9
    with pytest.raises(DataError, match=words):
        validated({**raw, **change})


def test_gpus_without_a_system_share_the_links_of_their_profile():
    found = of_device(H200)
    assert span(found, Parallel(tp=2, dp=4), DATA).level.bandwidth.number == 450e9
    with pytest.raises(UsageError, match="say with --system"):
        span(found, Parallel(tp=8, dp=2), DATA)


@pytest.mark.parametrize(("name", "gpus"), table("links_of_a_profile_join_no_more_gpus_than_they_do"))
def test_links_of_a_profile_join_no_more_gpus_than_they_do(name, gpus):
    assert of_device(find_device(name)).gpus == gpus


def test_slower_links_inside_of_a_node_take_longer_where_nccl_is_calibrated():
    raw = {"name": "node", "device": H200.id, "gpus": 8, "sources": {"sheet": "a datasheet"}}
    level = {"name": "links", "gpus": 8, "bandwidth": {"value": "450 GB/s", "kind": "datasheet", "source": "sheet"}}
    same, slow = (
        validated({**raw, "levels": [{**level, "bandwidth": {**level["bandwidth"], "value": value}}]}) for value in ("450 GB/s", "45 GB/s")
    )
    exchange, p = Exchange(TENSOR, "all_reduce", 1 << 28), Parallel(tp=8)
    assert exchange_seconds(exchange, same, p, H200) == exchange_seconds(exchange, find_system("h200-x8"), p, H200)
    assert exchange_seconds(exchange, slow, p, H200) == pytest.approx(10 * exchange_seconds(exchange, same, p, H200))
    assert "times 10," in inside_source(slow, p, H200)
    assert "as NCCL was calibrated" in inside_source(same, p, H200)
    assert inside_source(same, Parallel(), H200) == ""


@pytest.mark.parametrize("name", ["deepseek-v3", "llama-3-8b"])
@pytest.mark.parametrize("parallel", [Parallel(), Parallel(cp=8)])
@pytest.mark.parametrize("flash", [True, False])
def test_one_token_of_a_sequence_per_gpu_is_refused(name, parallel, flash):
    with pytest.raises(UsageError, match="1 token of a sequence") as caught:
        answer(TrainingConfig(find_model(name), 1, parallel.cp, flash=flash, parallel=parallel), H200, fallbacks, find_system("h200-x8"))
    assert f"--n {2 * parallel.cp}" in caught.value.fix
    assert (
        answer(TrainingConfig(find_model(name), 1, 2 * parallel.cp, parallel=parallel), H200, fallbacks, find_system("h200-x8")).seconds > 0
    )


@pytest.mark.parametrize("gradients", [SIXTEEN_BIT, FULL_GRADIENTS, BOTH_GRADIENTS])
@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b"])
def test_gradients_are_added_to_the_share_of_them_that_zero_leaves(name, gradients):
    taken = {}
    for zero in (1, 2, 3):
        layout = Parallel(dp=8, ep=2 if name == "mixtral-8x7b" else 1, zero=zero)
        found = step(TrainingConfig(find_model(name), 16, 256, 1, gradients=gradients, parallel=layout), system="h200-x8")
        taken[zero] = next(line.cost.dram.total for line in found.lines if line.op.name == "gradients added up")
    state = state_bytes(found.training)
    shares = {part.name.removeprefix("fp32 "): -(-part.elements // part.shards) for part in state.parts if part.group == "gradients"}
    assert taken[2] == taken[3] == pytest.approx(taken[1] * sum(shares.values()) / state.trained, rel=1e-6)
    assert taken[2] < taken[1] / 3


@pytest.mark.parametrize(("dp", "zero", "known"), [(8, 3, True), (16, 1, True), (16, 2, False), (16, 3, False)])
def test_dividing_gradients_over_a_network_is_not_validated(dp, zero, known):
    training = TrainingConfig(find_model("llama-3-8b"), dp, 512, parallel=Parallel(dp=dp, zero=zero))
    assert step(training, system="dgx-h100").validated is known


# Conventions


@pytest.mark.parametrize(("name", "windowed"), [("mistral-7b", True), ("gemma-2-9b", True), ("llama-3-8b", False)])
def test_windows_bound_what_the_conventions_count(name, windowed):
    model = find_model(name)
    short, long = (attention_flops(model, n) for n in (4096, 65536))
    assert (long < 16 * short) is windowed
    windows = [layer.attention.window for layer in model.layers]
    counted = sum(
        4 * min(65536, window or 65536) * layer.attention.heads * layer.attention.head_dim
        for layer, window in zip(model.layers, windows, strict=True)
    )
    assert long == counted


@pytest.mark.parametrize("name", ["mistral-7b", "gemma-2-9b", "llama-3-8b"])
@pytest.mark.parametrize("recompute", [NONE, FULL])
def test_what_kernels_execute_is_never_above_the_peak(name, recompute):
    """By convention long sequences can be: the masked half of the scores counts."""
    found = answer(TrainingConfig(find_model(name), 1, 131072, recompute=Recomputation(recompute)), H200, fallbacks)
    needed, executed = found.utilization
    assert 0 < needed <= executed < 1
    assert (found.run.model, found.run.hardware) == (found.cost.flops, found.cost.executed_flops)


@given(st.integers(1, 60), st.sampled_from([2048, 6144, 12288]), st.integers(1, 64), st.sampled_from([1024, 2048]))
def test_megatrons_formula_for_a_gpt(layers, hidden, batch, n):
    """72 B L s h^2 (1 + s / 6h + V / 12Lh), and a third more of all but the logits if everything runs again."""
    layer = Layer(GroupedAttention(hidden // 128, hidden // 128, 128), DenseMlp(4 * hidden, gated=False))
    model = ModelSpec("gpt", "gpt2", hidden, 51200, (layer,) * layers)
    formula = 72 * batch * layers * n * hidden**2 * (1 + n / (6 * hidden) + 51200 / (12 * layers * hidden))
    training = TrainingConfig(model, batch, n)
    assert megatron(training).model == pytest.approx(formula)
    full = megatron(TrainingConfig(model, batch, n, recompute=Recomputation(FULL)))
    assert full.hardware == pytest.approx(formula + 24 * batch * layers * n * hidden**2 * (1 + n / (6 * hidden)))
    selective = megatron(TrainingConfig(model, batch, n, recompute=Recomputation(SELECTIVE)))
    assert selective.hardware == pytest.approx(formula + 4 * batch * layers * n**2 * hidden)
    assert selective.model == full.model == megatron(training).hardware == megatron(training).model


def test_frozen_weights_need_two_passes_of_three():
    model = find_model("llama-3-8b")
    whole, adapted = (palm(TrainingConfig(model, 1, 1024, lora=rank)).model - 1024 * 3 * attention_flops(model, 1024) for rank in (None, 8))
    assert adapted * 3 == whole * 2


def test_latent_attention_multiplies_v_as_wide_as_it_is():
    """Q K^T over 192 features, P V over 128, and twice that backward: V is padded where attention is timed, not where it is counted."""
    rows = {row.op.name: row.op.kernel for row in step(TrainingConfig(find_model("deepseek-v2"), 1, 512)).lines}
    pairs = 128 * 512 * 513 // 2
    assert rows["attention"].flops == pairs * 2 * (192 + 128)
    assert rows["attention, gradient"].flops == 2 * rows["attention"].flops
    assert rows["attention, gradient"].executed_flops / rows["attention"].executed_flops == pytest.approx((3 * 192 + 2 * 128) / (192 + 128))


def test_exact_flops_are_those_of_megatron_less_the_masked_half():
    training = TrainingConfig(find_model("gpt2-medium"), 8, 1024)
    found = step(training)
    masked = training.batch * training.n * 3 * attention_flops(training.model, training.n) * (1 - (training.n + 1) / (2 * training.n))
    assert float(found.cost.flops) == pytest.approx(megatron(training).model - masked, rel=1e-6)
