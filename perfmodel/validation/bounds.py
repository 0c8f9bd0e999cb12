"""What a record ran, as the model sees it: its workload and lower bound; or why it has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from perfmodel.attention.patterns import block_pattern
from perfmodel.catalog import find_model, model_names
from perfmodel.dtypes import DTYPES, Dtype
from perfmodel.errors import PerfmodelError, UnavailableError
from perfmodel.hardware import Device
from perfmodel.ops.matmul import Matmul
from perfmodel.timing.base import Case
from perfmodel.timing.floors import lower_bound_s
from perfmodel.transformer.collectives import OPS, Collective
from perfmodel.transformer.model_step import ModelStep
from perfmodel.transformer.step import DECODE, PREFILL, Split, Step
from perfmodel.validation.records import Record
from perfmodel.workload import Attention, Stream

_TWO_INPUTS = ("torch-add", "torch-silu-mul")
ATTENTION_IN = {"torch": "torch-sdpa-flash"}
"""Fused attention of the steps that an implementation runs."""


def case_of(record: Record) -> Case:
    """The case that a record measured; UnavailableError says what the record lacks."""
    read = _WORKLOADS.get(record.workload)
    if read is None:
        raise UnavailableError(f"no model of workload {record.workload!r}", f"there is one of {', '.join(_WORKLOADS)}")
    if record.dtype not in DTYPES:
        raise UnavailableError(f"no model of dtype {record.dtype!r}")
    wrong = next((f"{name} {value}" for name, value in record.launch.items() if value < 1), None)
    if wrong is not None:
        raise UnavailableError(f"its launch has {wrong}")
    workload = read(record, DTYPES[record.dtype])
    return Case(workload, record.implementation, record.direction, record.cache == "cold", record.launch)


_SHARES, _WORDS = {"density", "dropout"}, {"kind", "model", "phase", "op"}
_SWITCHES = {"causal", "mask", "fused_elementwise", "cuda_graph"}


def _sizes(record: Record, required: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, Any]:
    """The shape's values, checked; UnavailableError names a key that is missing, unknown or has no meaning."""
    missing = [name for name in required if name not in record.shape]
    if missing:
        raise UnavailableError(f"its shape lacks {', '.join(missing)}")
    unknown = sorted(set(record.shape) - {*required, *optional})
    if unknown:
        raise UnavailableError(f"its shape has {', '.join(unknown)}, which means nothing here")
    for name, value in record.shape.items():
        if not _has_meaning(name, value):
            raise UnavailableError(f"its shape has {name} {value!r}")
    return dict(record.shape)


def _has_meaning(name: str, value: Any) -> bool:
    if name in _SWITCHES or name in _WORDS:
        return isinstance(value, bool if name in _SWITCHES else str)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return 0 <= value <= 1 if name in _SHARES else isinstance(value, int) and value >= 1


def _attention(record: Record, dtype: Dtype) -> Attention:
    optional = ("causal", "dv", "window", "density", "mask", "dropout")
    sizes = _sizes(record, ("batch", "heads", "kv_heads", "n", "kv_len", "d"), optional)
    density = sizes.pop("density", None)
    if density is None and "sparse" in record.implementation:
        raise UnavailableError("block-sparse attention without a density")
    sizes["causal"] = sizes.get("causal", False) or "window" in sizes
    sizes.setdefault("dv", sizes["d"])
    pattern = None if density is None else block_pattern(float(density), None)
    return Attention(**sizes, dtype=dtype, sparsity=pattern, packed=True).check()  # packed: K and V once per KV head


def _matmul(record: Record, dtype: Dtype) -> Matmul:
    return Matmul(**_sizes(record, ("m", "n", "k"), ("batch",)), dtype=dtype).check()


def _copy(record: Record, dtype: Dtype) -> Stream:
    return Stream("copy", 1, _sizes(record, ("bytes",), ())["bytes"], dtype=replace(dtype, size=1))


def _rows(record: Record, dtype: Dtype) -> Stream:
    sizes = _sizes(record, ("rows", "cols"), ("kind", "mask_rows"))
    inputs = 2 if record.implementation in _TWO_INPUTS else 1
    shared = sizes["cols"] * sizes.get("mask_rows", 0)
    return Stream(record.workload, sizes["rows"], sizes["cols"], inputs, shared=shared, dtype=dtype)


def _transformer(record: Record, dtype: Dtype) -> ModelStep:
    switches = ("fused_elementwise", "cuda_graph")
    sizes = _sizes(record, ("model", "phase", "batch", "tensor_parallel", *switches), ("n", "kv_len"))
    lengths = {PREFILL: "n", DECODE: "kv_len"}
    length = sizes.get(lengths.get(sizes["phase"], ""))
    if length is None:
        raise UnavailableError(f"no step of phase {sizes['phase']!r} with its length", "prefill has n, decode kv_len")
    if sizes["model"] not in model_names():
        raise UnavailableError(f"no model is called {sizes['model']!r}")
    n = length if sizes["phase"] == PREFILL else 1
    bits = 8 * dtype.size
    split = Split(tp=sizes["tensor_parallel"])
    step = Step(sizes["phase"], sizes["batch"], n, length, dtype, bits, bits, sizes["fused_elementwise"], split=split)
    return ModelStep(find_model(sizes["model"]), step, sizes["cuda_graph"], ATTENTION_IN.get(record.implementation)).check()


def _collective(record: Record, dtype: Dtype) -> Collective:
    sizes = _sizes(record, ("op", "world", "bytes"), ())
    if sizes["op"] not in OPS:
        raise UnavailableError(f"no collective is called {sizes['op']!r}", f"there are {', '.join(OPS)}")
    return Collective(sizes["op"], sizes["world"], sizes["bytes"], dtype)


_WORKLOADS: dict[str, Callable[[Record, Dtype], Any]] = {
    "attention": _attention,
    "matmul": _matmul,
    "copy": _copy,
    "softmax": _rows,
    "scale": _rows,
    "norm": _rows,
    "transformer": _transformer,
    "collective": _collective,
}


def evaluated(record: Record, device: Device) -> tuple[Case | None, float | None, str]:
    """The record's case and lower bound; None and the reason in words where there is none."""
    case = None
    try:
        case = case_of(record)
        return case, lower_bound_s(case, device), ""
    except PerfmodelError as error:
        return case, None, error.message
