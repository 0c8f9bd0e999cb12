"""Decode against the batch: throughput, latency, the knee."""

from __future__ import annotations

from functools import cache

from perfmodel.commands._command import ExplainedPicture, command, device_for
from perfmodel.transformer.question import BatchQuestion


@command
def batch(options: BatchQuestion, to: ExplainedPicture) -> None:
    """Throughput and latency of decode against the batch: the knee, what bounds each side, where memory ends.

    Example: perfmodel batch llama-3-8b --kv-len 2048 --hardware h200
    """
    from perfmodel.catalog import calibrated_devices, find_engine, find_model
    from perfmodel.report.batch import report
    from perfmodel.transformer.generation import curve

    device = device_for(options.hardware)
    request = options.request_for(find_model(options.name), device)
    if options.engine is not None:
        request = find_engine(options.engine).for_device(device).runs(request)
    to.emit(report(curve(request, cache(calibrated_devices)), explained=to.explained, pictures=to.pictures))
