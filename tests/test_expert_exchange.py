"""Dispatch and combine of experts: copies against all choices of a token, bytes, the published table, rows of a step."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from perfmodel.catalog import calibrated_devices, find_device, find_model
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.kernels.collectives import COMBINE, DISPATCH, least_bytes
from perfmodel.kernels.expert_exchange import distinct_holders, expert_exchange
from perfmodel.timing.base import Case
from perfmodel.timing.models.deepep import MODEL
from perfmodel.transformer.kernel_choice import KernelChoice
from perfmodel.transformer.op_time import op_estimate, predict_op
from perfmodel.transformer.ops import step_ops
from perfmodel.transformer.step import Split, decode

H800 = find_device("nvidia-h800-sxm-80gb")
P = {"start_us": 30.0, "link_share": 0.5, "network_share": 0.8}


@pytest.mark.parametrize(("experts", "per_token", "holders"), [(8, 2, 4), (8, 3, 2), (6, 4, 3), (8, 2, 8), (6, 1, 3)])
def test_distinct_holders_against_every_choice(experts, per_token, holders):
    each = experts // holders
    counts = [len({expert // each for expert in chosen}) for chosen in combinations(range(experts), per_token)]
    assert distinct_holders(experts, per_token, holders) == pytest.approx(sum(counts) / len(counts))


def test_bytes_of_the_published_setting():
    """128 tokens of 7,168, eight experts: 98 GB/s in 77 us, 127 GB/s in 114 us (DeepEP, docs/legacy.md)."""
    there = expert_exchange(DISPATCH, 8, 128, 7168, 256, 8, DTYPES["fp8"])
    back = expert_exchange(COMBINE, 8, 128, 7168, 256, 8, DTYPES["fp8"])
    assert (there.sent, back.sent) == (128 * 8 * 7392, 128 * 8 * 14336)
    assert there.sent / 77e-6 == pytest.approx(98e9, rel=0.01)
    assert back.sent / 114e-6 == pytest.approx(127e9, rel=0.02)
    assert least_bytes(there) < there.sent * 7 / 8
    assert (there.dtype.name, back.dtype.name) == ("fp8", "bf16")


def test_hand_worked_times():
    small = expert_exchange(COMBINE, 32, 128, 7168, 256, 8, DTYPES["bf16"])
    far = 128 * 8 * 14336 * 24 / 32 / (0.8 * 50e9)
    assert MODEL.seconds(Case(small, "deepep"), H800, P) == pytest.approx(30e-6 + far)
    near = 128 * 8 * 14336 * 7 / 8 / (0.5 * 200e9)
    assert MODEL.seconds(Case(replace(small, world=8), "deepep"), H800, P) == pytest.approx(30e-6 + near)
    large = expert_exchange(COMBINE, 8, 4096, 7168, 256, 8, DTYPES["bf16"])
    once = 4096 * distinct_holders(256, 8, 8) * 14336 * 7 / 8 / (0.78 * 200e9)
    assert MODEL.seconds(Case(large, "deepep"), H800, P) == pytest.approx(30e-6 + once)
    bare = replace(H800, interconnect=replace(H800.interconnect, network=None))
    with pytest.raises(UnavailableError, match="network"):
        MODEL.seconds(Case(small, "deepep"), bare, P)


def test_rows_of_a_step():
    """Each GPU its own tokens: DP 8 and EP 8, where experts are stored in 8 bits."""
    model, kernels = find_model("deepseek-v3"), KernelChoice(all_to_all=("deepep", "nccl"))
    step = decode(64, 2048, dtype=DTYPES["bf16"], weight_bits=8, split=Split(dp=8, ep=8), kernels=kernels)
    rows = {op.name: op for op in step_ops(model, step)}
    there, back = rows["expert dispatch"].exchange, rows["expert combine"].exchange
    assert (there.tokens, there.world, there.token_bytes, back.token_bytes) == (8, 8, 7392, 14336)
    assert rows["expert dispatch"].count == rows["expert combine"].count == 58
    assert "all-to-all" not in rows
    for row in (rows["expert dispatch"], rows["expert combine"]):
        lower = float(op_estimate(row, H800).lower_s)
        found = predict_op(row, H800, lower, calibrated_devices)
        assert found.calibration.model == "deepep"
        assert found.low >= lower
        borrowed = predict_op(row, find_device("h200"), 0.0, calibrated_devices)
        assert borrowed.provenance.startswith("borrowed from nvidia-h800")
    plain = replace(step, kernels=KernelChoice())
    assert "all-to-all" in {op.name for op in step_ops(model, plain)}
