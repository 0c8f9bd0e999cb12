"""The question of ``perfmodel serve``."""

from __future__ import annotations

import shlex
from dataclasses import fields, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.question import Common, Condition, Question, as_in, as_typed, option
from perfmodel.serving.load import Load
from perfmodel.transformer.question import RARER, PhaseQuestion

if TYPE_CHECKING:
    from perfmodel.core.hardware import Device
    from perfmodel.serving.engine import Engine
    from perfmodel.transformer.spec import ModelSpec
    from perfmodel.transformer.step import ModelPass, Split

DEFAULT_ENGINE = "vllm"
SEARCHED_GPUS, MOST_SEARCHED = 8, 64
"""GPUs of a search by default, and at most."""
HOST_MEMORY = "60GB/s"
"""Default bandwidth of the host's memory: about that of two channels of DDR5-4800."""
USERS = 64
"""Users of a question that states neither users nor a rate."""

# What an option needs: the words of the error after the option's name, the fix, and the test of the question

SEARCHES = Condition("is a limit of a search", "add --search, or leave it out", lambda question: question.search)
SEARCHED = Condition("is what --search looks for", "leave it out, or leave out --search", lambda question: not question.search)
ONE_LAYOUT = Condition("is of one layout alone", "leave it out, or leave out --search", lambda question: not question.search)
DRAFTED = Condition("is of drafted tokens", "give --draft-tokens too, or leave it out", lambda question: question.draft_tokens > 0)
POOLED = Condition("is of pools", "give --prefill-workers too, or leave it out", lambda question: question.prefill_workers is not None)
LLAMA_CPP = Condition("is of llama.cpp", "give --engine llama.cpp, or leave it out", lambda question: "llama" in (question.engine or ""))
OFFLOADED = Condition(
    "is of layers on the host", "give --gpu-layers too, or leave it out", lambda question: question.gpu_layers is not None
)

NOT_OF_A_LAYOUT = ("name", "gpus", "search", "ttft", "tpot", "request_latency", "disaggregated")
"""Fields that the command line of a layout found by a search does not repeat."""


@dataclass(frozen=True, slots=True)
class ServeQuestion(Question):
    """A model behind a serving engine, and its users."""

    name: str = as_in(PhaseQuestion, "name")
    hardware: str | None = as_in(Common, "hardware")
    gpus: int | None = option("GPUs. [default: those of the layout; --search: 8]")
    engine: str | None = option("vllm, sglang, tensorrt-llm, llama.cpp. [default: vllm]")
    isl: int = option("Tokens of a prompt.", default=1024)
    osl: int = option("Tokens generated for it.", default=1024)
    concurrency: int | None = option(f"Users, each with one request. [default: {USERS}]")
    rate: float | None = option("Requests a second, in place of users.", reader=SEARCHED)
    prefix: int = option("Tokens of a prompt in the cache.", default=0)
    draft_tokens: int = option("Tokens drafted per step.", default=0)
    acceptance: float = option("Chance that a drafted one is right.", default=0.7, reader=DRAFTED)
    search: bool = option("Best of all layouts, users and formats (fp16,fp8).", "--search/--no-search", default=False)
    ttft: str | None = option("Most time to the first token, such as 500ms.", reader=SEARCHES)
    tpot: str | None = option("Most time per token after it, such as 30ms.", reader=SEARCHES)
    request_latency: str | None = option("Most time of a whole request, such as 12s.", reader=SEARCHES)
    disaggregated: bool = option(
        "Prefill and decode on GPUs of their own, too.", "--disaggregated/--together", default=False, reader=SEARCHES
    )
    gpu_hour: float | None = option("Price of a GPU's hour, for that of tokens.")
    tp: int | None = option("GPUs that share each matrix. [default: all]", reader=SEARCHED)
    dp: int | None = option("Groups with sequences of their own. [default: 1]", reader=SEARCHED)
    ep: int = option("Expert-parallel GPUs.", default=1, reader=SEARCHED)
    pp: int = option("Pipeline stages of consecutive layers.", default=1, reader=SEARCHED)
    prefill_workers: int | None = option("Workers that run prompts alone; --workers decode.", reader=SEARCHED, group=RARER)
    workers: int = option("Workers that decode.", default=1, reader=POOLED, group=RARER)
    prefill_tp: int = option("--tp of a worker that runs prompts.", default=1, reader=POOLED, group=RARER)
    prefill_dp: int = option("--dp of a worker that runs prompts.", default=1, reader=POOLED, group=RARER)
    prefill_ep: int = option("--ep of a worker that runs prompts.", default=1, reader=POOLED, group=RARER)
    dtype: str | None = as_in(Common, "dtype")
    weights_dtype: str | None = as_in(PhaseQuestion, "weights_dtype", group=RARER)
    kv_dtype: str | None = as_in(PhaseQuestion, "kv_dtype", group=RARER)
    imbalance: float | None = as_in(PhaseQuestion, "imbalance", group=RARER)
    token_budget: int | None = option("Most tokens of a step. [default: the engine's]", group=RARER)
    max_sequences: int | None = option("Most sequences at a time. [default: the engine's]", group=RARER)
    power_limit: str | None = as_in(Common, "power_limit", reader=ONE_LAYOUT, group=RARER)
    clock: str | None = option("Clock. [default: burst; sustained under --power-limit]", reader=ONE_LAYOUT, group=RARER)
    reserve: str | None = option("Held back on each GPU, as 4GB. [default: none]", group=RARER)
    gpu_layers: int | None = option("Layers on the GPU, not the host. [default: all]", reader=LLAMA_CPP, group=RARER)
    host_memory: str | None = option("The host's DRAM bandwidth. [default: 60GB/s]", reader=OFFLOADED, group=RARER)
    requests: int | None = option("Benchmark of so many; all users start at once.", reader=ONE_LAYOUT, group=RARER)
    spread: float = option("Shortest length over the longest.", default=1.0, reader=ONE_LAYOUT, group=RARER)

    def load(self, usual: int | None = None) -> Load:
        """The requests, checked. ``usual``: the engine's default number of users."""
        users = self.concurrency
        if users is None and self.rate is None:
            users = usual or USERS
        acceptance = self.acceptance if self.draft_tokens else 0.0
        if self.requests is not None and (users is None or self.requests < users):
            raise UsageError(
                f"--requests {self.requests}: fewer than users, or at a --rate", "give as many as users or more, without --rate"
            )
        if not 0 < self.spread <= 1:
            raise UsageError(f"--spread is {self.spread:g}", "give a share above 0, up to 1 for lengths that are all alike")
        return Load(self.isl, self.osl, users, self.rate, self.prefix, self.draft_tokens, acceptance).check()

    def split(self, model: ModelSpec, in_stages: bool = False) -> Split:
        """The layout. By default all GPUs share each matrix (tensor parallel), or are pipeline stages with ``in_stages``.

        UsageError for sizes that do not fit together.
        """
        from perfmodel.transformer.step import Split

        self._check_counts("gpus", "tp", "dp", "ep", "pp")
        if in_stages:
            if (self.dp or 1, self.tp or 1, self.ep) != (1, 1, 1):
                raise UsageError("--tp, --dp and --ep: GPUs of this engine hold layers in turn", "give --gpus or --pp")
            return Split(pp=max(self.gpus or 1, self.pp)).check(model)
        tp, dp = self.tp or 1, self.dp or 1
        if self.gpus is not None and self.tp is None:
            if self.gpus % (dp * self.pp):
                raise UsageError(f"--gpus {self.gpus}: --dp {dp} and --pp {self.pp} do not divide them", "give other sizes")
            tp = self.gpus // (dp * self.pp)
        if self.gpus is not None and self.dp is None and self.gpus % (tp * self.pp) == 0:
            dp = self.gpus // (tp * self.pp)
        split = Split(tp, self.ep, self.pp, dp)
        if self.gpus is not None and split.gpus != self.gpus:
            sizes = f"--tp {split.tp}, --dp {split.dp} and --pp {split.pp}"
            raise UsageError(f"--gpus {self.gpus}: {sizes} are {split.gpus} GPUs", "give --gpus or the sizes alone")
        try:
            return split.check(model)
        except UsageError as error:
            if self.tp is not None or self.gpus is None:
                raise
            message = error.message.replace(f"--tp {tp} ", f"--tp {tp} of --gpus {self.gpus} ", 1)
            raise UsageError(message, f"{error.fix}; or give --tp too") from None

    def prefill_split(self, model: ModelSpec) -> Split:
        """The layout of a prefill worker; UsageError for impossible sizes."""
        from perfmodel.transformer.step import Split

        self._check_counts("prefill_workers", "workers", "prefill_tp", "prefill_dp", "prefill_ep")
        return Split(self.prefill_tp, self.prefill_ep, 1, self.prefill_dp).check(model)

    def base_pass(self, model: ModelSpec, device: Device, split: Split, stored: str | None) -> ModelPass:
        """A pass with the number formats and the layout. ``stored``: format of the weights, from ``hf.served_as``."""
        from perfmodel.core.checks import dtype_on
        from perfmodel.transformer.step import DECODE, ModelPass, check_imbalance, formats

        form = dtype_on(self.dtype, device)
        check_imbalance(self.imbalance, model)
        return ModelPass(DECODE, 1, 1, 1, form, split=split, imbalance=self.imbalance, **formats(model, form, stored, self.kv_dtype))

    def configured(self, engine: Engine) -> Engine:
        """``engine`` with the question's options of batching and memory."""
        from perfmodel.core.checks import size_bytes

        self._check_counts("token_budget", "max_sequences")
        configured = engine.with_batching(token_budget=self.token_budget, max_sequences=self.max_sequences)
        return configured if self.reserve is None else replace(configured, reserve=size_bytes("reserve", self.reserve, least=0))

    def host_bandwidth(self) -> float:
        """Bandwidth of the host's memory in B/s."""
        from perfmodel.core.checks import quantity

        return quantity("host-memory", self.host_memory or HOST_MEMORY, "B/s", "80GB/s")

    def limits(self) -> tuple[float | None, float | None, float | None]:
        """Limits in seconds: to the first token, per token after it, and for a whole request."""
        return _seconds("ttft", self.ttft), _seconds("tpot", self.tpot), _seconds("request-latency", self.request_latency)

    def searched_gpus(self) -> int:
        """Most GPUs of a layout in a search."""
        self._check_counts("gpus")
        gpus = SEARCHED_GPUS if self.gpus is None else self.gpus
        if gpus > MOST_SEARCHED:
            raise UsageError(f"--gpus {gpus:,}: more than a search tries", f"give at most {MOST_SEARCHED}")
        return gpus

    def searched_formats(self) -> list[tuple[str | None, str | None]]:
        """Pairs of weight and KV cache formats to search, every combination of those listed; None for a format not given."""

        def listed(text: str | None) -> list[str | None]:
            return [None] if text is None else [*text.replace(" ", "").split(",")]

        return list(product(listed(self.weights_dtype), listed(self.kv_dtype)))

    def in_formats(self, formats: tuple[str | None, str | None]) -> ServeQuestion:
        """The same question with these formats of weights and KV cache; None leaves a format as it is."""
        weights, cache = formats
        return replace(self, weights_dtype=weights or self.weights_dtype, kv_dtype=cache or self.kv_dtype)

    def typed(self, hardware: str, engine: str, split: Split, users: int) -> str:
        """Command line for a layout and users that this search found; ``hardware`` and ``engine``: defaults if the question names none."""
        values: dict[str, Any] = {"hardware": hardware, "engine": engine, "isl": self.isl, "osl": self.osl}
        values |= {name: value for name, value in self.given().items() if name not in NOT_OF_A_LAYOUT}
        values |= {"concurrency": users, "tp": split.tp}
        values |= {name: getattr(split, name) for name in ("dp", "ep", "pp") if getattr(split, name) > 1}
        options = [field_ for field_ in fields(self) if field_.name in values]
        words = [f"{as_typed(option_)} {shlex.quote(str(values[option_.name]))}" for option_ in options]
        return " ".join(["perfmodel serve", shlex.quote(self.name), *words])

    def _check_counts(self, *names: str) -> None:
        """UsageError if one of these options is given and below 1."""
        from perfmodel.core.checks import positive_int

        for name in names:
            if getattr(self, name) is not None:
                positive_int(name.replace("_", "-"), getattr(self, name))

    def check_lengths(self, model: ModelSpec) -> None:
        """UsageError for requests longer than the model allows."""
        longest = model.max_positions
        if longest is not None and self.isl + self.osl > longest:
            raise UsageError(f"--isl {self.isl} and --osl {self.osl}: {model.name} takes {longest:,} tokens in all", "give shorter ones")


def _seconds(name: str, text: str | None) -> float | None:
    """The option ``name`` in seconds, read from ``text``; None if that is None."""
    from perfmodel.core.checks import quantity

    return None if text is None else quantity(name, text, "s", "500ms")
