"""Peak memory of a record, as the model predicts it."""

from __future__ import annotations

from collections.abc import Callable

from perfmodel.catalog import find_model, model_names
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import PerfmodelError, UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import Attention
from perfmodel.remat.torch_chain import TorchChain, peak_bytes
from perfmodel.transformer.training.attention_peak import attention_peak
from perfmodel.transformer.training.memory import peak
from perfmodel.transformer.training.question import Recomputation, TrainingConfig
from perfmodel.validation.records import Record

PEAK = "peak_bytes"


def predicted_peak_bytes(record: Record, device: Device) -> float | None:
    """Bytes, counted as the record's: all of a training step; beside the inputs, of attention and of a chain. None if not known."""
    predict = _MODELS.get((record.workload, record.direction))
    if predict is None or record.dtype not in DTYPES:
        return None
    try:
        return float(predict(record, device))
    except (PerfmodelError, KeyError, TypeError, ValueError):  # a shape that lacks what the model asks
        return None


def _attention(record: Record, device: Device) -> float:
    names = ("n", "kv_len", "d", "batch", "heads", "kv_heads", "causal", "mask")
    sizes = {name: record.shape[name] for name in names if name in record.shape}
    w = Attention(**{"dv": sizes["d"], **sizes}, dtype=DTYPES[record.dtype])  # type: ignore[arg-type]
    return float(attention_peak(w.check(), record.implementation).bytes)


def _chain(record: Record, device: Device) -> float:
    s = record.shape
    layers, d, rows, segments = (int(s[name]) for name in ("layers", "d", "batch", "segments"))
    return float(peak_bytes(TorchChain(layers, d, rows, DTYPES[record.dtype], bool(s["relu"]), segments), device))


def training_of(record: Record) -> TrainingConfig:
    """The training step that ``record`` measured; UnavailableError for a model that nobody knows."""
    s = record.shape
    if s["model"] not in model_names():
        raise UnavailableError(f"no model is called {s['model']!r}")
    return TrainingConfig(
        find_model(str(s["model"])),
        int(s["batch"]),
        int(s["n"]),
        precision=record.dtype,
        recompute=Recomputation("full") if s["checkpointing"] else Recomputation(),
        flash=s["attention"] == "sdpa",
        dropout=bool(s.get("dropout")),
    )


def _training(record: Record, device: Device) -> float:
    return float(peak(training_of(record), record.implementation).bytes)


_MODELS: dict[tuple[str, str], Callable[[Record, Device], float]] = {
    ("attention", "both"): _attention,
    ("mlp-chain", "both"): _chain,
    ("transformer", "both"): _training,
}
