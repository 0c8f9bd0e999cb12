"""What the report of a KV cache says first: whether it fits, what would, parts of the memory, its charts."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.errors import UnavailableError
from perfmodel.core.units import format_binary, format_count, format_si, format_time
from perfmodel.report.answer import fitting
from perfmodel.report.charts.format_number import digits
from perfmodel.report.charts.schema import Bar, BarChart, Chart, Limit, LineChart, Mark, Series
from perfmodel.report.document import Figure, Meter, Report
from perfmodel.report.model import least
from perfmodel.transformer.answer import ModelAnswer
from perfmodel.transformer.cache_plan import CacheResult, smallest_tp
from perfmodel.transformer.estimate import PREDICTED
from perfmodel.transformer.kv_cache import attention_kinds, batch_bytes
from perfmodel.transformer.spec import GroupedAttention, LatentAttention

STOPS = 16
"""Lengths of the line over the context."""
Generated = tuple[ModelAnswer, ModelAnswer] | UnavailableError
"""A generation with a cache and without, or why there is no time for it."""


def both(size: int) -> str:
    """Decimal and binary: the two that are most often confused."""
    return f"{format_si(size, 'B')} ({format_binary(size)})" if size >= 1024 else f"{size} B"


def weights_format(result: CacheResult) -> str:
    """The format of the weights; of a quantized checkpoint that of most of its matrices."""
    w = result.workload
    main = w.spec.quantized.main if w.weights_from_file and w.spec.quantized is not None else None
    return w.weights_dtype if main is None else main.name


def answered(plain: Report, result: CacheResult, times: Generated, pictures: bool) -> Report:
    """``plain`` with what it says first, and its ``pictures``."""
    return replace(
        plain,
        verdict=_verdict(result, times),
        charts=_charts(result) if pictures else [],
        meters=_meters(result),
        metered=f"memory of {'each ' * (result.workload.tp > 1)}{result.device.name}",
        figures=_figures(result),
        reasons=[*_reasons(result), *(_generation_gain(result, times) if result.fits is False else [])],
    )


def _parts(result: CacheResult) -> dict[str, int]:
    """What the memory of a GPU holds."""
    parts = {"weights": result.weights, "KV cache": result.total, "held back": result.workload.reserve}
    return {name: size for name, size in parts.items() if size}


def _verdict(result: CacheResult, times: Generated) -> list[str]:
    """Whether it fits, what would, and what generation gains."""
    w, parts = result.workload, _parts(result)
    held = fitting(sum(parts.values()), result.device) or format_si(sum(parts.values()), "B")
    more = smallest_tp(w, result.device) if result.fits is False else None
    found = [f"{held}{' per GPU' * (w.tp > 1)}{f'; --tp {more} would fit' if more else ''}."]
    whom = "one" if w.batch == 1 else f"{w.batch:,}"
    if result.room is None:
        found.append(f"The cache takes {format_count(result.per_token)} B per token; the profile has no capacity.")
    elif result.room <= 0:
        alone = result.capacity is None or result.weights >= result.capacity
        found.append(f"{'The weights alone' if alone else 'Weights and reserve'} leave no room for a cache.")
    else:
        lengths = "any length" if result.endless else f"{result.context:,}"
        room = f"{result.batch:,} sequence{'s' * (result.batch != 1)} of {w.n:,} tokens"
        beside = f"{format_si(w.reserve, 'B', 3)} reserved" if w.reserve else "nothing reserved"
        found.append(f"Room for {room}, {beside}; {whom} can grow to {lengths}.")
    return [*found, *(_generation_gain(result, times) if result.fits is not False else [])]


def _generation_gain(result: CacheResult, times: Generated) -> list[str]:
    if isinstance(times, UnavailableError):
        return []
    cached, uncached = times
    took, longer = (f"{least(one.times_from)}{format_time(one.seconds, 3)}" for one in times)
    if cached.times_from == uncached.times_from == PREDICTED and cached.seconds:
        longer = f"{digits(uncached.seconds / cached.seconds, 3)}x that time"
    return [f"One sequence is generated in {took}; without a cache in {longer}{', with more memory' * (result.fits is False)}."]


def _meters(result: CacheResult) -> list[Meter]:
    """Parts of the capacity; where they do not fit, the largest limits."""
    if result.capacity is None:
        return []
    parts = _parts(result)
    most = max(parts, key=lambda name: parts[name])
    return [
        Meter(name, size / result.capacity, format_si(size, "B"), name == most and result.fits is False) for name, size in parts.items()
    ]


def _figures(result: CacheResult) -> list[Figure]:
    w = result.workload
    fits = [] if result.batch is None else [Figure(f"sequences of {w.n:,} tokens that fit", f"{result.batch:,}")]
    longest = [Figure(f"longest context of {w.batch}", f"{result.context:,} tokens")] if result.context else []
    gpu = " per GPU" * (w.tp > 1)
    return [
        Figure(f"cache per token{gpu}", f"{format_count(result.per_token)} B"),
        Figure(f"cache of {w.batch} x {w.n:,} tokens{gpu}", format_si(result.total, "B")),
        Figure(f"weights{gpu}", format_si(result.weights, "B")),
        *fits,
        *longest,
    ]


def _reasons(result: CacheResult) -> list[str]:
    w = result.workload
    keeps = f"{w.spec.name} keeps {format_count(result.per_token)} B per token{' on each GPU' * (w.tp > 1)}"
    return [f"{keeps}, {both(result.total)} in all; weights are {weights_format(result)}."]


def copies(result: CacheResult) -> list[str]:
    """What several GPUs keep more than once."""
    w, words = result.workload, []
    for attention, _ in attention_kinds(w.spec) if w.tp > 1 else ():
        if isinstance(attention, LatentAttention):
            words.append(f"Each of the {w.tp} GPUs keeps the whole latent: all heads read it.")
        elif isinstance(attention, GroupedAttention) and w.tp > attention.kv_heads:
            words.append(f"{attention.kv_heads} KV heads on {w.tp} GPUs: each is kept {w.tp // attention.kv_heads} times.")
    return list(dict.fromkeys(words))


def _charts(result: CacheResult) -> list[Chart]:
    """What the memory holds against its capacity, and the same over the length."""
    w, parts, here = result.workload, _parts(result), result.workload.here
    limits = [Limit("capacity", result.capacity)] if result.capacity else []
    longest = max(w.n, min(result.context or w.n, 4 * w.n))
    lengths = sorted({*(longest * place // STOPS for place in range(STOPS + 1)), w.n, longest} - {0})
    beside = result.weights + w.reserve
    sizes = [1] if w.batch == 1 else [1, w.batch]
    series = [Series(_sequences(b), [(n, beside + int(batch_bytes(here, n, b, w.form))) for n in lengths]) for b in sizes]
    marks = [Mark(w.n, f"{w.n:,} tokens", beside + result.total)]
    if result.context and w.n < result.context <= longest:
        full = beside + int(batch_bytes(here, result.context, w.batch, w.form))
        marks.append(Mark(result.context, f"memory ends at {result.context:,}", full))
    title, held = "Memory of each GPU" if w.tp > 1 else "Memory", f"With weights{' and what is held back' * (w.reserve > 0)}."
    bars = BarChart(title, "B", [Bar(f"{w.batch} x {w.n:,} tokens", list(parts.items()))], limits)
    title = f"{title} over the context"
    return [bars, LineChart(title, "tokens", "memory", series, "count", "B", "linear", "linear", marks, limits, held)]


def _sequences(batch: int) -> str:
    return "1 sequence" if batch == 1 else f"{batch} sequences"
