"""Predictions of serving runs: records of an engine, with mean seconds to the first token and per token after it, or tokens per second.

A run is not predicted as a kernel: the prediction combines the engine's preset, the steps of its kernels and the queue around them
(``ServingRun``).
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
from perfmodel.serving.steps import KernelTimes, Times, step_times
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.transformer.hf import served_as
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import DECODE, ModelPass, Split, formats
from perfmodel.validation.bounds import checked_shape
from perfmodel.validation.records import Record

# Keys of the shape of a record

SIZES = ("gpus", "tensor_parallel", "isl", "osl")
LAYOUT = ("expert_parallel", "pipeline_parallel", "attention_data_parallel")
SPLIT = ("tensor_parallel", *LAYOUT)
"""Keys of a layout, in the order of a ``Split``."""
PREFILL = "prefill_"
"""Prefix of the keys that describe prefill workers, in runs whose prompts and answers are computed by different workers."""
POOLS = ("workers", *(PREFILL + name for name in ("workers", *SPLIT)))
"""Keys of such runs; their layout without a prefix is that of a worker that decodes."""
BATCHING = ("token_budget", "max_sequences", "chunked", "admit_every", "hold_steps")
"""Options of batching."""
STORED = ("weights_dtype", "kv_dtype", "fused_all_reduce")
LOAD = ("concurrency", "rate", "requests", "spread", "draft_tokens", "acceptance")
KEYS = {"model", "engine", *SIZES, *LAYOUT, *POOLS, *BATCHING, *STORED, *LOAD}
"""All keys; model, engine and ``SIZES`` must be there."""

PROMPTS_OF_BENCHMARK = 10
"""Requests per user of a benchmark that draws lengths. Source: SemiAnalysisAI/InferenceX, benchmarks/ (num-prompts = 10 x concurrency)."""
ACCEPTED = 0.6  # tuned
"""Acceptance of tokens drafted by DeepSeek's own layers, for runs that do not state it."""


@dataclass(frozen=True, slots=True)
class PredictedRun:
    """Predicted latencies of a run, each in seconds with the ends of its interval.

    ``tpot``: per token after the first; for a run with only tokens per second, per token of all users together. ``ttft``: to the first
    token. ``least_tpot_s``: lower bound of the first.
    """

    tpot: Times
    ttft: Times
    least_tpot_s: float


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
    answer = run.predicted(_step_times(run, fallbacks))
    assert answer.tpot is not None
    if record.tpot_s is not None:
        return PredictedRun(answer.tpot, answer.ttft, least_tpot_s(answer))
    of_user, low, high = answer.tpot
    of_all = 1 / answer.tokens_per_s
    return PredictedRun((of_all, of_all * low / of_user, of_all * high / of_user), answer.ttft, 1 / answer.bound)


def checked(record: Record) -> dict[str, Any]:
    """The shape of ``record``; UnavailableError says what is wrong with it."""
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


def _gpus(sizes: dict[str, Any], prefix: str) -> int:
    """Number of GPUs of the workers whose keys begin with ``prefix``; expert parallelism uses the same GPUs."""
    factors = ("workers", "tensor_parallel", "attention_data_parallel", "pipeline_parallel")
    return math.prod(sizes.get(prefix + name, 1) for name in factors)


_cached_times: dict[tuple[Any, ...], KernelTimes | Pools] = {}
"""Step times of the last runs, by device and ``ServingRun.key``."""
_MOST_CACHED = 8


def _step_times(run: ServingRun, fallbacks: FallbackDevices) -> KernelTimes | Pools:
    """``run.times``, cached."""
    key = (id(run.device), *run.key)
    if key not in _cached_times:
        while len(_cached_times) >= _MOST_CACHED:
            oldest = next(iter(_cached_times))
            del _cached_times[oldest]
        _cached_times[key] = run.times(fallbacks)
    return _cached_times[key]


@dataclass(frozen=True, slots=True)
class ServingRun:
    """A run of an engine; ``shape``: values of its record by the keys above.

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
        stored = [s.get(name) for name in STORED]
        layout = [s.get(prefix + name, 1) for prefix in ("", PREFILL) for name in SPLIT]
        workers = [s.get(prefix + "workers", 0) for prefix in ("", PREFILL)]
        return (self.model.name, self.device.id, self.engine.id, *stored, *layout, *workers)

    def times(self, fallbacks: FallbackDevices) -> KernelTimes | Pools:
        """Step times of the engine, or of both kinds of workers for a run with pools."""
        s = self.shape
        decode = self._times(fallbacks, "")
        if PREFILL + "workers" not in s:
            return decode
        return Pools(self._times(fallbacks, PREFILL), decode, s[PREFILL + "workers"], s.get("workers", 1))

    def _times(self, fallbacks: FallbackDevices, prefix: str) -> KernelTimes:
        """Step times of a worker whose layout has keys with ``prefix``."""
        s = self.shape
        split = Split(*(s.get(prefix + name, 1) for name in SPLIT))
        model, weights = served_as(self.model, s.get("weights_dtype"))
        if model.quantized is not None and model.quantized.words != weights:
            weights = None
        half = DTYPES["bf16"]
        base_pass = ModelPass(DECODE, 1, 1, 1, half, split=split, **formats(model, half, weights, s.get("kv_dtype")))
        engine = self.engine
        if s.get("fused_all_reduce"):
            engine = replace(engine, kernels=replace(engine.kernels, fused_all_reduce=True))
        return step_times(model, self.device, engine, base_pass, fallbacks)

    def predicted(self, times: KernelTimes | Pools) -> ServingAnswer:
        """The predicted answer of the run; UsageError if it does not fit."""
        s = self.shape
        users, rate, drafts, spread = s.get("concurrency"), s.get("rate"), s.get("draft_tokens", 0), s.get("spread", 1.0)
        acceptance = s.get("acceptance", ACCEPTED) if drafts else 0.0
        load = Load(s["isl"], s["osl"], users, rate, draft_tokens=drafts, acceptance=acceptance)
        requests = s.get("requests")
        if requests is None and users and spread < 1:
            requests = PROMPTS_OF_BENCHMARK * users
        batching = {name: s.get(name) for name in BATCHING}
        if isinstance(times, Pools):
            decode = replace(times.decode, engine=times.decode.engine.with_batching(**batching))
            return serve_pools(replace(times, decode=decode), load, spread, requests)
        times = replace(times, engine=times.engine.with_batching(**batching))
        if users is None and rate is None:
            memory = Memory(times.model, times.device, times.engine, times.base_pass)
            load = load.with_users(requests or max(memory.slots(load.isl, load.osl, spread), 1))
        return serve(times, load, spread, requests)


def least_tpot_s(answer: ServingAnswer) -> float:
    """Lower bound of the mean seconds per token: of a step with as many sequences as decode at a time, at their mean length.

    It assumes that as many sequences decode on average as predicted, rounded down, that their mean length is the length halfway through the
    answer, and that drafted tokens are accepted as often as predicted; routing is even.
    """
    load = answer.load
    mean_length_share = (1 + answer.spread) / 2  # lengths are drawn evenly from ``spread`` of the longest to the longest
    context = int(mean_length_share * (load.isl + load.osl / 2))
    decodes = max(int(answer.metrics.decoding / answer.workers), 1)
    step = Iteration(decodes=decodes, context=context, queries=load.queries)
    return float(answer.times.estimate(step).cost.lower_warm_s) / load.tokens_per_step
