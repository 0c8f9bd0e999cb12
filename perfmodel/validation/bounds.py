"""What the model says of a record without a time model: its workload, lower bound and peak memory, or the reason why there are none.

``_WORKLOADS`` lists the keys that the shape of each workload has, and the function that makes the workload.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from perfmodel.catalog import find_model, model_names
from perfmodel.core.dtypes import DTYPES, PRODUCTS, Dtype, dtype_of_products
from perfmodel.core.errors import PerfmodelError, UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import BACKWARD, FORWARD, Attention, Convolution, Pass, Stream
from perfmodel.kernels.attention.patterns import block_pattern
from perfmodel.kernels.collectives import COMBINE, DISPATCH, OPS, Collective
from perfmodel.kernels.expert_exchange import expert_exchange
from perfmodel.kernels.experts import Experts
from perfmodel.kernels.grouped_matmul import GroupedMatmul
from perfmodel.kernels.latent_decode import LatentDecode, NarrowCacheAttention
from perfmodel.kernels.matmul import Matmul, scale_block
from perfmodel.timing.base import Case
from perfmodel.timing.case_bounds import lower_bound_s
from perfmodel.transformer.estimate import ModelStep
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import DECODE, PREFILL, ModelPass, Split
from perfmodel.transformer.training.chain_memory import peak_bytes
from perfmodel.transformer.training.implementations import HUGGINGFACE
from perfmodel.transformer.training.memory import peak
from perfmodel.transformer.training.question import BF16, FP32, FULL, NONE, Recomputation, TrainingConfig
from perfmodel.transformer.training.step.estimate import TrainingStep, training_step
from perfmodel.transformer.training.tape import attention_peak
from perfmodel.validation.cases import SDPA_BACKENDS
from perfmodel.validation.records import LARGEST_NUMBER, Record

_TWO_INPUTS = ("add", "silu-mul", "add-rms-norm")
"""Implementations, without the prefix of who runs them, that read two operands of the size of the rows."""
Sizes = dict[str, Any]
"""A record's shape, checked. ``weight_bits``: bits of a stored weight with its share of scales, if narrower than its product."""
EXPERT_FORMATS = {**DTYPES, "fp4": dtype_of_products("fp4")}
"""Formats in which experts are multiplied."""


def case_of(record: Record) -> Case:
    """The case that a record measured; UnavailableError says what the record lacks."""
    if record.workload not in _WORKLOADS:
        raise UnavailableError(f"no model of workload {record.workload!r}", f"there is one of {', '.join(_WORKLOADS)}")
    formats = {"matmul": PRODUCTS, "moe": EXPERT_FORMATS}.get(record.workload, DTYPES)
    if record.dtype not in formats:
        raise UnavailableError(f"no model of dtype {record.dtype!r}")
    for name, value in record.launch.items():
        if value < 1:
            raise UnavailableError(f"its launch has {name} {value}")
    is_training = record.workload == "transformer" and record.shape.get("phase") == "train"
    required, optional, workload_of = _TRAINING if is_training else _WORKLOADS[record.workload]
    sizes = checked_shape(record, required.split(), optional.split())
    workload = workload_of(sizes, formats[record.dtype], record)
    # a whole step has no passes to tell apart
    direction = FORWARD if isinstance(workload, TrainingStep) else record.direction
    return Case(workload, record.implementation, direction, record.cache_state, record.launch)


_NULLABLE = {"weights_dtype", "kv_dtype"}
"""Keys of texts that may be null: the run chose the format."""
_TEXTS = {"kind", "layout", "model", "phase", "op", "attention", "engine", *_NULLABLE}
_SWITCHES = {"appends", "causal", "crossed", "mask", "fused_elementwise", "cuda_graph", "checkpointing", "chunked", "fused_all_reduce"}
_RANGES = {"density": (0, 1), "dropout": (0, 1), "weight_bits": (1, 64)}
"""Least and largest values of numbers."""
_ABOVE_ZERO = {"acceptance": 1, "spread": 1, "rate": LARGEST_NUMBER}
"""Largest values of numbers above zero. All numbers without a range are whole and at least 1, ``draft_tokens`` at least 0."""


def checked_shape(record: Record, required: Collection[str], optional: Collection[str]) -> dict[str, Any]:
    """A copy of the record's shape; UnavailableError names a key that is missing, unknown or without meaning."""
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
    if name in _SWITCHES:
        return isinstance(value, bool)
    if name in _TEXTS:
        return isinstance(value, str) or (value is None and name in _NULLABLE)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if name in _ABOVE_ZERO:
        return 0 < value <= _ABOVE_ZERO[name]
    if name in _RANGES:
        least, largest = _RANGES[name]
        return least <= value <= largest
    return isinstance(value, int) and value >= (0 if name == "draft_tokens" else 1)


# Functions that make the workload of a checked shape


def _attention(sizes: Sizes, dtype: Dtype, record: Record) -> Attention:
    density = sizes.pop("density", None)
    if density is None and "sparse" in record.implementation:
        raise UnavailableError("block-sparse attention without a density")
    sizes["causal"] = sizes.get("causal", False) or "window" in sizes
    sizes.setdefault("dv", sizes["d"])
    pattern = None if density is None else block_pattern(float(density), None)
    workload_class = NarrowCacheAttention if "kv_bits" in sizes else Attention
    return workload_class(**sizes, dtype=dtype, sparsity=pattern, packed=True).check()  # packed: K and V once per KV head


def _matmul(sizes: Sizes, dtype: Dtype, record: Record) -> Matmul:
    return Matmul(**sizes, dtype=dtype, scale_block=scale_block(record.implementation, record.dtype)).check()


def _experts(sizes: Sizes, dtype: Dtype, record: Record) -> Experts:
    return Experts(stored=sizes.pop("weight_bits", 0) / 8, **sizes, dtype=dtype).check()


def _rows(sizes: Sizes, dtype: Dtype, record: Record) -> Stream:
    step = record.implementation.removeprefix("torch-").removeprefix("compile-")
    inputs = 2 if step in _TWO_INPUTS or record.direction == BACKWARD else 1
    outputs = 2 if step == "add-rms-norm" else 1
    shared = sizes["cols"] * sizes.get("mask_rows", 0)
    return Stream(record.workload, sizes["rows"], sizes["cols"], inputs, outputs, shared, dtype)


def _pass(sizes: Sizes, dtype: Dtype, record: Record) -> Pass:
    return Pass(record.implementation.removeprefix("torch-"), **sizes, dtype=dtype)


def _model(name: str) -> ModelSpec:
    if name not in model_names():
        raise UnavailableError(f"no model is called {name!r}")
    return find_model(name)


FUSED_ATTENTION = {"torch": "torch-sdpa-flash"}
"""Fused attention kernel of inference steps, by the implementation of the step."""


def _transformer(sizes: Sizes, dtype: Dtype, record: Record) -> ModelStep:
    length_key = {PREFILL: "n", DECODE: "kv_len"}.get(sizes["phase"], "")
    length = sizes.get(length_key)
    if length is None:
        raise UnavailableError(f"no step of phase {sizes['phase']!r} with its length", "prefill has n, decode kv_len")
    model = _model(sizes["model"])
    n = length if sizes["phase"] == PREFILL else 1
    bits = 8 * dtype.size
    split = Split(tp=sizes["tensor_parallel"])
    step = ModelPass(sizes["phase"], sizes["batch"], n, length, dtype, bits, bits, sizes["fused_elementwise"], split=split)
    return ModelStep(model, step, sizes["cuda_graph"], FUSED_ATTENTION.get(record.implementation)).check()


ATTENTION_OF_TRAINING = ("eager", "sdpa")
BACKENDS = {backend: implementation for implementation, backend in SDPA_BACKENDS.items()}
"""Attention kernel of a training step by PyTorch's name for its backend; a record without a backend gets the fastest calibrated kernel."""


def _training(sizes: Sizes, dtype: Dtype, record: Record) -> TrainingStep:
    """A training step on one GPU; all tensors in the record's format."""
    training = replace(training_of(record), precision=BF16 if dtype.name == "bf16" else FP32, optimizer="adamw")
    if sizes["tensor_parallel"] > 1 or sizes["fused_elementwise"] or sizes["cuda_graph"]:
        raise UnavailableError("no model of a training step on several GPUs, fused or in a CUDA graph")
    if sizes["attention"] not in ATTENTION_OF_TRAINING:
        raise UnavailableError(f"no model of {sizes['attention']!r} attention", f"there is {', '.join(ATTENTION_OF_TRAINING)}")
    backend = str(record.environment.get("sdpa_backend", ""))
    return training_step(training, dtype, HUGGINGFACE, BACKENDS.get(backend) if training.flash else None)


def _collective(sizes: Sizes, dtype: Dtype, record: Record) -> Collective:
    op, world = sizes["op"], sizes["world"]
    exchanges_tokens = op in (DISPATCH, COMBINE)
    required = ("tokens", "hidden", "experts", "experts_per_token") if exchanges_tokens else ("bytes",)
    if missing := [name for name in required if name not in sizes]:
        raise UnavailableError(f"no {op} without {', '.join(missing)}", "give its sizes")
    if exchanges_tokens:
        tokens, hidden, experts, per_token = (sizes[name] for name in required)
        return expert_exchange(op, world, tokens, hidden, experts, per_token, dtype)
    if op not in OPS:
        raise UnavailableError(f"no collective is called {op!r}", f"there are {', '.join(OPS)}")
    return Collective(op, world, sizes["bytes"], dtype)


_ROWS = "rows cols", "kind mask_rows", _rows
_STEP = "model phase batch tensor_parallel fused_elementwise cuda_graph"
_TRAINING = "model phase batch n tensor_parallel fused_elementwise cuda_graph checkpointing attention", "dropout", _training
_WORKLOADS: dict[str, tuple[str, str, Callable[[Sizes, Dtype, Record], Any]]] = {
    "attention": ("batch heads kv_heads n kv_len d", "causal dv window density mask dropout kv_bits layout", _attention),
    "matmul": ("m n k", "batch aligned crossed", _matmul),
    "copy": ("bytes", "", lambda sizes, dtype, record: Stream("copy", 1, sizes["bytes"], dtype=dtype._replace(size=1))),
    "softmax": _ROWS,
    "scale": _ROWS,
    "norm": _ROWS,
    "transformer": (_STEP, "n kv_len", _transformer),
    "collective": ("op world", "bytes tokens hidden experts experts_per_token", _collective),
    "latent-attention": (
        "batch heads n kv_len kv_lora_rank rope",
        "kv_bits appends",
        lambda sizes, dtype, record: LatentDecode(**sizes, dtype=dtype).check(),
    ),
    "grouped-matmul": ("tokens top_k experts touched n k", "", lambda sizes, dtype, record: GroupedMatmul(**sizes, dtype=dtype).check()),
    "pass": ("elements write_bytes", "read_bytes divisions rows parts", _pass),
    "convolution": (
        "places filters channels window read_bytes write_bytes",
        "groups passes",
        lambda sizes, dtype, record: Convolution(**sizes, dtype=dtype),
    ),
    "moe": ("tokens hidden width experts experts_per_token touched", "weight_bits", _experts),
}
"""By workload: required keys of a shape, optional keys, and the function that makes the workload of them."""


def evaluated(record: Record, device: Device) -> tuple[Case | None, float | None, str]:
    """The record's case and lower bound; None and the reason if there is none."""
    case = None
    try:
        case = case_of(record)
        return case, lower_bound_s(case, device), ""
    except PerfmodelError as error:
        return case, None, error.message


PEAK = "peak_bytes"


def predicted_peak_bytes(record: Record, device: Device) -> float | None:
    """Predicted peak bytes, as the record counts them: all of a training step, else those beside the inputs; None if unknown."""
    peak_of = _PEAKS.get(record.workload)
    if peak_of is None or record.direction != "both" or record.dtype not in DTYPES:
        return None
    try:
        return float(peak_of(record, device))
    except (PerfmodelError, KeyError, TypeError, ValueError):  # the shape lacks a key that the peak is computed from
        return None


def _attention_peak(record: Record, device: Device) -> float:
    keys = ("n", "kv_len", "d", "batch", "heads", "kv_heads", "causal", "mask")
    sizes: dict[str, Any] = {key: record.shape[key] for key in keys if key in record.shape}
    w = Attention(**{"dv": sizes["d"], **sizes}, dtype=DTYPES[record.dtype])
    return float(attention_peak(w.check(), record.implementation).bytes)


def _chain_peak(record: Record, device: Device) -> float:
    s = record.shape
    layers, d, rows, segments = (int(s[name]) for name in ("layers", "d", "batch", "segments"))
    return float(peak_bytes(layers, d, rows, DTYPES[record.dtype], device, relu=bool(s["relu"]), segments=segments))


def training_of(record: Record) -> TrainingConfig:
    """The training step that ``record`` measured; UnavailableError for an unknown model."""
    s = record.shape
    return TrainingConfig(
        _model(str(s["model"])),
        int(s["batch"]),
        int(s["n"]),
        precision=record.dtype,
        recompute=Recomputation(FULL if s["checkpointing"] else NONE),
        flash=s["attention"] == "sdpa",
        dropout=bool(s.get("dropout")),
    )


_PEAKS: dict[str, Callable[[Record, Device], float]] = {
    "attention": _attention_peak,
    "mlp-chain": _chain_peak,
    "transformer": lambda record, device: float(peak(training_of(record), record.implementation).bytes),
}
