"""What a serving engine delivers: latency, tokens/s, power, price."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import typer

from perfmodel.commands._command import Pictured, command, device_for
from perfmodel.serving.question import DEFAULT_ENGINE, ServeQuestion

if TYPE_CHECKING:
    from perfmodel.report import Report
    from perfmodel.serving.engine import Engine
    from perfmodel.serving.steps import KernelTimes
    from perfmodel.transformer.step import ModelPass


class _ServeOutput(Pictured):
    OFFERS = ("charts", "timeline")


@command
def serve(options: ServeQuestion, to: _ServeOutput) -> None:
    """What a serving engine delivers: latency, tokens/s, memory, power, price.

    Example: perfmodel serve llama-3.1-70b --hardware h200 --gpus 8
    """
    document = _searched(options, to.pictures) if options.search else _served(options, to.pictures, to.timed)
    to.emit(document)
    if options.search and document.data["best"] is None:
        raise typer.Exit(3)


def _served(options: ServeQuestion, pictures: bool, timed: bool) -> Report:
    """The report on one layout."""
    from perfmodel.catalog import calibrated_devices, find_engine, find_model
    from perfmodel.report.serve import report
    from perfmodel.serving.answer import serving_answer
    from perfmodel.serving.steps import step_times
    from perfmodel.transformer.hf import served_as

    device = device_for(options.hardware)
    model, stored = served_as(find_model(options.name), options.weights_dtype)
    engine, fallbacks = find_engine(options.engine or DEFAULT_ENGINE).for_device(device), cache(calibrated_devices)

    def times(engine: Engine, base_pass: ModelPass) -> KernelTimes:
        return step_times(model, device, engine, base_pass, fallbacks)

    return report(serving_answer(options, model, stored, device, engine, times), pictures, timed)


def _searched(options: ServeQuestion, pictures: bool) -> Report:
    """The report of a search over layouts and numbers of users, with one engine or all."""
    from perfmodel.catalog import calibrated_devices, engine_names, find_engine
    from perfmodel.report.serve_search import report, searched

    names = [name for name in engine_names() if not find_engine(name).roof_shares] if options.engine is None else [options.engine]
    return report(searched(options, device_for(options.hardware), names, cache(calibrated_devices)), pictures)
