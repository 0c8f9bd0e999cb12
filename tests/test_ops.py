"""The single operations: closed forms against brute force, published figures, the JSON objects, explanations, mistakes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import walker_ops
from each import each
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.catalog import device_ids, find_device
from perfmodel.core import occupancy
from perfmodel.core.cache import dram_bytes, resident_blocks
from perfmodel.core.cost import Kernel, Tile
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError, UsageError
from perfmodel.core.workload import Stream
from perfmodel.kernels import fuse, matmul, mlp, recompute, softmax
from perfmodel.kernels import occupancy as sectors
from perfmodel.kernels.tile import on_chip
from perfmodel.timing.base import Case, calibrated_seconds

A100, H200 = find_device("nvidia-a100-sxm-80gb"), find_device("h200")


def moved(kernels: list[Kernel], tensor: str, kind: str) -> int:
    return sum(a.elements for kernel in kernels for a in kernel.accesses if (a.tensor, a.kind) == (tensor, kind))


# Matmul


def test_tiled_traffic_equals_the_walk() -> None:
    """600 random shapes, most with partial tiles."""
    rng, partial = random.Random("matmul"), 0
    for number in range(600):
        m, n, k, batch = rng.randint(1, 14), rng.randint(1, 14), rng.randint(1, 10), rng.choice([1, 1, 2])
        bm, bn, splits = rng.randint(1, 8), rng.randint(1, 8), rng.choice([1, 1, rng.randint(1, k)])
        partial += bool(m % bm or n % bn)
        values = np.random.default_rng(number)
        a, b = values.standard_normal((batch, m, k)), values.standard_normal((batch, k, n))
        memory, executed = walker_ops.matmul(a, b, bm, bn, rng.randint(1, 4), splits)
        np.testing.assert_allclose(memory["C"], a @ b, rtol=1e-9, atol=1e-12)
        w, tile = matmul.Matmul(m, n, k, batch, splits).check(), Tile(bm, bn)
        kernels = w.kernels(tile)
        counted = {key: count for key, count in memory.counts.items() if count}
        assert {key: moved(kernels, *key) for key in counted} == counted, w
        assert sum(kernel.elements("read", "write") for kernel in kernels) == sum(counted.values())
        assert sum(kernel.executed_flops for kernel in kernels) == 2 * executed
        for access in kernels[0].accesses:
            if access.elements:
                assert access.footprint == memory.touched(access.tensor, access.kind)
        assert matmul.tiled_loads(w, tile) + w.outputs == batch * (k * (m * -(-n // bn) + n * -(-m // bm)) + m * n)
        assert matmul.minimum_elements(w) <= matmul.tiled_loads(w, tile) + w.outputs
    assert partial > 400


def test_default_tiles_and_waves(run):
    def result(line: str) -> Any:
        return run(f"matmul -m 4096 -n 4096 -k 512 {line} --json").json["results"][0]

    tile = matmul.evaluate(matmul.Matmul(4096, 4096, 512), find_device("a100-sxm-80gb")).tile
    assert (tile.br, tile.bc, tile.threads) == (128, 128, 128)
    assert "16 bit" in tile.origin
    assert result("--dtype fp8 --hardware gaudi2")["tile"]["origin"] == "largest power-of-two square that fits"
    assert result("--implementation torch-matmul")["tile"]["origin"] == "the one that torch-matmul runs, by its time model"
    assert result("--sram 9KiB")["tile"]["br"] == 64
    assert result("--tile-m 256")["tile"] | {"origin": ""} == result("--tile-m 256 --tile-n 128")["tile"] | {"origin": ""}
    square = "--tile-m 128 --tile-n 128"
    assert result(square)["waves"] == {"blocks": 1024, "slots": 216, "waves": 1024 / 216, "quantization": 1024 / 216 / 5}
    assert result(square)["occupancy"]["limited_by"] == ["registers"]
    assert result(f"--split-k 4 {square}")["waves"]["blocks"] == 4096
    assert result("--hardware tpu-v5e --dtype bf16 --sram 1MiB")["waves"] is None


@each("name", device_ids())
@each("dtype", list(DTYPES))
def test_no_tile_that_fits_beats_the_io_bound(name, dtype):
    """On every device, with its own SRAM and registers; and slots are those that the L2 model counts on."""
    device = find_device(name)
    try:
        chip, rng = on_chip(device), random.Random(f"{name} {dtype}")
        unit = device.matmul_unit(dtype, DTYPES[dtype].matmul_unit)
    except UnavailableError:
        return
    assert unit
    fitting = 0
    for _ in range(30):
        w = matmul.Matmul(rng.randint(1, 5000), rng.randint(1, 5000), rng.randint(1, 5000), dtype=DTYPES[dtype])
        try:
            result = matmul.evaluate(w, device, rng.choice([None, rng.randint(1, 700)]), rng.choice([None, rng.randint(1, 700)]))
        except UsageError:  # does not fit
            continue
        fitting += 1
        bound = matmul.io_lower_bound(w, chip.total / w.dtype.size)
        assert bound <= matmul.tiled_loads(w, result.tile) + w.outputs
        assert matmul.minimum_elements(w) <= bound
        assert result.total.lower_s <= result.total.roofline_s <= result.total.no_overlap_s
        if result.occupancy is not None and result.slots is not None and device.multiprocessors is not None:
            assert result.slots == device.multiprocessors.number * result.occupancy.blocks
    assert fitting >= 3


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([16, 64, 128]), st.sampled_from([A100, H200]))
def test_dram_traffic_of_a_matmul_lies_between_minimum_and_tiled(m, n, k, edge, device):
    [kernel] = matmul.Matmul(m, n, k).kernels(Tile(edge, edge))
    reads = dram_bytes(kernel, device, "read")
    assert 2 * (m * k + k * n) <= reads <= kernel.bytes("read")


def test_waves_re_read_panels_that_the_cache_loses() -> None:
    """216 blocks at once on an A100 are 14 x 14 tiles: 64 tile columns meet A in 5 waves, and neither A nor B survives."""
    [kernel] = matmul.Matmul(8192, 8192, 8192).kernels(Tile(128, 128))
    assert kernel.launch is not None
    assert resident_blocks(kernel.launch, A100) == 216
    assert dram_bytes(kernel, A100, "read") == 5 * 2 * 8192**2 * 2
    [small] = matmul.Matmul(1024, 1024, 1024).kernels(Tile(128, 128))
    assert dram_bytes(small, A100, "read") == 2 * 1024**2 * 2


# Occupancy


def test_occupancy_equals_placing_warps() -> None:
    rng = random.Random("occupancy")
    facts = {"register_file": 65536, "most_threads": 2048, "most_blocks": 32, "reserve": 1024, "unit": 128}
    seen = set()
    for _ in range(500):
        threads, registers, sram = rng.randint(1, 1024), rng.randint(1, 255), rng.choice([0, rng.randint(0, 166912)])
        expected = walker_ops.blocks_that_fit(threads, registers, sram, capacity=164 * 1024, **facts)
        block = occupancy.ThreadBlock(threads, registers, sram)
        found = occupancy.occupancy(block, occupancy.multiprocessor(A100))
        assert found.blocks == expected, block
        seen |= set(found.limited_by)
    assert seen == {"registers", "sram", "threads", "blocks"}


def test_units_are_nvidias_alone() -> None:
    sm = occupancy.multiprocessor(find_device("mi300x"))
    assert (sm.register_unit, sm.partitions, sm.sram_unit, sm.sram_reserve, sm.warp) == (1, 1, 1, 0, 64)
    assert occupancy.multiprocessor(find_device("nvidia-v100-sxm-32gb")).sram_reserve == 0


@pytest.mark.parametrize("element", sectors.ELEMENT_SIZES)
def test_sectors_equal_the_bytes_touched(element):
    for stride in range(40):
        touched, distinct = walker_ops.sectors(stride, element)
        assert sectors.sectors_per_request(stride, element) == touched, stride
        assert sectors.sector_efficiency(stride, element) == distinct / (32 * touched)
        assert sectors.sectors_needed(stride, element) == -(-distinct // 32) <= touched


def test_coalescing_is_said(run):
    assert "\nCoalesced: " in run("occupancy --threads 128 --stride 1").out
    assert "\nNot coalesced: " in run("occupancy --threads 128 --stride 8").out
    request = run("occupancy --threads 128 --stride 32 --json").json["results"][0]["request"]
    assert request == {"sectors": 32, "bytes": 1024, "sectors_needed": 4, "coalesced": False, "efficiency": 0.125}


# Softmax


@pytest.mark.parametrize("variant", softmax.VARIANTS, ids=lambda variant: variant.name)
def test_softmax_equals_the_walk(variant):
    rng = np.random.default_rng(7)
    for rows, columns in ((1, 1), (3, 7), (5, 32), (2, 100)):
        x = rng.standard_normal((rows, columns)) * 5
        memory, exponentials = walker_ops.softmax(x, variant.name)
        e = np.exp(x - x.max(1, keepdims=True))
        np.testing.assert_allclose(memory["y"], e / e.sum(1, keepdims=True), rtol=1e-9)
        kernel = softmax.kernel(softmax.Softmax(rows, columns), variant)
        assert {key: moved([kernel], *key) for key in memory.counts} == memory.counts
        assert kernel.work.sfu == exponentials
        assert kernel.accesses[0].footprint == memory.touched("x", "read")


def test_a_row_that_does_not_fit_is_said(run):
    assert "1.33x faster than safe; a row (391 KiB) does not fit SRAM.\n" in run("softmax --rows 64 --cols 200000").out
    assert "fused does not fit" in run("softmax --rows 64 --cols 200000 --full").out
    entries = run("softmax --rows 64 --cols 200000 --json").json["results"]
    assert [entry["row_fits"] for entry in entries] == [None, None, False]
    assert entries[2]["fits"] is False
    assert "as fast as safe" in run("softmax --rows 64 --cols 2000 --full").out
    assert "whether a row fits is unknown" in run("softmax --rows 64 --cols 2000 --hardware gaudi3 --dtype bf16 --full").out


def test_a_softmax_is_predicted_as_a_kernel_that_is_named(run):
    question = "softmax --rows 8192 --cols 4096 --dtype bf16 --hardware h200"
    assert "predicted" not in run(f"{question} --json").json
    entry = run(f"{question} --implementation torch-softmax --json").json["predicted"]
    case = Case(Stream("softmax", 8192, 4096, dtype=DTYPES["bf16"]), "torch-softmax", "forward")
    assert entry["implementation"] == "torch-softmax"
    assert entry["time_s"]["predicted"] == calibrated_seconds(H200, "softmax", "bf16", case)
    assert entry["time_s"]["low"] < entry["time_s"]["predicted"] < entry["time_s"]["high"]
    shown = run(f"{question} --implementation torch-softmax --full").out
    assert "\nPredicted " in shown
    assert "The softmax is predicted at " in shown
    assert "The softmax is predicted for torch-softmax, with its 80 % interval" in shown
    assert "leave out --no-store" in run(f"{question} --implementation torch-softmax --no-store").err
    assert "did you mean torch-softmax or" in run(f"{question} --implementation torch-softmx").err


# Elementwise chains


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 50), st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(1, 6))
def test_chain_equals_running_it(elements, pattern, rounds):
    w = fuse.FusedChain(elements, tuple(pattern), rounds).check()
    for listed, fused in ((fuse.unfused(w), False), (fuse.fused(w), True)):
        counted = tuple(sum(one.count * one.kernel.elements(kind) for one in listed) for kind in ("read", "write"))
        assert (*counted, sum(one.count for one in listed)) == walker_ops.chain(elements, pattern * rounds, fused)
        assert sum(one.count * one.kernel.work.vector for one in listed) == w.ops * elements


def test_large_tensors_are_bandwidth_bound_and_small_ones_stay_in_the_cache(run):
    """1 GB tensors: every kernel moves them over DRAM, less what the 40 MiB of L2 hand on; 4 MB ones are priced at the L2."""
    unfused, _, fused = run("fuse --elements 500000000 --ops 4 --json").json["results"]
    assert unfused["traffic"]["dram"]["read_bytes"] == 10**9 + 3 * (10**9 - 40 * 2**20)
    assert unfused["launch_bound_kernels"] == 0
    assert 3.5 < fused["speedup"] < 4
    unfused, _, _ = run("fuse --elements 2000000 --ops 100 --json").json["results"]
    assert unfused["traffic"]["dram"] == {"read_bytes": 4_000_000, "write_bytes": 4_000_000, "bytes": 8_000_000}
    assert unfused["time_s"]["roofline"] == pytest.approx(100 * 8e6 / 7.22e12, rel=0.1)


def test_a_profile_without_launch_overhead_gives_no_such_time(run):
    line = "fuse --elements 1000 --ops 3 --hardware nvidia-b200-sxm"
    assert "has no launch overhead" in run(line).out
    for entry in run(line + " --json").json["results"]:
        assert entry["launch_s"] is entry["speedup"] is entry["time_s"]["with_launches"] is None
        assert entry["time_s"]["unknown"] == ["l2"]


# MLP


def test_mlp_gradients_and_flop_equal_the_chain_rule() -> None:
    rng = np.random.default_rng(3)
    x, w1, w2, dy = (rng.standard_normal(shape) for shape in ((5, 3), (3, 7), (7, 2), (5, 2)))
    for input_gradient in (False, True):
        found, work = walker_ops.mlp_gradients(x, w1, w2, dy, input_gradient)
        w = mlp.Mlp(5, 3, 7, 2, input_gradient)
        assert mlp.backward_flops(w) == 2 * sum(work.values()) == sum(kernel.flops for kernel in mlp.backward(w))
        assert mlp.forward_flops(w) == 2 * (5 * 3 * 7 + 5 * 7 * 2) == sum(kernel.flops for kernel in mlp.forward(w))
        written = {a.tensor: a.elements for kernel in mlp.backward(w) for a in kernel.accesses if a.kind == "write"}
        assert {name: gradient.size for name, gradient in found.items()}.items() <= written.items()
    nudge = 1e-6  # the ReLU's gradient from a1 > 0 alone is the true one
    moved_w1 = w1 + nudge * np.eye(3, 7)
    change = (np.maximum(x @ moved_w1, 0) @ w2 - np.maximum(x @ w1, 0) @ w2) * dy / nudge
    assert change.sum() == pytest.approx(np.trace(found["dW1"][:, :3]), rel=1e-3)


# Store or recompute


@pytest.mark.parametrize("times", [1, 2, 10])
def test_break_even_is_where_both_take_the_same_time(times):
    w = recompute.Recompute(10**9, 1, DTYPES["fp16"], times)
    even = recompute.break_even(w, 312e12, 2e12)
    at = recompute.Recompute(10**9, round(even * 10**9), DTYPES["fp16"], times)
    assert recompute.store_s(at, 2e12) == pytest.approx(recompute.recompute_s(at, 312e12))


def test_verdict_follows_the_level_that_the_tensor_fits(run):
    """150 FLOP/B: cheaper than a trip to DRAM (306), dearer than one to the L2 (86)."""
    assert run("recompute --bytes 1GB --flops 150GFLOP").out.splitlines()[1].startswith("Recompute it")
    data = run("recompute --bytes 10MB --flops 1.5GFLOP --json").json["results"][0]
    assert (data["verdict"], data["against"]) == ("store", "l2")
    data = run("recompute --bytes 10MB --flops 1.5GFLOP --hardware nvidia-a30 --json").json["results"][0]
    assert data["against"] == "dram"
    assert (data["levels"]["l2"]["fits"], data["levels"]["l2"]["store_s"]) == (True, None)  # of unknown bandwidth


# What all commands share


def test_a_product_is_the_same_in_a_model_as_alone(run) -> None:
    """One kernel, one tile, one number of bytes: the output projection of Llama-2 7B is 4096 x 4096 x 4096 at 4,096 tokens."""
    [alone] = run("matmul -m 4096 -n 4096 -k 4096 --dtype bf16 --hardware h200 --json").json["results"]
    step = run("model llama-2-7b --phase prefill --n 4096 --dtype bf16 --hardware h200 --json --clock burst").json
    [row] = [op for op in step["ops"] if op["name"] == "output projection"]
    assert row["implementation"] == alone["implementation"]
    assert row["traffic"]["dram"]["bytes"] == row["count"] * alone["traffic"]["dram"]["bytes"]
    assert row["traffic"]["sram"]["bytes"] == row["count"] * alone["traffic"]["sram"]["bytes"]
    assert row["time_s"]["predicted"] == pytest.approx(row["count"] * alone["time_s"]["predicted"], rel=0.05)  # launches overlap in a step


def test_rows_of_a_device_without_tensor_unit_are_not_those_of_another(run) -> None:
    """Rows were kept by the name of the format alone: after an Apple GPU an A100 multiplied on its vector unit, and had no answer."""
    for length, devices in ((1001, ("m2-pro", "a100-sxm-80gb")), (1003, ("a100-sxm-80gb", "m2-pro"))):
        told = {name: run(f"model llama-3-8b --phase prefill --n {length} --hardware {name}").out for name in devices}
        assert "Limited by the tensor unit" in told["a100-sxm-80gb"]
        assert "Limited by the vector unit" in told["m2-pro"]
