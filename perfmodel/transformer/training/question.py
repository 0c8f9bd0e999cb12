"""The question of a training step: model, batch, formats, optimizer, recomputation, and the division among GPUs.

Optimizers: Kingma & Ba 2015 (Adam); Loshchilov & Hutter 2019 (AdamW); Dettmers et al. 2022, arXiv 2110.02861, and the blocks of 256
of bitsandbytes (8-bit Adam); Shazeer & Stern 2018 (Adafactor, no first moment); Chen et al. 2023 (Lion); Jordan et al. 2024 (Muon:
one momentum for each matrix of a layer, AdamW for tables and vectors).
"""

from __future__ import annotations

from dataclasses import field

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.checks import positive_int
from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.frozen import dataclass
from perfmodel.transformer.spec import GroupedAttention, LatentAttention, ModelSpec
from perfmodel.transformer.step import Split

MIXED, BF16, FP32 = "mixed", "bf16", "fp32"
PRECISIONS = (MIXED, BF16, FP32)
"""Mixed: 16-bit weights, gradients and activations beside fp32 master weights and optimizer state."""
NONE, SELECTIVE, FULL, EVERY = "none", "selective", "full", "every"
"""Kinds of recomputation: nothing; the attention core (Korthikanti et al. 2022); each layer from its input; segments of K layers."""
SIXTEEN_BIT, FULL_GRADIENTS, BOTH_GRADIENTS = "16bit", "fp32", "both"
GRADIENTS = (SIXTEEN_BIT, FULL_GRADIENTS, BOTH_GRADIENTS)
"""Gradients that mixed precision keeps: 16-bit ones as computed; sums in fp32 (Megatron-LM's main_grad); both."""
FREED, KEPT, APPLIED = "freed", "kept", "applied"
LIVES = (FREED, KEPT, APPLIED)
"""Life of gradients: freed after each step (``zero_grad`` of PyTorch); kept as buffers; freed once backward has applied them."""
ALL, ATTENTION_ONLY, QV = "all", "attention", "qv"
TARGETS = (ALL, ATTENTION_ONLY, QV)
"""Matrices with an adapter: all of attention and MLP (without experts and router); all of attention; Q and V (Hu et al. 2021)."""


LEAST_LENGTH = 2
"""Fewest tokens of a sequence on one GPU: one, and the next, which it predicts."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer.

    ``moments``: numbers kept per parameter, in the precision of the state; ``eight_bit``: whether each is a byte, with scales.
    ``factored``: a row and a column of sums per matrix replace the second moment. ``matrix_moments``: moments of the matrices of a layer,
    if they differ from those of tables and vectors. ``temporary``: numbers per parameter while PyTorch's foreach kernels update many
    tensors together (torch/optim/adam.py takes the square root of all second moments at once); a fused kernel needs none.
    """

    name: str
    title: str
    moments: int
    eight_bit: bool = False
    factored: bool = False
    matrix_moments: int | None = None
    temporary: int = 0


OPTIMIZERS = {
    optimizer.name: optimizer
    for optimizer in (
        Optimizer("adam", "Adam: first and second moment", 2, temporary=1),
        Optimizer("adamw", "AdamW: first and second moment", 2, temporary=1),
        Optimizer("sgd", "SGD: nothing", 0),
        Optimizer("momentum", "SGD with momentum: one velocity", 1),
        Optimizer("adafactor", "Adafactor: sums of each row and column of the second moment", 0, factored=True),
        Optimizer("adam8bit", "8-bit Adam: both moments in a byte each, an fp32 scale per 256", 2, eight_bit=True),
        Optimizer("lion", "Lion: one momentum", 1),
        Optimizer("muon", "Muon: one momentum per matrix; AdamW for tables and vectors", 2, matrix_moments=1),
    )
}


def optimizer_named(name: str) -> Optimizer:
    """The optimizer called ``name``; UsageError with the nearest names otherwise."""
    if name not in OPTIMIZERS:
        raise UsageError(f"--optimizer: unknown optimizer {name!r}", suggest(name, list(OPTIMIZERS)))
    return OPTIMIZERS[name]


@dataclass(frozen=True, slots=True)
class Recomputation:
    """The ``kind`` of recomputation in the backward pass. ``every``: layers per segment; 1 unless ``kind`` is EVERY."""

    kind: str = NONE
    every: int = 1

    @property
    def of_layers(self) -> bool:
        """Whether whole layers run again."""
        return self.kind in (FULL, EVERY)


@dataclass(frozen=True, slots=True)
class Parallel:
    """Division of a run among GPUs.

    ``tp``: GPUs that share matrices; ``sp``: whether they also divide the tokens outside of matrices. ``pp``: pipeline stages, each of
    ``interleave`` chunks of layers. ``cp``: GPUs that share each sequence. ``dp``: GPUs with copies, of which ``ep`` share experts.
    ``zero``: stage of ZeRO, 0 to 3, by which GPUs with copies divide the state.
    """

    tp: int = 1
    sp: bool = False
    pp: int = 1
    interleave: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    zero: int = 0

    @property
    def gpus(self) -> int:
        """Total number of GPUs; expert-parallel groups consist of data-parallel GPUs."""
        return self.tp * self.pp * self.cp * self.dp


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """One optimizer step on ``batch`` sequences of ``n`` tokens in all, ``micro_batch`` of them at a time on each data-parallel GPU.

    ``optimizer``: a name of the table of optimizers. ``flash``: whether scores are never stored. ``lora``: rank of adapters, None to train
    every weight. ``dropout``: whether there is dropout, whose masks are kept. ``gradients``, ``gradient_life``: which gradients are kept,
    and how long. ``fused_optimizer``: whether one kernel updates all parameters, without temporary copies.
    """

    model: ModelSpec
    batch: Number
    n: Number
    micro_batch: Number | None = None
    precision: str = MIXED
    optimizer: str = "adam"
    recompute: Recomputation = field(default_factory=Recomputation)
    flash: bool = True
    lora: int | None = None
    dropout: bool = False
    parallel: Parallel = field(default_factory=Parallel)
    gradients: str = SIXTEEN_BIT
    gradient_life: str = FREED
    lora_targets: str = ALL
    fused_optimizer: bool = True

    @property
    def sequences(self) -> Number:
        """Sequences that one GPU works on at a time."""
        return ceil_div(self.batch, self.parallel.dp) if self.micro_batch is None else self.micro_batch

    @property
    def micro_batches(self) -> Number:
        """Times that a GPU goes forward and backward before the optimizer's step."""
        return ceil_div(ceil_div(self.batch, self.parallel.dp), self.sequences)

    @property
    def length(self) -> Number:
        """Tokens of a sequence on one of the context-parallel GPUs."""
        return ceil_div(self.n, self.parallel.cp)

    @property
    def tokens(self) -> Number:
        """Tokens of a micro-batch on one GPU."""
        return self.sequences * self.length

    @property
    def size(self) -> int:
        """Bytes of an activation element, of a weight that a matmul reads, and of its gradient as computed."""
        return 4 if self.precision == FP32 else 2

    @property
    def gradient_sizes(self) -> dict[str, int]:
        """Formats of kept gradients: name, and bytes per parameter."""
        as_computed, in_fp32 = {"gradients": self.size}, {"fp32 gradients": 4}
        if self.precision != MIXED or self.gradients == SIXTEEN_BIT:
            return as_computed
        return in_fp32 if self.gradients == FULL_GRADIENTS else as_computed | in_fp32

    @property
    def sums_in_fp32(self) -> bool:
        """Whether gradients are added up in fp32."""
        return "fp32 gradients" in self.gradient_sizes

    @property
    def buffers_gradients(self) -> bool:
        """Whether gradients have buffers that outlive a micro-batch's backward pass and the step."""
        return self.gradient_life != FREED or self.micro_batches > 1


# Checks: each failure is a UsageError that names the option and the fix


def recompute_named(text: str) -> Recomputation:
    """The recomputation called ``none``, ``selective``, ``full`` or ``every:K``.

    >>> recompute_named("every:4")
    Recomputation(kind='every', every=4)
    """
    if text in (NONE, SELECTIVE, FULL):
        return Recomputation(text)
    kind, _, number = text.partition(":")
    if kind == EVERY and number.isdecimal() and 0 < int(number) < 10**6:
        return Recomputation(EVERY, int(number))
    if kind == EVERY:
        raise UsageError(f"--recompute {text[:40]}: how many layers make a segment is missing", "write it like every:4")
    raise UsageError(f"--recompute: unknown kind {text[:40]!r}", suggest(text, [NONE, SELECTIVE, FULL, "every:4"]))


def checked(training: TrainingConfig) -> TrainingConfig:
    """``training``, if every value has a meaning."""
    _check_sizes(training)
    for option, value, values in (
        ("precision", training.precision, PRECISIONS),
        ("gradients", training.gradients, GRADIENTS),
        ("gradient-life", training.gradient_life, LIVES),
        ("lora-targets", training.lora_targets, TARGETS),
    ):
        if value not in values:
            raise UsageError(f"--{option}: unknown value {value!r}", suggest(value, list(values), f"one of {', '.join(values)}"))
    optimizer_named(training.optimizer)
    _check_gradients(training)
    part = untrained(training.model)
    if part:
        fix = "ask for inference: perfmodel model"
        raise UsageError(f"{training.model.name} has {part}: what their backward pass keeps is not known here", fix)
    _check_parallel(training)
    return training


def timed(training: TrainingConfig) -> TrainingConfig:
    """``training`` if its step can be timed: a single token has no next one to predict."""
    checked(training)
    if training.length < LEAST_LENGTH:
        where = f"--n {training.n}" + (f" --cp {training.parallel.cp}" if training.parallel.cp > 1 else "")
        fix = f"give at least --n {LEAST_LENGTH * training.parallel.cp}"
        raise UsageError(f"{where}: a GPU has {training.length} token of a sequence; a step predicts each from those before it", fix)
    return training


def _check_sizes(training: TrainingConfig) -> None:
    model, parallel = training.model, training.parallel
    sizes = {"dp": parallel.dp, "cp": parallel.cp, "interleave": parallel.interleave, "batch": training.batch, "n": training.n}
    if training.micro_batch is not None:
        sizes["micro-batch"] = training.micro_batch
    for option, value in sizes.items():
        positive_int(option, value)
    if training.recompute.every > len(model.layers):
        fix = f"give at most {len(model.layers)}"
        raise UsageError(f"--recompute every:{training.recompute.every}: {model.name} has {len(model.layers)} layers", fix)
    if training.lora is not None and not 1 <= training.lora <= model.hidden:
        raise UsageError(f"--lora {training.lora}", f"give a rank from 1 to {model.hidden}, the hidden size of {model.name}")
    per_gpu = ceil_div(training.batch, parallel.dp)
    if training.sequences > per_gpu:
        fix = f"give at most {per_gpu}, or a larger --batch"
        raise UsageError(f"--micro-batch {training.sequences}: each GPU has {per_gpu} of the {training.batch} sequences", fix)
    if per_gpu % training.sequences:
        divisors = [str(size) for size in range(1, min(int(per_gpu), 64) + 1) if per_gpu % size == 0]
        words = f"--micro-batch {training.sequences} does not divide the {per_gpu} sequences of a GPU"
        raise UsageError(words, f"one of {', '.join(divisors)} does")


def _check_gradients(training: TrainingConfig) -> None:
    if training.gradients != SIXTEEN_BIT and training.precision != MIXED:
        words = f"--gradients {training.gradients}: {training.precision} has one format"
        raise UsageError(words, "leave it out, or give --precision mixed")
    if training.gradient_life == APPLIED and training.micro_batches > 1:
        fix = "give one micro-batch per GPU, or --gradient-life freed"
        raise UsageError(f"--gradient-life applied: gradients of {training.micro_batches} micro-batches are added up first", fix)


def untrained(model: ModelSpec) -> str:
    """Names of parts of ``model`` whose backward pass is not described here; empty if all parts are."""
    for layer, _ in model.layer_kinds:
        a = layer.attention
        if a.indexer is not None or not isinstance(a, GroupedAttention | LatentAttention):
            return f"{a.kind} layers"
        if isinstance(a, GroupedAttention) and a.output_gate:
            return "an output gate"
        if layer.mlp is None:
            return "layers without an MLP"
    return ""


def _check_parallel(training: TrainingConfig) -> None:
    p, model = training.parallel, training.model
    Split(p.tp, p.ep, p.pp, p.ep).check(model)
    if p.zero not in range(4):
        raise UsageError(f"--zero {p.zero}", "give 0 (nothing divided), 1 (optimizer), 2 (gradients too) or 3 (weights too)")
    if p.sp and p.tp == 1:
        raise UsageError("--sp divides what --tp GPUs would each hold, and --tp is 1", "give --tp too, or leave out --sp")
    if p.dp % p.ep:
        raise UsageError(f"--ep {p.ep} does not divide --dp {p.dp}", "expert-parallel groups are made of data-parallel GPUs")
    if training.n % p.cp:
        raise UsageError(f"--cp {p.cp} does not divide --n {training.n}", "give one that does")
    layers, micro_batches = len(model.layers), int(training.micro_batches)
    if p.interleave == 1:
        return
    if p.pp == 1:
        raise UsageError(f"--interleave {p.interleave} needs pipeline stages, and --pp is 1", "give --pp too")
    if p.pp * p.interleave > layers:
        words = f"--pp {p.pp} --interleave {p.interleave}: {model.name} has {layers} layers"
        raise UsageError(words, f"their product can be at most {layers}")
    if micro_batches % p.pp:
        fix = f"give a --batch of a multiple of {p.pp} micro-batches per GPU"
        raise UsageError(f"--interleave: {micro_batches} micro-batches per GPU are no multiple of --pp {p.pp}", fix)
