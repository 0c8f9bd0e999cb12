"""Sweeps over whole models: one row per configuration, each answered as by ``perfmodel model``, row by row.

A model is a list of kernels whose tiles and time models depend on every size, so there is no formula to run on columns: a row takes
milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.core.checks import dtype_on
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import PerfmodelError, UsageError, suggest
from perfmodel.core.hardware import Device
from perfmodel.sweep.base import (
    DEFAULT_DEVICE,
    FITS,
    SweepColumn,
    SweepInput,
    SweepVariant,
    SweepWorkload,
    canonical,
    computed,
    device_ids,
    device_named,
    fallbacks,
)
from perfmodel.sweep.kv_cache import MODEL, model_named
from perfmodel.transformer.answer import answer
from perfmodel.transformer.kv_cache import BITS
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import DECODE, DEFAULT_GENERATED, GENERATE, PHASES, PREFILL, Request, Split, default_length, formats

_VALUE = re.compile(r"(--[a-z-]+) \d+")
"""A size in a message: rows that fail alike are counted together, whatever theirs are."""
_FITS = "1 if that fits the memory, 0 if not: then times are those of a GPU with more of it"


@dataclass(frozen=True, slots=True)
class ModelVariant(SweepVariant):
    """One model on one device, with everything that is no length, batch or number of devices."""

    model: ModelSpec
    device: Device
    choices: Mapping[str, Any]

    def _request(self, values: Mapping[str, int]) -> Request:
        chosen, form = self.choices, dtype_on(self.choices["dtype"], self.device)
        return Request(
            model=self.model,
            device=self.device,
            phase=chosen["phase"],
            batch=values["batch"],
            n=values["n"],
            kv_len=values["kv_len"],
            dtype=form,
            fused=chosen["fused"],
            graph=chosen["graph"],
            cached=chosen["kv_cache"],
            split=Split(values["tp"], values["ep"], values["pp"]),
            **formats(self.model, form, chosen["weights_dtype"], chosen["kv_dtype"]),
        ).check()

    def point(self, values: Mapping[str, int], columns: Sequence[str]) -> Mapping[str, float | None]:
        """Every column of one row."""
        try:
            found = answer(self._request(values), fallbacks)
        except PerfmodelError as error:
            raise type(error)(_VALUE.sub(r"\1", error.message), error.fix) from None
        return {name: None if value is None else float(value) for name, value in computed(WORKLOAD.columns, found).items()}


def variant(choices: Mapping[str, Any]) -> ModelVariant:
    """The variant for one combination of choices; PerfmodelError says why there is none."""
    if choices["phase"] not in PHASES:
        raise UsageError(f"--phase: unknown phase {choices['phase']!r}", suggest(choices["phase"], list(PHASES)))
    device = device_named(choices["hardware"])
    dtype_on(choices["dtype"], device)
    return ModelVariant(model_named(choices["model"]), device, choices)


def defaults(choices: Mapping[str, Any]) -> Mapping[str, float]:
    """Lengths that fit the model."""
    generated = DEFAULT_GENERATED if choices["phase"] == GENERATE else 0
    return {"n": default_length(model_named(choices["model"]), choices["phase"]), "generated": generated}


def meant(axes: Mapping[str, Any]) -> Mapping[str, Any]:
    """A decode step has no prompt to tell of where it is said how long its sequences are."""
    only_decode = axes.get("phase") in (DECODE, [DECODE])
    return {**axes, "n": "kv_len"} if only_decode and "n" not in axes and "kv_len" in axes else axes


def check(choices: Mapping[str, Sequence[Any]], axes: Mapping[str, Any]) -> None:
    """Lengths that the length of the sequences leaves without a reader are refused."""
    for name, unread in (("n", set(choices["phase"]) == {DECODE}), ("generated", True)):
        if unread and name in axes and "kv_len" in axes and not re.search(rf"\b{name}\b", str(axes["kv_len"])):
            raise UsageError(
                f"--{name} with --kv-len: nothing here reads it", f"leave out one of them, or give --kv-len in terms of {name}"
            )


WORKLOAD = SweepWorkload(
    name="model",
    inputs=(
        MODEL,
        SweepInput("hardware", "name", "device", DEFAULT_DEVICE, True, names=device_ids, canonical=canonical),
        SweepInput("phase", "name", "prefill, decode or generate", PREFILL, True, names=lambda: list(PHASES)),
        SweepInput("dtype", "name", "number format", "fp16", True, names=lambda: list(DTYPES)),
        SweepInput("weights_dtype", "name", "format of the weights", choice=True, names=lambda: list(BITS)),
        SweepInput("kv_dtype", "name", "format of the KV cache", choice=True, names=lambda: list(BITS)),
        SweepInput("fused", "flag", "element-wise operations inside other kernels", False, True),
        SweepInput("graph", "flag", "kernels launched as a CUDA graph; by default in decode", choice=True),
        SweepInput("kv_cache", "flag", "keep K and V", True, True),
        SweepInput("n", "whole", "tokens of the prompt; by default 2048, or what the model takes at most", varies=True),
        SweepInput(
            "generated", "whole", "tokens after the prompt, where kv_len is not given; by default 128 in generate", least=0, varies=True
        ),
        SweepInput("kv_len", "whole", "tokens of a sequence at the end", "n + generated"),
        SweepInput("batch", "whole", "sequences", 1),
        SweepInput("tp", "whole", "GPUs that share each matrix", 1),
        SweepInput("pp", "whole", "pipeline stages", 1),
        SweepInput("ep", "whole", "groups of GPUs that hold different experts", 1),
    ),
    columns=(
        SweepColumn("flops", "FLOP", "matmul FLOP on visible scores", whole=True, of=lambda a: a.cost.flops),
        SweepColumn("sram_bytes", "B", "bytes between L2 and SMs", whole=True, of=lambda a: a.cost.sram.total),
        SweepColumn("dram_bytes", "B", "bytes that pass the memory pins", whole=True, of=lambda a: a.cost.dram.total),
        SweepColumn("lower_s", "s", "lower bound, inputs cold", of=lambda a: a.cost.lower_s),
        SweepColumn("lower_warm_s", "s", "lower bound, inputs and outputs in the caches", of=lambda a: a.cost.lower_warm_s),
        SweepColumn("roofline_s", "s", "roof: all terms overlap", of=lambda a: a.cost.roofline_s),
        SweepColumn("predicted_s", "s", "predicted time, where all kernels are calibrated", of=lambda a: a.prediction and a.prediction[0]),
        SweepColumn("predicted_low_s", "s", "lower end of its 80 % interval", of=lambda a: a.prediction and a.prediction[1]),
        SweepColumn("predicted_high_s", "s", "upper end of its 80 % interval", of=lambda a: a.prediction and a.prediction[2]),
        SweepColumn("seconds", "s", "predicted time, else the roof", of=lambda a: a.seconds),
        SweepColumn("ttft_s", "s", "time to the first token", of=lambda a: a.ttft_s),
        SweepColumn("tpot_s", "s", "time per output token", of=lambda a: a.tpot_s),
        SweepColumn("tokens_per_s", "1/s", "over all sequences", of=lambda a: a.tokens_per_s),
        SweepColumn("mfu", "", "FLOP of the model on visible scores over what the GPUs could do in the time", of=lambda a: a.mfu),
        SweepColumn("weights_bytes", "B", "weights on the fullest GPU", whole=True, of=lambda a: a.memory.weights),
        SweepColumn("kv_cache_bytes", "B", "KV cache on it", whole=True, of=lambda a: a.memory.kv_cache),
        SweepColumn("activations_bytes", "B", "activations on it", whole=True, of=lambda a: a.memory.activations),
        SweepColumn("memory_bytes", "B", "all of it", whole=True, of=lambda a: a.memory.total),
        SweepColumn(
            FITS,
            "",
            "1 if that fits the memory, 0 if not: then times are those of a GPU with more of it",
            whole=True,
            of=lambda a: a.memory.fits,
        ),
        SweepColumn("max_batch", "sequences", "sequences that fit", whole=True, of=lambda a: a.memory.max_batch),
    ),
    variant=variant,
    shown=("flops", "dram_bytes", "roofline_s", "predicted_s", "ttft_s", "tpot_s", "tokens_per_s", "memory_bytes", FITS, "max_batch"),
    objective="seconds",
    words={"time": "seconds", "io": "dram_bytes", "memory": "memory_bytes"},
    always=("model", "hardware", "phase", "n", "kv_len", "batch"),
    pointwise=True,
    defaults=defaults,
    meant=meant,
    check=check,
)
