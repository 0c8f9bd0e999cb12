"""Training memory as published: Korthikanti et al. 2022, ZeRO, Megatron-LM. Where a printed number does not follow, the test says so."""

from __future__ import annotations

from dataclasses import replace
from math import floor

import pytest
from tables import table

from perfmodel.catalog import find_model
from perfmodel.transformer.spec import DenseMlp, GroupedAttention, Layer, ModelSpec
from perfmodel.transformer.training import korthikanti
from perfmodel.transformer.training.implementations import saved_tensors
from perfmodel.transformer.training.korthikanti import layer_bytes
from perfmodel.transformer.training.memory import peak
from perfmodel.transformer.training.question import Parallel, Recomputation, TrainingConfig
from perfmodel.transformer.training.state import state_bytes

GIB = 2**30
SELECTIVE = Recomputation("selective")


# ZeRO's own account of state: Rajbhandari et al. 2020, arXiv 1910.02054, section 5, Tables 1 and 2. No experts, no vectors apart.


def bytes_per_parameter(gpus: float, stage: int) -> float:
    """2 + 2 + 12 of Adam in mixed precision; optimizer state divided from stage 1 on, gradients from 2, weights from 3."""
    weights, gradients, optimizer = (gpus if stage >= level else 1 for level in (3, 2, 1))
    return 2 / weights + 2 / gradients + 12 / optimizer


def largest_model(memory: float, gpus: float, stage: int, model_parallel: float = 1) -> float:
    """Parameters whose state fills ``memory`` bytes of each of ``gpus`` data-parallel GPUs, with model parallelism besides."""
    return model_parallel * memory / bytes_per_parameter(gpus, stage)


def activation_bytes(hidden: int, batch: int, n: int, layers: int) -> int:
    """The paper's footnote: 12 x hidden x batch x n x layers numbers in 16 bits, without saying which."""
    return 2 * 12 * hidden * batch * n * layers


def selective_share(s: float, h: float, a: float) -> float:
    """Share of a layer's activations that selective recomputation saves: 5as/h of 34 + 5as/h (section 5)."""
    scores = 5 * a * s / h
    return scores / (34 + scores)


def selective_overhead(s: float, h: float, *, printed: bool = True) -> float:
    """FLOP of selective recomputation over those of the model's layers, as printed: (1 + s / 3h) / (1 + s / 6h) - 1 (appendix A).

    The attention core, Q K^T and P V forward, is 4 b L s^2 h FLOP of 72 b L s h^2 (1 + s / 6h): not ``printed``, a third of that.
    """
    return s / ((6 if printed else 18) * h) / (1 + s / (6 * h))


def gpt(hidden: int, heads: int, layers: int) -> ModelSpec:
    layer = Layer(
        GroupedAttention(heads, heads, hidden // heads, qkv_bias=True, output_bias=True), DenseMlp(4 * hidden, gated=False, bias=True)
    )
    return ModelSpec(
        "gpt", "gpt2", hidden, 51200, (layer,) * layers, norm="layer", tied_embeddings=True, learned_positions=True, max_positions=2048
    )


MODELS = {
    "22B": (gpt(6144, 64, 48), Parallel(tp=8), 4, 4),
    "175B": (gpt(12288, 96, 96), Parallel(tp=8, pp=8, interleave=3), 64, 1),
    "530B": (gpt(20480, 128, 105), Parallel(tp=8, pp=35, interleave=3), 280, 1),
    "1T": (gpt(25600, 160, 128), Parallel(tp=8, pp=64), 512, 1),
}
"""Table 3 of Korthikanti et al.: model, layout, batch, micro-batch."""


def training(name: str, *, sp: bool = False, recompute: Recomputation | None = None) -> TrainingConfig:
    model, parallel, batch, micro_batch = MODELS[name]
    options = {"flash": False, "dropout": True, "gradients": "fp32", "micro_batch": micro_batch}
    return TrainingConfig(model, batch, 2048, recompute=recompute or Recomputation(), parallel=replace(parallel, sp=sp), **options)


# Korthikanti et al. 2022


@pytest.mark.parametrize(
    ("t", "sp", "recompute", "factors"),
    [
        (1, False, "none", (34, 5)),
        (8, False, "none", (10 + 24 / 8, 5 / 8)),
        (8, True, "none", (34 / 8, 5 / 8)),
        (8, False, "selective", (10 + 24 / 8, 0)),
        (8, True, "selective", (34 / 8, 0)),
        (8, True, "full", (2, 0)),
    ],
)
def test_table_2(t, sp, recompute, factors):
    s, b, h, a = 2048, 3, 12288, 96
    linear, scores = factors
    assert layer_bytes(s, b, h, a, t, sp=sp, recompute=recompute) == s * b * h * (linear + scores * a * s / h)


@pytest.mark.parametrize(("part", "linear", "quadratic"), [("attention", 11, 5), ("MLP", 19, 0), ("layer norms", 4, 0)])
def test_sums_of_section_4_1(part, linear, quadratic):
    """Attention 11 sbh + 5 a s^2 b, MLP 19 sbh, layer norms 4 sbh."""
    terms = [term for term in korthikanti.TERMS if term.part == part]
    assert (sum(term.linear for term in terms), sum(term.quadratic for term in terms)) == (linear, quadratic)


def test_terms_of_scores():
    """5as/h is 80 for GPT-3 and 64 for MT-NLG, against 34: selective recomputation saves 70 % and 65 % (section 5)."""
    for h, a, scores, share in ((12288, 96, 80, "70%"), (20480, 128, 64, "65%")):
        assert 5 * a * 2048 / h == scores
        assert f"{selective_share(2048, h, a):.0%}" == share


def test_printed_overhead_counts_the_core_three_times():
    """2.7 % and 1.6 % FLOP follow from the paper's formula, not from running Q K^T and P V forward once more: 0.9 % and 0.5 %."""
    assert [f"{selective_overhead(2048, h):.1%}" for h in (12288, 20480)] == ["2.7%", "1.6%"]
    once = [4 * 2048**2 * h / (72 * 2048 * h**2 + 12 * 2048**2 * h) for h in (12288, 20480)]
    assert [selective_overhead(2048, h, printed=False) for h in (12288, 20480)] == pytest.approx(once)
    assert [f"{share:.1%}" for share in once] == ["0.9%", "0.5%"]


@pytest.mark.parametrize(("name", "state", "none", "both"), table("figure_1"))
def test_figure_1(name, state, none, both):
    """GiB of parameters with optimizer state, and of activations with tensor parallelism alone and with both techniques.

    As restated by calculon (calculon/llm/validation.py). The state is 18 B for each of 12 L h^2 parameters: without embedding,
    biases and norms, with which a GPU of the first stage holds 2 to 11 % more.
    """
    plain, sparing = training(name), training(name, sp=True, recompute=SELECTIVE)
    model, p = plain.model, plain.parallel
    assert 18 * 12 * len(model.layers) * model.hidden**2 / (p.tp * p.pp) / GIB == state
    assert korthikanti.stage_bytes(plain) / GIB == none
    assert korthikanti.stage_bytes(sparing) / GIB == both
    assert 1.015 < state_bytes(plain).total / GIB / state < 1.115


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sparing", [False, True])
def test_both_accounts_of_a_stage_agree(name, sparing):
    """What is really kept: that, the statistics of norms, and masks of the embedding's dropout, as many as micro-batches pass.

    With interleaving these are 2 p - 1 in the first stage, not the p of the paper's equation 5.
    """
    asked = training(name, sp=sparing, recompute=SELECTIVE if sparing else None)
    model, p = asked.model, asked.parallel
    sbh, divided = asked.tokens * model.hidden, p.tp if sparing else 1
    more = korthikanti.interleaving(p.pp, p.interleave) if p.interleave > 1 else 1
    statistics = 16 * asked.tokens / divided * len(model.layers) * more
    passing = 2 * p.pp - 1 if p.interleave > 1 else p.pp
    found = peak(asked)
    assert found.stage == 0
    head = sum(row.bytes for row in saved_tensors(asked) if row.where == "head") if p.pp == 1 else 0
    assert found.stored - head == pytest.approx(korthikanti.stage_bytes(asked) + statistics + passing * sbh / divided, rel=1e-9)


@pytest.mark.parametrize(
    ("parallel", "recompute"),
    [
        (Parallel(), "none"),
        (Parallel(), "selective"),
        (Parallel(tp=4), "none"),
        (Parallel(tp=4, sp=True), "none"),
        (Parallel(tp=4, sp=True), "selective"),
        (Parallel(tp=4), "full"),
    ],
)
def test_both_accounts_of_a_layer_agree(parallel, recompute):
    """Tensor by tensor a GPT layer keeps what the formula says, and 8 B of statistics per token for each of two norms."""
    model = gpt(1024, 16, 2)
    asked = TrainingConfig(model, 3, 256, flash=False, dropout=True, recompute=Recomputation(recompute), parallel=parallel)
    found = sum(row.bytes for row in saved_tensors(asked) if row.where.startswith("layer"))
    statistics = 0 if recompute == "full" else 16 * 3 * 256 // (parallel.tp if parallel.sp else 1)
    assert found - statistics == layer_bytes(256, 3, 1024, 16, parallel.tp, sp=parallel.sp, recompute=recompute)


def test_ends_of_the_model():
    """Equation 5 without stages: 4 sbh (1 + v / h) and the mask of the embedding's dropout; fp32 logits, 4 sbv of it."""
    asked = TrainingConfig(gpt(1024, 16, 2), 2, 128, flash=False, dropout=True)
    sbh = 2 * 128 * 1024
    assert korthikanti.ends_bytes(asked) == sbh + 4 * sbh * (1 + 51200 / 1024)
    ends = {row.name: row.bytes for row in saved_tensors(asked) if row.where in ("head", "embedding")}
    small = ends.pop("statistics of last norm") + ends.pop("labels")
    assert ends.pop("loss") == 4
    assert small == 2 * 128 * (8 + 8)
    assert sum(ends.values()) == korthikanti.ends_bytes(asked)


def test_flash_drops_the_scores():
    """34 sbh and a logsumexp of 4 abs with FlashAttention; dropout's mask is made again from its seed."""
    asked = TrainingConfig(gpt(1024, 16, 2), 3, 256, dropout=True)
    found = sum(row.bytes for row in saved_tensors(asked) if row.where.startswith("layer"))
    assert found == 3 * 256 * (34 * 1024 + 4 * 16 + 16)


def test_megatrons_formula_is_for_mlps_without_gate():
    """theoretical_memory_usage.py of Megatron-LM has sbh (18 + 4 f / h) for every model: 32 sbh for Llama-3-8B, against 34 kept."""
    model = find_model("llama-3-8b")
    found = sum(row.bytes for row in saved_tensors(TrainingConfig(model, 1, 1024)) if row.where.startswith("layer"))
    statistics = 4 * 2 + 4 * 32
    assert found == 1024 * (34 * 4096 + statistics)
    assert 18 + 4 * 14336 / 4096 == 32


@pytest.mark.parametrize(("dp", "cp"), [(1, 1), (4, 1), (2, 2), (32, 2)])
def test_bytes_per_parameter_of_megatron(dp, cp):
    """18 B, or 6 + 12 / n with the distributed optimizer over n = dp x cp GPUs."""
    model = find_model("llama-3-8b")
    asked = TrainingConfig(model, 64, 1024, gradients="fp32", parallel=Parallel(dp=dp, cp=cp, zero=1))
    state = state_bytes(asked)
    assert state.total == pytest.approx((6 + 12 / (dp * cp)) * state.parameters, abs=24)


# ZeRO


TABLE_1 = {
    1: ((120, 120, 120), (2048, 2048, 2048), (16000, 16000, 16000)),
    4: ((52.5, 41.3, 30), (896, 704, 512), (7000, 5500, 4000)),
    16: ((35.6, 21.6, 7.5), (608, 368, 128), (4750, 2875, 1000)),
    64: ((31.4, 16.6, 1.88), (536, 284, 32), (4187, 2218, 250)),
    256: ((30.4, 15.4, 0.47), (518, 263, 8), (4046, 2054, 62.5)),
    1024: ((30.1, 15.1, 0.12), (513, 257, 2), (4011, 2013, 15.6)),
}
"""GB per GPU by data-parallel degree, for 7.5 B, 128 B and 1 T parameters, at stages 1 to 3."""


@pytest.mark.parametrize("gpus", TABLE_1)
def test_zero_table_1(gpus):
    """Numbers below 100 are rounded; larger ones are cut, as 4187.5 to 4187."""
    for parameters, row in zip((7.5, 128, 1000), TABLE_1[gpus], strict=True):
        for stage, printed in enumerate(row, start=1):
            found = parameters * bytes_per_parameter(gpus, stage)
            digits = len(str(printed).partition(".")[2])
            assert printed == (floor(found) if found >= 100 else round(found + 1e-9, digits)), (parameters, stage, found)


def test_zero_figure_1():
    """7.5 B parameters on 64 GPUs: 120, 31.4, 16.6 and 1.9 GB, by the formula and by the account of state."""
    assert [f"{7.5 * bytes_per_parameter(64, stage):.1f}" for stage in range(4)] == ["120.0", "31.4", "16.6", "1.9"]
    model = find_model("llama-2-7b")
    for stage in range(4):
        state = state_bytes(TrainingConfig(model, 64, 128, parallel=Parallel(dp=64, zero=stage)))
        assert state.total == pytest.approx(bytes_per_parameter(64, stage) * state.parameters, abs=16)


@pytest.mark.parametrize(("model_parallel", "printed"), table("zero_table_2"))
def test_zero_table_2(model_parallel, printed):
    """Billions of parameters that fit 32 GB with 64 data-parallel GPUs; 0.5 T, 1 T and 2 T are printed for the last three.

    Rows are multiples of the first one's rounded numbers: 32 GB / 4.1875 B is 7.64 B, and 16 times that 122.3, not 121.6.
    """
    found = [largest_model(32, 64, stage) for stage in range(4)]
    assert [round(each, 1) for each in found] == [2.0, 7.6, 14.4, 128.0]
    for stage, (each, claimed) in enumerate(zip(found, printed, strict=True)):
        assert round(model_parallel * round(each, 1), 1) == claimed
        assert model_parallel * each == largest_model(32, 64, stage, model_parallel)


def test_zero_activations_of_gpt2_are_a_fifth_of_what_is_kept():
    """About 60 GB for a batch of 32 x 1024 (section 3.2): 24 B x sbh per layer. A layer with stored scores keeps 114 sbh."""
    assert round(activation_bytes(1600, 32, 1024, 48) / 1e9) == 60
    asked = TrainingConfig(find_model("gpt2-xl"), 32, 1024, flash=False, dropout=True)
    layers = sum(row.bytes * row.count for row in saved_tensors(asked) if row.where.startswith("layer"))
    assert round(layers / activation_bytes(1600, 32, 1024, 48), 2) == 4.75
    checkpointed = TrainingConfig(find_model("gpt2-xl"), 32, 1024, flash=False, dropout=True, recompute=Recomputation("full"))
    inputs = sum(row.bytes * row.count for row in saved_tensors(checkpointed) if row.where.startswith("layer"))
    assert f"{inputs / 1e9:.1f}" == "5.0", "about 8 GB is printed, with what else there is"
