"""The model of L2 and SRAM traffic against hardware counters of real kernels, recorded on an H200."""

from __future__ import annotations

import json
import statistics
from math import exp, log
from pathlib import Path
from typing import Any

import pytest
from each import each

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.cache import dram_bytes, resident_blocks
from perfmodel.core.cost import Kernel, Tile
from perfmodel.core.dtypes import DTYPES, dtype_of_products
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate
from perfmodel.core.workload import Attention
from perfmodel.kernels.attention.algorithms import find
from perfmodel.kernels.matmul import Matmul, evaluate
from perfmodel.timing.base import Case
from perfmodel.timing.launched import product_tile
from perfmodel.timing.predict import TimeRequest, predict

RECORDS = [json.loads(line) for line in (Path(__file__).parent / "data" / "h200_attention_counters.jsonl").read_text().splitlines()]


def kernel_of(record: dict[str, Any]) -> Kernel:
    shape, launch = record["shape"], record["launch"]
    w = Attention(**shape, dv=shape["d"], dtype=DTYPES[record["dtype"]]).check()
    [kernel] = find("flash2").forward(w, Tile(launch["br"], launch["bc"], launch["threads"]))
    return kernel


@pytest.fixture(scope="module")
def h200() -> Device:
    return find_device("nvidia-h200-sxm")


@each("record", RECORDS)
def test_sram_reads_equal_the_counter(record: dict[str, Any]) -> None:
    """L2-to-SM reads of library kernels, which the counts were not fitted to, within 0.05 %: forward, on whole tiles."""
    assert record["pass"] == "forward"
    assert record["shape"]["n"] % record["launch"]["br"] == record["shape"]["kv_len"] % record["launch"]["bc"] == 0
    assert kernel_of(record).bytes("read") == pytest.approx(record["counters"]["l2_to_sm_bytes"], rel=5e-4)


def test_dram_reads_follow_the_counters(h200: Device) -> None:
    assert len(RECORDS) == 26
    ratios = {
        json.dumps(r["shape"]) + r["implementation"]: dram_bytes(kernel_of(r), h200, "read") / r["counters"]["dram_read_bytes"]
        for r in RECORDS
    }
    errors = {key: abs(log(ratio)) for key, ratio in ratios.items()}
    assert exp(statistics.median(errors.values())) < 1.07
    worst = {causal: exp(max(e for key, e in errors.items() if f'"causal": {causal}' in key)) for causal in ("true", "false")}
    assert worst["false"] < 1.6
    assert worst["true"] < 4.5  # the loss of step under a causal mask sets in suddenly
    said = f"its median error is {exp(statistics.median(errors.values())) - 1:.0%}".replace("%", " %")
    said += f", the worst a factor {worst['false']:.1f} without and {worst['true']:.1f} with a causal mask"
    assert said in " ".join((Path(__file__).parents[1] / "README.md").read_text().split())


@pytest.mark.parametrize("threads", [128, 384])
def test_resident_blocks_equal_what_ran(h200: Device, threads: int) -> None:
    """FlashAttention-2 ran two blocks of 128 threads per multiprocessor, cuDNN one of 384."""
    record = next(r for r in RECORDS if r["launch"]["threads"] == threads)
    launch = kernel_of(record).launch
    assert launch is not None
    assert resident_blocks(launch, h200) == {128: 264, 384: 132}[threads]


# Products


PRODUCTS = [json.loads(line) for line in (Path(__file__).parent / "data" / "h200_product_counters.jsonl").read_text().splitlines()]
"""Linear layers of PyTorch 2.11 with cuBLAS of CUDA 13, random shapes, seed 20261123: on-chip and DRAM reads of each call."""


def large_products() -> list[tuple[dict[str, Any], Estimate]]:
    """Those that read 30 MB and more on the chip, with the counts in the tile of the predicted kernel."""
    found, device = [], find_device("nvidia-h200-sxm")
    for record in PRODUCTS:
        dtype = dtype_of_products(record["dtype"])
        w = Matmul(**record["shape"], dtype=dtype)
        case = Case(w, "torch-scaled-mm" if dtype.name == "fp8" else "torch-matmul")
        if record["l2_to_sm_bytes"] >= 30e6:
            tile = product_tile(predict(TimeRequest(case, "matmul", dtype.name, device, 0.0, calibrated_devices)))
            found.append((record, evaluate(w, device, tile=tile).total))
    return found


def test_reads_of_products_follow_the_counters() -> None:
    """In one tile for all shapes they are 17 % off on the chip in the median."""
    rows = large_products()
    assert len(rows) >= 35
    on_chip, dram = (
        [abs(read(cost) / record[key] - 1) for record, cost in rows]
        for key, read in (("l2_to_sm_bytes", lambda cost: cost.sram.read), ("dram_read_bytes", lambda cost: cost.dram.read))
    )
    assert statistics.median(on_chip) < 0.1
    assert statistics.median(dram) < 0.05


def test_clusters_read_the_l2_once_for_several_multiprocessors() -> None:
    """Reads of the L2 slices are far fewer than what reaches the SMs, and no more than counted but for kernels without multicast."""
    rows = [(record, cost) for record, cost in large_products() if record["cluster"] > 1 and record["kernels"] == 1]
    assert len(rows) >= 15
    counted = [(float(cost.sram.read - cost.multicast) / record["l2_slice_read_bytes"]) for record, cost in rows]
    assert statistics.median(record["l2_slice_read_bytes"] / record["l2_to_sm_bytes"] for record, _ in rows) < 0.7
    assert 0.9 < statistics.median(counted) < 1.25
