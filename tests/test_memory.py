"""Training memory: tapes worked by hand, state per parameter and by share, adapters, the timeline, what fits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from each import each
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import table
from training_questions import layout as drawn_layout

from perfmodel.catalog import find_device, find_model, model_names
from perfmodel.core.errors import PerfmodelError, UnavailableError, UsageError
from perfmodel.core.workload import Attention
from perfmodel.transformer.parameters import total
from perfmodel.transformer.spec import DenseMlp, GroupedAttention, LatentAttention, Layer, ModelSpec, MoeMlp
from perfmodel.transformer.training.implementations import FORWARD, FUSED, OPTIMIZER, StepMoment, implementation_named, saved_tensors
from perfmodel.transformer.training.matrices import in_flight, shape_of, stage_holding
from perfmodel.transformer.training.memory import _stage, largest_micro_batch, peak
from perfmodel.transformer.training.question import OPTIMIZERS, Parallel, Recomputation, TrainingConfig, checked, untrained
from perfmodel.transformer.training.state import state_bytes
from perfmodel.transformer.training.tape import Tape, TapeNode, TapePass, attention_peak, backward, forward

BF16 = {"precision": "bf16"}


def small(layer: Layer | None = None, layers: int = 4, **options: object) -> ModelSpec:
    layer = layer or Layer(GroupedAttention(4, 2, 16), DenseMlp(176))
    return ModelSpec("small", "llama", 64, 503, (layer,) * layers, max_positions=64, **options)  # type: ignore[arg-type]


GPT = small(
    Layer(GroupedAttention(4, 4, 16, qkv_bias=True, output_bias=True), DenseMlp(256, gated=False, bias=True)),
    norm="layer",
    tied_embeddings=True,
    learned_positions=True,
)
EXPERTS = small(Layer(GroupedAttention(4, 2, 16), MoeMlp(8, 2, 96, shared_width=32, shared_gate=True, router_extra=8)))
LATENT = small(Layer(LatentAttention(4, 24, 40, 8, 16, 16, bias=True), DenseMlp(176)))
WITHOUT_Q_LATENT = small(Layer(LatentAttention(4, 24, None, 8, 16, 16), DenseMlp(176)))
_TWO = tuple(Layer(GroupedAttention(4, 2, d, shared_kv=True), DenseMlp(176)) for d in (16, 32))
TWO_KINDS = replace(small(), layers=_TWO * 2)
SINKS = small(Layer(GroupedAttention(4, 2, 16, window=8, qk_norm=True, sinks=True, output_bias=True), MoeMlp(8, 2, 96, bias=True), norms=4))
KINDS = {
    "llama": small(),
    "gpt": GPT,
    "experts": EXPERTS,
    "latent": LATENT,
    "plain latent": WITHOUT_Q_LATENT,
    "two kinds": TWO_KINDS,
    "sinks": SINKS,
}


def timeline(training: TrainingConfig) -> tuple[StepMoment, ...]:
    """The moments of a step on a GPU of the first stage."""
    return _stage(training, shape_of(training), 0, FUSED).moments()


# Tapes


def test_a_view_has_a_gradient_of_its_own():
    nodes = [TapeNode("split", ("x",), ("a", "b")), TapeNode("product", ("a", "b"), ("y",), ("x",))]
    tape = Tape("x", {"x": 8, "a": 0, "b": 0, "y": 4}, nodes, views={"a": 4, "b": 4})
    assert forward(tape) == TapePass(high=4, net=4, at="product")
    assert backward(tape) == TapePass(high=8, net=8 - 8 - 4, at="product")


def test_what_runs_again_keeps_nothing_of_its_own():
    """The middle keeps only what it reads, and stands in memory once more before its backward pass."""
    nodes = [
        TapeNode("in", ("x",), ("q",), ("x",)),
        TapeNode("scores", ("q",), ("s",), ("q",)),
        TapeNode("softmax", ("s",), ("p",), ("p",)),
        TapeNode("out", ("p",), ("y",), ("p",)),
        TapeNode("end", ("y",), ("z",), ("y",)),
    ]
    sizes = {"x": 1, "q": 1, "s": 100, "p": 100, "y": 1, "z": 1}
    whole = Tape("x", sizes, nodes)
    again = replace(whole, rerun=frozenset({"scores", "softmax", "out"}))
    assert set(whole.saved()) - set(again.saved()) == {"p"}
    assert forward(whole).net - forward(again).net == 100
    assert forward(again).high == forward(whole).high
    assert backward(again).net - backward(whole).net == 100, "what is rebuilt is freed as well"
    assert backward(again).high == 3 * 100 - 2, "p rebuilt, dp and ds; y and dz have gone"


def test_scratch_is_there_only_meanwhile():
    tape = Tape("x", {"x": 1, "y": 1}, [TapeNode("f", ("x",), ("y",), ("x",), scratch=10, backward_scratch=20)])
    assert (forward(tape).high, backward(tape).high) == (11, 21)
    assert (forward(tape).net, backward(tape).net) == (1, -1)


# State


@each(("options", "each"), table("bytes_per_parameter"))
def test_bytes_per_parameter(options, each):
    state = state_bytes(TrainingConfig(find_model("gpt2"), 1, 128, **options))
    assert state.total == each * 124_439_808
    assert state.total == sum(part.bytes for part in state.parts)


def test_optimizers_that_go_by_shape():
    model = find_model("llama-3.2-1b")
    vectors = 16 * 2 * 2048 + 2048
    sizes = {name: state_bytes(TrainingConfig(model, 1, 8, optimizer=name, **BF16)).optimizer for name in OPTIMIZERS}
    assert sizes["adam"] == sizes["adamw"] == 4 * total(model)
    sums = 16 * (2048 + 2048 + 2 * (2048 + 512) + 2048 + 2048 + 3 * (2048 + 8192)) + 128256 + 2048 + vectors
    assert sizes["adafactor"] == 2 * sums
    assert sizes["adam8bit"] == 2 * total(model) + 4 * -(-2 * total(model) // 256)
    tables = 128256 * 2048 + vectors
    assert sizes["muon"] == 2 * (total(model) - tables) + 4 * tables


@each("name", [name for name in model_names() if not untrained(find_model(name))])
@each("options", [{}, {"gradients": "fp32"}, BF16])
def test_gradients_on_tape_are_those_of_the_state(name, options):
    """Every weight of every model has its gradient in exactly one operation."""
    training = TrainingConfig(find_model(name), 1, 64, **options)
    assert state_bytes(training).parameters == total(training.model)
    moments = timeline(training)
    assert [moment.phase for moment in moments][-1] == OPTIMIZER
    assert moments[-2].bytes == moments[-1].bytes, "backward ends where the optimizer begins"


@each("kind", KINDS)
@each("split", [Parallel(tp=2), Parallel(pp=2), Parallel(tp=2, sp=True, pp=2), Parallel(pp=2, interleave=2)])
def test_shares_add_up(kind, split):
    """All GPUs together hold every parameter once, those of norms and the like as often as there are tensor-parallel GPUs."""
    model = KINDS[kind]
    held = split.tp * sum(stage_holding(model, split, stage).parameters for stage in range(split.pp))
    whole = stage_holding(model, Parallel(pp=split.pp, interleave=split.interleave), 0)
    copies = held - total(model) - (model.vocab * model.hidden if model.tied_embeddings and split.pp > 1 else 0)
    assert 0 <= copies < 0.15 * total(model)
    if split.tp == 1:
        assert copies == 0
    assert whole.parameters <= total(model)
    if split.interleave == 1:
        moments = timeline(TrainingConfig(model, 8, 64, parallel=split))
        assert moments[-2].bytes == moments[-1].bytes


def test_experts_are_shared_by_other_groups():
    """Four data-parallel GPUs in groups of two: each expert lives on two of them, all else on four."""
    state = state_bytes(TrainingConfig(EXPERTS, 4, 64, parallel=Parallel(dp=4, ep=2, zero=1)))
    shards = {part.name: part.shards for part in state.parts}
    assert shards["fp32 master weights"] == 4
    assert shards["fp32 master weights of experts"] == 2
    of_experts = next(part for part in state.parts if part.name == "weights of experts")
    assert of_experts.elements == 4 * 4 * 3 * 64 * 96


@pytest.mark.parametrize("zero", range(4))
def test_zero_divides_in_turn(zero):
    p = total(GPT)
    state = state_bytes(TrainingConfig(GPT, 16, 64, parallel=Parallel(dp=4, zero=zero)))
    share = -(-p // 4)
    assert state.weights == 2 * (share if zero == 3 else p)
    assert state.gradients == 2 * (share if zero >= 2 else p)
    assert state.optimizer == 12 * (share if zero >= 1 else p)


# Adapters


@pytest.mark.parametrize(("name", "rank", "targets", "trained"), table("adapters_as_published"))
def test_adapters_as_published(name, rank, targets, trained):
    """What PEFT prints for Llama; Hu et al. 2021, Table 4, print 4.7 M at rank 1, which is 18.9 M at rank 4."""
    training = TrainingConfig(find_model(name), 1, 128, lora=rank, lora_targets=targets)
    assert state_bytes(training).trained == trained
    state = state_bytes(training)
    assert state.weights == 2 * (total(training.model) + trained)
    assert (state.gradients, state.optimizer) == (2 * trained, 12 * trained)


def test_frozen_matrices_keep_no_input():
    def names(**options: object) -> set[str]:
        return {row.name for row in saved_tensors(TrainingConfig(small(), 2, 32, **options))}  # type: ignore[arg-type]

    everything, few, all_ = names(), names(lora=2, lora_targets="qv"), names(lora=2)
    assert everything - few == {"MLP input", "activation", "head input"}
    assert everything - all_ == {"head input"}
    assert {"attention result, low rank"} <= all_ - few
    assert (
        peak(TrainingConfig(small(), 2, 32, lora=2)).moments[-1].bytes == state_bytes(TrainingConfig(small(), 2, 32, lora=2)).total + 8 * 64
    )


# The timeline


OPTIONS = st.fixed_dictionaries(
    {
        "precision": st.sampled_from(["mixed", "bf16", "fp32"]),
        "recompute": st.sampled_from([Recomputation(), Recomputation("selective"), Recomputation("full"), Recomputation("every", 3)]),
        "flash": st.booleans(),
        "dropout": st.booleans(),
        "gradient_life": st.sampled_from(["freed", "kept"]),
        "fused_optimizer": st.booleans(),
        "optimizer": st.sampled_from(sorted(OPTIMIZERS)),
        "lora": st.sampled_from([None, 2]),
        "parallel": st.sampled_from([Parallel(), Parallel(tp=2, sp=True), Parallel(dp=2, zero=2), Parallel(dp=2, zero=3), Parallel(pp=2)]),
    }
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.integers(1, 3), st.integers(1, 9), OPTIONS)
def test_a_step_ends_as_it_began(kind, micro_batch, n, options):
    training = checked(TrainingConfig(KINDS[kind], 12, 8 * n, micro_batch=micro_batch, **options))
    found = peak(training)
    moments, state = found.moments, found.state
    for before, after in pairwise(moments[:-1]):
        assert before.bytes == after.start
    assert found.bytes == max(moment.high for moment in moments)
    assert all(moment.high >= max(moment.start, moment.bytes) for moment in moments)
    for moment in moments:
        highs = moment.highs()
        assert len(highs) == moment.count
        assert max(highs) == pytest.approx(moment.high)
    shards = training.parallel.dp if training.parallel.zero >= 2 else 1
    held = state.total + (8 * training.tokens if found.stage == 0 else 0)
    assert moments[-1].bytes == held
    assert abs(moments[-2].bytes - held) <= 64 * 6 * shards or training.parallel.pp > 1
    assert found.activations >= 0
    assert found.bytes == state.weights + state.optimizer + found.gradients + found.activations


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.integers(1, 8), OPTIONS)
def test_more_takes_more_and_recomputing_keeps_less(kind, batch, options):
    one = TrainingConfig(KINDS[kind], batch, 32, **{**options, "parallel": Parallel()})
    assert peak(one).bytes < peak(replace(one, batch=batch + 1)).bytes
    stored = [
        peak(replace(one, recompute=recompute)).stored
        for recompute in (Recomputation(), Recomputation("selective"), Recomputation("full"), Recomputation("every", 4))
    ]
    assert stored == sorted(stored, reverse=True)
    assert peak(replace(one, recompute=Recomputation("every", 1))) == peak(replace(one, recompute=Recomputation("full")))


def test_kinds_of_equal_words_are_numbered():
    rows = saved_tensors(TrainingConfig(TWO_KINDS, 2, 32))
    assert list(dict.fromkeys(row.where for row in rows)) == ["layer: GQA, MLP", "layer: GQA, MLP (2)", "head"]
    sizes = {row.where: row.bytes for row in rows if row.name == "V"}
    assert sizes == {"layer: GQA, MLP": 2 * 64 * 2 * 16, "layer: GQA, MLP (2)": 2 * 64 * 2 * 32}
    assert [moment.where for moment in timeline(TrainingConfig(TWO_KINDS, 2, 32))][1:5] == ["layer 1", "layer 2", "layer 3", "layer 4"]


def test_life_of_gradients():
    def held(**options: object) -> int:
        return peak(TrainingConfig(GPT, 2, 8, **options)).moments[0].start  # type: ignore[arg-type, no-any-return]

    gradients = 2 * total(GPT)
    assert held(gradient_life="kept") - held() == gradients
    assert held(micro_batch=1) - held(micro_batch=2) == gradients - 8 * 8
    applied = peak(TrainingConfig(GPT, 2, 8, gradient_life="applied"))
    assert applied.moments[-1].bytes == 14 * total(GPT) + 8 * 16
    assert applied.bytes < peak(TrainingConfig(GPT, 2, 8)).bytes


def test_foreach_makes_copies():
    fused, foreach = (peak(TrainingConfig(GPT, 1, 1, fused_optimizer=fused)) for fused in (True, False))
    assert foreach.moments[-1].high - fused.moments[-1].high == 4 * total(GPT)
    assert foreach.moment.phase == OPTIMIZER


def test_weights_put_together_by_the_third_stage():
    """A layer's weights beyond the own share are there while it runs."""
    stages = [peak(TrainingConfig(small(), 4, 4, parallel=Parallel(dp=4, zero=zero))) for zero in (2, 3)]
    layer = 64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 * 176 + 2 * 64
    gathered = 2 * (layer - layer // 4)
    layers = [next(moment for moment in found.moments if moment.where == "layers 1 to 4") for found in stages]
    assert (layers[1].high - layers[1].start) - (layers[0].high - layers[0].start) == gathered


# Pipelines


@pytest.mark.parametrize("pp", [2, 4, 7])
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_micro_batches_in_flight_against_a_schedule(pp, turns):
    """Megatron-LM's schedule: warm up, then one forward and one backward at a time, chunks in groups of ``pp`` micro-batches."""
    micro_batches = 4 * pp
    for stage in range(pp):
        order = [(group + index, turn) for group in range(0, micro_batches, pp) for turn in range(turns) for index in range(pp)]
        back = [(micro_batch, turns - 1 - turn) for micro_batch, turn in order]
        ahead = min(2 * (pp - stage - 1) + (turns - 1) * pp if turns > 1 else pp - stage - 1, len(order))
        live: set[tuple[int, int]] = set(order[:ahead])
        most = 0
        for index in range(len(order) - ahead):
            live.add(order[ahead + index])
            most = max(most, len(live))
            live.remove(back[index])
        assert sum(in_flight(Parallel(pp=pp, interleave=turns), stage, micro_batches)) == most


# What fits


@pytest.mark.parametrize(
    ("model", "n", "options"),
    [
        ("gpt2-xl", 1024, {"flash": False, "dropout": True}),
        ("gpt2", 512, {"precision": "bf16", "micro_batch": 2}),
        ("llama-3.2-1b", 4096, {"recompute": Recomputation("full"), "parallel": Parallel(dp=8, zero=3)}),
    ],
)
def test_largest_micro_batch_fits_and_the_next_does_not(model, n, options):
    device = find_device("a100-sxm-80gb")
    assert device.dram.capacity is not None
    capacity = device.dram.capacity.number
    training = TrainingConfig(find_model(model), 16, n, **options)
    largest = largest_micro_batch(training, capacity)
    assert largest > 0
    for sequences, fits in ((largest, True), (largest + 1, False)):
        batch = sequences * training.micro_batches * training.parallel.dp
        assert (peak(replace(training, batch=batch, micro_batch=sequences)).bytes <= capacity) is fits


# Attention alone


@pytest.mark.parametrize(("implementation", "peak_bytes"), [("torch-eager", 4 * 1024 + 2 * 256), ("torch-sdpa-flash", None)])
def test_attention_by_hand(implementation, peak_bytes):
    """Scores of 8 heads x 8 x 8 in 16 bits: 1024 B; the result 8 x 8 x 2: 256 B."""
    w = Attention(8, 8, 2, 2, heads=8, kv_heads=8)
    found = attention_peak(w, implementation)
    if peak_bytes is None:
        assert found.kept == 256 + 4 * 64 + 1024
        peak_bytes = found.kept + 3 * 256 + 4 * 8 * 128 * (32 + 1)
    assert found.bytes == peak_bytes
    assert found.bytes > found.forward >= found.kept


def test_a_mask_costs_attention_nothing_more():
    plain, causal = (attention_peak(Attention(64, 64, 16, 16, heads=4, kv_heads=4, causal=c), "torch-eager") for c in (False, True))
    assert plain.bytes == causal.bytes


def test_grouped_heads_get_gradients_each():
    w = Attention(256, 256, 64, 64, heads=8, kv_heads=2)
    grouped, whole = (attention_peak(replace(w, kv_heads=kv), "torch-sdpa-flash") for kv in (2, 8))
    assert grouped.bytes > whole.bytes
    assert grouped.kept == whole.kept
    with pytest.raises(UsageError, match="no peak is known"):
        attention_peak(w, "torch-sdpa")


# Mistakes


def test_unknown_implementations():
    with pytest.raises(UsageError, match="did you mean huggingface"):
        implementation_named("hugginface")
    for model in (EXPERTS, LATENT):
        with pytest.raises(UnavailableError, match="known as huggingface's"):
            peak(TrainingConfig(model, 1, 8, **BF16), "huggingface")
    with pytest.raises(UnavailableError, match="one GPU"):
        peak(TrainingConfig(small(), 1, 8, parallel=Parallel(tp=2)), "huggingface")


# What is listed


def memory_questions(count: int) -> Iterator[tuple[TrainingConfig, str]]:
    """Models, layouts, and every way to recompute."""
    rng = random.Random(count)
    while count:
        layout = drawn_layout(rng)
        kind, times = (
            rng.choice(["none", "selective", "full", "every", "every"]),
            layout.pp if layout.interleave > 1 else rng.choice([1, 2, 4]),
        )
        training = TrainingConfig(
            find_model(rng.choice(["gpt2-medium", "llama-3-8b", "mixtral-8x7b", "gemma-2-9b", "deepseek-v2", "gpt-oss-20b"])),
            layout.dp * times * 2,
            layout.cp * rng.choice([32, 1000]),
            2,
            precision=rng.choice(["mixed", "bf16", "fp32"]),
            recompute=Recomputation(kind, rng.randint(1, 7) if kind == "every" else 1),
            flash=rng.random() < 0.6,
            lora=rng.choice([None, None, 8]),
            dropout=rng.random() < 0.4,
            parallel=layout,
        )
        implementation = rng.choice(["fused", "huggingface"])
        try:
            peak(checked(training), implementation)
        except PerfmodelError:
            continue
        count -= 1
        yield training, implementation


@pytest.mark.parametrize("count", [60, pytest.param(3_000, marks=pytest.mark.slow)])
def test_what_is_listed_as_kept_is_what_is_stored(count):
    for training, implementation in memory_questions(count):
        found = peak(training, implementation)
        listed = saved_tensors(training, found.stage, implementation)
        assert sum(row.bytes * row.count for row in listed) == found.stored, (training, implementation)
        if training.recompute.kind == "every" and training.parallel.pp == 1:
            inputs = sum(row.count for row in listed if row.where.startswith("layer"))
            assert inputs == -(-len(training.model.layers) // training.recompute.every)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_stage_holds_what_it_got_and_kept_when_its_forward_pass_ends(stage):
    training = TrainingConfig(GPT, 6, 64, micro_batch=1, parallel=Parallel(pp=3))
    part = _stage(training, shape_of(training), stage, FUSED)
    last = [moment for moment in part.walk(0) if moment.phase == FORWARD][-1]
    sent = part.stream if stage < 2 else 0
    assert last.bytes == part.held + part.stored + sent + (part.waiting if stage == 0 else 0)
