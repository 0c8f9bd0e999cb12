"""What a serving engine delivers: time to the first token and to each after it, tokens per second, memory, power, price."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.commands._command import Pictured, command, device_for
from perfmodel.serving.question import ServeQuestion

if TYPE_CHECKING:
    from perfmodel.report import Report

DEFAULT_ENGINE = "vllm"


@command
def serve(asked: ServeQuestion, to: Pictured) -> None:
    """What a serving engine delivers to its users: first token, time per token, tokens/s, memory, power, price.

    Example: perfmodel serve llama-3.1-70b --hardware h200 --gpus 8 --concurrency 64
    """
    to.emit(_searched(asked, to.pictures) if asked.search else _served(asked, to.pictures))


def _served(asked: ServeQuestion, pictures: bool) -> Report:
    """Of one layout."""
    from functools import cache

    from perfmodel.catalog import calibrated_devices, find_engine, find_model
    from perfmodel.report.serve import report
    from perfmodel.serving.answer import serve as answer
    from perfmodel.serving.steps import step_times
    from perfmodel.transformer.hf import served_as

    device = device_for(asked.hardware)
    model, stored = served_as(find_model(asked.name), asked.weights_dtype)
    load = asked.load()
    asked.check_lengths(model)
    engine = asked.configured(find_engine(asked.engine or DEFAULT_ENGINE).on(device))
    like = asked.like(model, device, asked.split(model), stored)
    times = step_times(model, device, engine, like, cache(calibrated_devices))
    if asked.prefill_workers is not None:
        from perfmodel.serving.apart import Pools, serve_apart

        first = asked.like(model, device, asked.prefill_split(model), stored)
        prefill = step_times(model, device, engine, first, cache(calibrated_devices))
        pools = Pools(prefill, times, asked.prefill_workers, asked.workers)
        return report(serve_apart(pools, load, asked.spread, asked.requests, asked.gpu_hour), pictures)
    return report(answer(model, engine, like, load, times, asked.gpu_hour, asked.spread, asked.requests), pictures)


def _searched(asked: ServeQuestion, pictures: bool) -> Report:
    """Of every layout and number of users, under one engine or all."""
    from functools import cache

    from perfmodel.catalog import calibrated_devices, engine_names, find_engine, find_model
    from perfmodel.report.serve_search import Searched, report
    from perfmodel.serving.search import Targets, search
    from perfmodel.transformer.hf import served_as
    from perfmodel.transformer.step import Split

    device = device_for(asked.hardware)
    model, stored = served_as(find_model(asked.name), asked.weights_dtype)
    load = asked.load()
    asked.check_lengths(model)
    names = engine_names() if asked.engine is None else [asked.engine]
    engines = [asked.configured(find_engine(name).on(device)) for name in names]
    like, gpus = asked.like(model, device, Split(), stored), asked.searched_gpus()
    targets = Targets(*asked.limits())
    found = search(model, device, gpus, load, engines, like, targets, cache(calibrated_devices), asked.disaggregated)
    return report(Searched(model, device, gpus, load, like, engines, found, asked.name, asked.typed_formats(), asked.gpu_hour), pictures)
