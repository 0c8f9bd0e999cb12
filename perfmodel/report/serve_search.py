"""The report of a serving search: the best candidate within the limits with command lines, and the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.units import format_time
from perfmodel.report.answer import upper_first
from perfmodel.report.charts.schema import Chart, LineChart, Mark, Series
from perfmodel.report.document import SCREEN_ROWS, TO_PASTE, Figure, Report, Table
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.op_common import head
from perfmodel.report.serve import counted, split_words
from perfmodel.report.step import tokens
from perfmodel.serving.engine import Engine
from perfmodel.serving.launch import COMMANDS, DECODE_ROLE, PREFILL_ROLE, launch, unstated
from perfmodel.serving.load import Load
from perfmodel.serving.question import ServeQuestion
from perfmodel.serving.search import Candidate, Formats, Search, Targets, merged, search, spread
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.transformer.hf import served_as
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import Split

COLUMNS = ("engine", "layout", "users", "tokens_per_s_gpu", "tokens_per_s_user", "ttft_s", "tpot_s", "price_per_million")
FRONT_ROWS, WIDTH = 4, 58
"""Points of the front, and characters of a command line, on a screen."""
MORE_GPUS = "give more GPUs, narrower formats or fewer users"
HALVES = ("bf16", "fp16")
"""Formats of unquantized checkpoints and KV caches."""
MORE = " \\"
"""End of a shell line that continues."""


@dataclass(frozen=True)
class Searched:
    """The result of a search for ``options`` on ``device``. ``models``: the model by formats of weights and KV cache."""

    options: ServeQuestion
    models: Mapping[Formats, ModelSpec]
    device: Device
    engines: Sequence[Engine]
    result: Search

    @property
    def model(self) -> ModelSpec:
        """The model in the first formats."""
        return next(iter(self.models.values()))

    @cached_property
    def load(self) -> Load:
        """The load, without a number of users."""
        return self.options.load()

    @property
    def gpus(self) -> int:
        """Largest number of GPUs of a layout."""
        return self.options.searched_gpus()

    @property
    def within(self) -> list[Candidate]:
        """Points of the front within the limits."""
        return [point for point in self.result.front if self.result.limits.hold(point)]

    def users(self, point: Candidate) -> int:
        """Users of all copies of ``point``: the number asked for, else that of the candidate."""
        return self.options.concurrency or self.copies(point) * point.users

    def copies(self, point: Candidate) -> int:
        """Number of copies of ``point`` on the GPUs."""
        return point.copies or self.gpus // point.gpus

    def price(self, point: Candidate) -> float | None:
        """Price of a million tokens; None without a price of an hour."""
        return None if self.options.gpu_hour is None else self.options.gpu_hour / 3600 / point.tokens_per_s_gpu * 1e6

    def lines(self, point: Candidate) -> list[str]:
        """Commands that start the engine as in ``point``, if its options are known, and one that asks about it again."""
        engine = next(candidate for candidate in self.engines if candidate.id == point.engine)
        model, options = self.models.get(point.formats, self.model), self.options.in_formats(point.formats)
        formats = _formats_beyond_checkpoint(options)
        has_lines = engine.id in COMMANDS
        comments = unstated(model, engine, self.load, **formats) if has_lines else []
        if point.prefill is not None:
            workers = ((point.prefill, PREFILL_ROLE), (point.split, DECODE_ROLE)) if has_lines else ()
            return comments + [launch(model, engine, split, point.sequences, self.load, role, **formats) for split, role in workers]
        if has_lines:
            line = launch(model, engine, point.split, point.users, self.load, **formats)
            comments.append(in_shell_loop(line, self.copies(point), point.gpus))
        return [*comments, options.typed(self.device.id, point.engine, point.split, point.users)]


def _formats_beyond_checkpoint(options: ServeQuestion) -> dict[str, str]:
    """Formats of weights and KV cache in ``options`` that differ from the checkpoint's; empty for equal ones."""
    from perfmodel.catalog import find_model

    file = find_model(options.name)
    stored = served_as(file, options.weights_dtype)[1] or ""
    plain = file.quantized is None and stored in HALVES
    cache = "" if options.kv_dtype in HALVES else options.kv_dtype or ""
    return {"weights": "" if plain else stored.partition("-")[0], "cache": cache}


def searched(options: ServeQuestion, device: Device, engines: Sequence[str], fallbacks: FallbackDevices) -> Searched:
    """The search for ``options`` with those of ``engines`` that run on ``device``; UsageError if none does."""
    from perfmodel.catalog import find_engine, find_model

    models, searches = dict[Formats, ModelSpec](), dict[Formats, Search]()
    load, gpus, targets = options.load(), options.searched_gpus(), Targets(*options.limits())
    presets = [find_engine(name) for name in engines]
    configured = [
        options.configured(engine.for_device(device)) for engine in [engine for engine in presets if engine.runs_on(device)] or presets
    ]
    for formats in options.searched_formats():
        question = options.in_formats(formats)
        model, stored = served_as(find_model(options.name), question.weights_dtype)
        options.check_lengths(model)
        models[formats], base_pass = model, question.base_pass(model, device, Split(), stored)
        pools, users = options.disaggregated, options.concurrency
        searches[formats] = search(model, device, gpus, load, configured, base_pass, targets, fallbacks, pools, users)
    return Searched(options, models, device, configured, merged(searches))


def report(result: Searched, pictures: bool = False) -> Report:
    """``result`` as a Report with data of schema perfmodel.serve/1. UsageError if no layout holds the model."""
    point = result.result.chosen
    if point is None:
        alone = f"give narrower formats: {result.device.id} has no interconnect in its profile, so one GPU holds all"
        fix = alone if result.device.interconnect is None else MORE_GPUS
        raise UsageError(f"{result.model.name} on {result.gpus} x {result.device.name}: {result.result.why}", fix)
    pasted = result.lines(point)
    points = [point, *spread([other for other in result.within if other != point], FRONT_ROWS)]
    rows = [_metrics(candidate, result) for candidate in result.within or [point]]
    return Report(
        f"{result.model.name}: the best layout for {result.load.isl:,} + {result.load.osl:,} tokens on "
        f"{'up to ' * (result.options.concurrency is not None)}{f'{result.gpus} x ' * (result.gpus > 1)}{result.device.name}",
        verdict(result, point),
        [as_rows("", rows, labels=COLUMNS), *_pasted(pasted)],
        _notes(result),
        data(result, point, pasted),
        charts=[picture(result.result, point)] if pictures else [],
        figures=point_figures(result, point),
        brief=[as_rows("", [_metrics(candidate, result) for candidate in points], labels=COLUMNS), *_pasted(pasted, SCREEN_ROWS)],
    )


def data(result: Searched, point: Candidate, pasted: Sequence[str]) -> dict[str, Any]:
    """The object of schema perfmodel.serve/1 of a search."""
    outcome, chosen = result.result, as_json(_metrics(point, result))
    inputs = {"model": result.model.name, "gpus": result.gpus, "engines": [engine.id for engine in result.engines]}
    inputs |= {name: getattr(result.load, name) for name in ("isl", "osl", "prefix", "draft_tokens", "acceptance")}
    return {
        **head("serve", {**inputs, **asdict(outcome.limits), "gpu_hour": result.options.gpu_hour}, result.device),
        "best": None if outcome.best is None else chosen,
        "nearest": None if outcome.nearest is None else chosen,
        "at_least": outcome.at_least,
        "front": [as_json(_metrics(candidate, result)) for candidate in outcome.front],
        "searched": dict(outcome.counts),
        "paste": pasted,
    }


def _pasted(lines: Sequence[str], limit: int | None = None) -> list[Table]:
    """Table of command lines; with ``limit`` only commands that fit that many rows."""
    rows = list[list[str]]()
    for line in map(_broken, lines):
        if limit is None or len(rows) + len(line) <= limit:
            rows += [[row] for row in line]
    return [Table("", [TO_PASTE], rows)] if rows else []


def in_shell_loop(line: str, copies: int, gpus: int) -> str:
    """``line`` in a shell loop that starts ``copies`` servers of ``gpus`` GPUs each on ports from 8000."""
    if copies == 1:
        return line
    file, end, start = line.rpartition("\nEND\n")
    first = f"$((i * {gpus}))" if gpus > 1 else "$i"
    devices = f"$(seq -s, {first} $((i * {gpus} + {gpus - 1})))" if gpus > 1 else first
    return f"{file}{end}for i in $(seq 0 {copies - 1}); do CUDA_VISIBLE_DEVICES={devices} {start} --port $((8000 + i)) & done"


def layout_words(point: Candidate) -> str:
    """Phrase on the layout, with formats if several are searched; for pools, both layouts with numbers of workers."""
    split = split_words(point.split) or "1 GPU"
    words = ", ".join(f"{form} {name}" for form, name in zip(point.formats, ("weights", "KV"), strict=True) if form)
    split += f", {words}" if words else ""
    if point.prefill is None:
        return split
    return f"{point.prefill_workers} x ({split_words(point.prefill) or '1 GPU'}) to {point.workers} x ({split})"


def _metrics(point: Candidate, result: Searched) -> list[Metric]:
    copies, price = result.copies(point), result.price(point)
    return [
        Metric("engine", point.engine, "engine", "text"),
        Metric("layout", f"{copies} x " * (copies > 1) + layout_words(point), "layout", "text"),
        Metric("gpus", copies * point.gpus),
        Metric("copies", copies),
        Metric("users", result.users(point), "users"),
        Metric("tokens_per_s_gpu", point.tokens_per_s_gpu, "tok/s/GPU"),
        Metric("tokens_per_s_user", point.tokens_per_s_user, "tok/s/user"),
        Metric("requests_per_s", copies * point.requests_per_s),
        Metric("ttft_s", point.ttft_s, "first token", "s"),
        Metric("ttft_p99_s", point.ttft_p99_s),
        Metric("tpot_s", point.tpot_s or None, "each after", "s"),
        Metric("request_s", point.request_s, "request", "s"),
        *([] if price is None else [Metric("price_per_million", price, "per 1M", "price")]),
    ]


def verdict(result: Searched, point: Candidate) -> list[str]:
    """The verdict: the best candidate, its latencies, and the number of candidates."""
    outcome, limits, price = result.result, result.result.limits, result.price(point)
    bounds = [f"{name} {format_time(value, 3)}" for name, value in limits.given.items()]
    start = f"Best within {' and '.join(bounds)}:" if bounds else "Most per GPU:"
    start = start if outcome.best is not None else f"{upper_first(outcome.why)}. It is"
    copies = f"{result.copies(point)} copies of " if result.copies(point) > 1 else ""
    at_least, at_most = ("at least ", "at most ") if outcome.at_least else ("", "")
    per_token = f", then one every {format_time(point.tpot_s, 3)}{' or more' * outcome.at_least}" if point.tpot_s else ""
    request = f"; a request takes {format_time(point.request_s, 3)}" if limits.request_s is not None else ""
    costs = "" if price is None else f", {price:.3g} per million tokens at {result.options.gpu_hour:g} a GPU-hour"
    rate = f"{at_most}{tokens(point.tokens_per_s_gpu)} per GPU{costs}"
    return [
        f"{start} {point.engine}, {copies}{layout_words(point)}, {counted(result.users(point), 'user')}: {rate}.",
        f"First token after {at_least}{format_time(point.ttft_s, 3)}{per_token}{request}.",
        *([_pools_words(outcome)] if result.options.disaggregated else []),
        f"{outcome.configurations:,} configurations, {len(outcome.front)} Pareto-optimal in tokens/s per GPU and per user.",
    ]


def _pools_words(outcome: Search) -> str:
    """Sentence on whether pools deliver more than replicas."""
    pooled, together = outcome.pooled, outcome.together
    if pooled is None:
        return "Separate prefill and decode workers do not pay: no layout of them fits, keeps up and is within the limits."
    best = f"their best is {tokens(pooled.tokens_per_s_gpu)} per GPU ({layout_words(pooled)})"
    if together is None:
        return f"Only separate prefill and decode workers are within the limits: {best}."
    pays = "pay" if pooled.tokens_per_s_gpu > together.tokens_per_s_gpu else "do not pay"
    return f"Separate prefill and decode workers {pays}: {best}, without them {tokens(together.tokens_per_s_gpu)}."


def point_figures(result: Searched, point: Candidate) -> list[Figure]:
    """Figures of one point of the front."""
    name, price = "best" if result.result.best is not None else "nearest", result.price(point)
    return [
        Figure(name, f"{point.engine}, {layout_words(point)}, {counted(point.users, 'user')}"),
        Figure("throughput per GPU", tokens(point.tokens_per_s_gpu)),
        Figure("throughput per user", tokens(point.tokens_per_s_user)),
        *([] if price is None else [Figure("price per million tokens", f"{price:.3g}")]),
    ]


def _broken(line: str) -> list[str]:
    """``line`` broken into lines that a shell joins; a file before it stays as it is.

    >>> _broken("serve " + "--option 12345 " * 6)[0]
    'serve --option 12345 --option 12345 --option 12345 \\\\'
    """
    if "\n" in line:
        return line.split("\n")
    lines = [""]
    for word in line.strip().replace(" --", "\n--").split("\n"):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > WIDTH:
            lines[-1] += MORE
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def picture(outcome: Search, chosen: Candidate | None) -> Chart:
    """Chart of the front: points with their layouts, those beyond the limits as a separate series, and limits as lines."""
    limits, marks = outcome.limits, list[Mark]()
    within, beyond = ([point for point in outcome.front if limits.hold(point) is holds] for holds in (True, False))
    series = [Series("Pareto front", sorted((point.tokens_per_s_user, point.tokens_per_s_gpu) for point in outcome.front))]
    outside = sorted((point.tokens_per_s_user, point.tokens_per_s_gpu) for point in beyond)
    series += [Series("beyond the limits", outside, "markers")] * bool(within and beyond)
    for point in sorted(outcome.front, key=lambda point: point != chosen):
        label = f"{'best: ' * (point == chosen)}{layout_words(point)}, {counted(point.users, 'user')}"
        line = "beyond the limits" if within and point in beyond else ""
        marks.append(Mark(point.tokens_per_s_user, label, point.tokens_per_s_gpu, line))
    if limits.tpot_s is not None:
        marks.append(Mark(1 / limits.tpot_s, f"tpot {format_time(limits.tpot_s, 3)}"))
    title, across, up = "Tokens per second of a GPU against those of a user", "tokens per second of a user", "tokens per second of a GPU"
    return LineChart(title, across, up, series, "tokens/s", "tokens/s", marks=marks)


def _notes(result: Searched) -> list[str]:
    counts, front = result.result.counts, result.result.front
    beyond = len(front) - len(result.within)
    fixed_users = result.options.concurrency is not None
    idle = not fixed_users and any(result.copies(point) * point.gpus < result.gpus for point in front)
    return [
        f"Ranked {counts['evaluated']:,} by a closed form and simulated {counts['simulated']:,}"
        f"{f'; {none:,} layouts have no room for a sequence in each group' if (none := counts.get('without room', 0)) else ''}.",
        *["Tokens/s per GPU are of all GPUs, also of those that a layout leaves idle."] * idle,
        *[f"{beyond:,} points of the front are beyond the limits and left out of the table."] * (beyond > 0),
        "GPUs that the users do not need are not counted." if fixed_users else "Replicas of fewer GPUs are repeated to fill all.",
    ]
