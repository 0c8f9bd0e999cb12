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


def test_bandwidth_bound_time_uses_decimal_bytes_per_second(run):
    data = run("attention --n 1 --kv-len 1048576 --d 128 --heads 1 --algorithm flash --hardware nvidia-a100-pcie-80gb --json").json
    [result] = data["results"]
    moved = result["traffic"]["dram"]["read_bytes"] + result["traffic"]["dram"]["write_bytes"]
    assert result["time_s"]["terms"]["dram"] == pytest.approx(moved / 1935.36e9)


@each("name", [name for name in device_ids() if name.startswith("nvidia-")])
def test_no_sparse_peak_stands_in_a_dense_column(name):
    """One tool lists the GH200's 2:4 figure beside dense ones; the sparse figure is twice the dense one."""
    device = find_device(name)
    assert sanity.check(device) == []
    if name in ("nvidia-gh200-96gb", "nvidia-h100-sxm-80gb", "nvidia-h200-sxm"):
        assert device.peaks_of("tensor")["fp16"].number == pytest.approx(989.4e12, rel=1e-3)


@pytest.mark.parametrize("algorithm", ["standard", "flash1", "flash2"])
def test_causal_flop_are_exact(run, algorithm):
    """Some counters ignore the mask, some return 0, some halve: N (N + 1) / 2 scores are visible."""
    [result] = run(f"attention --n 1000 --d 64 --causal --algorithm {algorithm} --json").json["results"]
    assert result["flops"] == 2 * (1000 * 1001 // 2) * 128


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


def test_decode_reads_the_cache_once_per_kv_head(run):
    """One tool ignores GQA in decode, another counts the KV cache twice per step."""
    [result] = run("attention --n 1 --kv-len 4096 --d 128 --heads 32 --kv-heads 8 --algorithm flash --json").json["results"]
    assert result["traffic"]["dram"]["read_bytes"] == 2 * 8 * 4096 * 128 * 2 + 32 * 128 * 2
    assert result["flops"] == 32 * 2 * 4096 * 256
