"""A report with everything in it, from numbers written here, and its golden files: ``python -m tools.refresh.report_example``.

Formats are tested on it.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from perfmodel.report.charts.schema import (
    Bar,
    BarChart,
    Before,
    Ceiling,
    Limit,
    LineChart,
    Mark,
    Pair,
    Roofline,
    RooflinePoint,
    ScatterChart,
    Series,
)
from perfmodel.report.document import Column, DataTable, Formula, ProfileUse, Provenance, Report, Table
from perfmodel.report.saved import Interval
from tools.scores import DATA

GOLDEN = DATA / "report"
HOSTILE = '<script>alert(1)</script> & "quoted" | `code`'


def ceilings(scale: float = 1.0) -> list[Ceiling]:
    """A device with two units, four dtypes and three levels, some of them measured too."""
    return [
        Ceiling("compute", "tensor fp8", 2000e12 * scale, "derived", unit="tensor", dtype="fp8", source="datasheet, half of sparse"),
        Ceiling("compute", "tensor bf16", 1000e12 * scale, "datasheet", unit="tensor", dtype="bf16", source="datasheet"),
        Ceiling("compute", "tensor fp16", 1000e12 * scale, "datasheet", unit="tensor", dtype="fp16", source="datasheet"),
        Ceiling("compute", "vector fp32", 60e12 * scale, "datasheet", unit="vector", dtype="fp32", source="datasheet"),
        Ceiling("compute", "vector fp32", 57e12 * scale, "measured", unit="vector", dtype="fp32", source="probe"),
        Ceiling("memory", "SRAM", 33e12 * scale, "derived", level="sram", source="guide"),
        Ceiling("memory", "L2", 9e12 * scale, "measured", level="l2", source="probe"),
        Ceiling("memory", "DRAM", 4e12 * scale, "datasheet", level="dram", source="datasheet"),
        Ceiling("memory", "DRAM", 3.8e12 * scale, "measured", level="dram", source="probe"),
    ]


def point(number: int, name: str, flops: float, dram: float, l2: float, roof_s: float, **more: object) -> RooflinePoint:
    """A point of bf16 whose largest term is its roof."""
    terms = {"dram": dram / 4e12, "l2": l2 / 9e12, "tensor": flops / 1000e12}
    fields = {"dtype": "bf16", "lower_s": roof_s * 0.9, "roofline_s": roof_s, "terms": terms} | more
    return RooflinePoint(number, name, flops, {"l2": l2, "dram": dram}, **fields)  # type: ignore[arg-type]


def example() -> Report:
    """Two devices, points of every kind, one chart of every kind."""
    first = [
        point(1, "standard N=1024", 32_000_000_000, 1e9, 1.2e9, 250e-6, group="standard", share=0.3),
        point(2, "flash N=1024", 32_000_000_000, 6e7, 3e8, 33.4e-6, group="flash", predicted=Interval(80e-6, 70e-6, 95e-6), share=0.1),
        point(
            3,
            "flash N=4096",
            512_000_000_000,
            2.4e8,
            4.8e9,
            534e-6,
            group="flash",
            predicted=Interval(900e-6, 850e-6, 1000e-6),
            measured=Interval(880e-6, 870e-6, 905e-6),
            share=0.5,
            before=Before("last week", 512_000_000_000, {"dram": 1.7e10, "l2": 1.7e10}, 5e-3),
            note="calibrated here: 71 points, 2026-11-21",
        ),
        point(4, HOSTILE, 8_000_000_000, 2e9, 2e9, 500e-6, group="other", measured=Interval(450e-6), share=0.06),
        point(5, "copy, no FLOP", 0, 8e8, 8e8, 200e-6, group="other", measured=Interval(230e-6, 229e-6, 240e-6), share=0.03),
        point(6, "tiny", 1000, 8e5, 8e5, 1e-7, group="other", measured=Interval(3e-6), share=0.01),
    ]
    second = [
        point(7, "flash N=4096", 512_000_000_000, 2.4e8, 4.8e9, 1068e-6, group="flash", predicted=Interval(2e-3, 1.8e-3, 2.3e-3)),
        RooflinePoint(
            8, "softmax", 3_000_000, {"dram": 1e6, "l2": 2e6}, "fp32", "vector", roofline_s=1e-6, terms={"dram": 1e-6, "sfu": 4e-7}
        ),
    ]
    sweep: list[tuple[float, float]] = [(256, 2e-5), (512, 4e-5), (1024, 9e-5), (2048, 3e-4), (4096, 9e-4)]
    return Report(
        "Attention on two devices",
        ["flash N=4096 is bound by the tensor unit.", f"{HOSTILE} is bound by DRAM bandwidth; ABOVE ITS ROOF: a count is wrong."],
        [Table("by group", ["group", "points"], [["flash", "3"], [HOSTILE, "1"]])],
        ["Inputs are cold."],
        charts=[
            Roofline("Roofline of device one", "one", "Device One", ceilings(), first, caption="Forward, bf16."),
            Roofline("Roofline of device two", "two", "Device Two", ceilings(0.5), second),
            LineChart(
                "Time over N",
                "sequence length N",
                "time",
                [
                    Series("standard", [(n, 1.9 * s if n > 512 else 0.8 * s) for n, s in sweep], "dashed"),
                    Series("flash, predicted", sweep, "line", [(0.9 * s, 1.1 * s) for _, s in sweep], group="flash"),
                    Series("flash, measured", [(n, 1.03 * s) for n, s in sweep], "markers", group="flash"),
                ],
                marks=[Mark(700, "flash wins beyond", 5.5e-5)],
                limits=[Limit("budget", 2e-3)],
            ),
            BarChart(
                "KV cache",
                "B",
                [Bar("MHA", [("weights", 16e9), ("KV cache", 64e9)]), Bar("GQA", [("weights", 16e9), ("KV cache", 16e9)])],
                [Limit("capacity", 85e9)],
            ),
            ScatterChart(
                "Predicted against measured",
                [Pair(f"run {n}", s, s * (0.93 + 0.04 * i), "flash") for i, (n, s) in enumerate(sweep)]
                + [Pair("copy", 1e-5, 1.2e-5, "copy")],
                low=0.9,
                high=1.1,
            ),
        ],
        data_tables=[
            DataTable(
                "Batches",
                [
                    Column("batch", "batch", "count"),
                    Column("step_s", "step", "s", "low", "high"),
                    Column("low", "", "s"),
                    Column("high", "", "s"),
                ],
                [[1, 0.004, 0.0035, 0.005], [64, 0.01, 0.009, 0.012], [8, None, None, None]],
            )
        ],
        formulas=[Formula("F", "matmul FLOP", "4 N^2 d", "4 * 4096^2 * 64", 4_294_967_296, "by definition", "flash")],
        provenance=Provenance(
            "perfmodel report study.yaml", "0.1.0", [ProfileUse("one", "ab" * 32, "2026-11-21")], {"study.yaml": "cd" * 32}
        ),
    )


def crowded(count: int = 50, seed: int = 1) -> Report:
    """A roofline of that many points, many of them close together, a sweep and a scatter."""
    draw = random.Random(seed)
    found = []
    for number in range(1, count + 1):
        flops, share = int(10 ** draw.uniform(8, 13)), draw.uniform(0.2, 0.9)
        dram = flops / 10 ** draw.choice([0.3, 1.4, 1.5, 2.8, draw.uniform(-0.5, 3.5)])
        roof = max(flops / 1000e12, dram / 4e12)
        spent = roof / share
        predicted = Interval(spent * draw.uniform(0.8, 1.2), spent * 0.7, spent * 1.3)
        name, group = f"kernel of layer {number} with batch {2 ** (number % 9)}", f"family {number % 4}"
        seen = Interval(spent, spent * 0.98, spent * 1.02)
        found.append(point(number, name, flops, dram, dram * 3, roof, group=group, predicted=predicted, measured=seen, share=1 / count))
    pairs = [Pair(p.name, p.measured.value, p.predicted.value, p.group) for p in found if p.measured and p.predicted]
    lines = [Series(f"family {k}", [(2**n, 2.0**n * (k + 1) * 1e-6) for n in range(13)]) for k in range(4)]
    roofline, sweep = Roofline("Fifty kernels", "one", "Device One", ceilings(), found), LineChart("Sweep", "batch", "time", lines)
    errors = ScatterChart("Errors", pairs, low=0.8, high=1.2)
    return Report("Fifty kernels", ["Most are bound by DRAM."], [], charts=[roofline, sweep, errors])


def long_names() -> Report:
    """``example`` with the names that template kernels have wherever a name may stand."""
    name = "void_cutlass_" + "DeviceKernel_GemmUniversal_sm90_warpspecialized_" * 4
    report = example()
    first, second, sweep, bars, scatter = report.charts
    assert isinstance(first, Roofline)
    assert isinstance(sweep, LineChart)
    assert isinstance(bars, BarChart)
    assert isinstance(scatter, ScatterChart)
    table = report.data_tables[0]
    charts = [
        replace(first, title=name, caption=name, points=[replace(p, name=f"{p.number}_{name}", note=name) for p in first.points]),
        second,
        replace(sweep, series=[replace(one, name=f"{one.name}_{name}") for one in sweep.series], marks=[Mark(700, name, 5.5e-5)]),
        replace(bars, bars=[replace(bar, name=f"{bar.name}_{name}") for bar in bars.bars], limits=[Limit(name, 85e9)]),
        replace(scatter, pairs=[replace(pair, group=f"{pair.group}_{name}") for pair in scatter.pairs]),
    ]
    names = DataTable(name, [Column("kernel", "kernel"), *table.columns], [[name, *row] for row in table.rows])
    formulas = [Formula(name, name, name, name, 1, name, name)]
    texts = Table(name, ["kernel", name], [[name, name]])
    return replace(report, title=name, verdict=[name], notes=[name], tables=[texts], charts=charts, data_tables=[names], formulas=formulas)


if __name__ == "__main__":
    from perfmodel.report import render_for

    for suffix in (".md", ".svg", ".json"):
        made = render_for(Path(f"example{suffix}"), example())
        (GOLDEN / f"example{suffix}").write_text(made if isinstance(made, str) else made.decode(), encoding="utf-8")
