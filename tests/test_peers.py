"""Mistakes that other tools make, held off: units, sparse peaks, causal FLOP, the traffic of fused attention."""

from __future__ import annotations

import pytest
from each import each

from perfmodel.catalog import device_ids, find_device
from perfmodel.core import sanity
from perfmodel.core.units import parse


def test_decimal_and_binary_prefixes_are_not_mixed():
    """GB/s read as GiB/s and T as 1024^4 make estimates up to 7.4 % faster than the hardware."""
    assert parse("2039 GB/s", "B/s") == 2039 * 10**9
    assert parse("312 TFLOP/s", "FLOP/s") == 312 * 10**12
    assert parse("80 GB", "B") != parse("80 GiB", "B") == 80 * 2**30
    assert parse("3.35 TB/s", "B/s") == 3.35e12, "not 3.35e13"


@each("name", [name for name in device_ids() if name.startswith("nvidia-")])
def test_no_sparse_peak_stands_in_a_dense_column(name):
    """One tool lists the GH200's 2:4 figure beside dense ones; the sparse figure is twice the dense one."""
    device = find_device(name)
    assert sanity.check(device) == []
    if name in ("nvidia-gh200-96gb", "nvidia-h100-sxm-80gb", "nvidia-h200-sxm"):
        assert device.peaks_of("tensor")["fp16"].number == pytest.approx(989.4e12, rel=1e-3)


def test_attention_beside_its_peers(run):
    """n 4096, d 64, 16 heads, batch 8, fp16 on an A100 80 GB SXM: the row that other tools were run on."""
    line = "attention --n 4096 --d 64 --heads 16 --batch 8 --algorithm standard --algorithm flash2 --pass both --json"
    data = run(line).json
    entry = {(r["algorithm"], r["pass"]): r for r in data["results"]}
    standard, flash = entry["standard", "forward"], entry["flash2", "forward"]
    assert flash["flops"] == 549_755_813_888
    assert flash["time_s"]["terms"]["tensor"] == pytest.approx(1.762e-3, rel=1e-3)
    assert run(line.replace("--pass both", "")).json["io_lower_bound"]["compulsory_bytes"] == 268_435_456
    assert standard["accesses"]["bytes"] == pytest.approx(17.448e9, rel=1e-4)
    assert standard["time_s"]["roofline"] == pytest.approx(8.49e-3, rel=5e-3)
    scores = 128 * 4096**2 * 2
    assert flash["traffic"]["dram"]["write_bytes"] < scores / 50, "a fused kernel stores no N x N output"
    assert flash["extra_memory_bytes"] == 128 * 4096 * 4, "one statistic per row"
    assert entry["flash2", "backward"]["executed_flops"] == 1_374_389_534_720
