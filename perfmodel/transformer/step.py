"""One pass through a model: which tokens, which formats, which share of the model each GPU holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.checks import whole
from perfmodel.core.dtypes import DTYPES, Dtype
from perfmodel.core.errors import UsageError
from perfmodel.kernels.tile import TENSOR_TILE
from perfmodel.transformer.spec import GroupedAttention, Layer, LayerFormats, ModelSpec, MoeMlp

PREFILL, DECODE = "prefill", "decode"


def share(number: Number, parts: int) -> Number:
    """What the fullest of ``parts`` gets.

    >>> share(10, 1), share(10, 4)
    (10, 3)
    """
    return number if parts == 1 else ceil_div(number, parts)


@dataclass(frozen=True, slots=True)
class Split:
    """GPUs of one replica: ``tp`` share each matrix, ``ep`` groups of them hold different experts, ``pp`` hold different layers.

    The ``ep`` groups divide the sequences among them; without experts to divide, ``ep`` is 1.
    """

    tp: int = 1
    ep: int = 1
    pp: int = 1

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.tp * self.ep * self.pp

    def check(self, model: ModelSpec) -> Split:
        """This split, if ``model`` can be cut that way; else UsageError names the option and the fix."""
        for option in ("tp", "ep", "pp"):
            whole(option, getattr(self, option))
        if self.pp > len(model.layers):
            raise UsageError(f"--pp {self.pp}: {model.name} has {len(model.layers)} layers", f"give at most {len(model.layers)}")
        if self.ep > 1 and not model.is_moe:
            raise UsageError(f"--ep {self.ep}: {model.name} has no experts", "leave it out, or give --tp")
        for layer in model.layers:
            self._check_layer(layer)
        return self

    def _check_layer(self, layer: Layer) -> None:
        heads = layer.attention.heads
        if heads % self.tp:
            fits = [tp for tp in range(1, min(heads, 64) + 1) if heads % tp == 0]
            raise UsageError(f"--tp {self.tp} does not divide {heads} heads", f"one of {', '.join(map(str, fits))} does")
        if isinstance(layer.attention, GroupedAttention):
            kv_heads = layer.attention.kv_heads
            if kv_heads % self.tp and self.tp % kv_heads:
                raise UsageError(f"--tp {self.tp} and {kv_heads} KV heads: neither divides the other", "give another --tp")
        if isinstance(layer.mlp, MoeMlp) and layer.mlp.experts % self.ep:
            raise UsageError(f"--ep {self.ep} does not divide {layer.mlp.experts} experts", "give one that does")


@dataclass(frozen=True, slots=True)
class Step:
    """``batch`` sequences, each with ``n`` new tokens, the last of ``kv_len``: prefill has many new tokens, decode one.

    ``dtype``: of activations and arithmetic. ``weight_bits``, ``kv_bits``: of a stored weight and a cached element.
    ``integer_weights``, ``integer_kv``: those are integers, dequantised before they are multiplied; otherwise floats.
    ``tile_columns``: of the tiles with which the roof reckons.
    ``fused``: element-wise operations run inside the kernels beside them. ``cached``: K and V are kept for later steps.
    ``published``: matrices are stored as the model's file says, and ``formats`` are those of the layer at hand; the rest of the
    weights has ``weight_bits``.
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
    tile_columns: int = TENSOR_TILE
    integer_weights: bool = False
    integer_kv: bool = False
    published: bool = False
    formats: LayerFormats = ()

    def check(self) -> Step:
        """This step, if every value has a meaning; else UsageError names the option and the fix."""
        for option in ("batch", "n", "kv_len"):
            whole(option.replace("_", "-"), getattr(self, option))
        if self.kv_len < self.n:
            raise UsageError(f"--kv-len {self.kv_len} is less than --n {self.n}", "it counts all tokens, the new ones among them")
        return self

    @property
    def sequences(self) -> Number:
        """Sequences of the fullest expert-parallel group."""
        return share(self.batch, self.split.ep)

    @property
    def tokens(self) -> Number:
        """New tokens that a GPU works on outside of the experts."""
        return self.sequences * self.n

    @property
    def all_tokens(self) -> Number:
        """New tokens of all sequences."""
        return self.batch * self.n


def prefill(batch: Number, n: Number, **options: object) -> Step:
    """A first pass over ``n`` tokens, nothing cached before."""
    return Step(PREFILL, batch, n, n, **options).check()  # type: ignore[arg-type]


def decode(batch: Number, kv_len: Number, **options: object) -> Step:
    """One new token per sequence, the last of ``kv_len``."""
    return Step(DECODE, batch, 1, kv_len, **options).check()  # type: ignore[arg-type]
