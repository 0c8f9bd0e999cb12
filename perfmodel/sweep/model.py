"""Sweeps over whole models: one row per configuration, each answered as by ``perfmodel model``, row by row.

A model is a list of kernels whose tiles and time models depend on every size, so there is no formula to run on columns: a row takes
milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.core.arith import Number
from perfmodel.core.checks import dtype_on
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import PerfmodelError, UsageError, suggest
from perfmodel.core.hardware import Device
from perfmodel.sweep.base import DEFAULT_DEVICE, FITS, Column, Input, LeftOut, Workload
from perfmodel.sweep.devices import canonical, device_ids, device_named, fallback_devices
from perfmodel.sweep.kv_cache import MODEL, model_named
from perfmodel.transformer.answer import Answer, answer
from perfmodel.transformer.kv_cache import BITS
from perfmodel.transformer.request import DEFAULT_GENERATED, GENERATE, PHASES, Request, default_length, formats
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import DECODE, PREFILL, Split

_VALUE = re.compile(r"(--[a-z-]+) \d+")
"""A size in a message: rows that fail alike are counted together, whatever theirs are."""

_NOTHING: Mapping[str, Number] = {}


@dataclass(frozen=True, slots=True)
class ModelCell:
    """One model on one device, with everything that is no length, batch or number of devices."""

    model: ModelSpec
    device: Device
    choices: Mapping[str, Any]

    def extras(self, values: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
        """None."""
        return {}

    def prepare(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[LeftOut]]:
        """Nothing to add; what a single row cannot be is found out there."""
        return {}, []

    def formulas(self, numbers: Mapping[str, Number]) -> Mapping[str, Number]:
        """None: see ``point``."""
        return _NOTHING

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
            return _columns(answer(self._request(values), fallback_devices))
        except PerfmodelError as error:
            raise type(error)(_VALUE.sub(r"\1", error.message), error.fix) from None


def _columns(found: Answer) -> dict[str, float | None]:
    cost, memory, times = found.cost, found.memory, found.prediction or (None, None, None)
    numbers = {
        "flops": cost.flops,
        "sram_bytes": cost.sram.total,
        "dram_bytes": cost.dram.total,
        "lower_s": cost.lower_s,
        "lower_warm_s": cost.lower_warm_s,
        "roofline_s": cost.roofline_s,
        "predicted_s": times[0],
        "predicted_low_s": times[1],
        "predicted_high_s": times[2],
        "seconds": found.seconds,
        "ttft_s": found.ttft_s,
        "tpot_s": found.tpot_s,
        "tokens_per_s": found.tokens_per_s,
        "mfu": found.mfu,
        "weights_bytes": memory.weights,
        "kv_cache_bytes": memory.kv_cache,
        "activations_bytes": memory.activations,
        "memory_bytes": memory.total,
        FITS: memory.fits,
        "max_batch": memory.max_batch,
    }
    return {name: None if value is None else float(value) for name, value in numbers.items()}


def cell(choices: Mapping[str, Any]) -> ModelCell:
    """The cell for one combination of choices; PerfmodelError says why there is none."""
    if choices["phase"] not in PHASES:
        raise UsageError(f"--phase: unknown phase {choices['phase']!r}", suggest(choices["phase"], list(PHASES)))
    device = device_named(choices["hardware"])
    dtype_on(choices["dtype"], device)
    return ModelCell(model_named(choices["model"]), device, choices)


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


WORKLOAD = Workload(
    name="model",
    inputs=(
        MODEL,
        Input("hardware", "name", "device", DEFAULT_DEVICE, True, names=device_ids, canonical=canonical),
        Input("phase", "name", "prefill, decode or generate", PREFILL, True, names=lambda: list(PHASES)),
        Input("dtype", "name", "number format", "fp16", True, names=lambda: list(DTYPES)),
        Input("weights_dtype", "name", "format of the weights", choice=True, names=lambda: list(BITS)),
        Input("kv_dtype", "name", "format of the KV cache", choice=True, names=lambda: list(BITS)),
        Input("fused", "flag", "element-wise operations inside other kernels", False, True),
        Input("graph", "flag", "kernels launched as a CUDA graph; by default in decode", choice=True),
        Input("kv_cache", "flag", "keep K and V", True, True),
        Input("n", "whole", "tokens of the prompt; by default 2048, or what the model takes at most", varies=True),
        Input("generated", "whole", "tokens after the prompt, where kv_len is not given; by default 128 in generate", least=0, varies=True),
        Input("kv_len", "whole", "tokens of a sequence at the end", "n + generated"),
        Input("batch", "whole", "sequences", 1),
        Input("tp", "whole", "GPUs that share each matrix", 1),
        Input("pp", "whole", "pipeline stages", 1),
        Input("ep", "whole", "groups of GPUs that hold different experts", 1),
    ),
    columns=(
        Column("flops", "FLOP", "matmul FLOP on visible scores", whole=True),
        Column("sram_bytes", "B", "bytes between L2 and SMs", whole=True),
        Column("dram_bytes", "B", "bytes that pass the memory pins", whole=True),
        Column("lower_s", "s", "lower bound, inputs cold"),
        Column("lower_warm_s", "s", "lower bound, inputs and outputs in the caches"),
        Column("roofline_s", "s", "roof: all terms overlap"),
        Column("predicted_s", "s", "predicted time, where all kernels are calibrated"),
        Column("predicted_low_s", "s", "lower end of its 80 % interval"),
        Column("predicted_high_s", "s", "upper end of its 80 % interval"),
        Column("seconds", "s", "predicted time, else the roof"),
        Column("ttft_s", "s", "time to the first token"),
        Column("tpot_s", "s", "time per output token"),
        Column("tokens_per_s", "1/s", "over all sequences"),
        Column("mfu", "", "FLOP of the model on visible scores over what the GPUs could do in the time"),
        Column("weights_bytes", "B", "weights on the fullest GPU", whole=True),
        Column("kv_cache_bytes", "B", "KV cache on it", whole=True),
        Column("activations_bytes", "B", "activations on it", whole=True),
        Column("memory_bytes", "B", "all of it", whole=True),
        Column(FITS, "", "1 if that fits the memory, 0 if not: then times are those of a GPU with more of it", whole=True),
        Column("max_batch", "sequences", "sequences that fit", whole=True),
    ),
    cell=cell,
    shown=("flops", "dram_bytes", "roofline_s", "predicted_s", "ttft_s", "tpot_s", "tokens_per_s", "memory_bytes", FITS, "max_batch"),
    objective="seconds",
    words={"time": "seconds", "io": "dram_bytes", "memory": "memory_bytes"},
    always=("model", "hardware", "phase", "n", "kv_len", "batch"),
    pointwise=True,
    defaults=defaults,
    meant=meant,
    check=check,
)
