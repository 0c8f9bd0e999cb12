"""Records of the workload ``serving``: a run of an engine, with mean seconds to the first token and per token after it, or tokens/s.

A run is not predicted as a kernel: the prediction combines the engine's preset, the steps of its kernels and the queue around them
(``ServingRun``). The measured time of a row is per token, over all users together if only tokens per second are known; the time to the
first token stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from perfmodel.catalog import find_engine, find_model
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.serving.answer import ServingAnswer, serve, serve_pools
from perfmodel.serving.engine import Engine
from perfmodel.serving.iteration import Iteration
from perfmodel.serving.load import Load
from perfmodel.serving.memory import Memory
from perfmodel.serving.pools import Pools
from perfmodel.serving.steps import KernelTimes, step_times
from perfmodel.serving.steps import Times as Ends
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.transformer.hf import served_as
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import DECODE, ModelPass, Split, formats
from perfmodel.validation.bounds import checked_shape
from perfmodel.validation.records import Record

BATCHING = ("token_budget", "max_sequences", "chunked", "admit_every", "hold_steps")
"""Options of batching that a run may have."""
PREFILL = "prefill_"
"""Prefix of the keys that describe prefill workers, in runs with pools."""
PROMPTS_OF_BENCHMARK = 10
"""Requests per user of a benchmark that draws lengths. Source: SemiAnalysisAI/InferenceX, benchmarks/ (num-prompts = 10 x concurrency)."""
ACCEPTED = 0.6  # tuned
"""Acceptance of tokens drafted by DeepSeek's own layers, for runs that do not state it."""
SIZES = ("gpus", "tensor_parallel", "isl", "osl")
LAYOUT = ("expert_parallel", "pipeline_parallel", "attention_data_parallel")
SPLIT = ("tensor_parallel", *LAYOUT)
"""Keys of a layout, in the order of a ``Split``."""
POOLS = ("workers", *(PREFILL + name for name in ("workers", *SPLIT)))
"""Keys of runs with workers that only run prompts; the layout without a prefix is then that of a worker that decodes."""
NUMBERS = ("concurrency", "token_budget", "max_sequences", "admit_every", "hold_steps", "draft_tokens", "requests")
OTHERS = ("model", "engine", "weights_dtype", "kv_dtype", "chunked", "fused_all_reduce", "acceptance", "spread", "rate")
KEYS = {*SIZES, *LAYOUT, *POOLS, *NUMBERS, *OTHERS}
"""Keys of a shape; model, engine and ``SIZES`` must be there."""

_known: dict[tuple[Any, ...], KernelTimes | Pools] = {}
"""Cached step times of the last kinds of runs."""
_MOST_KNOWN = 8


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
        sizes = [*((name, 1) for name in SPLIT), *((PREFILL + name, 1) for name in SPLIT), (PREFILL + "workers", 0), ("workers", 0)]
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
        split = Split(*(s.get(kind + name, 1) for name in SPLIT))
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


@dataclass(frozen=True, slots=True)
class PredictedRun:
    """Latencies of a run: seconds per token and to the first, with the ends of their intervals, and the least per token.

    For a run with only tokens per second, ``tpot``: seconds per token of all users together.
    """

    tpot: Ends
    ttft: Ends
    least_tpot_s: float


def checked(record: Record) -> dict[str, Any]:
    """The shape, with a meaning for every key; UnavailableError says what is wrong."""
    sizes = checked_shape(record, ("model", "engine", *SIZES), KEYS)
    gpus = _gpus(sizes, "")
    if PREFILL + "workers" in sizes:
        gpus += _gpus(sizes, PREFILL)
    elif pools := sorted(set(sizes) & set(POOLS)):
        raise UnavailableError(f"its shape has {pools[0]} without {PREFILL}workers")
    if gpus != sizes["gpus"]:
        raise UnavailableError(f"its layout is of {gpus} GPUs, and it had {sizes['gpus']}")
    if "concurrency" in sizes and "rate" in sizes:
        raise UnavailableError("it has a concurrency and a rate: its users are one of both")
    if "/" in str(sizes["engine"]):  # a record names an engine; it does not open files
        raise UnavailableError(f"no engine is called {sizes['engine']!r}")
    return sizes


def _gpus(sizes: dict[str, Any], kind: str) -> int:
    each = ("workers", "tensor_parallel", "attention_data_parallel", "pipeline_parallel")
    return math.prod(sizes.get(kind + name, 1) for name in each)


def served(record: Record, device: Device, fallbacks: FallbackDevices) -> PredictedRun:
    """Predicted latencies of ``record``; PerfmodelError if there are none, as for an unknown name or a layout that does not fit."""
    shape = checked(record)
    if "/" in shape["model"] or shape["model"].endswith((".yaml", ".yml", ".json")):
        raise UnavailableError(f"no model is called {shape['model']!r}")
    run = ServingRun(find_model(shape["model"]), device, find_engine(shape["engine"]), shape)
    if shape["osl"] < 2:
        raise UnavailableError("one token has no time per token after the first", "give runs of two tokens or more")
    if shape.get("requests", math.inf) < shape.get("concurrency", 0):
        raise UnavailableError("fewer requests than users")
    if (key := (id(device), *run.key)) not in _known:
        while len(_known) >= _MOST_KNOWN:
            del _known[next(iter(_known))]
        _known[key] = run.times(fallbacks)
    answer = run.predicted(_known[key])
    tpot = answer.tpot
    assert tpot is not None
    if record.tpot_s is None:
        each = 1 / answer.tokens_per_s
        return PredictedRun((each, each * tpot[1] / tpot[0], each * tpot[2] / tpot[0]), answer.ttft, 1 / answer.bound)
    return PredictedRun(tpot, answer.ttft, least_tpot_s(answer))


def least_tpot_s(answer: ServingAnswer) -> float:
    """Least mean seconds per token: the lower bound of a step with the sequences that decode at a time, at their mean length.

    It assumes that as many sequences decode on average as predicted, rounded down, that their mean length is the length halfway through the
    answer, and that drafted tokens are accepted as often as predicted; routing is even.
    """
    load, mean = answer.load, (1 + answer.spread) / 2
    context = int(mean * (load.isl + load.osl / 2))
    step = Iteration(decodes=max(int(answer.metrics.decoding / answer.workers), 1), context=context, queries=load.queries)
    return float(answer.times.passed(step).cost.lower_warm_s) / load.tokens_per_step
