"""The report of a search: the best within the limits with lines to paste, and the front of tokens a second of a GPU and of a user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from perfmodel.core.errors import UsageError
from perfmodel.core.hardware import Device
from perfmodel.core.units import format_time
from perfmodel.report.charts.schema import Chart, LineChart, Mark, Series
from perfmodel.report.document import SCREEN_ROWS, TO_PASTE, Figure, Report, Table
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.op_common import head
from perfmodel.report.serve import counted, split_words
from perfmodel.report.step import tokens
from perfmodel.serving.engine import Engine
from perfmodel.serving.launch import DECODE_ROLE, LINES, PREFILL_ROLE, launch, unstated
from perfmodel.serving.load import Load
from perfmodel.serving.question import ServeQuestion
from perfmodel.serving.search import Candidate, Formats, Search, Targets, merged, search, spread
from perfmodel.timing.lenders import FallbackDevices
from perfmodel.transformer.hf import served_as
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import Split

COLUMNS = ("engine", "layout", "users", "tokens_per_s_gpu", "tokens_per_s_user", "ttft_s", "tpot_s", "price_per_million")
FRONT_ROWS, WIDTH = 4, 58
"""Points of the front and columns of a line to paste that a screen shows."""
MORE_GPUS = "give more GPUs, or narrower formats"
HALVES = ("bf16", "fp16")
"""Formats of a checkpoint, and of its KV cache, where nothing else is said."""
MORE = " \\"
"""Ends a line that the next one goes on."""


@dataclass(frozen=True)
class Searched:
    """``found`` by the search that ``asked`` is, on ``device``."""

    asked: ServeQuestion
    models: Mapping[Formats, ModelSpec]
    device: Device
    engines: Sequence[Engine]
    found: Search

    @property
    def model(self) -> ModelSpec:
        """In the first formats."""
        return next(iter(self.models.values()))

    @property
    def gpus(self) -> int:
        """Most of a layout."""
        return self.asked.searched_gpus()

    @cached_property
    def load(self) -> Load:
        """Of each number of users."""
        return self.asked.load()

    @property
    def gpu_hour(self) -> float | None:
        """Its price."""
        return self.asked.gpu_hour

    def users(self, point: Candidate) -> int:
        """Users of all its copies: those that were asked for, else as many as were best."""
        return self.asked.concurrency or self.copies(point) * point.users

    def copies(self, point: Candidate) -> int:
        """Replicas like ``point`` that the GPUs hold."""
        return self.gpus // point.gpus

    def lines(self, point: Candidate) -> list[str]:
        """Commands that start the engine so, where its options are known, and that ask about it again."""
        engine = next(one for one in self.engines if one.id == point.engine)
        model, asked = self.models.get(point.formats, self.model), self.asked.in_formats(point.formats)
        weights, cache = self.own_formats(asked)
        first = unstated(model, engine, self.load, weights, cache) if engine.id in LINES else []
        if point.prefill is None:
            starts = (
                [launch(model, engine, point.split, point.users, self.load, weights=weights, cache=cache)] if engine.id in LINES else []
            )
            starts = [repeated(line, self.copies(point), point.gpus) for line in starts]
            return [*first, *starts, asked.typed(self.device.id, point.engine, point.split, point.users)]
        if engine.id not in LINES:
            return []
        both = ((point.prefill, PREFILL_ROLE), (point.split, DECODE_ROLE))
        return [
            *first,
            *(launch(model, engine, split, point.sequences, self.load, role, weights=weights, cache=cache) for split, role in both),
        ]

    def own_formats(self, asked: ServeQuestion) -> tuple[str, str]:
        """Formats of the weights and of the KV cache that ``asked`` wants and its checkpoint does not have; empty for those it has."""
        from perfmodel.catalog import find_model

        file = find_model(asked.name)
        stored = served_as(file, asked.weights_dtype)[1] or ""
        plain = file.quantized is None and stored in HALVES
        return "" if plain else stored.partition("-")[0], "" if asked.kv_dtype in HALVES else asked.kv_dtype or ""


def searched(asked: ServeQuestion, device: Device, engines: Sequence[str], fallbacks: FallbackDevices) -> Searched:
    """The search that ``asked`` is, under those of ``engines`` that run on ``device``; UsageError where none does."""
    from perfmodel.catalog import find_engine, find_model

    models, found = dict[Formats, ModelSpec](), dict[Formats, Search]()
    load, gpus, targets = asked.load(), asked.searched_gpus(), Targets(*asked.limits())
    presets = [find_engine(name) for name in engines]
    known = [asked.configured(one.on(device)) for one in [one for one in presets if one.runs_on(device)] or presets]
    for formats in asked.searched_formats():
        one = asked.in_formats(formats)
        model, stored = served_as(find_model(asked.name), one.weights_dtype)
        asked.check_lengths(model)
        models[formats], like = model, one.like(model, device, Split(), stored)
        found[formats] = search(model, device, gpus, load, known, like, targets, fallbacks, asked.disaggregated, asked.concurrency)
    return Searched(asked, models, device, known, merged(found))


def report(asked: Searched, pictures: bool = False) -> Report:
    """``asked`` as a Report; its data follows the schema perfmodel.serve/1. UsageError where nothing holds the model."""
    point = asked.found.chosen
    if point is None:
        alone = asked.device.interconnect is None
        fix = f"give narrower formats: {asked.device.id} has no interconnect in its profile, so one GPU holds all" if alone else MORE_GPUS
        raise UsageError(f"{asked.model.name} on {asked.gpus} x {asked.device.name}: {asked.found.why}", fix)
    points = [_metrics(one, asked) for one in asked.found.front]
    pasted = asked.lines(point)
    inputs = {"model": asked.model.name, "gpus": asked.gpus, "engines": [one.id for one in asked.engines]}
    inputs |= {name: getattr(asked.load, name) for name in ("isl", "osl", "prefix", "draft_tokens", "acceptance")}
    limits = asdict(asked.found.limits)
    data: dict[str, Any] = {
        **head("serve", {**inputs, **limits, "gpu_hour": asked.gpu_hour}, asked.device),
        "best": None if asked.found.best is None else as_json(_metrics(point, asked)),
        "nearest": None if asked.found.nearest is None else as_json(_metrics(point, asked)),
        "at_least": asked.found.at_least,
        "front": list(map(as_json, points)),
        "searched": dict(asked.found.counts),
        "paste": pasted,
    }
    within = [one for one in asked.found.front if asked.found.limits.hold(one)]
    table = as_rows("", [_metrics(one, asked) for one in within or [point]], labels=COLUMNS)
    return Report(
        _title(asked),
        verdict(asked, point),
        [table, *_pasted(pasted)],
        _notes(asked),
        data,
        charts=[picture(asked.found.front, asked.found.chosen)] if pictures else [],
        figures=figures(asked, point),
        brief=[as_rows("", [_metrics(one, asked) for one in _listed(asked)], labels=COLUMNS), *_pasted(pasted, SCREEN_ROWS)],
    )


def _pasted(lines: Sequence[str], most: int | None = None) -> list[Table]:
    """``lines`` as rows to paste, whole ones alone within ``most`` rows."""
    rows = list[list[str]]()
    for line in map(_broken, lines):
        if most is None or len(rows) + len(line) <= most:
            rows += [[row] for row in line]
    return [Table("", [TO_PASTE], rows)] if rows else []


def repeated(line: str, copies: int, gpus: int) -> str:
    """``line`` in a shell loop that starts ``copies`` servers of ``gpus`` GPUs each, on ports from 8000."""
    if copies == 1:
        return line
    file, end, start = line.rpartition("\nEND\n")
    first = f"$((i * {gpus}))" if gpus > 1 else "$i"
    devices = f"$(seq -s, {first} $((i * {gpus} + {gpus - 1})))" if gpus > 1 else first
    return f"{file}{end}for i in $(seq 0 {copies - 1}); do CUDA_VISIBLE_DEVICES={devices} {start} --port $((8000 + i)) & done"


def layout_words(point: Candidate) -> str:
    """The layout in words, with the formats where several are searched; of pools both, with how many workers of each."""
    split = split_words(point.split) or "1 GPU"
    words = ", ".join(f"{form} {what}" for form, what in zip(point.formats, ("weights", "KV"), strict=True) if form)
    split += f", {words}" if words else ""
    if point.prefill is None:
        return split
    return f"{point.prefill_workers} x ({split_words(point.prefill) or '1 GPU'}) to {point.workers} x ({split})"


def _metrics(point: Candidate, asked: Searched) -> list[Metric]:
    price = None if asked.gpu_hour is None else point.dollars(asked.gpu_hour)
    return [
        Metric("engine", point.engine, "engine", "text"),
        Metric("layout", f"{asked.copies(point)} x " * (asked.copies(point) > 1) + layout_words(point), "layout", "text"),
        Metric("gpus", asked.copies(point) * point.gpus),
        Metric("copies", asked.copies(point)),
        Metric("users", asked.users(point), "users"),
        Metric("tokens_per_s_gpu", point.tokens_per_s_gpu, "tok/s/GPU"),
        Metric("tokens_per_s_user", point.tokens_per_s_user, "tok/s/user"),
        Metric("requests_per_s", asked.copies(point) * point.requests_per_s),
        Metric("ttft_s", point.ttft_s, "first token", "s"),
        Metric("ttft_p99_s", point.ttft_p99_s),
        Metric("tpot_s", point.tpot_s or None, "each after", "s"),
        Metric("request_s", point.request_s, "request", "s"),
        *([] if price is None else [Metric("price_per_million", price, "per 1M", "price")]),
    ]


def _title(asked: Searched) -> str:
    sizes = f"{asked.load.isl:,} + {asked.load.osl:,} tokens"
    gpus = f"{asked.gpus} x " if asked.gpus > 1 else ""
    return f"{asked.model.name}: the best layout for {sizes} on {gpus}{asked.device.name}"


def verdict(asked: Searched, point: Candidate) -> list[str]:
    """What is best, what its users wait for, and how many were compared."""
    limits = asked.found.limits
    bounds = [f"{name} {format_time(value, 3)}" for name, value in limits.given.items()]
    start = f"Best within {' and '.join(bounds)}" if bounds else "Most per GPU"
    if asked.found.best is None:
        start = f"{asked.found.why[:1].upper()}{asked.found.why[1:]}. It is"
    price = "" if asked.gpu_hour is None else f", {point.dollars(asked.gpu_hour):.3g} per million tokens"
    users = counted(asked.users(point), "user")
    copies = f"{asked.copies(point)} copies of " if asked.copies(point) > 1 else ""
    least, most = ("at least ", "at most ") if asked.found.at_least else ("", "")
    each = f", then one every {least}{format_time(point.tpot_s, 3)}" if point.tpot_s else ""
    whole = f"; a request takes {format_time(point.request_s, 3)}" if limits.request_s is not None else ""
    front = len(asked.found.front)
    return [
        f"{start}: {point.engine}, {copies}{layout_words(point)}, {users}: {most}{tokens(point.tokens_per_s_gpu)} per GPU{price}.",
        f"First token after {least}{format_time(point.ttft_s, 3)}{each}{whole}.",
        *([_pools_words(asked)] if asked.asked.disaggregated else []),
        f"{asked.found.configurations:,} configurations, {front} Pareto-optimal in tokens/s per GPU and per user.",
    ]


def _pools_words(asked: Searched) -> str:
    """Whether workers for prefill and decode deliver more than GPUs that do both."""
    pooled, together = asked.found.pooled, asked.found.together
    if pooled is None:
        return "Separate prefill and decode workers do not pay: no layout of them fits, keeps up and is within the limits."
    most = f"their best is {tokens(pooled.tokens_per_s_gpu)} per GPU ({layout_words(pooled)})"
    if together is None:
        return f"Only separate prefill and decode workers are within the limits: {most}."
    pays = "pay" if pooled.tokens_per_s_gpu > together.tokens_per_s_gpu else "do not pay"
    return f"Separate prefill and decode workers {pays}: {most}, without them {tokens(together.tokens_per_s_gpu)}."


def figures(asked: Searched, point: Candidate) -> list[Figure]:
    """The numbers that decide about one point of the front."""
    found = [
        Figure(
            "best" if asked.found.best is not None else "nearest", f"{point.engine}, {layout_words(point)}, {counted(point.users, 'user')}"
        ),
        Figure("throughput per GPU", tokens(point.tokens_per_s_gpu)),
        Figure("throughput per user", tokens(point.tokens_per_s_user)),
    ]
    return found + ([] if asked.gpu_hour is None else [Figure("price per million tokens", f"{point.dollars(asked.gpu_hour):.3g}")])


def _listed(asked: Searched) -> list[Candidate]:
    """As many as a screen shows: the chosen one first, then those of the front within the limits, the ends among them."""
    first = [] if asked.found.chosen is None else [asked.found.chosen]
    return [*first, *spread([one for one in asked.found.front if asked.found.limits.hold(one) and one not in first], FRONT_ROWS)]


def _broken(line: str) -> list[str]:
    """``line`` in lines that a shell joins again; a file before it stays as it is.

    >>> _broken("serve " + "--option 12345 " * 6)[0]
    'serve --option 12345 --option 12345 --option 12345 \\\\'
    """
    if "\n" in line:
        return line.split("\n")
    found = [""]
    for word in line.strip().replace(" --", "\n--").split("\n"):
        if found[-1] and len(found[-1]) + 1 + len(word) > WIDTH:
            found[-1] += MORE
            found.append("")
        found[-1] += f" {word}" if found[-1] else word
    return found


def picture(front: Sequence[Candidate], chosen: Candidate | None) -> Chart:
    """The front, with the chosen point."""
    points = sorted((one.tokens_per_s_user, one.tokens_per_s_gpu) for one in front)
    marks = [] if chosen is None else [Mark(chosen.tokens_per_s_user, layout_words(chosen), chosen.tokens_per_s_gpu)]
    title, across, up = "Tokens per second of a GPU against those of a user", "tokens per second of a user", "tokens per second of a GPU"
    return LineChart(title, across, up, [Series("front", points)], "tokens/s", "tokens/s", marks=marks)


def _notes(asked: Searched) -> list[str]:
    counts, limits = asked.found.counts, asked.found.limits
    beyond = sum(not limits.hold(one) for one in asked.found.front)
    idle = any(asked.copies(one) * one.gpus < asked.gpus for one in asked.found.front)
    return [
        f"Ranked {counts['evaluated']:,} by a closed form and simulated {counts['simulated']:,}; "
        f"{counts.get('without room', 0):,} layouts have no room for a sequence in each group.",
        *(["Tokens/s per GPU are of all GPUs, also of those that a layout leaves idle."] if idle else []),
        *([f"{beyond:,} points of the front are beyond the limits and left out of the table."] if beyond else []),
        "Replicas of fewer GPUs are repeated to fill all.",
    ]
