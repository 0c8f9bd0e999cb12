"""Workloads of a study: attention, a matmul, or a phase of a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Annotated, Any

from pydantic import BeforeValidator

from perfmodel.catalog import find_model
from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.workload import Attention
from perfmodel.kernels.attention.question import AttentionQuestion
from perfmodel.kernels.matmul import Matmul
from perfmodel.kernels.question import MatmulQuestion
from perfmodel.study.schema import Options, checked
from perfmodel.timing.base import models_of
from perfmodel.timing.implementations import algorithm_of
from perfmodel.transformer.question import PhaseQuestion
from perfmodel.transformer.spec import GroupedAttention, ModelSpec
from perfmodel.transformer.step import PREFILL, Request

AttentionOptions = Annotated[AttentionQuestion, BeforeValidator(lambda raw: checked(AttentionQuestion, raw))]


@dataclass(frozen=True, slots=True)
class MatmulOptions(Options, MatmulQuestion):
    """A matmul with required sizes."""

    m: int
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class ModelOptions(Options, PhaseQuestion):
    """A phase of a model. ``kv_heads``: overrides those of every layer."""

    kv_heads: int | None = None

    def request(self, device: Device) -> Request:
        """The request on ``device``; lengths that are not given come from the model."""
        check_no_device("model", self)
        return self.request_for(model_with(self.name, self.kv_heads), device)


def check_no_device(kind: str, question: Any) -> None:
    """UsageError if a ``question`` of a study names a device, as each is asked on every device of its section."""
    if question.hardware is not None:
        raise UsageError(f"hardware stands in the {kind} of a workload", "name devices beside the workloads")


def model_with(name: str, kv_heads: int | None) -> ModelSpec:
    """The model called ``name``, with ``kv_heads`` in every layer if given."""
    return find_model(name) if kv_heads is None else with_kv_heads(find_model(name), kv_heads)


def with_kv_heads(model: ModelSpec, kv_heads: int) -> ModelSpec:
    """``model`` with ``kv_heads`` in every layer: as many as heads make it multi-head, one makes it multi-query."""
    layers = []
    for layer in model.layers:
        attention = layer.attention
        if not isinstance(attention, GroupedAttention):
            raise UsageError(f"kv_heads: {model.name} has layers without KV heads", "leave it out")
        if kv_heads < 1 or attention.heads % kv_heads:
            raise UsageError(f"kv_heads {kv_heads} does not divide the {attention.heads} heads of {model.name}", "give a number that does")
        layers.append(replace(layer, attention=replace(attention, kv_heads=kv_heads)))
    return replace(model, layers=tuple(layers))


KINDS: dict[str, Any] = {"attention": AttentionOptions, "matmul": MatmulOptions, "model": ModelOptions}


@dataclass(frozen=True, slots=True)
class Workload(Options):
    """A workload: exactly one of ``attention``, ``matmul`` and ``model``. ``name``: its name in the report.

    ``implementation``: the one predicted, by default the fastest; for attention also one per algorithm.
    """

    attention: AttentionOptions | None = None
    matmul: MatmulOptions | None = None
    model: ModelOptions | None = None
    name: str = ""
    implementation: dict[str, str] | str | None = None

    @property
    def kind(self) -> str:
        """The kind of workload; UsageError unless exactly one is set."""
        kinds = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise UsageError(f"a workload is one of {', '.join(KINDS)}, not {' and '.join(kinds) or 'none'}", "give exactly one")
        [kind] = kinds
        implementations = self.implementation.values() if isinstance(self.implementation, dict) else [self.implementation]
        for name in implementations:
            if name is not None and name not in models_of():
                raise UsageError(f"--implementation: none is called {name!r}", suggest(name, list(models_of())))
        check_no_device(kind, getattr(self, kind))
        return kind

    def kernel_of(self, algorithm: str) -> str | None:
        """The implementation named for ``algorithm``; a single name applies only to the algorithm that it runs."""
        if isinstance(self.implementation, dict):
            return self.implementation.get(algorithm)
        if self.implementation and algorithm_of(self.implementation) == algorithm:
            return self.implementation
        return None

    def updated(self, name: str, value: int) -> Workload:
        """The workload with another value of the size ``name``."""
        kind = self.kind
        options = getattr(self, kind)
        sizes = [field.name for field in fields(options) if str(field.type).startswith("int")]
        if name not in sizes:
            raise UsageError(f"{kind} has no size {name!r}", suggest(name, sizes))
        changed: Any = {name: value}
        return replace(self, **{kind: replace(options, **changed)})

    def given(self) -> dict[str, Any]:
        """Sizes and options given, by option name."""
        options = getattr(self, self.kind)
        option_of_field = {field: option for option, field in type(options).OPTION_NAMES.items()}
        return {option_of_field.get(field, field): value for field, value in options.given().items()}

    def written(self) -> dict[str, Any]:
        """The workload as a study file writes it."""
        written: dict[str, Any] = {self.kind: self.given()}
        if self.implementation:
            written["implementation"] = self.implementation
        return written

    def in_words(self, instead: Mapping[str, Any], without: Collection[str] = ()) -> str:
        """Kind and options in words; ``instead`` replaces values, ``without`` leaves options out."""
        words = [
            str(value) if name in ("name", "phase") else f"{name} {_listed(value)}"
            for name, value in {**self.given(), **instead}.items()
            if name not in without
        ]
        return ", ".join([self.kind, *words])


def _listed(value: Any) -> str:
    if isinstance(value, list):
        return "+".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def shape_words(w: Attention | Matmul) -> str:
    """The shape in a few words.

    >>> shape_words(Attention(n=4096, kv_len=4096, d=64, dv=64, batch=8, heads=16, kv_heads=16, causal=True))
    'n 4096 d 64 b 8 h 16 causal'
    """
    if isinstance(w, Matmul):
        return f"{w.m} x {w.n} x {w.k}" + (f" b {w.batch}" if w.batch != 1 else "")
    words_and_conditions = [
        (f"n {w.n}", True),
        (f"kv {w.kv_len}", w.kv_len != w.n),
        (f"d {w.d}", True),
        (f"b {w.batch}", w.batch != 1),
        (f"h {w.heads}", w.heads != 1),
        (f"kv-h {w.kv_heads}", w.kv_heads != w.heads),
        ("causal", w.causal),
        (f"window {w.window}", w.window is not None),
    ]
    return " ".join(words for words, is_said in words_and_conditions if is_said)


def request_words(r: Request) -> str:
    """Model, phase and sizes in a few words."""
    length = f"n {r.n}" if r.phase == PREFILL else f"kv {r.kv_len}"
    gpus = f" x {r.split.gpus} GPUs" if r.split.gpus > 1 else ""
    return f"{r.model.name} {r.phase} {length}" + (f" b {r.batch}" if r.batch != 1 else "") + gpus
