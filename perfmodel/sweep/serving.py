"""Sweeps over serving engines, row by row, by the formulas of ``perfmodel serve``: steps that rows share are predicted once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from perfmodel import catalog
from perfmodel.core.checks import dtype_on
from perfmodel.core.errors import PerfmodelError
from perfmodel.serving.answer import ServingAnswer, serving_answer
from perfmodel.serving.engine import Engine
from perfmodel.serving.question import DEFAULT_ENGINE, ServeQuestion
from perfmodel.serving.steps import KernelTimes, step_times
from perfmodel.sweep.base import (
    DTYPE,
    HARDWARE,
    RowVariant,
    SweepColumn,
    SweepInput,
    SweepWorkload,
    canonical_name,
    choice,
    count,
    device_named,
    fallbacks,
    with_question_defaults,
)
from perfmodel.sweep.model import AXIS, WEIGHTS, model_named, stored
from perfmodel.transformer.hf import served_as
from perfmodel.transformer.step import ModelPass

_TOO_LARGE = re.compile(r" with one request of .*")


@cache
def engine_named(name: str) -> Engine:
    """The engine called ``name``, read once."""
    return catalog.find_engine(name)


def variant(choices: Mapping[str, Any]) -> RowVariant:
    """The variant for one combination of choices; PerfmodelError says why there is none. Rows of one layout share the times of steps."""
    device = device_named(choices["hardware"])
    dtype_on(choices["dtype"], device)
    model, published = served_as(model_named(choices["model"]), choices["weights_dtype"])
    preset, by_pass = engine_named(choices["engine"]).for_device(device), dict[ModelPass, KernelTimes]()

    def times(engine: Engine, base_pass: ModelPass) -> KernelTimes:
        """Step times of ``base_pass``; the passes of all rows share the times of kernels."""
        if base_pass not in by_pass:
            earlier = next(iter(by_pass.values()), None)
            new = step_times(model, device, preset, base_pass, fallbacks)
            by_pass[base_pass] = new if earlier is None else replace(new, kernel_cache=earlier.kernel_cache)
        return replace(by_pass[base_pass], engine=engine)

    def served(values: Mapping[str, int]) -> ServingAnswer:
        try:
            return serving_answer(ServeQuestion(model.name).updated({**choices, **values}), model, published, device, preset, times)
        except PerfmodelError as error:
            raise type(error)(_TOO_LARGE.sub(" does not fit", error.message), error.fix) from None

    return RowVariant(served, SERVE.columns)


def defaults(choices: Mapping[str, Any]) -> Mapping[str, float]:
    """Default axes: the engine's own limits on the device."""
    batching = engine_named(choices["engine"]).for_device(device_named(choices["hardware"])).batching
    return {"token_budget": batching.token_budget, "max_sequences": batching.max_sequences}


def normalize(axes: Mapping[str, Any]) -> Mapping[str, Any]:
    """``axes``, with the size that ``gpus`` leaves open, as the command takes it: ``dp`` if ``tp`` is given, else ``tp``."""
    if "gpus" not in axes or {"tp", "dp"} <= set(axes):
        return axes
    if "tp" in axes:
        return {**axes, "dp": "gpus / (tp * pp)"}
    return {**axes, "tp": "gpus / (dp * pp)"}


def _metric(name: str) -> Any:
    """A function that reads the metric called ``name`` off an answer."""
    return lambda answer: getattr(answer.metrics, name)


def _request_s(answer: ServingAnswer) -> float:
    """Mean seconds from sending a request to its last token, including the wait for a slot."""
    return answer.metrics.mean_ttft_s + (answer.load.osl - 1) * (answer.metrics.mean_tpot_s or 0.0)


def _bytes(answer: ServingAnswer) -> int:
    """Bytes that the engine uses on a GPU with one request in each group."""
    return answer.memory.total(answer.split.dp, answer.load.isl + answer.load.osl)


SERVE = SweepWorkload(
    name="serve",
    inputs=with_question_defaults(
        ServeQuestion,
        AXIS,
        HARDWARE,
        choice(
            "engine",
            "serving engine, by name or the path of a file",
            DEFAULT_ENGINE,
            names=catalog.engine_names,
            canonical=lambda name: canonical_name(name, engine_named(name).id),
        ),
        DTYPE,
        WEIGHTS,
        stored("kv_dtype", "format of the KV cache"),
        SweepInput("isl", "tokens of a prompt"),
        SweepInput("osl", "tokens generated for it"),
        SweepInput("concurrency", "users, each with one request at a time; by default 64"),
        SweepInput("rate", "requests a second in place of users, at random moments", least=0),
        SweepInput("prefix", "tokens of a prompt in the cache", least=0),
        SweepInput("draft_tokens", "tokens drafted per step", least=0),
        SweepInput("acceptance", "chance that a drafted one is right", least=0, most=1),
        SweepInput("gpus", "GPUs; given alone, they share each matrix", "tp * dp * pp"),
        SweepInput("tp", "GPUs that share each matrix", 1),
        SweepInput("dp", "groups with sequences of their own", 1),
        SweepInput("ep", "sets of GPUs with different experts"),
        SweepInput("pp", "pipeline stages of consecutive layers"),
        SweepInput("token_budget", "most tokens of a step; by default the engine's", varies=True),
        SweepInput("max_sequences", "most sequences at a time; by default the engine's", varies=True),
    ),
    columns=(
        SweepColumn("ttft_s", "s", "mean time to the first token", of=_metric("mean_ttft_s")),
        SweepColumn("ttft_p50_s", "s", "its median", of=_metric("median_ttft_s")),
        SweepColumn("ttft_p99_s", "s", "what 99 % of them are below", of=_metric("p99_ttft_s")),
        SweepColumn("tpot_s", "s", "mean time per token after it", of=_metric("mean_tpot_s")),
        SweepColumn("request_s", "s", "mean time of a request, with its wait", of=_request_s),
        SweepColumn("tokens_per_s", "tokens/s", "output tokens of all users", of=lambda a: a.tokens_per_s),
        SweepColumn("tokens_per_s_gpu", "tokens/s", "the same per GPU", of=lambda a: a.tokens_per_s_gpu),
        SweepColumn("tokens_per_s_user", "tokens/s", "what a user sees after the first token", of=lambda a: a.tokens_per_s_user),
        SweepColumn("tokens_per_s_bound", "tokens/s", "output tokens at most, by the bound", of=lambda a: a.bound),
        SweepColumn("requests_per_s", "requests/s", "requests that end", of=_metric("requests_per_s")),
        SweepColumn("running", "sequences", "requests running, on average", of=_metric("running")),
        SweepColumn("waiting", "sequences", "requests waiting, on average", of=_metric("waiting")),
        SweepColumn("decode_s", "s", "a decode step alone", of=lambda a: a.decode_s),
        SweepColumn("step_s", "s", "between decode steps", of=_metric("mean_itl_s")),
        SweepColumn("power_w", "W", "mean power of a GPU, where it is modelled", of=lambda a: a.watts),
        SweepColumn("energy_per_token_j", "J", "of all GPUs per output token", of=lambda a: a.joules_per_token),
        count("weights_bytes", "B", "weights on the fullest GPU", of=lambda a: a.memory.weights),
        count("memory_bytes", "B", "with activations and the cache of a request in each group", of=_bytes),
        count("max_requests", "sequences", "requests that fit", of=lambda a: a.most_running, more=True),
        count(
            "at_least", "", "1 if a good part of a step is known only by its roof, so that times are lower limits", of=lambda a: a.at_least
        ),
    ),
    variant=variant,
    shown=("ttft_s", "tpot_s", "tokens_per_s", "tokens_per_s_gpu", "tokens_per_s_user", "running", "max_requests", "at_least"),
    objective="request_s",
    words={"time": "request_s", "memory": "memory_bytes"},
    always=("model", "hardware", "engine", "isl", "osl", "gpus"),
    pointwise=True,
    defaults=defaults,
    normalize=normalize,
)
