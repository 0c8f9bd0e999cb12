"""Routed experts: the workload, its bound, its time model, and how rows of a transformer ask for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.catalog import find_device
from perfmodel.catalog import find_model as find_transformer
from perfmodel.core.cost import Tile
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError, UsageError
from perfmodel.core.roofline import estimate
from perfmodel.kernels.experts import ACTIVATE, DOWN, PARTS, SUM, UP, Experts, flops, rows_per_expert
from perfmodel.timing.base import Case, find_model
from perfmodel.timing.case_bounds import lower_bound_s
from perfmodel.timing.models import experts as model
from perfmodel.transformer.estimate import run_pass
from perfmodel.transformer.op_time import in_compute_dtype, op_estimate
from perfmodel.transformer.ops import layer_ops
from perfmodel.transformer.step import Split, decode, prefill

H200, A100 = find_device("nvidia-h200-sxm"), find_device("nvidia-a100-sxm-80gb")
P = find_model("experts").starts()
W = Experts(64, 4096, 1536, 128, 8, 128)


def time_of(w=W, device=H200, **parameters):
    return model.seconds(Case(w, "triton-moe"), device, P | parameters)


def test_work_and_bytes_by_hand():
    one = Experts(2, 4, 6, 8, 2, 3)
    assert flops(one) == sum(2 * 4 * 6 for _token in range(2) for _expert in range(2) for _matrix in range(3))
    k = one.kernels(Tile(1, 1))[0]
    assert sum(a.compulsory * a.element_size for a in k.accesses) == 2 * (2 * 4) * 2 + 3 * 3 * 4 * 6 * 2
    assert rows_per_expert(one) == 2
    assert rows_per_expert(replace(one, pairs=1, touched=1.5)) == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"touched": 129}, "touched 129"),
        ({"touched": 7}, "touched 7"),
        ({"experts_per_token": 200}, "more than 128"),
        ({"tokens": 0}, "tokens"),
    ],
)
def test_what_has_no_meaning(changed, message):
    with pytest.raises(UsageError, match=message):
        replace(W, **changed).check()


def test_a_device_without_fp8():
    with pytest.raises(UnavailableError, match="fp8"):
        time_of(replace(W, dtype=DTYPES["fp8"]), A100)


def test_what_it_covers():
    found = find_model("experts")
    assert found.covers(Case(W, "triton-moe"))
    assert not found.covers(Case(W, "triton-moe", "backward"))
    assert not found.covers(Case(replace(W, dtype=DTYPES["fp32"]), "triton-moe"))
    narrow = Case(replace(W, dtype=DTYPES["fp8"]), "triton-moe")
    assert [find_model(name).covers(narrow) for name in ("experts", "experts-narrow")] == [False, True]
    assert len(found.parameters) <= 8


def test_the_bound_counts_what_must_move_and_warm_only_beyond_the_cache():
    cold, warm = (lower_bound_s(Case(W, "triton-moe", cache="clean" if cold else "warm"), H200) for cold in (True, False))
    found = estimate(W.kernels(Tile(1, 1))[0], H200)
    assert warm < cold == float(found.needs.flushed_s) <= float(found.lower_s)


# Rows of a transformer

MIXTRAL = find_transformer("mixtral-8x7b")


def rows_of(step, model=MIXTRAL):
    layer = next(layer for layer in model.layers if hasattr(layer.mlp, "experts"))
    return {op.name: op for op in layer_ops(layer, model, step)}


def preferred(op):
    found = op.timed and op.timed.preferred
    while found and found.preferred:  # kernels made for a format are asked before those like them
        found = found.preferred
    return found and found.workload


@pytest.mark.parametrize("fused", [False, True])
def test_rows_ask_for_each_part_once(fused):
    parts = [part for op in rows_of(decode(4, 100, fused=fused)).values() for part in (preferred(op).parts if preferred(op) else ())]
    assert sorted(parts) == sorted(PARTS)


def test_rows_of_16_bit_experts():
    rows = rows_of(decode(4, 100))
    w = preferred(rows["experts, gate and up"])
    assert (w.parts, w.dtype.name, w.pairs, w.width) == ((UP,), "fp16", 8, 14336)
    assert w.touched == pytest.approx(8 * (1 - 0.75**4))
    assert preferred(rows["experts, down"]).parts == (DOWN,)
    assert preferred(rows["SiLU x gate"]).parts == (ACTIVATE,)
    assert preferred(rows["weighted sum of experts"]).parts == (SUM,)
    assert preferred(rows["router"]) is None


def test_expert_parallel_groups_share_experts_and_pairs():
    w = preferred(rows_of(decode(64, 100, split=Split(ep=4)))["experts, down"])
    assert (w.experts, w.pairs) == (2, 32)
    assert w.touched <= 2


@pytest.mark.parametrize(("bits", "form", "size"), [(16, "fp16", 2), (8, "fp8", 1), (4, "fp16", 0.5)])
def test_weights_decide_the_format(bits, form, size):
    """Of the product, and the bytes of a weight that are read for it."""
    op = rows_of(decode(4, 100, weight_bits=bits))["experts, down"]
    assert (preferred(op).dtype.name, preferred(op).element_bytes) == (form, size)
    assert (op.compute_dtype is None) == (bits != 8)


def test_8_bit_weights_are_multiplied_in_8_bits_where_the_device_can():
    op = rows_of(prefill(1, 65536, weight_bits=8))["experts, down"]
    assert in_compute_dtype(op, H200).dtype.name == "fp8"
    assert in_compute_dtype(op, A100).dtype.name == "fp16"
    plain = replace(op, compute_dtype=None)
    assert float(op_estimate(op, H200).lower_s) == pytest.approx(float(op_estimate(plain, H200).lower_s) / 2)


CALIBRATED = ["mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v3"]


@pytest.mark.parametrize("name", CALIBRATED)
@pytest.mark.parametrize("bits", [16, 8])
def test_models_get_a_total_with_its_sources(name, bits):
    found = run_pass(find_transformer(name), decode(16, 2048, weight_bits=bits, kv_bits=bits), H200)
    assert [row.missing for row in found.rows if row.prediction is None] == []
    sources = {row.op.name: row.prediction.calibration.implementation for row in found.rows}
    assert sources["experts, down"] == "triton-moe"
    assert (sources["LM head"] == "trtllm-fp8-linear") == (bits == 8)
    seconds, low, high = found.prediction
    assert low < seconds < high
    assert all(row.prediction.low >= float(row.cost.lower_s) * (1 - 1e-9) for row in found.rows)


def test_reasons_where_nothing_is_calibrated():
    found = run_pass(MIXTRAL, decode(1, 128, dtype=DTYPES["fp8"], weight_bits=4), H200)
    reasons = {row.op.name: row.missing for row in found.rows if row.prediction is None}
    assert "4-bit weights" in reasons["experts, down"]


def test_what_a_device_does_not_multiply_streams_to_16_bit_products():
    rows = {row.op.name: row for row in run_pass(MIXTRAL, decode(1, 128, weight_bits=8), A100).rows}
    for name in ("LM head", "experts, down"):
        assert "as fp16" in rows[name].prediction.provenance
        assert "with weights of 8 bits" in rows[name].prediction.provenance
