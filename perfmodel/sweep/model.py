"""Sweeps over whole models, row by row, and over their KV caches, by the formulas of ``perfmodel model`` and ``perfmodel kv-cache``.

A model is a list of kernels whose tiles and time models depend on every size, so there is no formula to run on columns: a row takes
milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

from perfmodel import catalog
from perfmodel.core.arith import Number
from perfmodel.core.checks import dtype_on
from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.sweep.base import (
    DTYPE,
    FITS,
    HARDWARE,
    RowVariant,
    SweepColumn,
    SweepInput,
    SweepVariant,
    SweepWorkload,
    canonical_name,
    choice,
    count,
    device_named,
    fallbacks,
    fits,
    with_question_defaults,
)
from perfmodel.transformer.answer import ModelAnswer, answer
from perfmodel.transformer.cache_plan import CacheWorkload, memory_of, workload
from perfmodel.transformer.cache_question import CacheQuestion
from perfmodel.transformer.gguf import MIXTURES
from perfmodel.transformer.kv_cache import BITS, CacheFormat, batch_bytes, largest_batch, longest_context, sequence_bytes, token_bytes
from perfmodel.transformer.question import PhaseQuestion
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import DECODE, DEFAULT_GENERATED, GENERATE, PHASES, default_length
from perfmodel.transformer.weight_formats.floats import PUBLISHED_AS


@cache
def model_named(name: str) -> ModelSpec:
    """The model called ``name``, read once."""
    return catalog.find_model(name)


AXIS = choice(
    "model",
    "model, by name or the path of a config.json",
    kind="name",
    required=True,
    names=catalog.model_names,
    canonical=lambda name: canonical_name(name, model_named(name).name),
)
"""The axis of models."""
stored = partial(choice, names=lambda: list(BITS))
"""Makes an axis of formats without scales."""
WEIGHTS = choice("weights_dtype", "format of the weights; by default as published", names=lambda: [*BITS, *PUBLISHED_AS, *MIXTURES])
"""The axis of formats without scales, and of those of checkpoints."""


# Whole models

_FITS = "1 if that fits the memory, 0 if not: then times are those of a GPU with more of it"


def variant(choices: Mapping[str, Any]) -> RowVariant:
    """The variant for one combination of choices; PerfmodelError says why there is none."""
    if choices["phase"] not in PHASES:
        raise UsageError(f"--phase: unknown phase {choices['phase']!r}", suggest(choices["phase"], list(PHASES)))
    model, device = model_named(choices["model"]), device_named(choices["hardware"])
    dtype_on(choices["dtype"], device)

    def answered(values: Mapping[str, int]) -> ModelAnswer:
        n = None if choices["phase"] == DECODE else values["n"]
        return answer(PhaseQuestion(model.name).updated({**choices, **values, "n": n}).request_for(model, device), fallbacks)

    return RowVariant(answered, MODEL.columns)


def defaults(choices: Mapping[str, Any]) -> Mapping[str, float]:
    """Default lengths, which fit the model."""
    generated = DEFAULT_GENERATED if choices["phase"] == GENERATE else 0
    return {"n": default_length(model_named(choices["model"]), choices["phase"]), "generated": generated}


def normalize(axes: Mapping[str, Any]) -> Mapping[str, Any]:
    """``axes``, with the context length as ``n`` if only decode steps are asked for."""
    only_decode = axes.get("phase") in (DECODE, [DECODE])
    return {**axes, "n": "kv_len"} if only_decode and "n" not in axes and "kv_len" in axes else axes


def check(choices: Mapping[str, Sequence[Any]], axes: Mapping[str, Any]) -> None:
    """UsageError for ``n`` or ``generated`` beside a ``kv_len`` that does not name it: nothing would read it."""
    if "kv_len" not in axes:
        return
    only_in_kv_len = ["n", "generated"] if set(choices["phase"]) == {DECODE} else ["generated"]
    for name in only_in_kv_len:
        if name in axes and not re.search(rf"\b{name}\b", str(axes["kv_len"])):
            fix = f"leave out one of them, or give --kv-len in terms of {name}"
            raise UsageError(f"--{name} with --kv-len: nothing here reads it", fix)


MODEL = SweepWorkload(
    name="model",
    inputs=with_question_defaults(
        PhaseQuestion,
        AXIS,
        HARDWARE,
        choice("phase", "prefill, decode or generate", names=lambda: list(PHASES)),
        DTYPE,
        WEIGHTS,
        stored("kv_dtype", "format of the KV cache"),
        choice("fused", "element-wise operations inside other kernels"),
        choice("graph", "kernels launched as a CUDA graph; by default in decode", typed="cuda-graph"),
        choice("kv_cache", "keep K and V"),
        SweepInput("n", "tokens of the prompt; by default 2048, or what the model takes at most", varies=True),
        SweepInput("generated", "tokens after the prompt, where kv_len is not given; by default 128 in generate", least=0, varies=True),
        SweepInput("kv_len", "tokens of a sequence at the end", "n + generated"),
        SweepInput("batch", "sequences"),
        SweepInput("tp", "GPUs that share each matrix"),
        SweepInput("pp", "pipeline stages"),
        SweepInput("ep", "groups of GPUs that hold different experts"),
        SweepInput("dp", "groups of tp GPUs with sequences of their own", "max(ep // tp, 1)"),
    ),
    columns=(
        count("flops", "FLOP", "matmul FLOP on visible scores", of=lambda a: a.cost.flops),
        count("sram_bytes", "B", "bytes between L2 and SMs", of=lambda a: a.cost.sram.total),
        count("dram_bytes", "B", "bytes that pass the memory pins", of=lambda a: a.cost.dram.total),
        SweepColumn("lower_s", "s", "lower bound, inputs cold", of=lambda a: a.cost.lower_s),
        SweepColumn("lower_warm_s", "s", "lower bound, inputs and outputs in the caches", of=lambda a: a.cost.lower_warm_s),
        SweepColumn("roofline_s", "s", "roof: all terms overlap", of=lambda a: a.cost.roofline_s),
        SweepColumn("predicted_s", "s", "predicted time, where all kernels are calibrated", of=lambda a: a.prediction and a.prediction[0]),
        SweepColumn("predicted_low_s", "s", "lower end of its 80 % interval", of=lambda a: a.prediction and a.prediction[1]),
        SweepColumn("predicted_high_s", "s", "upper end of its 80 % interval", of=lambda a: a.prediction and a.prediction[2]),
        SweepColumn("seconds", "s", "predicted time, else the roof", of=lambda a: a.seconds),
        SweepColumn("ttft_s", "s", "time to the first token", of=lambda a: a.ttft_s),
        SweepColumn("tpot_s", "s", "time per output token", of=lambda a: a.tpot_s),
        SweepColumn("tokens_per_s", "tokens/s", "over all sequences", of=lambda a: a.tokens_per_s),
        SweepColumn(
            "mfu", "", "FLOP of the model on visible scores over what the GPUs could do in the time", of=lambda a: a.mfu, more=True
        ),
        count("weights_bytes", "B", "weights on the fullest GPU", of=lambda a: a.memory.weights),
        count("kv_cache_bytes", "B", "KV cache on it", of=lambda a: a.memory.kv_cache),
        count("activations_bytes", "B", "activations on it", of=lambda a: a.memory.activations),
        count("memory_bytes", "B", "all of it", of=lambda a: a.memory.total),
        count(FITS, "", _FITS, of=lambda a: a.memory.fits, more=True),
        count("max_batch", "sequences", "sequences that fit", of=lambda a: a.memory.max_batch, more=True),
    ),
    variant=variant,
    shown=("flops", "dram_bytes", "roofline_s", "predicted_s", "ttft_s", "tpot_s", "tokens_per_s", "memory_bytes", FITS, "max_batch"),
    objective="seconds",
    words={"time": "seconds", "io": "dram_bytes", "memory": "memory_bytes"},
    always=("model", "hardware", "phase", "n", "kv_len", "batch"),
    pointwise=True,
    defaults=defaults,
    normalize=normalize,
    check=check,
)


# KV caches


@dataclass(frozen=True, slots=True)
class CacheVariant(SweepVariant):
    """One model on one device in one format; ``weights`` in bytes; ``room``: bytes left beside weights and reserve, or None."""

    probe: CacheWorkload
    device: Device
    weights: int
    room: int | None

    def _form(self, numbers: Mapping[str, Number]) -> CacheFormat:
        return self.probe.form._replace(block_size=numbers["block_size"])

    def formulas(self, numbers: Mapping[str, Number]) -> Mapping[str, Number]:
        """Columns other than the longest context, by name."""
        spec, form, n, batch = self.probe.spec, self._form(numbers), numbers["n"], numbers["batch"]
        size = batch_bytes(spec, n, batch, form)
        unknown = float("nan")
        return {
            "bytes_per_token": token_bytes(spec, form),
            "bytes_per_sequence": sequence_bytes(spec, n, form),
            "cache_bytes": size,
            "unused_block_bytes": size - batch_bytes(spec, n, batch, form._replace(block_size=1)),
            "weights_bytes": self.weights,
            "memory_bytes": size + self.weights + self.probe.reserve,
            FITS: fits(size + self.weights + self.probe.reserve, self.device),
            "room_bytes": unknown if self.room is None else self.room,
            "max_batch": unknown if self.room is None else largest_batch(self.room, sequence_bytes(spec, n, form)),
        }

    def point(self, values: Mapping[str, int], columns: Sequence[str]) -> Mapping[str, float | None]:
        """Longest context in tokens that fits; None if every length fits or the capacity is unknown."""
        if self.room is None:
            return {"max_context": None}
        return {"max_context": longest_context(self.room, self.probe.spec, values["batch"], self._form(values))}


def _cache_variant(choices: Mapping[str, Any]) -> CacheVariant:
    """The variant for one combination of choices; PerfmodelError says why there is none."""
    device, spec = device_named(choices["hardware"]), model_named(choices["model"])
    form = CacheFormat(choices["dtype"], choices["rope_dtype"], 1, choices["scale_group"])
    probe = workload(spec, 1, 1, form, choices["weights_dtype"], choices["reserve"])
    memory = memory_of(probe, device)
    return CacheVariant(probe, device, int(memory.weights), memory.free)


def _cache_defaults(choices: Mapping[str, Any]) -> Mapping[str, float]:
    """Default lengths, as in ``perfmodel kv-cache``: the most tokens that the model takes."""
    longest = model_named(choices["model"]).max_positions
    if longest is None:
        raise UsageError(f"--n is missing, and {choices['model']} does not say how much it takes", "give it as --n 8192")
    return {"n": longest}


KV_CACHE = SweepWorkload(
    name="kv-cache",
    inputs=with_question_defaults(
        CacheQuestion,
        AXIS,
        HARDWARE,
        stored("dtype", "format of the cache", typed="kv-dtype"),
        stored("rope_dtype", "of the rotated key of latent attention"),
        choice("scale_group", "elements that share a scale, if quantized"),
        stored("weights_dtype", "format of the weights"),
        choice("reserve", "memory for neither weights nor cache", 0, least=0, unit="B"),
        SweepInput("n", "tokens of a sequence; by default the most that the model takes", varies=True),
        SweepInput("batch", "sequences"),
        SweepInput("block_size", "tokens per page"),
    ),
    columns=(
        count("bytes_per_token", "B", "cache of one token, no window full"),
        count("bytes_per_sequence", "B", "cache of one sequence"),
        count("cache_bytes", "B", "cache of all sequences"),
        count("unused_block_bytes", "B", "of its pages that hold no token"),
        count("weights_bytes", "B", "weights"),
        count("memory_bytes", "B", "weights, cache and reserve"),
        count("room_bytes", "B", "what weights and reserve leave of the device's memory", more=True),
        count("max_batch", "sequences", "sequences whose cache fits", more=True),
        count("max_context", "tokens", "tokens to which every sequence can grow", pointwise=True, more=True),
        count(FITS, "", "1 if all of it fits the memory, 0 if not", more=True),
    ),
    variant=_cache_variant,
    shown=("bytes_per_token", "bytes_per_sequence", "cache_bytes", "memory_bytes", "max_batch", FITS),
    objective="memory_bytes",
    words={"memory": "memory_bytes", "io": "cache_bytes"},
    always=("model", "hardware", "n", "batch"),
    defaults=_cache_defaults,
)
