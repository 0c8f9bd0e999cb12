"""A transformer as a sum of kernels: weights, FLOP, cache and collectives against independent counts, and what must always hold."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import pytest
from each import each
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.catalog import calibrated_devices, find_device, find_model, model_names
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UsageError
from perfmodel.kernels.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, P2P, REDUCE_SCATTER, Collective, least_bytes, ring_s, tree_s
from perfmodel.transformer import kv_cache, parameters
from perfmodel.transformer.answer import answer, lengths
from perfmodel.transformer.estimate import run_pass
from perfmodel.transformer.generation import PAYS, bound_s, curve, knee
from perfmodel.transformer.host import Host, launches
from perfmodel.transformer.layer import first_operations, last_operations, operations
from perfmodel.transformer.op import CACHE, COLLECTIVE, MATMUL, WEIGHTS, Op, total_bytes
from perfmodel.transformer.op_time import LARGEST_SAVING, LaunchCorrection, handed_bytes, launch_correction, launch_saving_s
from perfmodel.transformer.ops import Rows, step_ops
from perfmodel.transformer.parallel import hand_over, kv_bytes, stages, weight_bytes
from perfmodel.transformer.routing import expected_touched
from perfmodel.transformer.spec import MoeMlp
from perfmodel.transformer.step import PHASES, Request, Split, decode, prefill
from perfmodel.transformer.training.recorder import Recorder

SMALL = ("gpt2", "llama-3.2-1b", "mixtral-8x7b", "gemma-2-9b", "deepseek-v2")
fallbacks = cache(calibrated_devices)


def found(name: str, phase: str = "decode", device: str = "nvidia-h200-sxm", **options: object):
    lengths_of = {"n": 96, "kv_len": 128 if phase == "generate" else 96}
    values = {"batch": 2, **lengths_of, "dtype": DTYPES["bf16"], **options}
    return answer(Request(phase, **values, model=find_model(name), device=find_device(device)), fallbacks)  # type: ignore[arg-type]


def named(ops: list[Op], name: str) -> Op:
    [op] = [op for op in ops if op.name == name]
    return op


# Weights and cache, against the exact counts


@each("name", model_names())
def test_the_weights_of_all_kernels_are_the_parameters(name):
    model = find_model(name)
    assert weight_bytes(model, decode(1, 64)) == 2 * parameters.total(model)


@each("name", model_names())
def test_the_cache_is_that_of_the_cache_model(name):
    model = find_model(name)
    for n in (64, 9000):
        assert kv_bytes(model, decode(3, n)) == 3 * kv_cache.sequence_bytes(model, n, kv_cache.CacheFormat())


@pytest.mark.parametrize("name", ["gpt2-xl", "llama-2-7b", "llama-3-8b", "qwen2.5-72b", "gemma-2-2b"])
def test_a_decode_step_reads_every_weight_once_but_one_row_of_the_table(name):
    model, step = find_model(name), decode(1, 100)
    tied = model.vocab * model.hidden if model.tied_embeddings else 0
    table = model.vocab * model.hidden + (model.max_positions * model.hidden if model.learned_positions else 0)
    rows = model.hidden * (2 if model.learned_positions else 1)
    assert total_bytes(step_ops(model, step), WEIGHTS) == 2 * (parameters.total(model) - table + tied + rows)


@pytest.mark.parametrize("name", ["llama-3-8b", "gemma-2-9b", "mistral-7b-v0.1", "deepseek-v3"])
def test_a_decode_step_reads_the_cache_once_and_writes_one_token(name):
    model, length = find_model(name), 9000
    ops = step_ops(model, decode(2, length))
    held = 2 * kv_cache.sequence_bytes(model, length, kv_cache.CacheFormat())
    token = 2 * kv_cache.token_bytes(model, kv_cache.CacheFormat())
    assert total_bytes(ops, CACHE) == held + token


# Experts


@pytest.mark.parametrize(("experts", "per_token", "tokens"), [(4, 1, 3), (4, 2, 2), (5, 2, 3), (3, 3, 2)])
def test_expected_experts_over_every_choice(experts, per_token, tokens):
    choices = list(itertools.combinations(range(experts), per_token))
    touched = [len(set().union(*picks)) for picks in itertools.product(choices, repeat=tokens)]
    assert expected_touched(experts, per_token, tokens) == pytest.approx(sum(touched) / len(touched))


# Element-wise rows


@pytest.mark.parametrize("name", SMALL)
def test_fusion_launches_and_moves_less_and_keeps_weights_and_flop(name):
    model = find_model(name)
    apart, fused = (step_ops(model, replace(prefill(2, 64), fused=value)) for value in (False, True))
    assert sum(op.count for op in fused) < sum(op.count for op in apart)
    assert sum(op.count * op.activation_bytes for op in fused) < sum(op.count * op.activation_bytes for op in apart)
    assert total_bytes(fused, WEIGHTS) == total_bytes(apart, WEIGHTS)
    assert sum(op.count * op.kernel.flops for op in fused) == sum(op.count * op.kernel.flops for op in apart)


def test_quantized_weights_and_cache_count_at_their_width():
    model = find_model("llama-3-8b")
    wide, narrow = decode(1, 1000), decode(1, 1000, weight_bits=4, kv_bits=4)
    assert weight_bytes(model, wide) == 4 * weight_bytes(model, narrow)
    assert kv_bytes(model, wide) == 4 * kv_bytes(model, narrow)
    whole, less = (run_pass(model, step, find_device("h200"), fallbacks).rows for step in (wide, narrow))
    assert [row.op.name for row in less if row.prediction is None] == ["attention"]
    assert all("4-bit cache" in row.missing for row in less if row.op.name == "attention")
    for one, other in zip(whole, less, strict=True):
        if one.op.group == MATMUL:
            assert one.prediction is not None
            assert other.prediction is not None
            assert one.prediction.seconds / 4 < other.prediction.seconds < one.prediction.seconds


# Several GPUs


def ring_all_reduce(buffers: list[list[int]]) -> tuple[list[list[int]], int]:
    """Runs the two halves of a ring over equal chunks; returns the buffers and the elements that each GPU sends."""
    world, size = len(buffers), len(buffers[0]) // len(buffers)
    chunks = [[buffer[i * size : (i + 1) * size] for i in range(world)] for buffer in buffers]
    sent = 0
    for half in ("reduce", "gather"):
        for turn in range(world - 1):
            shift = turn if half == "reduce" else turn - 1
            moving = [(rank, (rank - shift) % world, chunks[rank][(rank - shift) % world]) for rank in range(world)]
            for rank, index, chunk in moving:
                target = chunks[(rank + 1) % world]
                target[index] = [a + b for a, b in zip(target[index], chunk, strict=True)] if half == "reduce" else list(chunk)
            sent += size
    return [[element for part in parts for element in part] for parts in chunks], sent


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_a_ring_moves_what_its_formula_says(world):
    buffers = [[rank * 100 + i for i in range(6 * world)] for rank in range(world)]
    reduced, sent = ring_all_reduce(buffers)
    assert reduced == [[sum(column) for column in zip(*buffers, strict=True)]] * world
    assert ring_s(Collective(ALL_REDUCE, world, 6 * world, DTYPES["bf16"]), 1.0, alpha_s=0) == pytest.approx(sent)
    assert ring_s(Collective(ALL_REDUCE, world, 0, DTYPES["bf16"]), 1.0, alpha_s=1) == 2 * (world - 1)


@given(
    st.sampled_from([ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, P2P]),
    st.integers(2, 512),
    st.integers(1, 10**12),
    st.floats(0, 1e-3),
)
def test_no_algorithm_beats_the_bytes_that_must_arrive(op, world, size, alpha):
    w = Collective(op, 2 if op == P2P else world, size, DTYPES["bf16"])
    assert least_bytes(w) / 1e9 <= ring_s(w, 1e9, alpha) * (1 + 1e-12)
    if op == ALL_REDUCE:
        assert least_bytes(w) / 1e9 <= tree_s(w, 1e9, alpha)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallel_divides_work_and_weights(tp):
    model, split = find_model("llama-3-70b"), Split(tp=tp)
    whole, share = (step_ops(model, prefill(1, 64, split=s)) for s in (Split(), split))
    matmuls = [sum(op.count * op.kernel.flops for op in ops if op.group != COLLECTIVE) for ops in (whole, share)]
    assert matmuls[0] == tp * matmuls[1]
    norms = parameters.parts(model)["norms"]
    assert weight_bytes(model, decode(1, 64, split=split)) == 2 * ((parameters.total(model) - norms) // tp + norms)
    reduce = named(share, "all-reduce")
    assert (reduce.count, reduce.kernel.bytes("read")) == (2 * 80 + 1, 64 * 8192 * 2)
    assert kv_bytes(model, decode(1, 64)) == tp * kv_bytes(model, decode(1, 64, split=split))


def test_more_gpus_than_kv_heads_copy_them():
    model = find_model("llama-3-8b")
    eight, sixteen = (kv_bytes(model, decode(1, 64, split=Split(tp=tp))) for tp in (8, 16))
    assert eight == sixteen


def test_expert_parallel_exchanges_tokens_twice_per_layer():
    model, split = find_model("deepseek-v3"), Split(ep=8)
    step = decode(64, 100, split=split)
    ops = step_ops(model, step)
    layers = sum(isinstance(layer.mlp, MoeMlp) for layer in model.layers)
    exchange = named(ops, "all-to-all")
    assert (exchange.count, exchange.kernel.bytes("read")) == (2 * layers, 8 * 8 * 7168 * 2)
    experts = parameters.parts(model)["experts"]
    assert weight_bytes(model, step) == 2 * (parameters.total(model) - experts + experts // 8)


@pytest.mark.parametrize("pp", [2, 3, 80])
def test_stages_hold_all_layers_and_take_no_less_time(pp):
    model, device = find_model("llama-3-70b"), find_device("h200")
    assert sum(stages(model, pp), ()) == model.layers
    one, several = (run_pass(model, decode(1, 64, split=s), device) for s in (Split(), Split(pp=pp)))
    assert several.cost.lower_s >= one.cost.lower_s
    assert several.cost.roofline_s > one.cost.roofline_s
    assert named(hand_over(model, several.step), "p2p").count == pp - 1
    table, layer = model.vocab * model.hidden, sum(parameters.layer_parts(model, model.layers[0]).values())
    first, last = -(-80 // pp) * layer + table, 80 // pp * layer + table + model.hidden
    assert weight_bytes(model, several.step) == 2 * max(first, last)
    whole, split = (answer(Request("decode", 1, 1, 64, split=s, model=model, device=device)) for s in (Split(), Split(pp=pp)))
    assert split.mfu < whole.mfu


@pytest.mark.parametrize(
    ("split", "name", "words"),
    [
        (Split(tp=3), "llama-3-8b", "--tp 3 does not divide 32 heads"),
        (Split(ep=2), "llama-3-8b", "has no experts"),
        (Split(ep=3), "mixtral-8x7b", "does not divide 8 experts"),
        (Split(pp=33), "llama-3-8b", "has 32 layers"),
        (Split(tp=0), "llama-3-8b", "--tp is 0"),
    ],
)
def test_splits_that_a_model_cannot_take(split, name, words):
    with pytest.raises(UsageError, match=words):
        split.check(find_model(name))


# Times


@each("name", SMALL)
@each("phase", PHASES)
@each("device", ["nvidia-h200-sxm", "nvidia-a100-sxm-80gb"])
def test_nothing_is_faster_than_its_bound(name, phase, device):
    one = found(name, phase, device)
    for line in one.lines:
        cost = line.cost
        assert 0 <= cost.lower_warm_s <= cost.lower_s * (1 + 1e-9)
        assert cost.lower_s <= cost.roofline_s * (1 + 1e-9) <= cost.no_overlap_s * (1 + 2e-9)
        if line.times is not None:
            seconds, low, high = line.times
            assert cost.lower_s * (1 - 1e-9) <= low <= seconds <= high
    assert one.cost.lower_warm_s <= one.cost.lower_s <= one.seconds
    assert 0 < one.mfu < 1


def test_the_warm_bound_keeps_activations_and_a_cache_full_of_weights():
    device = find_device("h200")
    one = run_pass(find_model("gpt2"), decode(1, 512), device)
    lasting = total_bytes((row.op for row in one.rows), WEIGHTS) + sum(
        row.op.count * row.op.bytes_of(CACHE, kind="read") for row in one.rows
    )
    assert one.cost.lower_warm_s == pytest.approx((lasting - device.cache_bytes) / device.best_dram_rate)


def test_without_a_calibration_of_steps_a_graph_saves_the_difference_of_the_launches():
    device = replace(find_device("h200"), calibration=[b for b in find_device("h200").calibration if b.model != "torch-step"])
    eager, graph = (run_pass(find_model("llama-3-8b"), decode(1, 512), device, graph=value) for value in (False, True))
    runs = sum(row.op.count for row in eager.rows)
    saving = launch_saving_s(device)
    assert saving == pytest.approx(2.5e-6 - 1.32e-6)
    assert eager.prediction[0] - graph.prediction[0] == pytest.approx(runs * saving)
    assert launch_saving_s(find_device("tpu-v5e")) is None
    assert launch_correction(find_device("tpu-v5e"), fallbacks).parameters["graph_saving_us"] == 0


def test_kernels_in_a_step_differ_from_kernels_alone_as_calibrated():
    device = find_device("h200")
    within = LaunchCorrection({"stream_saving_us": 2.0, "graph_saving_us": 4.0, "handoff_share": 0.25, "strided_factor": 2.0})
    rows = {row.op.name: row.op for row in run_pass(find_model("llama-3-8b"), prefill(1, 512, dtype=DTYPES["bf16"]), device).rows}
    matmul, add, gate = (rows[name] for name in ("down projection", "residual add", "SiLU x gate"))
    assert within.seconds(50e-6, matmul, device, False, 0.0) == pytest.approx(48e-6)
    assert within.seconds(50e-6, matmul, device, True, 0.0) == pytest.approx(46e-6)
    assert within.seconds(3e-6, matmul, device, True, 0.0) == pytest.approx(3e-6 * (1 - LARGEST_SAVING))
    assert within.seconds(50e-6, matmul, device, True, 49e-6) == 49e-6
    assert handed_bytes(add, device) == 3 * 512 * 4096 * 2 / 2
    found_sooner = 0.75 * handed_bytes(add, device) / device.dram.bandwidth_bytes_per_s
    assert within.seconds(50e-6, add, device, False, 0.0) == pytest.approx(48e-6 - found_sooner)
    slower = (gate.activation_bytes - 0.75 * handed_bytes(gate, device)) / device.dram.bandwidth_bytes_per_s
    assert gate.timed.strided
    assert within.seconds(50e-6, gate, device, False, 0.0) == pytest.approx(48e-6 + slower)
    huge = {row.op.name: row.op for row in run_pass(find_model("llama-3-8b"), prefill(8, 8192), device).rows}["residual add"]
    assert handed_bytes(huge, device) == device.cache_bytes / 2


def test_a_step_is_predicted_with_the_interval_of_whole_steps():
    device = find_device("h200")
    one = run_pass(find_model("llama-3-8b"), decode(1, 2048, dtype=DTYPES["bf16"]), device, graph=True)
    assert one.within.own
    seconds, low, high = one.prediction
    assert seconds == pytest.approx(sum(row.prediction.seconds for row in one.rows))
    assert (low, high) == (pytest.approx(seconds * one.within.block.low), pytest.approx(seconds * one.within.block.high))
    borrowed = run_pass(find_model("llama-3-8b"), decode(1, 2048, dtype=DTYPES["bf16"]), find_device("nvidia-a100-sxm-80gb"), fallbacks)
    assert borrowed.within.block is not None
    assert not borrowed.within.own
    assert borrowed.prediction[1] == pytest.approx(sum(row.prediction.low for row in borrowed.rows))


def test_generation_is_a_prefill_and_decode_steps():
    one = found("llama-3.2-1b", "generate", n=50, kv_len=60)
    model, device = find_model("llama-3.2-1b"), find_device("h200")
    first = run_pass(model, replace(prefill(2, 50), dtype=DTYPES["bf16"]), device, fallbacks, host=Host())
    assert one.ttft_s == first.seconds
    assert first.seconds == Host().seconds(launches(row.op for row in first.rows))[0], "kernels so short wait for their launches"
    steps = [run_pass(model, decode(2, length, dtype=DTYPES["bf16"]), device, fallbacks, graph=True).seconds for length in range(51, 60)]
    assert one.seconds == pytest.approx(one.ttft_s + sum(steps))
    assert one.tpot_s == pytest.approx(sum(steps) / 9)
    assert one.tokens_per_s == pytest.approx(2 * 10 / one.seconds)


@given(st.integers(1, 10**6), st.integers(0, 10**5))
def test_lengths_stand_for_all(first, count):
    listed = lengths(first, first + count - 1)
    assert sum(times for _, times in listed) == count
    assert sum(length * times for length, times in listed) == sum(range(first, first + count))
    assert len(listed) <= 18


# Memory and batch


@pytest.mark.parametrize(("name", "split"), [("llama-3-8b", Split()), ("mixtral-8x7b", Split(tp=2, ep=4)), ("gemma-2-9b", Split(pp=2))])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_largest_batch_fits_and_no_larger_one(name, split, phase):
    most = found(name, phase, split=split).memory.max_batch
    assert most > 1
    assert found(name, phase, split=split, batch=most).memory.fits
    assert not found(name, phase, split=split, batch=most + 1).memory.fits


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "llama-2-7b"])
def test_the_knee_is_where_doubling_stops_paying(name):
    r = Request("decode", 1, 1024, 1024, split=Split(tp=2), model=find_model(name), device=find_device("h200"))
    at = knee(r, 10**4)
    assert 2 * bound_s(r, at) / bound_s(r, 2 * at) < PAYS <= 2 * bound_s(r, at - 1) / bound_s(r, 2 * at - 2)
    assert knee(r, at - 1) is None


def test_throughput_and_latency_grow_with_the_batch():
    shown = curve(Request("decode", 1, 2048, 2048, model=find_model("llama-2-7b"), device=find_device("h200")), fallbacks)
    bounds = [point.step.cost.lower_s for point in shown.points]
    assert bounds == sorted(bounds)
    rates = [point.batch / bound for point, bound in zip(shown.points, bounds, strict=True)]
    assert rates == sorted(rates)
    assert shown.points[0].bound == "weights"
    assert shown.points[-1].bound == "KV cache"
    assert shown.points[-1].batch == shown.max_batch
    assert all(point.fits for point in shown.points)
    assert shown.knee in {point.batch for point in shown.points}


def test_with_many_kv_heads_saved_compute_takes_over():
    short = curve(Request("decode", 1, 64, 64, model=find_model("llama-3-8b"), device=find_device("a100-sxm-80gb")))
    assert short.points[-1].bound == "compute"


# The spec's options each leave their row


@each("name", model_names())
def test_every_kind_of_operation_has_its_method(name: str) -> None:
    """What has none has no kernel: where GPUs meet, views, a sum that the weighted sum makes, the loss, which inference has not."""
    model = find_model(name)
    layers = [op for layer, _ in model.layer_kinds for op in operations(model, layer, dropout=True)]
    kinds = {op.kind for op in [*first_operations(model, dropout=True), *layers, *last_operations(model)]}
    assert {kind for kind in kinds if not hasattr(Rows, kind)} <= {"enter", "split", "join", "dropout", "loss"}
    refused = {"convolution", "recurrence", "gated_norm", "output_gate", "index_keys", "index_scores", "select"}
    assert {kind for kind in kinds if not hasattr(Recorder, kind)} <= {"enter", "leave", "rotate", "shared_gate", *refused}
