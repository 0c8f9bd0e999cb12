"""Workloads as a study or an option names them: attention, a matmul, or a phase of a model."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar

from perfmodel.catalog import find_model
from perfmodel.core.checks import dtype_on
from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.hardware import Device
from perfmodel.core.workload import Attention
from perfmodel.kernels.attention.request import AttentionRequest
from perfmodel.kernels.matmul import Matmul
from perfmodel.study.fields import Fields
from perfmodel.timing.base import models_of
from perfmodel.transformer.spec import GroupedAttention, ModelSpec
from perfmodel.transformer.step import PREFILL, Request, Split, formats, lengths


class _Record:
    """Unknown keys are errors."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class MatmulOptions(_Record):
    """C [m, n] = A [m, k] B [k, n], ``batch`` times."""

    m: int
    n: int
    k: int
    batch: int = 1
    split_k: int = 1
    tile_m: int | None = None
    tile_n: int | None = None
    dtype: str | None = None

    def workload(self, device: Device) -> Matmul:
        """The workload, checked."""
        return Matmul(self.m, self.n, self.k, self.batch, self.split_k, dtype_on(self.dtype, device)).check()


@dataclass(frozen=True, slots=True)
class ModelOptions(_Record):
    """A phase of a model; None takes what ``perfmodel model`` takes. ``kv_heads``: as if every layer had that many."""

    name: str
    phase: str = PREFILL
    batch: int = 1
    n: int | None = None
    kv_len: int | None = None
    dtype: str | None = None
    weights_dtype: str | None = None
    kv_dtype: str | None = None
    kv_heads: int | None = None
    tp: int = 1
    pp: int = 1
    ep: int = 1
    fused: bool = False
    graph: bool | None = None

    def spec(self) -> ModelSpec:
        """The model that is meant."""
        model = find_model(self.name)
        return model if self.kv_heads is None else with_kv_heads(model, self.kv_heads)

    def request(self, device: Device) -> Request:
        """The question on ``device``; lengths that are not given fit the model."""
        model, form = self.spec(), dtype_on(self.dtype, device)
        n, kv_len = lengths(model, self.phase, self.n, self.kv_len)
        return Request(
            model=model,
            device=device,
            phase=self.phase,
            batch=self.batch,
            n=n,
            kv_len=kv_len,
            dtype=form,
            **formats(model, form, self.weights_dtype, self.kv_dtype),
            fused=self.fused,
            graph=self.graph,
            split=Split(self.tp, self.ep, self.pp),
        ).check()


def with_kv_heads(model: ModelSpec, kv_heads: int) -> ModelSpec:
    """``model`` with that many KV heads in every layer: as many as heads make it multi-head, one makes it multi-query."""
    layers = []
    for layer in model.layers:
        attention = layer.attention
        if not isinstance(attention, GroupedAttention):
            raise UsageError(f"kv_heads: {model.name} keeps latent vectors, not KV heads", "leave it out")
        if kv_heads < 1 or attention.heads % kv_heads:
            raise UsageError(f"kv_heads {kv_heads} does not divide the {attention.heads} heads of {model.name}", "give a number that does")
        layers.append(replace(layer, attention=replace(attention, kv_heads=kv_heads)))
    return replace(model, layers=tuple(layers))


@dataclass(frozen=True, slots=True)
class Workload(_Record):
    """One of ``attention``, ``matmul`` and ``model``; ``name``: how it is called in the report.

    ``implementation``: of the predicted time, by default the fastest calibrated; for attention also one by algorithm.
    """

    attention: Annotated[AttentionRequest, Fields(AttentionRequest)] | None = None
    matmul: Annotated[MatmulOptions, Fields(MatmulOptions)] | None = None
    model: Annotated[ModelOptions, Fields(ModelOptions)] | None = None
    name: str = ""
    implementation: dict[str, str] | str | None = None

    @property
    def kind(self) -> str:
        """Which of the three it is; UsageError unless it is exactly one."""
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise UsageError(f"a workload is one of {', '.join(KINDS)}, not {' and '.join(given) or 'none'}", "give exactly one")
        named = self.implementation.values() if isinstance(self.implementation, dict) else [self.implementation]
        wrong = next((name for name in named if name is not None and name not in models_of()), None)
        if wrong is not None:
            raise UsageError(f"--implementation: none is called {wrong!r}", suggest(wrong, list(models_of())))
        if self.attention is not None and self.attention.hardware is not None:
            raise UsageError("hardware stands in the attention of a workload", "name devices beside the workloads")
        return given[0]

    def updated(self, name: str, value: int) -> Workload:
        """The same with another value of the size ``name``."""
        kind = self.kind
        options = getattr(self, kind)
        known = [field.name for field in fields(options) if field.name in SIZES[kind]]
        if name not in known:
            raise UsageError(f"{kind} has no size {name!r}", suggest(name, known))
        changed: Any = {name: value}
        return replace(self, **{kind: replace(options, **changed)})


KINDS = ("attention", "matmul", "model")
SIZES = {
    "attention": ("n", "kv_len", "d", "batch", "heads", "kv_heads", "window", "splits"),
    "matmul": ("m", "n", "k", "batch"),
    "model": ("n", "kv_len", "batch", "tp", "kv_heads"),
}
"""Sizes that a sweep goes over."""


def shape_words(w: Attention | Matmul) -> str:
    """The shape in a few words.

    >>> shape_words(Attention(n=4096, kv_len=4096, d=64, dv=64, batch=8, heads=16, kv_heads=16, causal=True))
    'n 4096 d 64 b 8 h 16 causal'
    """
    if isinstance(w, Matmul):
        return f"{w.m} x {w.n} x {w.k}" + (f" b {w.batch}" if w.batch != 1 else "")
    words = [f"n {w.n}"] + [f"kv {w.kv_len}"] * (w.kv_len != w.n) + [f"d {w.d}"]
    words += [f"b {w.batch}"] * (w.batch != 1) + [f"h {w.heads}"] * (w.heads != 1)
    words += [f"kv-h {w.kv_heads}"] * (w.kv_heads != w.heads) + ["causal"] * w.causal + [f"window {w.window}"] * (w.window is not None)
    return " ".join(words)


def request_words(r: Request) -> str:
    """Model, phase and sizes in a few words."""
    length = f"n {r.n}" if r.phase == PREFILL else f"kv {r.kv_len}"
    gpus = f" x {r.split.gpus} GPUs" if r.split.gpus > 1 else ""
    return f"{r.model.name} {r.phase} {length}" + (f" b {r.batch}" if r.batch != 1 else "") + gpus
