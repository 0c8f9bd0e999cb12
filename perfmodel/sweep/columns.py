"""Columns that several kinds of workload have, and how an estimate gives them."""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.arith import Number
from perfmodel.core.roofline import Estimate, Traffic
from perfmodel.sweep.base import Column

COSTS = (
    Column("flops", "FLOP", "matmul FLOP on visible scores; a multiply-add counts 2", whole=True),
    Column("executed_flops", "FLOP", "matmul FLOP as run: recomputation, masked parts of tiles, padding", whole=True),
    Column("tensor_flops", "FLOP", "executed on the tensor unit", whole=True),
    Column("vector_flops", "FLOP", "executed on the vector unit", whole=True),
    Column("exponentials", "OP", "executed on the special function unit", whole=True),
    Column("accesses_elements", "elements", "loads and stores of the two-level model", whole=True),
    Column("reads_elements", "elements", "loads among them", whole=True),
    Column("writes_elements", "elements", "stores among them", whole=True),
    Column("sram_bytes", "B", "bytes between L2 and SMs", whole=True),
    Column("sram_read_bytes", "B", "those read", whole=True),
    Column("sram_write_bytes", "B", "those written", whole=True),
    Column("dram_bytes", "B", "bytes that pass the memory pins", whole=True),
    Column("dram_read_bytes", "B", "those read", whole=True),
    Column("dram_write_bytes", "B", "those written", whole=True),
    Column("sram_intensity_flop_per_byte", "FLOP/B", "flops over sram_bytes"),
    Column("dram_intensity_flop_per_byte", "FLOP/B", "flops over dram_bytes"),
    Column("lower_s", "s", "lower bound, inputs cold"),
    Column("lower_warm_s", "s", "lower bound, inputs and outputs in the caches"),
    Column("roofline_s", "s", "roof: all terms overlap"),
    Column("no_overlap_s", "s", "terms of the roof added up"),
)
MEMORY = (
    Column("memory_bytes", "B", "every tensor allocated at once", whole=True),
    Column("extra_memory_bytes", "B", "the part beyond inputs and outputs", whole=True),
)
PREDICTED = (
    Column("predicted_s", "s", "predicted time of a kernel that exists", pointwise=True),
    Column("predicted_low_s", "s", "lower end of its 80 % interval", pointwise=True),
    Column("predicted_high_s", "s", "upper end of its 80 % interval", pointwise=True),
)


def _intensity(cost: Estimate, level: Traffic) -> Number:
    """FLOP/B; NaN where the level sees no byte."""
    return float("nan") if isinstance(level.total, int) and level.total == 0 else cost.intensity(level)


def costs(cost: Estimate) -> Mapping[str, Number]:
    """The columns of ``COSTS``."""
    return {
        "flops": cost.flops,
        "executed_flops": cost.executed_flops,
        "tensor_flops": cost.work.tensor,
        "vector_flops": cost.work.vector,
        "exponentials": cost.work.sfu,
        "accesses_elements": cost.reads + cost.writes,
        "reads_elements": cost.reads,
        "writes_elements": cost.writes,
        "sram_bytes": cost.sram.total,
        "sram_read_bytes": cost.sram.read,
        "sram_write_bytes": cost.sram.write,
        "dram_bytes": cost.dram.total,
        "dram_read_bytes": cost.dram.read,
        "dram_write_bytes": cost.dram.write,
        "sram_intensity_flop_per_byte": _intensity(cost, cost.sram),
        "dram_intensity_flop_per_byte": _intensity(cost, cost.dram),
        "lower_s": cost.lower_s,
        "lower_warm_s": cost.lower_warm_s,
        "roofline_s": cost.roofline_s,
        "no_overlap_s": cost.no_overlap_s,
    }
