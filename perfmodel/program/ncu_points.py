"""Counts of the kernels in an Nsight Compute file: duration, FLOP by unit and format, bytes by memory level, and what is missing.

FLOP of the vector unit come from instructions of threads that were not predicated off: 1 for adds and multiplies, 2 for multiply-adds,
twice that for instructions on two packed values, such as in fp16. The tensor unit has its own counters, which count 2 for a multiply-add.
Sources: Nsight Compute's section files SpeedOfLight_Hierarchical*RooflineChart; its documentation, Metrics Structure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from perfmodel.core.errors import DataError
from perfmodel.core.frozen import dataclass
from perfmodel.program.ncu_csv import TIME, CountedKernel, parse

TIMES = (TIME, "gpu__time_duration.avg", "gpu__time_duration.max", "Duration")
"""Metrics of the duration; the last one as on the details page."""
OPS = {"add": 1, "mul": 1, "fma": 2}
"""FLOP of an instruction."""
VECTOR = {
    "fp32": {**{f"f{op}": flop for op, flop in OPS.items()}, **{f"f{op}2": 2 * flop for op, flop in OPS.items()}},
    "fp16": {f"h{op}": 2 * flop for op, flop in OPS.items()},
    "fp64": {f"d{op}": flop for op, flop in OPS.items()},
}
"""Metrics of the vector unit's instructions and their FLOP, by format."""
LEVEL_METRICS: dict[str, tuple[tuple[str, ...], ...]] = {
    "dram": (
        ("dram__bytes_read.sum", "dram__bytes_write.sum"),
        ("dram__bytes_op_read.sum", "dram__bytes_op_write.sum"),
        ("dram__bytes.sum",),
    ),
    "l2": (("l1tex__m_xbar2l1tex_read_bytes.sum", "l1tex__m_l1tex2xbar_write_bytes.sum"), ("l1tex__m_xbar2l1tex_read_bytes.sum",)),
    "sram": (("smsp__sass_data_bytes_mem_shared.sum",), ("sm__sass_data_bytes_mem_shared.sum",)),
}
"""Metrics of a level's bytes: the first list that is complete is summed. Counts of L2 slices (lts__t_bytes) are not the SMs' bytes."""
READS_ONLY = "l1tex__m_xbar2l1tex_read_bytes.sum"
TENSOR = re.compile(
    r"sm__ops_path_tensor_src_(?P<src>(?:bf|tf|fp)\d+)(?:_(?:bf|tf|fp)\d+)*(?P<dst>_dst_\w+?)?(?P<sparse>_sparsity_o(?:n|ff))?\.sum"
)
MOST_PER_BYTE = {"fp8": 128, "fp16": 64, "bf16": 64, "tf32": 32}
"""Most FLOP of the tensor unit per byte of shared memory: wgmma of 64 x 256, its left operand in registers, reads 256 k elements for 2 x 64
x 256 k FLOP. Source: PTX ISA, wgmma.mma_async."""
NO_VECTOR, NO_TENSOR = "FLOP of the vector unit", "FLOP of the tensor unit, which ran"
"""Phrases on what is missing if only one of the two units is counted."""
TENSOR_RUNS = ("sm__inst_executed_pipe_tensor.sum", "smsp__inst_executed_pipe_tensor.sum")
"""Metrics of the tensor unit's instructions: they tell that it ran, not how many FLOP."""
COLLECTED = (
    TIME,
    *LEVEL_METRICS["dram"][0],
    *LEVEL_METRICS["l2"][0],
    LEVEL_METRICS["sram"][0][0],
    *(f"smsp__sass_thread_inst_executed_op_{letter}{op}_pred_on.sum" for letter in "fhd" for op in OPS),
    *(f"sm__ops_path_tensor_src_{src}.sum" for src in ("fp16", "bf16_dst_fp32", "tf32_dst_fp32", "fp64", "fp8")),
)
"""Metrics to collect with ncu; GPUs before Hopper have no fp8 counter."""
SECTIONS = (
    "SpeedOfLight",
    "MemoryWorkloadAnalysis",
    "SpeedOfLight_HierarchicalSingleRooflineChart",
    "SpeedOfLight_HierarchicalTensorRooflineChart",
)
"""Sections with durations, DRAM bytes and FLOP, for a report made without --metrics."""
COMMAND = (
    f"ncu --csv --page raw --print-units base --metrics {','.join(COLLECTED)} --clock-control none --log-file profile.csv YOUR_PROGRAM"
)
FROM_REPORT = "ncu --import profile.ncu-rep --csv --page raw --print-units base > profile.csv"


@dataclass(frozen=True, slots=True)
class KernelCount:
    """Counts of one launch, or of all launches of one name. ``flops`` by (unit, format), ``bytes`` by memory level.

    ``runs``: IDs of the launches in the file. ``time_s``: None if the file has none. ``missing``: phrases on what the file lacks.
    """

    name: str
    runs: tuple[int, ...]
    time_s: float | None
    flops: Mapping[tuple[str, str], float] = field(default_factory=dict)
    bytes: Mapping[str, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()


def read_kernels(path: Path, most: int = 50) -> list[KernelCount]:
    """Kernels of ``path``, at least one. More than ``most`` launches are added up by name; fewer with equal names are numbered by ID."""
    kernels = parse(path)
    if not kernels:
        fix = "profile a program that launches one, as perfmodel roofline --ncu-command says"
        raise DataError(f"{path}: no kernel in the file, only a header", fix)
    by_name: dict[str, list[KernelCount]] = {}
    counts = [count_of(kernel) for kernel in kernels]
    for launch in counts:
        by_name.setdefault(launch.name, []).append(launch)
    if len(counts) > most:
        return [added(name, launches) for name, launches in by_name.items()]
    return [replace(launch, name=f"{launch.name} #{launch.runs[0]}") if len(by_name[launch.name]) > 1 else launch for launch in counts]


def count_of(kernel: CountedKernel) -> KernelCount:
    """Counts of one launch by its metrics."""
    time_s = next((kernel.metrics[name] for name in TIMES if kernel.metrics.get(name)), None)
    metrics = _sums(kernel.metrics, time_s)
    moved, missing = _bytes(metrics)
    flops = {**_vector_flops(metrics), **_tensor_flops(metrics)}
    if unseen_in_sram(flops, moved):
        del moved["sram"]
        missing.append("SRAM bytes of wgmma and bulk copies, which no counter of loads and stores sees")
    if time_s is None:
        missing.insert(0, "duration")
    units = {unit for unit, _ in flops}
    if not flops:
        missing.append("FLOP")
    elif "tensor" not in units and any(metrics.get(name) for name in TENSOR_RUNS):
        missing.append(NO_TENSOR)
    elif "vector" not in units:
        missing.append(NO_VECTOR)
    return KernelCount(short_name(kernel.name), (kernel.run,), time_s, flops, moved, tuple(missing))


def _sums(metrics: Mapping[str, float], time_s: float | None) -> dict[str, float]:
    """``metrics`` plus sums computed from rates per second and per cycle, where the file has no sum itself."""
    sums = dict(metrics)
    for name, value in metrics.items():
        if name.endswith(".per_second") and time_s is not None:
            sums.setdefault(name.removesuffix(".per_second"), value * time_s)

    def cycles_of(name: str) -> float | None:
        unit = name.removeprefix("derived__").partition("__")[0]
        return sums.get(f"{unit}__cycles_elapsed.avg")

    for name, value in metrics.items():
        cycles = cycles_of(name)
        if cycles is not None and name.endswith(".per_cycle_elapsed"):
            sums.setdefault(name.removesuffix(".per_cycle_elapsed"), value * cycles)
    for name, value in metrics.items():
        cycles = cycles_of(name)
        if cycles is not None and name.startswith("derived__") and name.endswith("_x2"):
            sums.setdefault(name.removeprefix("derived__").removesuffix("_x2") + ".sum", value / 2 * cycles)
    return sums


def _bytes(metrics: Mapping[str, float]) -> tuple[dict[str, float], list[str]]:
    """(bytes by memory level, phrases on what is missing)."""
    moved: dict[str, float] = {}
    missing = []
    for level, choices in LEVEL_METRICS.items():
        names = next((names for names in choices if set(names) <= set(metrics)), None)
        if names is not None:
            moved[level] = sum(metrics[name] for name in names)
            if names == (READS_ONLY,):
                missing.append("bytes from SMs to the L2 (L2 bytes are reads alone)")
        elif level != "sram":
            missing.append({"dram": "DRAM bytes", "l2": "bytes between L2 and SMs"}[level])
    return moved, missing


def unseen_in_sram(flops: Mapping[tuple[str, str], float], moved: Mapping[str, float]) -> bool:
    """Whether the tensor unit must have read more shared memory than the threads' loads and stores account for.

    >>> [unseen_in_sram({("tensor", "bf16"): 64e9}, {"sram": sram}) for sram in (9e8, 2e9)]
    [True, False]
    """
    least_bytes = sum(flop / MOST_PER_BYTE[dtype] for (unit, dtype), flop in flops.items() if unit == "tensor" and dtype in MOST_PER_BYTE)
    return "sram" in moved and moved["sram"] < least_bytes


def _vector_flops(metrics: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """FLOP of the vector unit by format, for formats that the file counts."""
    flops: dict[tuple[str, str], float] = {}
    for dtype, ops in VECTOR.items():
        for op, flop in ops.items():
            names = (f"{unit}__sass_thread_inst_executed_op_{op}_pred_on.sum" for unit in ("smsp", "sm"))
            count = next((metrics[name] for name in names if name in metrics), None)
            if count is not None:
                flops["vector", dtype] = flops.get(("vector", dtype), 0) + flop * count
    return flops


def _tensor_flops(metrics: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """FLOP of the tensor unit by the format of its inputs. If one counter includes another, the wider one is used."""
    by_format: dict[str, dict[tuple[bool, bool], float]] = {}
    for name, value in metrics.items():
        match = TENSOR.fullmatch(name)
        if match is not None:
            kinds = by_format.setdefault(match["src"], {})
            kind = match["dst"] is not None, match["sparse"] is not None
            kinds[kind] = kinds.get(kind, 0.0) + value
    return {("tensor", dtype): kinds[min(kinds)] for dtype, kinds in sorted(by_format.items())}


def added(name: str, launches: Sequence[KernelCount]) -> KernelCount:
    """The sum of all ``launches`` of ``name``; a count that one of them lacks is left out."""
    times = [launch.time_s for launch in launches]
    units = set.intersection(*(set(launch.flops) for launch in launches))
    levels = set.intersection(*(set(launch.bytes) for launch in launches))
    return KernelCount(
        f"{name} x {len(launches)}" if len(launches) > 1 else name,
        runs=tuple(run for launch in launches for run in launch.runs),
        time_s=None if None in times else sum(time for time in times if time is not None),
        flops={unit: sum(launch.flops[unit] for launch in launches) for unit in sorted(units)},
        bytes={level: sum(launch.bytes[level] for launch in launches) for level in LEVEL_METRICS if level in levels},
        missing=tuple(dict.fromkeys(phrase for launch in launches for phrase in launch.missing)),
    )


_MANGLED = re.compile(r"\[v\d+[^\]]*\]|^std::enable_if<.*?>::type ")


def short_name(name: str) -> str:
    """A kernel's name without its arguments; template arguments stay, as they distinguish kernels.

    >>> short_name("flash::flash[v1,cw51cXTLSUwv1](Array<float, 1, C>, float)"), short_name("void at::native::copy<float>(int, T1)")
    ('flash', 'at::native::copy<float>')
    """
    plain = _MANGLED.sub("", name).removeprefix("void ").replace("(anonymous namespace)", "{}")
    plain = plain.split("(")[0].strip() or name
    head, *rest = plain.split("::")
    return rest[0] if rest == [head] else plain
