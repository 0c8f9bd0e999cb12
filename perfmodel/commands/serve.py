"""What a serving engine delivers: time to the first token and to each after it, tokens per second, memory, power, price."""

from __future__ import annotations

from perfmodel.commands._command import Pictured, command, device_for
from perfmodel.serving.question import ServeQuestion

DEFAULT_ENGINE = "vllm"


@command
def serve(asked: ServeQuestion, to: Pictured) -> None:
    """What a serving engine delivers to its users: first token, time per token, tokens/s, memory, power, price.

    Example: perfmodel serve llama-3.1-70b --hardware h200 --gpus 8 --concurrency 64
    """
    from functools import cache

    from perfmodel.catalog import calibrated_devices, find_engine, find_model
    from perfmodel.report.serve import report
    from perfmodel.serving.answer import serve as answer
    from perfmodel.serving.steps import step_times
    from perfmodel.transformer.hf import published_as

    model, device = published_as(find_model(asked.name), asked.weights_dtype), device_for(asked.hardware)
    load = asked.load()
    asked.check_lengths(model)
    engine = asked.configured(find_engine(asked.engine or DEFAULT_ENGINE).on(device))
    like = asked.like(model, device, asked.split(model))
    times = step_times(model, device, engine, like, cache(calibrated_devices))
    to.emit(report(answer(model, engine, like, load, times, asked.gpu_hour, asked.spread), to.pictures))
