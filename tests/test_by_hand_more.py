"""More constants, signs and edges worked out by hand: times of fused attention, training state, layouts, suggestions."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from each import each

from perfmodel import api
from perfmodel.catalog import calibrated_devices, find_device, find_model, find_system
from perfmodel.core.cache import MatmulLaunch, dram_bytes, multicast_bytes, resident_blocks
from perfmodel.core.cost import READ, WRITE, Access, Kernel, Launch, Tile
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import DataError, suggest
from perfmodel.core.files import read_yaml
from perfmodel.core.roofline import Estimate
from perfmodel.core.trace import FormulaStep
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.kernels.attention.algorithms import find
from perfmodel.kernels.attention.blocks import BlockGrid
from perfmodel.kernels.attention.evaluate import compulsory_elements, evaluate, explain
from perfmodel.kernels.attention.tiles import fa2_tile
from perfmodel.kernels.collectives import ALL_REDUCE, ALL_TO_ALL
from perfmodel.kernels.matmul import Matmul
from perfmodel.kernels.register_tiles import geometry
from perfmodel.kernels.softmax import VARIANTS, Softmax, Variant, kernel
from perfmodel.remat.chain import Chain, ChainLayer
from perfmodel.remat.optimal_dp import Program
from perfmodel.remat.schedule import BACKWARD as CHAIN_BACKWARD
from perfmodel.remat.schedule import LOSS, TAPE, Plan
from perfmodel.remat.strategies.checkpoints import STRATEGIES
from perfmodel.report.speedup import PREDICTED
from perfmodel.report.swept_series import ROOF, Pairwise, SweptSeries
from perfmodel.study.points import answers
from perfmodel.study.schema import MOST_FORMULAS, Scope
from perfmodel.study.workloads import MatmulOptions, Workload
from perfmodel.sweep.kernels import costs
from perfmodel.sweep.study import WORKLOADS, workload_named
from perfmodel.timing.base import WARM, Case, model_of
from perfmodel.timing.engine import TAIL, TileBlocks
from perfmodel.timing.launched import plan_of
from perfmodel.timing.models import gemm, numba_attention, register_tiles
from perfmodel.timing.models._attention_grid import AttentionLaunch, key_tiles_visits, timed_again
from perfmodel.transformer.answer import GENERATE, ModelAnswer, answer
from perfmodel.transformer.generation import with_cache
from perfmodel.transformer.hf import parse
from perfmodel.transformer.kv_cache import CacheFormat, largest_batch
from perfmodel.transformer.operation import Matrix
from perfmodel.transformer.parameters import total
from perfmodel.transformer.spec import MoeMlp
from perfmodel.transformer.step import Request
from perfmodel.transformer.training.implementations import FUSED, HUGGINGFACE, tape_of
from perfmodel.transformer.training.korthikanti import applies_to, stage_bytes
from perfmodel.transformer.training.matrices import Holding, shape_of
from perfmodel.transformer.training.question import Parallel, TrainingConfig
from perfmodel.transformer.training.state import state_bytes
from perfmodel.transformer.training.step.estimate import training_step
from perfmodel.transformer.training.step.job import job_of
from perfmodel.transformer.training.step.layer import layer_ops
from perfmodel.transformer.training.step.layer_time import machine_of
from perfmodel.transformer.training.step.search import candidates
from perfmodel.transformer.training.step.step_time import micro_batch, step_time
from perfmodel.transformer.training.step.system import DATA, Exchange, needs
from perfmodel.validation.cases import FIT
from perfmodel.validation.cpu.cases import shapes
from perfmodel.validation.cpu.profile import EXPONENTIALS, CacheBytes, device, rate_loops
from tools.measure.training.meter import Clock

MIB = 1 << 20
A100, H200 = (find_device(f"nvidia-{name}") for name in ("a100-sxm-80gb", "h200-sxm"))


# Times of fused attention


def attention(n: int, d: int, heads: int = 4, kv_heads: int = 4) -> Attention:
    return Attention(n=n, kv_len=n, d=d, dv=d, batch=2, heads=heads, kv_heads=kv_heads, dtype=DTYPES["bf16"])


@pytest.mark.parametrize(
    ("implementation", "w", "direction", "moved"),
    [
        ("torch-sdpa-flash", attention(4096, 128), FORWARD, 4 * 1),
        # Q, dO, K, V, dK, dV, dQ in fp32 added to; O and dO for the row sums, dQ in fp32 set to zero and read, dQ written: 2 + 2 * 2 + 1
        ("torch-sdpa-flash", attention(4096, 128), BACKWARD, 6 + 2 * 2 + 7),
        # K and V of one head in place of four; dK and dV of each query head are written and read, and their sums written
        ("torch-sdpa-flash", attention(4096, 128, 4, 1), BACKWARD, (2 + 2 / 4 + 2 + 2 * 2) + 7 + 2 + 2 / 4),
        # vLLM copies K and V of every token into its cache: read and written once more
        ("vllm-flash-attn", attention(4096, 128), FORWARD, 4 + 2 * 2),
    ],
)
def test_bytes_alone(implementation: str, w: Attention, direction: str, moved: float) -> None:
    """With all that computes at no cost, time is bytes, in tensors of the size of Q, at 4.8 TB/s."""
    case, tensor = Case(w, implementation, direction), 2 * 4 * 4096 * 128 * 2
    p = {**dict.fromkeys(model_of(case, H200).starts(), 1e-9), "dram": 1.0}
    assert model_of(case, H200).seconds(case, H200, p) == pytest.approx(moved * tensor / 4.8e12, rel=1e-4)


KERNELS = [
    (64, FORWARD, "fmha_cutlassF_bf16_aligned_64x64_rf_sm80"),
    (128, FORWARD, "fmha_cutlassF_bf16_aligned_64x128_rf_sm80"),
    (256, FORWARD, "fmha_cutlassF_bf16_aligned_32x128_gmem_sm80"),
]
"""Of PyTorch 2.11, transformers/cuda/mem_eff_attention/kernels: their names tell queries x keys."""


@pytest.mark.parametrize(("d", "direction", "kernel"), KERNELS)
def test_tiles_of_memory_efficient_kernels_are_in_their_names(d: int, direction: str, kernel: str) -> None:
    plan = plan_of(Case(attention(4096, d), "torch-sdpa-efficient", direction), A100)
    assert f"_{plan.br}x{plan.bc}_" in kernel


@pytest.mark.parametrize(
    ("d", "causal", "tile"),
    [
        *((64, False, (128, 128)), (96, False, (64, 128)), (192, False, (64, 96)), (256, False, (64, 80))),
        *((128, False, (80, 128)), (128, True, (64, 128)), (40, False, (128, 128)), (200, True, (64, 80))),
    ],
)
def test_tiles_of_the_backward_pass_on_hopper(d: int, causal: bool, tile: tuple[int, int]) -> None:
    """hopper/flash_bwd_launch_template.h of flash-attention, run_mha_bwd_hdim64 to 256 for compute capability 9.0."""
    plan = plan_of(Case(replace(attention(4096, d), causal=causal), "fa3", BACKWARD), H200)
    assert (plan.br, plan.bc) == tile


@pytest.mark.parametrize(("alone", "gained"), [(1.0, 1.0), (2.0, 0.5), (3.0, 0.0)])
def test_the_last_block_gains_of_neighbours_that_have_ended(alone: float, gained: float) -> None:
    """Three to a multiprocessor, a third of the speed each: three blocks of a tile end at 30, one of four tiles at 150; 70 is the mean."""
    found = TileBlocks((1, 1, 1, 4), 0, 0, sms=1, resident=3).cycles(10.0, 0.0, alone)
    assert found == pytest.approx(150 - TAIL * (150 - 70) * gained)


def test_a_key_tile_is_copied_16_bytes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba-flash1: 64 rows of K and of V, 128 floats wide, by 256 threads."""
    copies: set[float] = set()
    monkeypatch.setattr(register_tiles, "tile_cycles", lambda costed, *_: copies.add(costed.copies) or 1.0)
    numba_attention.flash1_seconds(Case(attention(512, 128), "numba-flash1", launch={"br": 128, "bc": 64}), H200, {"pair_cycles": 1.0})
    threads = geometry(128, 128, 64).threads
    assert copies == {128 * 128 * 4 / 16 / threads, 2 * 64 * 128 * 4 / 16 / threads}


@pytest.mark.parametrize(("heads", "split"), [(172, True), (173, False)])
def test_two_blocks_to_a_multiprocessor_are_enough(heads: int, split: bool) -> None:
    """set_params_splitkv of flash-attention: keys are whole from 0.8 x 2 x 108 = 172.8 blocks on."""
    w = replace(attention(64, 128, heads, heads), batch=1, kv_len=8192)
    assert (plan_of(Case(w, "torch-sdpa-flash"), A100).splits > 1) is split


def test_a_warm_matmul_finds_its_weights_unless_there_are_copies() -> None:
    """A, B and C of 8 MiB each are 0.4 of the L2: 0.22 / 0.32 of them are lost. With two copies of B, 8/15, all of B is.

    Without a word of copies it is a kernel like others: clean bytes, and what the rule of warm runs saves.
    """
    warm = Case(Matmul(2048, 2048, 2048), "torch-matmul", cache="warm")
    assert gemm.dram_bytes(warm, H200) == 3 * 8 * MIB
    assert gemm.dram_bytes(replace(warm, launch={gemm.WEIGHT_COPIES: 1}), H200) == pytest.approx(3 * 8 * MIB * 0.22 / 0.32)
    copied = replace(warm, launch={gemm.WEIGHT_COPIES: 2})
    assert gemm.dram_bytes(copied, H200) == pytest.approx(2 * 8 * MIB * 0.22 / 0.32 + 8 * MIB)


@pytest.mark.parametrize(("n", "packed"), [(20, True), (128, False), (200, True), (4096, False)])
def test_heads_are_packed_where_their_rows_fill_tiles_better(n: int, packed: bool) -> None:
    """FlashAttention-3: 8 heads of 20 rows fill 160 of 256 rows, each alone 20 of 128; of 200 rows, 1600 of 1664, each 200 of 256."""
    assert plan_of(Case(attention(n, 128, 8, 1), "fa3"), H200).packed is packed


# What the last cache lets through: the rules in the docstring of perfmodel.core.cache, with 60 MiB of L2 and one block per multiprocessor


def reads(blocks: int, groups: int, share: float, **options: Any) -> tuple[float, int]:
    """DRAM bytes read, and the bytes of one group, which every block of it scans; W is ``share`` of the L2."""
    launch = Launch(blocks=blocks, groups=groups, sram_bytes=200 << 10, threads=128, **options)
    slots = resident_blocks(launch, H200)
    assert slots == 132
    group = round(share * 60 * MIB / min(1 + slots * groups / blocks, groups))  # a wave meets the rest of a group, and what follows
    access = Access("K", READ, group * blocks, 1, group * groups, group * groups, reread=True)
    return dram_bytes(Kernel("streams", DTYPES["fp16"], (access,), launch=launch), H200, READ), group


@pytest.mark.parametrize(
    ("share", "lost", "drifted"), [(0.1, 0, 0), (0.34, 0.5, 0), (0.9, 1, 0), (2, 1, 0.0025), (9, 1, 0.02), (500, 1, 1)]
)
def test_waves_in_lockstep_scan_once_each(share: float, lost: float, drifted: float) -> None:
    """528 blocks to a group are 4 waves: 16 in all, and 3 borders of groups fall inside of one: 19 scans of 4 groups, 15 repeat."""
    found, group = reads(4 * 528, 4, share, lockstep=True)
    assert found == pytest.approx(group * (4 + 15 * lost + (4 * 528 - 19) * drifted), rel=1e-6)


@pytest.mark.parametrize(("share", "spread", "missed"), [(0.5, 1, 0), (1.1, 1, 0.25), (1.1, 0.5, 0), (2.2, 0.5, 0.25), (5.5, 1, 0.81)])
def test_blocks_out_of_step_read_alone(share: float, spread: float, missed: float) -> None:
    """With W' = W x spread, (1 - 0.55 L2 / W')^2 of all re-reads miss."""
    found, group = reads(4 * 528, 4, share, lockstep=False, length_spread=spread)
    assert found == pytest.approx(group * (4 + (4 * 528 - 4) * missed), rel=1e-6)


@pytest.mark.parametrize(("cluster", "times", "saved"), [(1, 4, 0), (2, 4, 2), (4, 4, 3), (2, 1, 0), (4, 1.5, 0.5), (2, 1.5, 0.5)])
def test_multicast_saves_no_more_than_is_read_again(cluster: int, times: float, saved: float) -> None:
    """A cluster reads once what each of its blocks would, but never less than each byte once."""
    accesses = tuple(Access(name, READ, size * times, 2, size, size, reread=True) for name, size in (("A", 64), ("B", 1024)))
    launch = MatmulLaunch(4, 1, 1 << 10, 128, True, cluster=cluster)
    assert multicast_bytes(Kernel("product", DTYPES["fp16"], accesses, launch=launch)) == saved * 1024 * 2


@each("share", [0.05, 0.17, 0.2, 0.3, 0.5])
def test_of_a_mask_that_heads_scan_one_after_another_what_was_scanned_since_counts_twice(share: float) -> None:
    """The mask and as much of the scores beside it, of 60 MiB; lost from 0.18 to 0.5 of these."""
    size = round(share * 60 * MIB)
    mask = Access("mask", READ, 8 * size, 1, size, size, reread=True, scans=8)
    lost = min(max((2 * share - 0.18) / (0.5 - 0.18), 0), 1)
    assert dram_bytes(Kernel("scores", DTYPES["fp16"], (mask,)), H200, READ) == pytest.approx(size * (1 + 7 * lost), rel=1e-6)


@each("share", [0.1, 0.3, 0.5, 0.7, 0.9])
@each(("private", "low", "high"), [(False, 0.18, 0.5), (True, 0.53, 0.8)])
def test_scans_that_shrink_lose_the_mean_over_their_lengths(share: float, private: bool, low: float, high: float) -> None:
    """A scan of x of W is met with weight x, as it is so long; half of the re-reads shrink."""
    steps = [(i + 0.5) / 10000 for i in range(10000)]
    mean = sum(2 * x * min(max((share * x - low) / (high - low), 0), 1) for x in steps) / len(steps)
    whole = min(max((share - low) / (high - low), 0), 1)
    found, group = reads(4 * 528, 4, share, lockstep=True, exclusive_stream=private, causal_share=0.5)
    assert found == pytest.approx(group * (4 + 15 * (whole + mean) / 2), rel=1e-5)


@pytest.mark.parametrize(("variant", "times"), list(zip(VARIANTS, (3, 2, 1), strict=True)), ids=lambda one: getattr(one, "name", ""))
def test_rows_that_no_cache_holds_are_read_from_memory_again(variant: Variant, times: int) -> None:
    """2048 threads make 8 blocks of 256 on each of 132 multiprocessors: their rows of 1 MiB are 1056 MiB, of which 60 fit the L2."""
    w = Softmax(4096, 1 << 19)
    assert dram_bytes(kernel(w, variant), H200, READ) == times * 4096 * MIB


# Training


@pytest.mark.parametrize(("zero", "shares"), [(0, 1), (1, 4), (2, 4), (3, 4)])
def test_copies_of_the_optimizer_are_of_its_own_share(zero: int, shares: int) -> None:
    """Square roots of Adam's second moments in fp32, of the parameters that a GPU updates."""
    gpt2 = find_model("gpt2")
    state = state_bytes(TrainingConfig(gpt2, 8, 1024, parallel=Parallel(dp=4, zero=zero), fused_optimizer=False))
    assert state.temporary == 4 * -(-124439808 // shares)


def test_parts_of_a_sequence_have_1024_tokens_at_least() -> None:
    def parts(n: int, *, flash: bool = True) -> set[int]:
        return {t.parallel.cp for t in candidates(TrainingConfig(find_model("llama-3-8b"), 8, n, flash=flash), 8, 8)}

    assert (parts(1023), parts(1024), parts(2048), parts(8192)) == ({1}, {1}, {1, 2}, {1, 2, 4, 8})
    assert parts(8192, flash=False) == {1}


def test_kernels_that_move_tokens_add_up_as_many_elements_as_pairs() -> None:
    """Of Mixtral: 2 experts to each of 4 x 512 tokens, 4096 wide, there and back, forward and backward."""
    job = job_of(TrainingConfig(find_model("mixtral-8x7b"), 4, 512), machine_of(H200, tuple))
    [layer] = {layer for layer, _ in job.training.model.layer_kinds}
    rows = layer_ops(layer, job.micro_batch)
    moved = [row for row in (*rows.forward, *rows.backward) if "tokens by" in row.name or "weighted sum" in row.name]
    assert [row.kernel.work.vector for row in moved] == [2 * 4 * 512 * 4096] * 4


def test_tokens_go_to_their_experts_and_back_in_each_pass() -> None:
    """Of Mixtral over 2 GPUs: per pass, twice 2 experts x 2 x 512 tokens of 4096 numbers of 2 bytes."""
    training = TrainingConfig(find_model("mixtral-8x7b"), 4, 512, parallel=Parallel(dp=2, ep=2))
    job = job_of(training, machine_of(H200, tuple), find_system("h200-x8"))
    [layer] = {layer for layer, _ in job.training.model.layer_kinds}
    rows = layer_ops(layer, job.micro_batch)
    for passed in (rows.forward_exchanges, rows.backward_exchanges):
        [there] = [one for one in passed if one.op == ALL_TO_ALL]
        assert (there.bytes, there.count) == (2 * 2 * 512 * 4096 * 2, 2)


def test_layers_that_predict_further_tokens_have_to_be_asked_for() -> None:
    """The config.json of DeepSeek-V2 does not name any, that of V3 one."""
    assert [len(find_model(name).draft) for name in ("deepseek-v2", "deepseek-v3")] == [0, 1]


def test_published_runs_find_in_the_cache_what_just_fits() -> None:
    """Each run of 20 heads x 4096 tokens of 64 numbers moves 40 MiB, as much as the L2 of an A100 holds."""
    a100 = find_device("a100-sxm-80gb")
    assert a100.cache_bytes == 40 << 20
    just, more = (Attention(n, n, 64, 64, 1, 20, 20, DTYPES["fp16"]) for n in (4096, 4097))
    assert [timed_again(Case(w, "fa2", cache=WARM), a100).flushed for w in (just, more)] == [False, True]


def test_chunks_of_stages_keep_more() -> None:
    """Korthikanti et al. 2022, section 4.2.3: 1 + (p - 1) / (p m)."""

    def kept(interleave: int) -> float:
        return stage_bytes(TrainingConfig(find_model("gpt2"), 4, 1024, parallel=Parallel(pp=4, interleave=interleave)))

    assert [kept(m) / kept(1) for m in (2, 3)] == pytest.approx([1 + 3 / 8, 1 + 3 / 12])


def test_the_account_of_korthikanti_is_of_plain_transformers() -> None:
    gpt2 = find_model("gpt2")
    [(layer, _)] = gpt2.layer_kinds
    narrow = replace(gpt2, layers=tuple(replace(layer, mlp=replace(layer.mlp, width=width)) for width in [2048] * 12))
    assert [applies_to(model) for model in (gpt2, narrow, find_model("llama-3-8b"))] == [True, False, False]


def test_rows_are_timed_by_the_bytes_that_they_count() -> None:
    """Of a step with dropout, whose kernels read or write a mask of a byte per element beside what they compute."""
    dropped, seen = TrainingConfig(find_model("gpt2"), 4, 512, dropout=True), 0
    for implementation in (FUSED, HUGGINGFACE):
        batch = job_of(dropped, machine_of(H200, tuple), implementation=implementation).micro_batch
        found = layer_ops(dropped.model.layers[0], batch)
        for row in (*found.forward, *found.backward):
            if row.timed is not None and any(access.tensor == "mask" for access in row.kernel.accesses):
                timed = row.timed.workload
                assert timed.read_bytes + timed.write_bytes == row.kernel.bytes(READ, WRITE), row.name
                seen += 1
    assert seen == 8


@pytest.mark.parametrize(("precision", "copies"), [("bf16", 2 * 64 * 50257), ("fp32", 0)])
def test_the_first_logits_are_still_there_in_their_own_format(precision: str, copies: int) -> None:
    """Hugging Face makes fp32 of the logits of 64 tokens; the model's output holds those of 16 bits beside."""
    shape = shape_of(TrainingConfig(find_model("gpt2"), 2, 32, precision=precision))
    tape = tape_of("head", shape, HUGGINGFACE)
    assert [node.scratch for node in tape.nodes if node.name == "log-softmax"] == [copies]


def test_views_have_the_size_of_their_part() -> None:
    """Q, K and V of GPT-2 are views of one tensor: 768 elements of 2 B per token each."""
    training = TrainingConfig(find_model("gpt2"), 2, 512)
    tape = tape_of(training.model.layers[0], shape_of(training), HUGGINGFACE)
    assert tape.views == dict.fromkeys("QKV", 2 * 512 * 768 * 2)


@pytest.mark.parametrize(("dtype", "bits"), [("bf16", 16), ("fp32", 32)])
def test_weights_and_keys_of_a_training_step_are_as_wide_as_its_activations(dtype: str, bits: int) -> None:
    forward = training_step(TrainingConfig(find_model("gpt2"), 2, 512), DTYPES[dtype], FUSED).step
    assert (forward.weight_bits, forward.kv_bits) == (bits, bits)


def test_a_measured_step_goes_from_its_begin_to_its_last_part() -> None:
    def event(at_ms: float) -> Any:
        return SimpleNamespace(at=at_ms, elapsed_time=lambda other: other.at - at_ms)

    clock = Clock(SimpleNamespace(), [{"begin": event(10.0), "forward": event(12.0), "backward": event(17.0)}])  # type: ignore[arg-type]
    assert clock.step_s() == [0.007]
    assert clock.parts_s() == {"forward": [0.002], "backward": [0.005]}


def test_an_exchange_passes_through_memory_twice() -> None:
    """3 all-reduces of 8 MB among 8 GPUs: each sends 2 x 7/8 of it, and receives as much, at 4.8 TB/s."""
    found = needs(Exchange(DATA, ALL_REDUCE, 8_000_000, 3), 0.5, find_system("h200-x8"), Parallel(dp=8), H200)
    assert sorted(found.values()) == pytest.approx([3 * 2 * 2 * 7_000_000 / 4.8e12, 0.5])


def test_a_step_exchanges_as_long_as_its_busiest_stage() -> None:
    """Stages differ: the first looks tokens up, the last has the head. Without data parallelism nothing else is sent."""
    training = TrainingConfig(find_model("llama-3-8b"), 4, 1024, micro_batch=1, parallel=Parallel(tp=2, pp=4))
    job = job_of(training, machine_of(H200, tuple), find_system("h200-x8"))
    stages = [micro_batch(job, stage) for stage in range(4)]
    exchanged = [4 * (one.exposed_s + one.hidden_s) for one in stages]
    assert min(exchanged) < max(exchanged) == pytest.approx(step_time(job).exchanged_s)


# Counts


def test_what_any_exact_attention_moves() -> None:
    """Forward Q, K, V, O; backward Q, O and their gradients, K, V and theirs: rows of 3 and of 5 elements, 2 batches, 4 and 2 heads."""
    w = Attention(n=7, kv_len=11, d=3, dv=5, batch=2, heads=4, kv_heads=2)
    assert compulsory_elements(w, FORWARD) == 2 * (4 * 7 + 2 * 11) * (3 + 5)
    assert compulsory_elements(w, BACKWARD) == 2 * 2 * (4 * 7 + 2 * 11) * (3 + 5)


@pytest.mark.parametrize("name", ["memory-efficient", "flash1"])
@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_what_is_compulsory_is_counted_once_over_all_kernels(name: str, direction: str) -> None:
    w = Attention(n=70, kv_len=110, d=16, dv=24, batch=2, heads=4, kv_heads=2)
    kernels = (find(name).forward if direction == FORWARD else find(name).backward)(w, Tile(32, 16))
    assert sum(access.compulsory for kernel in kernels for access in kernel.accesses) == compulsory_elements(w, direction)


def test_a_matmul_needs_memory_for_its_three_matrices() -> None:
    """3 times A of 64 x 16, B of 16 x 32 and C of 64 x 32, 2 B an element."""
    [found] = answers(Workload(matmul=MatmulOptions(m=64, n=32, k=16, batch=3, dtype="fp16")), H200, Scope())
    assert found.memory == 3 * 2 * (64 * 16 + 16 * 32 + 64 * 32)


def test_the_widest_head_of_flash_attention_2_has_256_dims() -> None:
    """run_mha_fwd_hdim256: 64 x 64 where 128 x 64 does not fit, and no kernel beyond."""
    found = [fa2_tile(attention(4096, d), find_device("nvidia-l40s"), 99 << 10, FORWARD) for d in (256, 257)]
    assert found[0] is not None
    assert found[1] is None
    assert (found[0].br, found[0].bc, found[0].head_dim) == (64, 64, 256)


def test_layers_that_are_all_experts_need_no_width_of_another() -> None:
    """Llama 4 without intermediate_size_mlp: of 2 layers each has experts, unless every second one alone does."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 100}
    raw = {"model_type": "llama4_text", **sizes, "num_local_experts": 4}
    assert [isinstance(layer.mlp, MoeMlp) for layer in parse(raw, "x", "x").layers] == [True, True]
    with pytest.raises(DataError, match="intermediate_size_mlp"):
        parse({**raw, "interleave_moe_layer_step": 2}, "x", "x")


def test_values_without_size_leave_no_memory_and_need_none() -> None:
    """One layer of interior 1 in memory of 1: run once, its interior kept, with nothing left for the loss, which takes nothing."""
    chain = Chain((ChainLayer(output=0, interior=1),), 0)
    assert [action.kind for action in Program(chain, 1).schedule()] == [TAPE, LOSS, CHAIN_BACKWARD]


def test_shapes_of_a_cpu_that_stream_are_all_different() -> None:
    """Judged: head dims 16 and 48, with and without a mask; fitted: 32 without and 128 with one."""
    streamed = [
        (shape.role == FIT, shape.shape)
        for shape in shapes(32 * MIB)
        if shape.implementation == "cpu-standard" and shape.shape["n"] == 1024
    ]
    judged = sorted((sizes["d"], sizes["causal"]) for fit, sizes in streamed if not fit)
    assert judged == [(16, False), (16, True), (48, False), (48, True)]
    assert sorted((sizes["d"], sizes["causal"]) for fit, sizes in streamed if fit) == [(32, False), (128, True)]


def test_the_largest_batch_is_found_in_four_looks() -> None:
    """GPT-2: 36,864 B of keys and values of each of 1024 tokens, 768 + 768 + 50257 elements of activations: 1e11 B hold 2641.8 of them."""
    looked: list[int] = []

    def growing(batch: int) -> int:
        looked.append(batch)
        return 2 * batch * (768 + 768 + 50257)

    assert largest_batch(10**11, 36864 * 1024, growing) == 2641
    assert looked == [1, 1, 2642, 2641]


def generated() -> ModelAnswer:
    """32 tokens after 512, of which the decode steps are looked at a few at a time."""
    request = Request(GENERATE, 2, 512, 544, model=find_model("llama-3-8b"), device=H200)
    return answer(request, calibrated_devices)


def test_utilization_is_flop_over_time_at_the_peak() -> None:
    found = generated()
    assert found.mfu == pytest.approx(found.flops / (found.seconds * 989.4e12)), "all of it multiplies in fp16"


def test_layers_may_have_no_shared_expert() -> None:
    """One of two layers has experts; a shared one is three matrices of 64 x 32."""

    def parameters(shared: int) -> int:
        sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 100}
        experts = {"n_routed_experts": 4, "num_experts_per_tok": 1, "n_shared_experts": shared, "moe_intermediate_size": 32}
        heads = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "kv_lora_rank": 32, "q_lora_rank": None}
        return int(total(parse({"model_type": "deepseek_v2", **sizes, **experts, **heads, "first_k_dense_replace": 1}, "x", "x")))

    assert [parameters(shared) - parameters(0) for shared in (1, 2)] == [3 * 64 * 32, 2 * 3 * 64 * 32]


def test_an_intensity_without_bytes_is_no_number() -> None:
    columns = costs(Estimate())
    assert [math.isnan(columns[f"{level}_intensity_flop_per_byte"]) for level in ("sram", "dram")] == [True, True]  # type: ignore[arg-type]


def test_a_sweep_of_what_has_no_tile_says_0() -> None:
    found = api.sweep(n=[64, 128], d=64, algorithm="standard", columns=["tile_br", "tile_bc"])
    assert [list(found[name]) for name in ("tile_br", "tile_bc")] == [[0, 0], [0, 0]]


@each("window", [None, 1, 20, 33])
@each("kv_len", [70, 100, 40])
def test_row_tiles_that_a_key_tile_meets(window: int | None, kv_len: int) -> None:
    """Rows of 2 heads to a query; a query sees keys up to its own place, counted from the end, and of them the last of a window."""
    w = Attention(n=70, kv_len=kv_len, d=16, dv=16, heads=2, kv_heads=1, causal=True, window=window, packed=True)
    launch = AttentionLaunch(16, 32)
    for j in range(-(-kv_len // 32)):
        keys = range(32 * j, min(32 * (j + 1), kv_len))
        places = [(row // 2 + kv_len - 70, row // 16) for row in range(140)]
        seen = {tile for place, tile in places for key in keys if key <= place and (window is None or key > place - window)}
        assert key_tiles_visits(w, launch, j, 10**6) == len(seen), j


@pytest.mark.parametrize("group", [1, 2, 3])
def test_scores_of_blocks_that_heads_share(group: int) -> None:
    """Row r is query r // group, and sees keys up to its own place; blocks of 4 rows cut a group of 3."""
    grid = BlockGrid(rows=7 * group, keys=9, br=4, bc=2, reach=2, group=group)
    for i, j in product(range(grid.tr), range(grid.tc)):
        rows, keys = range(4 * i, min(4 * (i + 1), 7 * group)), range(2 * j, min(2 * (j + 1), 9))
        assert grid.block(i, j).visible == sum(key <= row // group + 2 for row in rows for key in keys)


def test_matrices_alone_have_no_vectors() -> None:
    assert Holding((Matrix("Q", "attention", 64, 32), Matrix("K", "attention", 64, 16))).parameters == 64 * 48


@pytest.mark.parametrize("missing", ["m", "n", "k"])
def test_a_sweep_of_matmuls_needs_all_three_sizes(missing: str, run: Any) -> None:
    sizes = " ".join(f"--{name} 64" for name in "mnk" if name != missing)
    found = run(f"sweep matmul {sizes}")
    assert (found.code, found.err.splitlines()[0]) == (2, f"perfmodel: --{missing} is missing")


def test_generation_attends_to_the_latent_as_it_is_cached() -> None:
    """DeepSeek-V3: 128 heads, keys of 512 + 64 elements, values of 512, 61 layers; 10 tokens see 55 keys."""
    v3 = find_model("deepseek-v3")
    assert with_cache(v3, 10, "bf16", CacheFormat()).attention == 61 * 2 * 128 * (512 + 64 + 512) * 55


def test_a_chain_that_is_kept_makes_no_tapes() -> None:
    taped_steps = STRATEGIES["keep-all"].taped_steps
    assert taped_steps is not None
    assert repr(taped_steps(5, Plan())) == "0", "a whole number"


@pytest.mark.parametrize("workload", [*map(workload_named, WORKLOADS)], ids=lambda w: w.name)
def test_what_is_counted_is_a_whole_number(workload: Any) -> None:
    counted = {one.name: one.whole for one in workload.columns if one.unit in ("B", "FLOP", "OP", "elements", "rows", "columns", "tokens")}
    assert [name for name, whole in counted.items() if not whole] in ([], ["io_lower_bound_elements"])


def test_a_row_of_softmax_is_the_work_of_eight_warps() -> None:
    launches = [kernel(Softmax(1024, 4096), variant).launch for variant in VARIANTS]
    assert [launch and launch.threads for launch in launches] == [8 * 32] * 3


# Words


@pytest.mark.parametrize("levels", [20, 21])
def test_files_are_nested_20_levels_deep_at_most(levels: int, tmp_path: Path) -> None:
    file = tmp_path / "deep.yaml"
    file.write_text("{a: " * levels + "1" + "}" * levels)
    if levels == 20:
        assert read_yaml(file)[0]
    else:
        with pytest.raises(DataError, match="nested deeper than 20 levels"):
            read_yaml(file)


def test_formulas_of_a_study_are_as_many_as_it_may_have() -> None:
    steps = [FormulaStep(f"x{i}", "a number", "1", "1", 1) for i in range(MOST_FORMULAS)]
    scope = Scope()
    assert len(scope.explain("all", "a group", lambda: steps)) == MOST_FORMULAS
    assert scope.explain("more", "a group", lambda: steps[:1]) == []
    assert Scope().explain("too many", "a group", lambda: [*steps, steps[0]._replace(name="y")]) == []


@pytest.mark.parametrize(("first", "other", "cut"), [((1, 2), (1, 2), False), ((1, 2, 4), (1, 2), True), ((1, 2), (1, 2, 4), True)])
def test_a_duel_is_cut_where_one_side_goes_on_alone(first: tuple[int, ...], other: tuple[int, ...], cut: bool) -> None:
    tracks = (SweptSeries("", H200, dict.fromkeys(values, SimpleNamespace(fits=True)), []) for values in (first, other))  # type: ignore[arg-type]
    assert Pairwise(*tracks, "n", lambda _: {}).cut is cut


@pytest.mark.parametrize(("first", "other", "basis"), [(1, 1, PREDICTED), (1, None, ROOF), (None, 1, ROOF)])
def test_a_duel_compares_predictions_only_where_both_have_them(first: int | None, other: int | None, basis: str) -> None:
    def track(predicted: int | None) -> SweptSeries:
        known, bare = (SimpleNamespace(fits=True, point=SimpleNamespace(predicted=each)) for each in (1, predicted))
        return SweptSeries("", H200, {1: known, 2: bare}, [])  # type: ignore[dict-item]

    assert Pairwise(track(first), track(other), "n", lambda _: {}).basis == basis


def test_the_printed_ratio_to_compulsory_elements() -> None:
    """Standard attention of 64 x 16 moves Q, K, V, O once, and S and P twice each."""
    w = Attention(n=64, kv_len=64, d=16, dv=16)
    result = evaluate(find("standard"), w, H200, FORWARD, None, None, None)
    steps = {step.name: step.value for step in explain(result, w, H200)}
    assert steps["over compulsory"] == (4 * 64 * 16 + 4 * 64 * 64) / (4 * 64 * 16)


def test_exponentials_of_the_cpu_per_second() -> None:
    loops = rate_loops(1 << 16, 4)
    times = {name: [0.25 if name == EXPONENTIALS else 1.0] for name in loops}
    exponentials = device(loops, times, CacheBytes(1 << 16, 0), 4).peaks.exp
    assert exponentials is not None
    assert exponentials.number == 4096 * 500 * 4


def test_three_names_at_most_are_suggested() -> None:
    assert suggest("flash", ["flash1", "flash2", "flash3", "flash4"]).count("flash") == 3


def test_occupancy_counts_warps(run) -> None:
    """100 threads take 4 warps: 16 blocks of them fill the 64 of a multiprocessor, as NVIDIA's calculator and Nsight Compute say."""
    [found] = run("occupancy --threads 100 --registers 32 --hardware h200 --json").json["results"]
    assert (found["active_warps"], found["active_threads"], found["occupancy"]) == (64, 1600, 1.0)
