"""Public llama-bench runs of llama.cpp, and what its preset predicts for them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from perfmodel.catalog import device_ids, find_device, find_engine, find_model, model_names
from perfmodel.core.dtypes import DTYPES
from perfmodel.serving.engine import Engine, RoofShares
from perfmodel.serving.iteration import Iteration
from perfmodel.serving.roof_shares import priced_by
from perfmodel.serving.steps import KernelTimes, step_times
from perfmodel.transformer.hf import served_as
from perfmodel.transformer.op_time import op_estimate
from perfmodel.transformer.ops import step_ops
from perfmodel.transformer.step import DECODE, ModelPass, Split, formats
from tools.scores import DATA

RUNS = DATA / "llama_cpp_2026-11-28.jsonl"
SPLIT = json.loads((DATA / "llama_cpp_2026-11-28.split.json").read_text())
FORMATS = {"MXFP4": "mxfp4_moe"}
UBATCH = 512
Run = dict[str, Any]


def runs() -> list[Run]:
    """Those of one device with a profile and a model that are known here, all layers on it; those marked as suspect are left out."""
    found = [json.loads(line) for line in RUNS.read_text().splitlines()]
    devices, models = set(device_ids()), set(model_names())
    return [
        run
        for run in found
        if run["device"] in devices
        and run["model"] in models
        and run["devices"] == 1
        and run["gpu_layers"] is None
        and run["tokens"]
        and run.get("gpu_cores") is None
        and run["backend"] in ("cuda", "metal")
        and "suspect" not in (run.get("note") or "")
    ]


def is_current(run: Run) -> bool:
    """Whether a build as of 2025 or later ran with its flash attention; Metal's kernels have changed less, and all its runs count."""
    return run["backend"] == "metal" or (run["date"][:4] >= "2025" and run["flash_attention"] is not False)


def times(run: Run, engine: Engine | None = None) -> KernelTimes:
    """Steps of the run's model on its device."""
    return _times(run["device"], run["model"], run["format"], engine or find_engine("llama.cpp"))


@cache
def _known(device: str, model: str, form: str) -> Any:
    spec, stored = served_as(find_model(model), FORMATS.get(form, form))
    return (
        find_device(device),
        spec,
        ModelPass(DECODE, 1, 1, 1, DTYPES["fp16"], split=Split(), **formats(spec, DTYPES["fp16"], stored, None)),
    )


def _times(device: str, model: str, form: str, engine: Engine) -> KernelTimes:
    chip, spec, like = _known(device, model, form)
    return step_times(spec, chip, engine.for_device(chip), like)


def steps(run: Run) -> list[Iteration]:
    """One decode step in the middle of its tokens, or the prompt in micro-batches."""
    if run["test"] == "tg":
        return [Iteration(decodes=1, context=run["depth"] + run["tokens"] // 2)]
    size = run.get("ubatch") or UBATCH
    ends = [*range(size, run["tokens"], size), run["tokens"]]
    return [Iteration(chunk=end - start, chunk_context=run["depth"] + end) for start, end in pairwise([0, *ends])]


def measured_s(run: Run) -> float:
    """Seconds of a token, or of the whole prompt."""
    return float((1 if run["test"] == "tg" else run["tokens"]) / run["tokens_per_s"])


def predicted_s(run: Run, engine: Engine | None = None) -> float:
    """The same as the preset says."""
    found = times(run, engine)
    return sum(found.seconds(step) for step in steps(run))


@cache
def _rows(key: str) -> list[Any]:
    run = json.loads(key)
    found = times(run)
    ops = [op for step in steps(run) for op in step_ops(found.model, found.pass_of(step))]
    return [(op, op_estimate(op, found.device)) for op in ops]


def predicted_with(run: Run, shares: RoofShares) -> float:
    """The same with ``shares``, of every kernel in turn: quick to fit."""
    found = times(run)
    own = replace(found, engine=replace(found.engine, roof_shares={found.device.vendor: shares}))
    priced = priced_by(shares, own.device, own.has_k_quants)
    return sum(float(op.count) * priced(op, cost).seconds for op, cost in _rows(json.dumps(run, sort_keys=True)))


def scored(rows: Iterable[Run], engine: Engine | None = None) -> dict[str, Any]:
    """Errors by test: number, devices, median and 90 % quantile, and the middle of predicted over measured, less 1."""
    found = [(run, predicted_s(run, engine) / measured_s(run)) for run in rows]
    summed = {}
    for test in ("tg", "pp"):
        own = [(run, ratio) for run, ratio in found if run["test"] == test]
        if own:
            errors = np.array([abs(ratio - 1) for _, ratio in own])
            summed[test] = {
                "runs": len(own),
                "devices": len({run["device"] for run, _ in own}),
                "median": round(float(np.median(errors)), 4),
                "p90": round(float(np.quantile(errors, 0.9)), 4),
                "middle": round(float(np.median([ratio for _, ratio in own])) - 1, 4),
                "held": round(float(np.mean([_within(run, ratio, engine) for run, ratio in own])), 3),
            }
    return summed


def _within(run: Run, ratio: float, engine: Engine | None) -> bool:
    widths = (engine or find_engine("llama.cpp")).widths["experts" if find_model(run["model"]).is_moe else "dense"]
    low, high = widths["tpot" if run["test"] == "tg" else "ttft"]
    return low <= 1 / ratio <= high


def log_error(run: Run, shares: RoofShares) -> float:
    """Logarithm of predicted over measured."""
    return math.log(predicted_with(run, shares) / measured_s(run))
