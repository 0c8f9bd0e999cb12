"""KV cache of a model: bytes, what fits, generation without it."""

from __future__ import annotations

from functools import cache

from perfmodel.commands._command import ExplainedPicture, command, device_for
from perfmodel.core.errors import UsageError
from perfmodel.transformer.cache_question import CacheQuestion


@command
def kv_cache(options: CacheQuestion, to: ExplainedPicture) -> None:
    """KV cache of a model: bytes per token, sequence and batch, what fits a device, what generation costs without it.

    Example: perfmodel kv-cache llama-3-8b --n 8192 --batch 16 --hardware h100-sxm
    """
    from perfmodel.catalog import calibrated_devices, find_model, model_names
    from perfmodel.report.kv_cache import report
    from perfmodel.transformer.cache_plan import evaluate, generation_on

    if options.model is None:
        raise UsageError("MODEL is missing", f"give one of {', '.join(model_names())}; or the path of a config.json")
    w, device = options.workload(find_model(options.model)), device_for(options.hardware)
    times = generation_on(w, device, cache(calibrated_devices))
    to.emit(report(evaluate(w, device), times, explained=to.explained, pictures=to.pictures))
