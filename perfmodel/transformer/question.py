"""Questions of users about whole models, and what they become: a request, a training step."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.question import EAGER_ENGINE, Common, Condition, Question, argument, as_in, option

if TYPE_CHECKING:
    from perfmodel.core.hardware import Device
    from perfmodel.transformer.spec import ModelSpec
    from perfmodel.transformer.step import Request
    from perfmodel.transformer.training.question import TrainingConfig

MOST_HOST_US = 1e6
"""Most microseconds per launch."""
MOST_GPUS = 10**6
"""Limit of a search: trying every layout of more GPUs takes long, and no system has them."""
TRAINING, RARER = "Training (--phase train)", "Rarer options"
"""Headings in ``--help``."""


def _launches_kernels(question: PhaseQuestion) -> bool:
    """Whether the host launches kernels one by one in some step of inference."""
    if question.trains or question.graph is True:
        return False
    eager = question.graph is False or getattr(question, "engine", None) == EAGER_ENGINE
    return eager or question.phase != "decode" or not question.kv_cache


def _has_temporaries(question: MemoryQuestion) -> bool:
    from perfmodel.transformer.training.question import optimizer_named

    return bool(optimizer_named(question.optimizer).temporary)


_ADAPTERS = Condition("is for adapters", "give their rank with --lora too, or leave it out", lambda question: question.lora is not None)
_TEMPORARIES = Condition("is for optimizers with temporary copies: adam, adamw", "leave it out", _has_temporaries)
_TRAINING = Condition("is an option of training", "give --phase train, or leave it out", lambda question: question.trains)
_INFERENCE = Condition("is an option of inference", "leave it out of --phase train", lambda question: not question.trains)
_ENGINES = Condition(
    f"is an option of inference, but for {EAGER_ENGINE}",
    "leave it out of --phase train",
    lambda question: not question.trains or question.engine == EAGER_ENGINE,
)
_LAUNCHES = Condition("is of kernels launched one by one", "add --eager, or leave it out", _launches_kernels)
_NAMED_KERNELS = Condition(
    f"is not for --engine {EAGER_ENGINE}, whose program names its kernels",
    "leave one of them out",
    lambda question: question.engine != EAGER_ENGINE,
)
ONE_LAYOUT = Condition("is for one layout", "leave out --search", lambda question: getattr(question, "search", None) is None)


@dataclass(frozen=True, slots=True)
class MemoryQuestion(Question):
    """A training step of a model, on one GPU or several."""

    name: str = argument("MODEL", "A name, such as llama-3-8b, or a config.json's path.")
    batch: int = option("Sequences of a step on all GPUs.", default=1)
    n: int | None = option("Sequence length. [default: 2048 or the model's most]")
    micro_batch: int | None = option("Sequences at a time on one GPU. [default: its share]")
    precision: str = option("mixed, bf16 or fp32.", default="mixed")
    optimizer: str = option("adam, adamw, sgd, momentum, adafactor, adam8bit, lion or muon.", default="adam")
    recompute: str = option("none, selective, full or every:K.", default="none")
    flash: bool = option("FlashAttention, or scores in memory. [default: flash]", "--flash/--no-flash", default=True)
    dropout: bool = option(
        "Keep masks of dropout. [default: none]", "--dropout-masks/--no-dropout-masks", default=False, old="--dropout/--no-dropout"
    )
    lora: int | None = option("Rank of adapters. [default: none, all is trained]", group=RARER)
    lora_targets: str | None = option("Matrices with adapters: all, attention or qv. [default: all]", reader=_ADAPTERS, group=RARER)
    gradients: str = option("Kept in mixed precision: 16bit, fp32 or both.", default="16bit", group=RARER)
    gradient_life: str = option("freed after a step, kept, or applied one by one.", default="freed", group=RARER)
    fused_optimizer: bool = option(
        "One kernel, or temporary copies. [default: fused]", "--fused-optimizer/--foreach", default=True, reader=_TEMPORARIES, group=RARER
    )
    implementation: str = option("Whose layers: fused or huggingface.", "--model-code", default="fused", old="--implementation")
    zero: int = option("What data-parallel GPUs divide: 0 to 3.", default=0)
    dp: int = option("GPUs with a copy each.", default=1)
    tp: int = option("GPUs that share each matrix.", default=1)
    sp: bool = option("Divide the rest of a layer too. [default: no]", "--sp/--no-sp", default=False)
    pp: int = option("Pipeline stages of consecutive layers.", default=1)
    interleave: int = option("Chunks of layers per stage.", default=1, group=RARER)
    cp: int = option("GPUs that share each sequence.", default=1, group=RARER)
    ep: int = option("GPU groups with different experts.", default=1, group=RARER)
    hardware: str | None = as_in(Common, "hardware")

    def training(self, model: ModelSpec) -> TrainingConfig:
        """The training step of ``model``; a length that is not given fits the model."""
        from perfmodel.transformer.step import TRAIN, default_length
        from perfmodel.transformer.training.question import ALL, Parallel, TrainingConfig, recompute_named

        derived: dict[str, Any] = {
            "model": model,
            "n": default_length(model, TRAIN) if self.n is None else self.n,
            "recompute": recompute_named(self.recompute),
            "lora_targets": ALL if self.lora_targets is None else self.lora_targets,
        }
        return TrainingConfig(**self._shared_options(TrainingConfig) | derived, parallel=Parallel(**self._shared_options(Parallel)))

    def _shared_options(self, record: Any) -> dict[str, Any]:
        """Values of the options that have the names of fields of ``record``."""
        return {field.name: getattr(self, field.name) for field in fields(record) if hasattr(self, field.name)}


def _training_option(name: str, help: str = "") -> Any:
    return as_in(MemoryQuestion, name, help, before="Training: ", reader=_TRAINING, group=TRAINING)


@dataclass(frozen=True, slots=True)
class PhaseQuestion(Question):
    """A phase of a model: prefill, decode or generate."""

    name: str = as_in(MemoryQuestion, "name")
    phase: str = option("prefill, decode, generate, train.", default="prefill")
    batch: int = option("Sequences.", default=1)
    n: int | None = option("Prompt tokens. [default: 2048 or the model's most]")
    kv_len: int | None = option("Tokens at the end. [default: n; generate: n + 128]", reader=_INFERENCE)
    dtype: str | None = as_in(Common, "dtype")
    weights_dtype: str | None = option("nvfp4, int4, Q4_K_M or others. [default: published]", reader=_INFERENCE)
    kv_dtype: str | None = option("KV cache; int8, int4 too. [default: the dtype]", reader=_INFERENCE)
    hardware: str | None = as_in(Common, "hardware")
    tp: int = as_in(MemoryQuestion, "tp")
    pp: int = as_in(MemoryQuestion, "pp")
    ep: int = as_in(MemoryQuestion, "ep", group="")
    dp: int | None = option("Groups of --tp GPUs, or copies. [default: 1 or ep/tp]")
    imbalance: float | None = option("Router's power law; 0: even. [default: 1.2]", reader=_INFERENCE)
    reserve: str | None = option("Held back on each GPU, as 4GB. [default: activations]", reader=_INFERENCE)
    fused: bool = option("Element-wise work inside kernels. [default: unfused]", "--fused/--unfused", default=False, reader=_INFERENCE)
    graph: bool | None = option(
        "CUDA graph, or launches. [default: graph in decode]", "--cuda-graph/--eager", reader=_INFERENCE, old="--graph"
    )
    host_us: float | None = option("Host's time per launch in us. [default: a range]", reader=_LAUNCHES)
    power_limit: str | None = as_in(Common, "power_limit", reader=ONE_LAYOUT)
    clock: str | None = option("Clock: burst or sustained. [default: sustained]", reader=_INFERENCE)
    measured: str | None = as_in(Common, "measured", reader=_INFERENCE)
    kv_cache: bool = option(
        "Keep K and V; --no-kv-cache: not. [default: keep]", "--kv-cache/--no-kv-cache", default=True, reader=_INFERENCE
    )

    @property
    def trains(self) -> bool:
        """Whether a training step is asked for."""
        return self.phase == "train"

    def request_for(self, model: ModelSpec, device: Device) -> Request:
        """A phase of inference, checked; lengths that are not given fit ``model``."""
        from perfmodel.core.checks import dtype_on, positive_int
        from perfmodel.core.power import PowerOptions
        from perfmodel.transformer.cache_question import size_of
        from perfmodel.transformer.hf import served_as
        from perfmodel.transformer.kernel_choice import EAGER
        from perfmodel.transformer.routing import router_imbalance
        from perfmodel.transformer.step import Request, Split, formats, lengths

        if self.dp is not None:
            positive_int("dp", self.dp)
        model, weights_dtype = served_as(model, self.weights_dtype)
        dtype = dtype_on(self.dtype, device)
        if self.host_us is not None and not 0 < self.host_us < MOST_HOST_US:
            raise UsageError(f"--host-us is {self.host_us:g}", "give microseconds per launch, such as 5")
        options: dict[str, Any] = {
            "fused": self.fused,
            "graph": self.graph,
            "cached": self.kv_cache,
            "split": Split(self.tp, self.ep, self.pp, self.dp or 0),
            "imbalance": router_imbalance(model, self.imbalance),
            "host_us": self.host_us,
            "reserve": size_of("reserve", self.reserve),
            **formats(model, dtype, weights_dtype, self.kv_dtype),
            "power": PowerOptions(self.power_limit, self.clock).check(device),
        }
        if self.graph is False:
            options["kernels"] = EAGER
        n, kv_len = lengths(model, self.phase, self.n, self.kv_len)
        return Request(self.phase, self.batch, n, kv_len, dtype, model=model, device=device, **options).check()


@dataclass(frozen=True, slots=True)
class ModelQuestion(PhaseQuestion):
    """A phase of a model, or a training step; its options that are None default to those of ``MemoryQuestion``."""

    engine: str | None = option("vllm, sglang, tensorrt-llm, a file; transformers.", reader=_ENGINES)
    implementation: str | None = option("Kernel of attention. [default: the best known]", reader=_NAMED_KERNELS)
    micro_batch: int | None = _training_option("micro_batch")
    precision: str | None = _training_option("precision")
    optimizer: str | None = _training_option("optimizer", "as perfmodel memory. [default: adam]")
    recompute: str | None = _training_option("recompute")
    flash: bool | None = _training_option("flash", "FlashAttention or not. [default: flash]")
    dropout: bool | None = _training_option("dropout", "with dropout. [default: without]")
    lora: int | None = _training_option("lora")
    gradients: str | None = _training_option("gradients", "kept as 16bit, fp32 or both. [default: 16bit]")
    model_code: str | None = option(
        "Training: kernels of fused or huggingface. [default: fused]", "--model-code", reader=_TRAINING, group=TRAINING
    )
    zero: int | None = _training_option("zero", "what data-parallel GPUs divide, 0 to 3. [default: 0]")
    sp: bool | None = _training_option("sp")
    interleave: int | None = _training_option("interleave")
    cp: int | None = _training_option("cp")
    overlap: bool | None = option(
        "Training: exchange beside kernels. [default: yes]", "--overlap/--no-overlap", reader=_TRAINING, group=TRAINING
    )
    system: str | None = option("Training: what joins the GPUs: its name or a file.", reader=_TRAINING, group=TRAINING)
    search: int | None = option("Training: the fastest layout on so many GPUs.", metavar="GPUS", reader=_TRAINING, group=TRAINING)

    def training(self, model: ModelSpec, precision: str | None) -> TrainingConfig:
        """The training step, in ``precision`` if that is given."""
        shared = {field.name for field in fields(MemoryQuestion)} & set(self.given()) - {"hardware", "implementation"}
        options: dict[str, Any] = {name: getattr(self, name) for name in shared} | {"name": self.name}
        return MemoryQuestion(**options).updated({"precision": precision}).training(model)

    def training_formats(self, device: Device) -> tuple[str, str | None]:
        """(16-bit format, precision); ``--dtype fp32`` sets both. UsageError if the options contradict each other."""
        from perfmodel.transformer.training.question import BF16, FP32

        dtype, precision = self.dtype, self.precision
        if dtype == FP32 and precision in (None, FP32):
            return "bf16", FP32
        if dtype not in (None, "bf16", "fp16"):
            raise UsageError(f"--dtype {dtype} with --phase train", "give bf16, fp16 or fp32, and --precision for the rest")
        if precision == BF16 and dtype == "fp16":
            raise UsageError("--dtype fp16 with --precision bf16", "leave one of them out")
        if dtype is None:
            has_bf16 = "bf16" in {**device.peaks.tensor, **device.peaks.vector}
            dtype = "bf16" if precision == BF16 or has_bf16 else "fp16"
        return dtype, precision

    def check_search(self) -> int:
        """Number of GPUs of a search; UsageError for an option that the search itself chooses."""
        from perfmodel.core.checks import positive_int
        from perfmodel.transformer.training.implementations import HUGGINGFACE

        for name in ("micro_batch", "recompute", "zero", "dp", "sp", "interleave", "cp", "tp", "pp", "ep"):
            if name in self.given():
                raise UsageError(f"--{name.replace('_', '-')} is what --search looks for", "leave it out, or leave out --search")
        if self.model_code == HUGGINGFACE:
            raise UsageError("--search knows the kernels of fused only", "leave out --model-code")
        assert self.search is not None
        positive_int("search", self.search)
        if self.search > MOST_GPUS:
            raise UsageError(f"--search {self.search:,}: more GPUs than any system has", f"give at most {MOST_GPUS:,}")
        return self.search


@dataclass(frozen=True, slots=True)
class BatchQuestion(Question):
    """Decode steps of a model over the batch."""

    name: str = as_in(PhaseQuestion, "name")
    kv_len: int | None = option("Sequence length. [default: 2048 or the model's most]")
    dtype: str | None = as_in(Common, "dtype")
    weights_dtype: str | None = as_in(PhaseQuestion, "weights_dtype")
    kv_dtype: str | None = as_in(PhaseQuestion, "kv_dtype")
    hardware: str | None = as_in(Common, "hardware")
    tp: int = as_in(PhaseQuestion, "tp")
    pp: int = as_in(PhaseQuestion, "pp")
    ep: int = as_in(PhaseQuestion, "ep")
    dp: int | None = as_in(PhaseQuestion, "dp")
    reserve: str | None = as_in(PhaseQuestion, "reserve")
    fused: bool = as_in(PhaseQuestion, "fused")
    graph: bool | None = as_in(PhaseQuestion, "graph")
    power_limit: str | None = as_in(PhaseQuestion, "power_limit")
    clock: str | None = as_in(PhaseQuestion, "clock")
    engine: str | None = as_in(ModelQuestion, "engine", reader=None)

    def request_for(self, model: ModelSpec, device: Device) -> Request:
        """A decode step of one sequence, checked."""
        from perfmodel.transformer.step import DECODE

        given = {name: value for name, value in self.given().items() if name != "engine"}
        return PhaseQuestion(self.name, DECODE).updated(given).request_for(model, device)
