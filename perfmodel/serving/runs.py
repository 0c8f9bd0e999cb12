"""Predictions of measured runs of engines: the records of the workload ``serving``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.core.dtypes import DTYPES
from perfmodel.core.hardware import Device
from perfmodel.serving.answer import ServingAnswer, serve, serve_pools
from perfmodel.serving.engine import Engine
from perfmodel.serving.load import Load
from perfmodel.serving.memory import Memory
from perfmodel.serving.pools import Pools
from perfmodel.serving.steps import KernelTimes, step_times
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.transformer.hf import served_as
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import DECODE, ModelPass, Split, formats

BATCHING = ("token_budget", "max_sequences", "chunked", "admit_every", "hold_steps")
"""Options of batching that a run may have."""
PREFILL = "prefill_"
"""Prefix of the keys that describe prefill workers, in runs with pools."""
SIZES = ("tensor_parallel", "expert_parallel", "pipeline_parallel", "attention_data_parallel")
PROMPTS_OF_BENCHMARK = 10
"""Requests per user of a benchmark that draws lengths. Source: SemiAnalysisAI/InferenceX, benchmarks/ (num-prompts = 10 x concurrency)."""
ACCEPTED = 0.6  # tuned
"""Acceptance of tokens drafted by DeepSeek's own layers, for runs that do not state it."""


@dataclass(frozen=True, slots=True)
class ServingRun:
    """A run of an engine. ``shape``: keys of its record: engine, layout, formats, lengths; perhaps ``spread``, ``draft_tokens``, batching.

    It has ``concurrency`` users or a ``rate`` of requests/s. With neither, all ``requests`` are sent at once, or the engine is always full.
    """

    model: ModelSpec
    device: Device
    engine: Engine
    shape: Mapping[str, Any]

    @property
    def key(self) -> tuple[Any, ...]:
        """Key that is equal for runs with the same step times."""
        s = self.shape
        stored = tuple(s.get(name) for name in ("weights_dtype", "kv_dtype", "fused_all_reduce"))
        sizes = [*((name, 1) for name in SIZES), *((PREFILL + name, 1) for name in SIZES), (PREFILL + "workers", 0), ("workers", 0)]
        return (self.model.name, self.device.id, self.engine.id, *stored, *(s.get(name, default) for name, default in sizes))

    def times(self, fallbacks: FallbackDevices) -> KernelTimes | Pools:
        """Step times of the engine, or of both kinds of workers for a run with pools."""
        s = self.shape
        decode = self._times(fallbacks, "")
        if PREFILL + "workers" not in s:
            return decode
        return Pools(self._times(fallbacks, PREFILL), decode, s[PREFILL + "workers"], s.get("workers", 1))

    def _times(self, fallbacks: FallbackDevices, kind: str) -> KernelTimes:
        s = self.shape
        split = Split(*(s.get(kind + name, 1) for name in SIZES))
        model, stored = served_as(self.model, s.get("weights_dtype"))
        half = DTYPES["bf16"]
        quantized_words = model.quantized.words if model.quantized is not None and model.quantized.words == stored else None
        weights = quantized_words if quantized_words is not None or model.quantized is not None else stored
        base_pass = ModelPass(DECODE, 1, 1, 1, half, split=split, **formats(model, half, weights, s.get("kv_dtype")))
        engine = self.engine
        if s.get("fused_all_reduce"):
            engine = replace(engine, kernels=replace(engine.kernels, fused_all_reduce=True))
        return step_times(model, self.device, engine, base_pass, fallbacks)

    def predicted(self, times: KernelTimes | Pools) -> ServingAnswer:
        """The predicted answer of the run; UsageError if it does not fit."""
        s, drafts = self.shape, self.shape.get("draft_tokens", 0)
        users, rate = s.get("concurrency"), s.get("rate")
        accepted = s.get("acceptance", ACCEPTED) if drafts else 0.0
        load = Load(s["isl"], s["osl"], users, rate, draft_tokens=drafts, acceptance=accepted)
        options, spread = {name: s.get(name) for name in BATCHING}, s.get("spread", 1.0)
        requests = s.get("requests", PROMPTS_OF_BENCHMARK * users if users and spread < 1 else None)
        if isinstance(times, Pools):
            decode = replace(times.decode, engine=times.decode.engine.with_batching(**options))
            return serve_pools(replace(times, decode=decode), load, spread, requests)
        times = replace(times, engine=times.engine.with_batching(**options))
        if users is None and rate is None:  # always enough, or all at once
            memory = Memory(times.model, times.device, times.engine, times.base_pass)
            load = load.of(requests or max(memory.slots(load.isl, load.osl, spread), 1))
        return serve(times, load, spread, requests)
