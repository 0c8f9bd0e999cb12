"""Files of kernels without operators, as profiles: CSV of Nsight Compute, Nsight Systems, rocprof and rocprofv3, known by its header.

Sources: NVIDIA, Nsight Systems User Guide, stats report ``cuda_gpu_trace``; AMD, Using rocprofv3 (ROCprofiler-SDK), and rocprof.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from perfmodel.core.arith import ceil_div
from perfmodel.core.checks import opened
from perfmodel.core.csv_table import CsvTable, Form
from perfmodel.core.errors import DataError
from perfmodel.core.frozen import dataclass
from perfmodel.program import ncu_csv
from perfmodel.program.calls import Call
from perfmodel.program.ncu_points import COMMAND, KernelCount, count_of, short_name
from perfmodel.program.profile import LATEST_S, Launched, Operator, ProgramProfile, busiest

UNCOUNTED = KernelCount("", (), None)


@dataclass(frozen=True, slots=True)
class FileKernel(Launched):
    """A kernel of such a file: its ``grid`` of blocks and threads of a ``block``, empty if unknown, and what counters say."""

    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    counts: KernelCount = UNCOUNTED


class KernelRow(NamedTuple):
    """A kernel of a file, its GPU, and the name of that GPU, empty if unknown."""

    kernel: FileKernel
    gpu: Any
    gpu_name: str = ""


TIME_UNITS = {"ns": 1e-9, "nsec": 1e-9, "us": 1e-6, "usec": 1e-6, "ms": 1e-3, "msec": 1e-3, "s": 1.0, "sec": 1.0}
BYTE_UNITS = {"B": 1, "byte": 1, "bytes": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
NCU, NSYS = ncu_csv.NCU.tool, "nsys stats"
ROCPROFV3, ROCPROF = "rocprofv3", "rocprof"
COMMANDS = {
    NSYS: "nsys stats --report cuda_gpu_trace --format csv --output . profile.nsys-rep",
    ROCPROFV3: "rocprofv3 --kernel-trace --output-format csv -- PROGRAM",
    ROCPROF: "rocprof --timestamp on -o results.csv PROGRAM",
    NCU: COMMAND,
}
"""What writes such a file, by tool."""
FORMS = [
    ncu_csv.NCU,
    *(
        Form(tool, columns, f"write it with: {COMMANDS[tool]}", f"write the table alone: {COMMANDS[tool]}")
        for tool, columns in {
            NSYS: ("CorrId", "GrdX", "Name"),
            ROCPROFV3: ("Kernel_Name", "Start_Timestamp", "End_Timestamp"),
            ROCPROF: ("KernelName", "gpu-id"),
        }.items()
    ),
]
HEAD = 1 << 20
"""Bytes in which a header must begin."""


def read_kernel_profile(path: Path) -> ProgramProfile | None:
    """The kernels of ``path`` as a profile of one step without operators; None if no known header is in it.

    DataError names the line of what is broken.
    """
    with opened(path) as file:
        lines = file.read(HEAD).decode("utf-8", "replace").splitlines()
        is_json = bool(lines) and lines[0].lstrip("\ufeff \t")[:1] in ("{", "[")
        form = None if is_json else next(filter(None, map(_form_of, lines)), None)
        if form is None:
            return None
        file.seek(0)
        table_class = ncu_csv.NcuTable if form is ncu_csv.NCU else CsvTable
        rows: list[KernelRow] = list(READERS[form.tool](table_class(path, file, form)))
    if not rows:
        raise DataError(f"{path}: no kernel in the file, only a header", "profile a program that launches one")
    if not any(row.kernel.seconds for row in rows):
        raise DataError(f"{path}: no kernel has a duration", f"collect it: {COMMANDS[form.tool]}")
    rows, gpus = busiest(rows)
    kernels = [row.kernel for row in rows]
    origin = min(kernel.start_s for kernel in kernels)
    operators = [Operator(Call("", ()), [replace(kernel, start_s=kernel.start_s - origin)]) for kernel in kernels]
    span_s = max(kernel.start_s + kernel.seconds for kernel in kernels) - origin
    return ProgramProfile(rows[0].gpu_name, 1, span_s, operators, 0, gpus, form.tool)


def _form_of(line: str) -> Form | None:
    """The form whose header ``line`` is."""
    for form in FORMS:
        if all(column in line for column in form.columns):
            with suppress(csv.Error):
                if set(form.columns) <= set(next(csv.reader([line], strict=True), [])):
                    return form
    return None


def _number(table: CsvTable, cells: Mapping[str, str], column: str, scale: float = 1.0) -> float:
    """The number in ``column`` times ``scale``; 0 for an empty cell. DataError for what is no number, or one that cannot be."""
    text = cells.get(column, "").strip()
    try:
        number = float(text.replace(",", "")) * scale if text not in ("", "-") else 0.0
    except ValueError:
        number = -1.0
    if not 0 <= number < LATEST_S * (1 if scale < 1 else 1e9):
        raise table.wrong(f"{column} is {text[:40]!r}, no number that can be")
    return number


def _interval(table: CsvTable, cells: Mapping[str, str], start: str, end: str) -> tuple[float, float]:
    """(start, length) of a kernel in seconds, between the times in ns in two columns."""
    start_ns, end_ns = _number(table, cells, start), _number(table, cells, end)
    if end_ns < start_ns:
        raise table.wrong(f"{end} is {cells[end]}, before {start}, {cells[start]}")
    return start_ns * 1e-9, (end_ns - start_ns) * 1e-9


def _sizes(table: CsvTable, cells: Mapping[str, str], columns: tuple[str, ...]) -> tuple[int, ...]:
    """Sizes in ``columns``; none if one of them is empty."""
    sizes = _whole_numbers(tuple(cells.get(column, "") for column in columns))
    if sizes is None:
        values = [_number(table, cells, column) for column in columns]
        return tuple(map(int, values)) if all(values) else ()
    return sizes


@lru_cache(4096)
def _whole_numbers(texts: tuple[str, ...]) -> tuple[int, ...] | None:
    """Sizes written as ``texts``; None if one of them is no short whole number. A fast path, as files have many rows."""
    return tuple(map(int, texts)) if all(text.isdecimal() and text != "0" and len(text) < 13 for text in texts) else None


# A reader for each form


def _ncu_rows(table: ncu_csv.NcuTable) -> Iterator[KernelRow]:
    """Kernels in the order of the file, one behind the other: ncu measures each alone."""
    now = 0.0
    for kernel in ncu_csv.kernels_of(table):
        counts = count_of(kernel)
        seconds = counts.time_s or 0.0
        grid, block = (tuple(map(int, re.findall(r"\d{1,12}", text))) for text in (kernel.grid, kernel.block))
        launched = FileKernel(counts.name, "kernel", now, seconds, 0, 0, prod(grid), None, grid, block, counts)
        yield KernelRow(launched, gpu=0)
        now += seconds


def _nsys_rows(table: CsvTable) -> Iterator[KernelRow]:
    cached_name, columns = lru_cache(4096)(short_name), {column.split(" (")[0]: column for column in table.header}
    units = {name: column.partition(" (")[2].rstrip(")") for name, column in columns.items()}
    if not {"Start", "Duration"} <= set(columns) or not {units["Start"], units["Duration"]} <= set(TIME_UNITS):
        raise table.wrong("no columns of start and duration with a unit of time that is known")
    start_unit, duration_unit = TIME_UNITS[units["Start"]], TIME_UNITS[units["Duration"]]
    byte_unit = BYTE_UNITS.get(units.get("Bytes", ""))
    for cells in table.rows():
        name, gpu = cells["Name"], cells.get("Device", "")
        if not name:
            raise table.wrong("a kernel without a name, as if it were cut off")
        kind = "kernel"
        for word in ("memset", "memcpy"):
            if word in name.lower():
                kind = f"gpu_{word}"
                break
        start = _number(table, cells, columns["Start"], start_unit)
        seconds = _number(table, cells, columns["Duration"], duration_unit)
        moved = 0 if byte_unit is None else int(_number(table, cells, columns["Bytes"], byte_unit))
        grid, block = _sizes(table, cells, ("GrdX", "GrdY", "GrdZ")), _sizes(table, cells, ("BlkX", "BlkY", "BlkZ"))
        stream = int(_number(table, cells, "Strm"))
        kernel = FileKernel(cached_name(name), kind, start, seconds, stream, moved, prod(grid), None, grid, block)
        yield KernelRow(kernel, gpu, re.sub(r" \(\d+\)$", "", gpu))


def _rocprofv3_rows(table: CsvTable) -> Iterator[KernelRow]:
    """Kernels of a kernel trace, or of a table of counters with a row for each kernel and counter."""
    counters: dict[str, dict[str, float]] = {}
    rows: dict[str, KernelRow] = {}
    has_counters = "Counter_Name" in table.header
    for number, cells in enumerate(table.rows()):
        key = f"{cells.get('Process_Id')} {cells.get('Dispatch_Id', number)}" if has_counters else str(number)
        counters.setdefault(key, {})
        if has_counters:
            counters[key][cells["Counter_Name"]] = _number(table, cells, "Counter_Value")
        if key in rows:
            continue
        start, seconds = _interval(table, cells, "Start_Timestamp", "End_Timestamp")
        block = _sizes(table, cells, tuple(f"Workgroup_Size_{axis}" for axis in "XYZ")) or _sizes(table, cells, ("Workgroup_Size",))
        threads = _sizes(table, cells, tuple(f"Grid_Size_{axis}" for axis in "XYZ")) or _sizes(table, cells, ("Grid_Size",))
        stream = int(_number(table, cells, "Stream_Id"))
        rows[key] = KernelRow(_amd_kernel(cells["Kernel_Name"], start, seconds, stream, threads, block), cells.get("Agent_Id", ""))
    for key, row in rows.items():
        yield row._replace(kernel=replace(row.kernel, counts=_amd_counts(row.kernel, counters[key])))


def _rocprof_rows(table: CsvTable) -> Iterator[KernelRow]:
    if not {"BeginNs", "EndNs"} <= set(table.header):
        raise table.wrong("no columns BeginNs and EndNs, so no times")
    for cells in table.rows():
        start, seconds = _interval(table, cells, "BeginNs", "EndNs")
        stream = int(_number(table, cells, "queue-id"))
        threads, block = _sizes(table, cells, ("grd",)), _sizes(table, cells, ("wgr",))
        kernel = _amd_kernel(cells["KernelName"], start, seconds, stream, threads, block)
        counters = {name: _number(table, cells, name) for name in (*FETCHED, *WRITTEN) if name in cells}
        yield KernelRow(replace(kernel, counts=_amd_counts(kernel, counters)), cells.get("gpu-id", ""))


READERS: Mapping[str, Any] = {NCU: _ncu_rows, NSYS: _nsys_rows, ROCPROFV3: _rocprofv3_rows, ROCPROF: _rocprof_rows}
FETCHED, WRITTEN = ("FETCH_SIZE", "FetchSize"), ("WRITE_SIZE", "WriteSize")
"""Counters of KiB that the L2 reads from memory and writes to it, in new and old spelling. Source: ROCm, derived counters."""
KIB = 1024


def _amd_kernel(name: str, start: float, seconds: float, stream: int, threads: tuple[int, ...], block: tuple[int, ...]) -> FileKernel:
    """A kernel whose grid is written in threads."""
    grid = tuple(ceil_div(size, edge) for size, edge in zip(threads, block, strict=False)) if len(threads) == len(block) else ()
    plain = short_name(name.removesuffix(" [clone .kd]").removesuffix(".kd"))
    return FileKernel(plain, "kernel", start, seconds, stream, 0, prod(grid), None, grid, block)


def _amd_counts(kernel: FileKernel, counters: Mapping[str, float]) -> KernelCount:
    """Counts of a kernel of AMD's tools: bytes of memory if both counters are there."""
    fetched, written = ([counters[name] for name in names if name in counters] for names in (FETCHED, WRITTEN))
    if not fetched or not written:
        return KernelCount(kernel.name, (), kernel.seconds, {}, {}, ("FLOP", "DRAM bytes"))
    return KernelCount(kernel.name, (), kernel.seconds, {}, {"dram": KIB * (fetched[0] + written[0])}, ("FLOP",))


# Kinds of kernels


PRODUCT, ATTENTION, ELEMENTS, COPY, COLLECTIVE, OTHER = "product", "attention", "element-wise", "copy", "collective", "other"
KINDS = {
    COLLECTIVE: "nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce|multimem|nvshmem",
    ATTENTION: r"flash_(fwd|bwd|attn)|flash::|flash_?attn|\bflash|fmha|attention|attn_|_attn|\bmha\b|mla_|sdpa|batch(decode|prefill)",
}
"""Words anywhere in a name, by kind: products of these libraries carry them in their template."""
NAMES = {
    PRODUCT: r"gemm|gemv|cutlass|cublas|cijk_|nvjet|xmma|wgmma|mfma|matmul|splitk|dot_kernel|tensorop|convol|conv\dd|conv_|fprop|dgrad"
    "|wgrad|winograd|_mm_|^mm_|moe_kernel",
    COPY: r"\bcopy(\b|_)|memcpy|memset|copybuffer|fillbuffer|catarray|transpose|permute|kv_?cache|cache_flash|copy_kernel|(nchw|nhwc)to",
    ELEMENTS: "elementwise|vectorized|reduce|norm|gamma|softmax|triton_(poi|red|per)|act_and_mul|silu|gelu|swiglu|rope|rotary|adam|optim"
    "|multi_tensor|embedding|index|scatter|gather|fill|quant|topk|sort|scan|dropout|pool|upsample|cast|cross_?entropy|philox|arange",
}
"""Words in the part of a name before its template, by kind. Sources: kernels of PyTorch, cuBLAS, CUTLASS, Tensile, Triton and vLLM."""


def kind_of(name: str) -> str:
    """The kind of a kernel by its name.

    >>> [kind_of(name) for name in ("void cutlass::device_kernel<flash::FlashAttnFwdSm90>", "ampere_bf16_s16816gemm", "ncclDevKernel_Sum")]
    ['attention', 'product', 'collective']
    """
    before_template = name.removeprefix("void ").partition("<")[0]
    for text, words_by_kind in ((name, KINDS), (before_template, NAMES)):
        for kind, words in words_by_kind.items():
            if re.search(words, text, re.IGNORECASE):
                return kind
    return OTHER
