"""One pass through a model: its tokens, its formats, and the share of the model on each GPU."""

from __future__ import annotations

from dataclasses import field, fields, replace
from typing import Any

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.checks import positive_int
from perfmodel.core.cost import Tile
from perfmodel.core.dtypes import DTYPES, Dtype
from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.power import PowerOptions
from perfmodel.kernels.tile import SQUARE_TILE
from perfmodel.transformer.kernel_choice import KernelChoice
from perfmodel.transformer.kv_cache import INTEGERS, bits_of
from perfmodel.transformer.spec import AttentionLayer, GroupedAttention, LayerFormats, ModelSpec, MoeMlp

PREFILL, DECODE = "prefill", "decode"


def share(number: Number, parts: int) -> Number:
    """The largest of ``parts`` equal shares of ``number``, rounded up.

    >>> share(10, 1), share(10, 4)
    (10, 3)
    """
    return number if parts == 1 else ceil_div(number, parts)


MOST_TP = 64
"""Largest ``tp`` that an error message proposes."""


def cut_by(tp: int, a: AttentionLayer) -> bool:
    """Whether ``tp`` GPUs share the heads of ``a`` evenly; a KV head may be on several."""
    if a.heads % tp:
        return False
    return not isinstance(a, GroupedAttention) or a.kv_heads % tp == 0 or tp % a.kv_heads == 0


@dataclass(frozen=True, slots=True)
class Split:
    """GPUs of one replica: ``pp`` stages of consecutive layers, each on ``dp`` groups of ``tp`` GPUs.

    A group has its own sequences, and its GPUs share each matrix of attention, dense MLPs and shared experts. The routed experts are
    divided over all GPUs of a stage, in ``ep`` sets of GPUs with different experts; the GPUs of a set share the matrices of each. ``dp`` 0:
    as many groups as make ``ep`` GPUs, one if ``tp`` is enough. Source: vLLM docs, "Data Parallel Deployment" and "Expert Parallel
    Deployment".

    >>> Split(tp=8, ep=8).gpus, Split(ep=8).gpus, Split(tp=2, ep=8).dp, Split(tp=8, dp=2, ep=4).expert_tp
    (8, 8, 4, 4)
    """

    tp: int = 1
    ep: int = 1
    pp: int = 1
    dp: int = 0

    def __post_init__(self) -> None:
        """Fills in the groups that are not given."""
        if not self.dp:
            object.__setattr__(self, "dp", max(self.ep // max(self.tp, 1), 1))

    @property
    def stage(self) -> int:
        """Number of GPUs of a pipeline stage."""
        return self.tp * self.dp

    @property
    def gpus(self) -> int:
        """Total number of GPUs."""
        return self.stage * self.pp

    @property
    def expert_tp(self) -> int:
        """GPUs that share the matrices of an expert."""
        return max(self.stage // self.ep, 1)

    def check(self, model: ModelSpec) -> Split:
        """This split, if ``model`` can be cut that way; else UsageError names the option and the fix."""
        for option in ("tp", "ep", "pp", "dp"):
            positive_int(option, getattr(self, option))
        if self.pp > len(model.layers):
            raise UsageError(f"--pp {self.pp}: {model.name} has {len(model.layers)} layers", f"give at most {len(model.layers)}")
        if self.ep > 1 and not model.is_moe:
            raise UsageError(f"--ep {self.ep}: {model.name} has no experts", "leave it out, or give --tp")
        if self.stage % self.ep:
            sharers = f"the {self.stage} GPUs of a stage, --tp {self.tp} x --dp {self.dp}"
            fits = ", ".join(str(ep) for ep in range(1, min(self.stage, MOST_TP) + 1) if self.stage % ep == 0)
            raise UsageError(f"--ep {self.ep} does not divide {sharers}", f"the same GPUs hold the experts: one of {fits} does")
        layers = [layer for layer, _ in model.layer_kinds]
        self._check_heads([layer.attention for layer in layers])
        for layer in layers:
            if isinstance(layer.mlp, MoeMlp) and layer.mlp.experts % self.ep:
                experts = layer.mlp.experts
                fits = ", ".join(str(ep) for ep in range(1, min(self.stage, experts) + 1) if self.stage % ep == 0 and experts % ep == 0)
                raise UsageError(f"--ep {self.ep} does not divide {experts} experts", f"one of {fits} does")
        return self

    def _check_heads(self, attentions: list[AttentionLayer]) -> None:
        """UsageError unless ``tp`` GPUs can share the heads of all ``attentions`` evenly."""
        for a in attentions:
            if cut_by(self.tp, a):
                continue
            fits = ", ".join(str(tp) for tp in range(1, MOST_TP + 1) if all(cut_by(tp, a) for a in attentions))
            problem = f"--tp {self.tp} and {getattr(a, 'kv_heads', 0)} KV heads: neither divides the other"
            if a.heads % self.tp:
                problem = f"--tp {self.tp} does not divide {a.heads} heads"
            raise UsageError(problem, f"one of {fits} does")


@dataclass(frozen=True, slots=True)
class ModelPass:
    """``batch`` sequences, each with ``n`` new tokens, the last of ``kv_len``: prefill has many new tokens, decode one.

    ``dtype``: format of activations and arithmetic. ``weight_bits``, ``kv_bits``: bits of a stored weight and a cached element.
    ``integer_weights``, ``integer_kv``: whether they are integers, which are dequantised before they are multiplied. ``tile``: tile of
    large products at the roof. ``fused``: element-wise operations run inside the kernels beside them. ``cached``: K and V are kept for
    later steps. ``weights_from_file``: matrices are stored as the model's file says, with ``formats`` for the current layer; other weights
    have ``weight_bits``. ``kernels``: choice of the implementations. ``beside``: a pass over other sequences in the same kernels except for
    attention, as engines mix prompts with decoding sequences. ``imbalance``: exponent of the power law of the router's picks
    (``routing.py``); 0 or None: all experts are alike.
    """

    phase: str
    batch: Number
    n: Number
    kv_len: Number
    dtype: Dtype = DTYPES["fp16"]
    weight_bits: int = 16
    kv_bits: int = 16
    fused: bool = False
    cached: bool = True
    split: Split = field(default_factory=Split)
    tile: Tile = SQUARE_TILE
    integer_weights: bool = False
    integer_kv: bool = False
    weights_from_file: bool = False
    formats: LayerFormats = ()
    kernels: KernelChoice = field(default_factory=KernelChoice)
    beside: ModelPass | None = None
    imbalance: float | None = None

    def check(self) -> ModelPass:
        """This step, if every value has a meaning; else UsageError names the option and the fix."""
        for option in ("batch", "n", "kv_len"):
            positive_int(option.replace("_", "-"), getattr(self, option))
        if self.kv_len < self.n:
            raise UsageError(f"--kv-len {self.kv_len} is less than --n {self.n}", "it counts all tokens, the new ones among them")
        return self

    @property
    def sequences(self) -> Number:
        """Sequences of the fullest data-parallel group."""
        return share(self.batch, self.split.dp)

    @property
    def tokens(self) -> Number:
        """New tokens that a GPU works on outside of the experts."""
        return self.sequences * self.n + (0 if self.beside is None else self.beside.tokens)

    @property
    def all_tokens(self) -> Number:
        """New tokens of all sequences."""
        return self.batch * self.n + (0 if self.beside is None else self.beside.all_tokens)

    @property
    def heads(self) -> Number:
        """Positions of a GPU that the head sees: the last of each sequence, or all new ones of a decoding sequence, to check drafts."""
        checked = self.n if self.phase == DECODE and self.cached else 1
        return self.sequences * checked + (0 if self.beside is None else self.beside.heads)


def check_imbalance(given: float | None, model: ModelSpec) -> None:
    """UsageError for an exponent without a meaning, and for any with a model without experts."""
    if given and not model.is_moe:
        raise UsageError(f"--imbalance {given:g}: {model.name} has no experts", "leave it out")
    if not 0 <= (given or 0) <= 4:
        raise UsageError(f"--imbalance is {given:g}", "give an exponent from 0, all experts alike, to 4, such as 1.2")


def prefill(batch: Number, n: Number, **options: object) -> ModelPass:
    """A prefill: a first pass over ``n`` tokens, nothing cached before."""
    return ModelPass(PREFILL, batch, n, n, **options).check()  # type: ignore[arg-type]


def decode(batch: Number, kv_len: Number, **options: object) -> ModelPass:
    """A decode step: one new token per sequence, the last of ``kv_len``."""
    return ModelPass(DECODE, batch, 1, kv_len, **options).check()  # type: ignore[arg-type]


GENERATE = "generate"
PHASES = (PREFILL, DECODE, GENERATE)
TRAIN = "train"
"""The training phase, which is not a ``Request``."""


DEFAULT_LENGTH, DEFAULT_GENERATED = 2048, 128
"""Default tokens of the prompt, unless the model takes fewer, and default generated tokens."""


def default_length(model: ModelSpec, phase: str) -> int:
    """Tokens of a prompt that fits ``model`` together with the generated tokens."""
    longest = int(model.max_positions or DEFAULT_LENGTH)
    return max(min(DEFAULT_LENGTH, longest - (DEFAULT_GENERATED if phase == GENERATE else 0)), 1)


def lengths(model: ModelSpec, phase: str, n: int | None, kv_len: int | None) -> tuple[int, int]:
    """Tokens of the prompt, and of a sequence at the end; a length that is not given fits ``model``. UsageError for an unused prompt."""
    if phase == DECODE and kv_len is not None:
        if n not in (None, kv_len):
            raise UsageError(f"--n {n}: a decode step at --kv-len {kv_len} has no prompt to read", "leave out one of them")
        return kv_len, kv_len
    n = default_length(model, phase) if n is None else n
    if kv_len is None:
        kv_len = n + DEFAULT_GENERATED if phase == GENERATE else n
    return n, kv_len


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(ModelPass):
    """A phase of ``model`` on ``device``: ``n`` tokens of the prompt, ``kv_len`` of a sequence at the end.

    ``graph``: whether to launch CUDA graphs; None: in decode only, like serving engines. ``reserve``: bytes of each GPU held back
    (``step_memory``). ``power``: limit and clock; by default sustained. ``attention``: the only implementation of fused attention; None:
    those of ``kernels``, or the fastest if these cannot run it.
    """

    model: ModelSpec
    device: Device
    graph: bool | None = None
    reserve: int = 0
    host_us: float | None = None
    power: PowerOptions = field(default_factory=PowerOptions)
    attention: str | None = None

    def with_attention(self, name: str) -> Request:
        """This request with fused attention by the implementation ``name`` alone."""
        return replace(self, attention=name, kernels=replace(self.kernels, attention=(name,)))

    def check(self) -> Request:
        """This request, if every value has a meaning; else UsageError names the option and the fix."""
        if self.phase not in PHASES:
            raise UsageError(f"--phase: unknown phase {self.phase!r}", suggest(self.phase, [*PHASES, TRAIN]))
        self.split.check(self.model)
        check_imbalance(self.imbalance, self.model)
        self.step(self.phase if self.phase != GENERATE else PREFILL).check()
        if self.phase == GENERATE and self.kv_len <= self.n:
            raise UsageError(f"--kv-len {self.kv_len} leaves nothing to generate after --n {self.n}", "give a larger --kv-len")
        return self

    def step(self, phase: str, kv_len: int | None = None) -> ModelPass:
        """A prefill, over ``kv_len`` tokens if given, or a decode step that ends at ``kv_len``."""
        length = self.kv_len if kv_len is None else kv_len
        if phase == PREFILL and self.phase == GENERATE:
            n = length = self.n if kv_len is None else kv_len
        elif phase == PREFILL:
            n = self.n
        else:
            n = 1 if self.cached else length
        pass_fields = {field.name: getattr(self, field.name) for field in fields(ModelPass)}
        return ModelPass(**{**pass_fields, "phase": phase, "n": n, "kv_len": length})

    def in_graph(self, phase: str) -> bool:
        """Whether a step of ``phase`` is launched as a CUDA graph."""
        return phase == DECODE and self.cached if self.graph is None else self.graph


def formats(model: ModelSpec, dtype: Dtype, weights_dtype: str | None, kv_dtype: str | None) -> dict[str, Any]:
    """Fields of a pass on the formats of weights and cache: as given, else from the model's file, else ``dtype``."""
    published = stored_as_published(model, weights_dtype)
    weights = native_dtype(model) if published else weights_dtype
    return {
        "weight_bits": 8 * dtype.size if weights is None else bits_of("weights-dtype", weights),
        "kv_bits": 8 * dtype.size if kv_dtype is None else bits_of("kv-dtype", kv_dtype),
        "integer_weights": weights in INTEGERS,
        "integer_kv": kv_dtype in INTEGERS,
        "weights_from_file": published,
    }


def stored_as_published(model: ModelSpec, given: str | None) -> bool:
    """Whether weights are stored as the model's file says, unless ``given`` overrides it; UsageError for an unknown format of the file."""
    if model.quantized is None or given not in (None, model.quantized.words):
        return False
    if not model.quantized.rules:
        words = f"{model.name} stores its weights as {model.quantized.words}, which nothing here reads"
        raise UsageError(words, "give --weights-dtype int4, int8 or fp8, without scales, or bf16")
    return True


def native_dtype(model: ModelSpec) -> str:
    """The format of weights that a quantized checkpoint does not quantize."""
    return model.native_dtype or "bf16"
