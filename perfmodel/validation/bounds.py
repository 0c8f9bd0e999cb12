"""What a record ran, as the model sees it: its workload and lower bound; or why it has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from perfmodel.catalog import find_model, model_names
from perfmodel.core.dtypes import DTYPES, Dtype
from perfmodel.core.errors import PerfmodelError, UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Attention, Stream
from perfmodel.kernels.attention.patterns import block_pattern
from perfmodel.kernels.collectives import OPS, Collective
from perfmodel.kernels.experts import Experts
from perfmodel.kernels.latent_decode import LatentDecode
from perfmodel.kernels.matmul import Matmul
from perfmodel.kernels.narrow_cache import NarrowCacheAttention
from perfmodel.timing.base import Case
from perfmodel.timing.case_bounds import lower_bound_s
from perfmodel.transformer.model_step import ModelStep
from perfmodel.transformer.step import DECODE, PREFILL, Split, Step
from perfmodel.transformer.training.implementations import HUGGINGFACE
from perfmodel.transformer.training.question import BF16, FP32, FULL, NONE, Recomputation, TrainingConfig
from perfmodel.transformer.training.step.estimate import TrainingStep, training_step
from perfmodel.validation.records import Record

_TWO_INPUTS = ("torch-add", "torch-silu-mul")
TRAIN = "train"
ATTENTION_OF_TRAINING = ("eager", "sdpa")
BACKENDS = {"CUDNN_ATTENTION": "torch-sdpa-cudnn", "FLASH_ATTENTION": "torch-sdpa-flash", "EFFICIENT_ATTENTION": "torch-sdpa-efficient"}
"""What PyTorch's scaled_dot_product_attention ran, by the names of its backends; the fastest calibrated one if a record does not say."""
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
    # a whole step has no passes to tell apart
    direction = FORWARD if isinstance(workload, TrainingStep) else record.direction
    return Case(workload, record.implementation, direction, record.cache == "cold", record.launch)


_SHARES, _WORDS = {"density", "dropout"}, {"kind", "model", "phase", "op", "attention"}
_SWITCHES = {"causal", "mask", "fused_elementwise", "cuda_graph", "checkpointing"}


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
    optional = ("causal", "dv", "window", "density", "mask", "dropout", "kv_bits")
    sizes = _sizes(record, ("batch", "heads", "kv_heads", "n", "kv_len", "d"), optional)
    density = sizes.pop("density", None)
    if density is None and "sparse" in record.implementation:
        raise UnavailableError("block-sparse attention without a density")
    sizes["causal"] = sizes.get("causal", False) or "window" in sizes
    sizes.setdefault("dv", sizes["d"])
    pattern = None if density is None else block_pattern(float(density), None)
    kind = NarrowCacheAttention if "kv_bits" in sizes else Attention
    return kind(**sizes, dtype=dtype, sparsity=pattern, packed=True).check()  # packed: K and V once per KV head


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
    if record.shape.get("phase") == TRAIN:
        return _training(record, dtype)
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


def _latent_attention(record: Record, dtype: Dtype) -> LatentDecode:
    sizes = _sizes(record, ("batch", "heads", "n", "kv_len", "kv_lora_rank", "rope"), ("kv_bits",))
    return LatentDecode(**sizes, dtype=dtype).check()


def _moe(record: Record, dtype: Dtype) -> Experts:
    return Experts(**_sizes(record, ("tokens", "hidden", "width", "experts", "experts_per_token", "touched"), ()), dtype=dtype).check()


def _training(record: Record, dtype: Dtype) -> ModelStep:
    """A training step on one GPU; all tensors in the record's format."""
    required = ("model", "phase", "batch", "n", "tensor_parallel", "fused_elementwise", "cuda_graph", "checkpointing", "attention")
    sizes = _sizes(record, required, ("dropout",))
    if sizes["model"] not in model_names():
        raise UnavailableError(f"no model is called {sizes['model']!r}")
    if sizes["tensor_parallel"] > 1 or sizes["fused_elementwise"] or sizes["cuda_graph"]:
        raise UnavailableError("no model of a training step on several GPUs, fused or in a CUDA graph")
    if sizes["attention"] not in ATTENTION_OF_TRAINING:
        raise UnavailableError(f"no model of {sizes['attention']!r} attention", f"there is {', '.join(ATTENTION_OF_TRAINING)}")
    backend = str(record.environment.get("sdpa_backend", ""))
    training = TrainingConfig(
        find_model(sizes["model"]),
        sizes["batch"],
        sizes["n"],
        precision=BF16 if dtype.name == "bf16" else FP32,
        optimizer="adamw",
        recompute=Recomputation(FULL if sizes["checkpointing"] else NONE),
        flash=sizes["attention"] == "sdpa",
        dropout=sizes.get("dropout", 0) > 0,
    )
    return training_step(training, dtype, HUGGINGFACE, BACKENDS.get(backend) if training.flash else None)


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
    "latent-attention": _latent_attention,
    "moe": _moe,
}


def evaluated(record: Record, device: Device) -> tuple[Case | None, float | None, str]:
    """The record's case and lower bound; None and the reason in words where there is none."""
    case = None
    try:
        case = case_of(record)
        return case, lower_bound_s(case, device), ""
    except PerfmodelError as error:
        return case, None, error.message
