"""Records of the workload ``serving``: a run of an engine, with mean seconds to the first token and per token after it, or tokens/s.

A run is not predicted as a kernel: the prediction combines the engine's preset, the steps of its kernels and the queue around them
(``serving.runs``). The measured time of a row is per token, over all users together if only tokens per second are known; the time to the
first token stands beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from perfmodel.catalog import find_engine, find_model
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.serving.answer import ServingAnswer
from perfmodel.serving.iteration import Iteration
from perfmodel.serving.pools import Pools
from perfmodel.serving.runs import PREFILL, ServingRun
from perfmodel.serving.steps import KernelTimes
from perfmodel.serving.steps import Times as Ends
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.validation.bounds import checked_shape
from perfmodel.validation.records import Record

SIZES = ("gpus", "tensor_parallel", "isl", "osl")
LAYOUT = ("expert_parallel", "attention_data_parallel", "pipeline_parallel")
POOLS = ("workers", *(PREFILL + name for name in ("workers", "tensor_parallel", *LAYOUT)))
"""Keys of runs with workers that only run prompts; the layout without a prefix is then that of a worker that decodes."""
NUMBERS = ("concurrency", "token_budget", "max_sequences", "admit_every", "hold_steps", "draft_tokens", "requests")
OTHERS = ("model", "engine", "weights_dtype", "kv_dtype", "chunked", "fused_all_reduce", "acceptance", "spread", "rate")
KEYS = {*SIZES, *LAYOUT, *POOLS, *NUMBERS, *OTHERS}
"""Keys of a shape; model, engine and ``SIZES`` must be there."""

_known: dict[tuple[Any, ...], KernelTimes | Pools] = {}
"""Cached step times of the last kinds of runs."""
_MOST_KNOWN = 8


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
