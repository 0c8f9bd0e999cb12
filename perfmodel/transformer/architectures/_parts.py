"""What the architectures share: fields of a Hugging Face config.json, attention, MLPs, experts, and the frame around the layers."""

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from perfmodel.core.dtypes import ALIASES, DTYPES, canonical
from perfmodel.core.errors import DataError
from perfmodel.transformer.spec import DenseMlp, GroupedAttention, LatentAttention, Layer, ModelSpec, MoeMlp
from perfmodel.transformer.weight_formats._base import Fields

Meaning = TypeVar("Meaning")
LARGEST = 10**9
"""Largest size taken from a file: far above any model, and counts of its parameters stay printable."""
MOST_LAYERS = 10**4
MOST_SHOWN = 40
"""Characters of a value from a file."""
COMMON_KINDS = {"full_attention", "sliding_attention", "chunked_attention", "linear_attention"}
"""Kinds of layers in ``layer_types`` that mean the same in every architecture."""
WANTED: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "4096, without quotes, fraction or exponent"),
    bool: ("true or false", "true"),
    str: ("text", '"silu"'),
    list: ("a list", "[0, 1]"),
    dict: ("an object", '{"name": 1}'),
}


class HfFields(Fields):
    """A config.json. A field that is absent and one that is null differ: null turns a feature off."""

    own_kinds: frozenset[str] = frozenset()
    """Kinds of layers that only this rule knows."""

    @property
    def architecture(self) -> str:
        """The rule that reads the fields."""
        return str(self.values.get("model_type"))

    def settled(self, *names: str) -> None:
        """Marks fields as read that the rule knows, and that it uses later or that change nothing."""
        self.recognized.update(names)

    def _wrong_type(self, name: str, value: Any, kind: type | tuple[type, ...]) -> DataError:
        """DataError for a value of the wrong type, shown as the file has it, with how to write it instead."""
        shown = json.dumps(value, default=str)
        if len(shown) > MOST_SHOWN:
            shown = f"{shown[:MOST_SHOWN]}..."
        wanted, example = WANTED[kind]
        return DataError(f"{self.place}{name} is {shown}: it should be {wanted}", f"write it like {example}")

    def _rule(self) -> str:
        return f"the rule for model_type {self.architecture!r}"

    def whole(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """The first of ``names`` that has a value, else ``default``; DataError if there is neither."""
        self.settled(*names)
        for name in names:
            if self.values.get(name) is not None:
                return self._checked_size(name, self.values[name], least)
        if default is None:
            raise DataError(f"{' or '.join(names)}: missing, and {self._rule()} needs it", "add the field from the model's config.json")
        return default

    def _checked_size(self, name: str, value: Any, least: int = 1) -> int:
        number: int = self.of_kind(name, value, int)
        if not least <= number <= LARGEST:
            raise DataError(f"{name} is {number!r}: {self._rule()} needs a whole number from {least} to {LARGEST:.0e}")
        return number

    def optional(self, name: str, default: int | None = None) -> int | None:
        """The number in field ``name``; None if the file says null, ``default`` if the field is absent."""
        self.settled(name)
        value = self.values.get(name, default)
        return None if value is None else self._checked_size(name, value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false; ``default`` if the field is absent or null."""
        return bool(self.get(name, bool, default))

    def text(self, *names: str, default: str) -> str:
        """The first of ``names`` that has a value, else ``default``."""
        self.settled(*names)
        return next((str(self.get(name, str)) for name in names if self.values.get(name) is not None), default)

    def numbers(self, name: str, length: int = 0) -> list[int] | None:
        """A list of at least ``length`` whole numbers from 0; None if the field is absent."""
        value = self.get(name, list)
        if value is None:
            return None
        if value and len(value) < length:
            raise DataError(f"{name}: {self._rule()} needs a list" + (f" of {length} numbers" if length else ""))
        return [self._checked_size(f"{name}.{index}", item, 0) for index, item in enumerate(value)]

    @property
    def layers(self) -> int:
        """Number of layers."""
        count = self.whole("num_hidden_layers", "n_layer")
        if count > MOST_LAYERS:
            raise DataError(f"num_hidden_layers is {count}: more than {MOST_LAYERS:,}")
        return count

    def windows(self, otherwise: list[int | None], window: int | None) -> list[int | None]:
        """The window of each layer, None for all tokens: from ``layer_types`` if the file has them, else ``otherwise``.

        ``window``: window of layers that the file calls sliding or chunked.
        """
        sizes: dict[str, int | None] = {"full_attention": None, "sliding_attention": window, "chunked_attention": window}
        return self.kinds(sizes) or otherwise

    def kinds(self, meanings: dict[str, Meaning]) -> list[Meaning] | None:
        """The meaning of each layer's kind in ``layer_types``; None if the file has none. DataError for a kind without a meaning."""
        kinds = self.get("layer_types", list)
        if kinds is None:
            return None
        if len(kinds) != self.layers:
            raise DataError(f"layer_types: {self._rule()} needs one entry for each of the {self.layers} layers")
        for index, kind in enumerate(kinds):
            if not isinstance(kind, str) or kind not in meanings:
                raise DataError(f"layer_types.{index}: no rule for {kind!r:.60}", f"there are rules for {', '.join(meanings)}")
        self.own_kinds |= meanings.keys() - COMMON_KINDS
        return [meanings[kind] for kind in kinds]

    def check_kinds(self, layers: Sequence[Layer]) -> None:
        """DataError if ``layer_types`` has a window or linear attention where the rule has none, or the other way round.

        A kind that only the rule knows is what the rule made of it.
        """
        for index, (kind, layer) in enumerate(zip(self.get("layer_types", list) or [], layers, strict=False)):
            if isinstance(kind, str) and kind in self.own_kinds:
                continue
            is_linear = not isinstance(layer.attention, GroupedAttention | LatentAttention)
            is_full = not is_linear and layer.attention.window is None
            if (kind == "linear_attention") != is_linear or (kind == "full_attention") != is_full:
                raise DataError(f"layer_types.{index}: {self._rule()} does not allow {kind!r} there")

    def refuse(self, name: str, default: int | bool, what: str) -> None:
        """DataError if the field ``name`` (absent: ``default``) is set: it asks for ``what``, which no rule describes."""
        self.settled(name)
        if self.values.get(name, default):
            raise DataError(f"{name}: {what} has no rule yet for model_type {self.architecture!r}", f"models with {name} 0 or false work")


def model(fields: HfFields, layers: Sequence[Layer], *, tied: bool, **options: Any) -> ModelSpec:
    """``layers`` between embedding and head. ``tied``: the architecture's default of tie_word_embeddings."""
    fields.check_kinds(layers)
    return ModelSpec(
        name="",
        architecture=fields.architecture,
        hidden=fields.whole("hidden_size", "n_embd"),
        vocab=fields.whole("vocab_size"),
        layers=tuple(layers),
        tied_embeddings=fields.flag("tie_word_embeddings", tied),
        max_positions=options.pop("max_positions", None) or fields.optional("max_position_embeddings"),
        native_dtype=ALIASES.get(fields.text("torch_dtype", "dtype", default="")),
        **options,
    )


def attention(
    fields: HfFields, window: int | None = None, *, head_dim: int | None = None, bias: bool = False, **options: Any
) -> GroupedAttention:
    """Grouped attention. ``head_dim``: the architecture's default, else hidden_size / heads; ``bias``: its default of attention_bias."""
    heads = fields.whole("num_attention_heads")
    kv_heads = fields.whole("num_key_value_heads", default=heads)
    biased = fields.flag("attention_bias", bias)
    options = {"qkv_bias": biased, "output_bias": biased, **options}
    return grouped(heads, kv_heads, fields.whole("head_dim", default=head_dim or split(fields, heads)), window, **options)


def grouped(heads: int, kv_heads: int, head_dim: int, window: int | None, **options: Any) -> GroupedAttention:
    """Grouped attention; DataError unless every KV head serves as many query heads."""
    if heads % kv_heads:
        raise DataError(f"num_key_value_heads is {kv_heads}: it must divide the {heads} attention heads")
    return GroupedAttention(heads, kv_heads, head_dim, window, **options)


def split(fields: HfFields, heads: int) -> int:
    """Features per head where a file has no head_dim."""
    hidden = fields.whole("hidden_size", "n_embd")
    if fields.values.get("head_dim") is None and hidden % heads:
        raise DataError(f"head_dim: missing, and hidden size {hidden} does not divide by {heads} heads", "add head_dim")
    return hidden // heads


def gated(fields: HfFields, activation: str = "silu", *, field: str = "intermediate_size", bias: bool = False) -> DenseMlp:
    """A gated MLP."""
    return DenseMlp(fields.whole(field), bias=bias, activation=fields.text("hidden_activation", "hidden_act", default=activation))


def experts(fields: HfFields, width: str, *, per_token: int | None = None, **options: Any) -> MoeMlp:
    """Experts of the width in field ``width``; the field of their number has three names. ``per_token``: the architecture's default."""
    count = fields.whole("num_experts", "n_routed_experts", "num_local_experts")
    picked = fields.whole("num_experts_per_tok", "top_k_experts", default=per_token)
    if picked > count:
        raise DataError(f"num_experts_per_tok is {picked}: more than the {count} experts")
    return MoeMlp(count, picked, fields.whole(width), activation=fields.text("hidden_activation", "hidden_act", default="silu"), **options)


def state_bits(fields: HfFields, name: str) -> int:
    """Bits per number of a linear layer's state, by default 32; DataError if the field ``name`` is no format of 16 or 32 bits."""
    form = fields.text(name, default="fp32")
    if canonical(form) not in ("fp32", "bf16", "fp16"):
        raise DataError(f"{name} is {form!r}: no rule for a state in that format", "fp32, bf16 and fp16 work")
    return 8 * DTYPES[canonical(form)].size
