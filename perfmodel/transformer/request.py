"""What is asked of a model on a device: phase, lengths, formats, split; and the steps that it means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from perfmodel.core.dtypes import DTYPES, Dtype
from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.hardware import Device
from perfmodel.transformer.kv_cache import INTEGERS, bits_of
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import DECODE, PREFILL, Split, Step

GENERATE = "generate"
PHASES = (PREFILL, DECODE, GENERATE)
TRAIN = "train"
"""The phase that is no request: see ``training``."""


DEFAULT_LENGTH, DEFAULT_GENERATED = 2048, 128
"""Tokens of the prompt, unless the model takes fewer, and of what is generated after it."""


def default_length(model: ModelSpec, phase: str) -> int:
    """Tokens of a prompt that fits ``model``, with what is generated after it."""
    longest = int(model.max_positions or DEFAULT_LENGTH)
    return max(min(DEFAULT_LENGTH, longest - (DEFAULT_GENERATED if phase == GENERATE else 0)), 1)


def lengths(model: ModelSpec, phase: str, n: int | None, kv_len: int | None) -> tuple[int, int]:
    """Tokens of the prompt, and of a sequence at the end; what is not given fits ``model``. UsageError for a prompt that nothing reads."""
    if phase == DECODE and kv_len is not None:
        if n not in (None, kv_len):
            raise UsageError(f"--n {n}: a decode step at --kv-len {kv_len} has no prompt to read", "leave out one of them")
        return kv_len, kv_len
    n = default_length(model, phase) if n is None else n
    return n, n + (DEFAULT_GENERATED if phase == GENERATE else 0) if kv_len is None else kv_len


@dataclass(frozen=True, slots=True)
class Request:
    """``kv_len``: tokens of a sequence at the end. ``graph``: CUDA graphs; None: in decode only, as serving engines do.

    ``integer_weights``, ``integer_kv``: as of a Step. ``weights_from_file``: nobody gave their format, and the model's file names one:
    matrices are stored so, and ``weight_bits`` are those of the rest.
    """

    model: ModelSpec
    device: Device
    phase: str
    batch: int
    n: int
    kv_len: int
    dtype: Dtype = DTYPES["fp16"]
    weight_bits: int = 16
    kv_bits: int = 16
    fused: bool = False
    graph: bool | None = None
    cached: bool = True
    split: Split = field(default_factory=Split)
    integer_weights: bool = False
    integer_kv: bool = False
    weights_from_file: bool = False

    def check(self) -> Request:
        """This request, if every value has a meaning; else UsageError names the option and the fix."""
        if self.phase not in PHASES:
            raise UsageError(f"--phase: unknown phase {self.phase!r}", suggest(self.phase, [*PHASES, TRAIN]))
        self.split.check(self.model)
        self.step(self.phase if self.phase != GENERATE else PREFILL).check()
        if self.phase == GENERATE and self.kv_len <= self.n:
            raise UsageError(f"--kv-len {self.kv_len} leaves nothing to generate after --n {self.n}", "give a larger --kv-len")
        return self

    def step(self, phase: str, kv_len: int | None = None) -> Step:
        """A prefill, over ``kv_len`` tokens if given, or a decode step that ends at ``kv_len``."""
        n = self.n if phase == PREFILL else 1
        length = self.kv_len if kv_len is None else kv_len
        if phase == PREFILL and self.phase == GENERATE:
            n = length = self.n if kv_len is None else kv_len
        if phase == DECODE and not self.cached:
            n = length
        return Step(
            phase,
            self.batch,
            n,
            length,
            self.dtype,
            self.weight_bits,
            self.kv_bits,
            self.fused,
            self.cached,
            self.split,
            integer_weights=self.integer_weights,
            integer_kv=self.integer_kv,
            published=self.weights_from_file,
        )

    def in_graph(self, phase: str) -> bool:
        """Whether a step of ``phase`` is launched as a CUDA graph."""
        return phase == DECODE and self.cached if self.graph is None else self.graph


def formats(model: ModelSpec, dtype: Dtype, weights_dtype: str | None, kv_dtype: str | None) -> dict[str, Any]:
    """Fields of a Request that say how weights and cache are stored: as given, else as the model's file says, else as ``dtype``."""
    published = stored_as_published(model, weights_dtype)
    weights = native_dtype(model) if published else weights_dtype
    return {
        "weight_bits": 8 * dtype.size if weights is None else bits_of("weights-dtype", weights),
        "kv_bits": 8 * dtype.size if kv_dtype is None else bits_of("kv-dtype", kv_dtype),
        "integer_weights": weights in INTEGERS,
        "integer_kv": kv_dtype in INTEGERS,
        "weights_from_file": published,
    }


def stored_as_published(model: ModelSpec, given: str | None) -> bool:
    """Whether weights are stored as the model's file says, which ``given`` overrides; UsageError where nothing here reads that."""
    if given is not None or model.quantized is None:
        return False
    if not model.quantized.rules:
        words = f"{model.name} stores its weights as {model.quantized.words}, which nothing here reads"
        raise UsageError(words, "give --weights-dtype int4, int8 or fp8, without scales, or bf16")
    return True


def native_dtype(model: ModelSpec) -> str:
    """The format of weights that a quantized checkpoint leaves as they are."""
    return model.native_dtype or "bf16"
