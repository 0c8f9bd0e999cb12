"""The clock that a board holds under its power limit, against large products and prefills of an L40S."""

from __future__ import annotations

from dataclasses import replace
from math import log, sqrt
from statistics import median

import pytest

from perfmodel.catalog import calibrated_devices, device_ids, find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.units import Quantity
from perfmodel.core.workload import Attention
from perfmodel.timing.base import WARM, Case
from perfmodel.timing.predict import Prediction, TimeRequest, predict
from perfmodel.timing.transfer import FILLING_S, held_share, product_share, timed, transferred, watts_per_clock

L40S, L4, H200, GEFORCE = (find_device(f"nvidia-{name}") for name in ("l40s", "l4", "h200-sxm", "rtx-4090"))
PAGED = next(block for block in GEFORCE.calibration if block.model == "fa2-paged")
PREFILLS = (
    *((2, 4, 1, 3072, 128, 0.1507), (2, 48, 2, 1024, 128, 0.2056), (1, 40, 4, 4096, 128, 0.9142), (2, 16, 16, 4096, 128, 0.9748)),
    *((8, 3, 1, 6144, 128, 1.2186), (8, 96, 8, 1536, 128, 2.9486), (32, 32, 1, 2048, 128, 6.7985), (64, 8, 1, 2048, 192, 5.3533)),
    *((2, 24, 8, 16384, 128, 18.4911), (32, 24, 2, 3072, 128, 11.8281), (16, 16, 4, 8192, 256, 51.3287), (16, 64, 2, 6144, 64, 32.3149)),
)
"""Batch, query heads, KV heads, length, head dim, milliseconds on an L40S under vLLM 0.24.0, two of each third of a decade. Source: NVIDIA
aiconfigurator 0.12.0 (Apache-2.0), l40s/attention/vllm/0.24.0/context_attention, whose other shapes calibrate the L40S."""


def prefill(device, batch: int, heads: int, kv_heads: int, n: int, d: int, fallbacks=calibrated_devices) -> Prediction:
    w = Attention(n, n, d, d, batch, heads, kv_heads, DTYPES["bf16"], causal=True, packed=True).check()
    return predict(TimeRequest(Case(w, "vllm-flash-attn", cache=WARM), "attention", "bf16", device, 0.0, fallbacks))


def test_prefills_of_an_l40s() -> None:
    errors, covered = [], 0
    for *shape, ms in PREFILLS:
        found = prefill(L40S, *shape)
        errors.append(found.seconds * 1e3 / ms - 1)
        covered += found.low * 1e3 <= ms <= found.high * 1e3
    assert median(map(abs, errors)) < 0.12, errors
    assert abs(median(errors[6:])) < 0.12, "calls beyond 3 ms were 28 to 35 % low"
    assert covered >= 9


def test_the_rule_against_large_products() -> None:
    """Of boards short of watts, the share of the peak that a product reached beside that of the best supplied board of the capability."""
    others, apart = calibrated_devices(), {}
    for device in map(find_device, device_ids()):
        share, own = held_share(device, others), product_share(device, "bf16")
        if share < 1 and own is not None and device.power is None:
            alike = [one for one in others if one.capability == device.capability and product_share(one, "bf16")]
            standard = max(alike, key=lambda one: watts_per_clock(one) or 0)
            apart[device.id] = log(share * product_share(standard, "bf16") / own)
    assert len(apart) >= 6
    assert sqrt(sum(one**2 for one in apart.values()) / len(apart)) < 0.25, apart
    assert abs(median(apart.values())) < 0.12, apart


def test_watts_decide() -> None:
    others = calibrated_devices()
    assert L40S.tdp is not None
    richer = replace(L40S, tdp=Quantity("600 W", "datasheet", "", 600.0))
    assert held_share(richer, others) == held_share(H200, others) == held_share(GEFORCE, others) == 1.0
    assert held_share(L4, others) < held_share(L40S, others) < 1.0
    assert held_share(replace(L40S, tdp=None), others) == 1.0
    shape = (32, 32, 1, 2048, 128)
    boards = [replace(one, calibration=[], microbenchmarks=[]) for one in (L40S, richer)]
    slow, fast = (prefill(one, *shape, fallbacks=lambda: [GEFORCE]) for one in boards)
    assert slow.seconds > 1.15 * fast.seconds
    assert slow.high / slow.low > fast.high / fast.low, "the clock is estimated"
    assert "boost clock" in slow.provenance
    assert "boost clock" not in fast.provenance


def test_large_products_tell_the_clock_better_than_watts() -> None:
    """An L40S reaches 74 % of the peak of its boost clock, a GeForce 4090 106 % of that of its advertised clock, 8 % below its own."""
    known, estimated = (
        transferred(PAGED, GEFORCE, replace(L40S, microbenchmarks=probes), lambda device: 1.0, calibrated_devices())
        for probes in (L40S.microbenchmarks, [])
    )
    assert known.by_products
    assert known.held_share == pytest.approx(product_share(L40S, "bf16") / (product_share(GEFORCE, "bf16") / 1.08))
    assert estimated.held_share == held_share(L40S, calibrated_devices())
    assert "as large products measured here" in "; ".join(known.words)
    assert "by the power limit" in "; ".join(estimated.words)
    (low, high), (lower, higher) = known.widened((0.8, 1.25), 0.7), estimated.widened((0.8, 1.25), 0.7)
    assert lower < low < 0.8 < 1.25 < high < higher


@pytest.mark.parametrize("boosted_s", [1e-6, FILLING_S, 1.0])
def test_short_calls_run_at_the_boost_clock(boosted_s: float) -> None:
    share = boosted_s / (boosted_s + FILLING_S)
    assert timed(lambda on: boosted_s * (2 if on is L4 else 1), L40S, L4) == pytest.approx((1 + share) * boosted_s)
