"""The number format of stored weights as a model's file names it: ``quantization_config`` of Hugging Face's config.json.

Source: huggingface/transformers, src/transformers/utils/quantization_config.py, one configuration class per ``quant_method``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfmodel.transformer.spec import ModelSpec

FP8 = ("fp8", "fbgemm_fp8")
BY_BITS = ("gptq", "awq")
BITSANDBYTES = "bitsandbytes"
INTEGER_OF = {8: "int8", 4: "int4"}
"""Formats of integer weights, by their bits."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """``words``: the format in the file's own terms. ``weights_dtype``: what it is called here; None where nothing here is like it."""

    words: str
    weights_dtype: str | None = None


def quantized(raw: object) -> Quantized | None:
    """What ``raw``, a quantization_config, says of the weights; None if it says nothing.

    >>> quantized({"quant_method": "gptq", "bits": 4})
    Quantized(words='gptq, 4 bits', weights_dtype='int4')
    """
    if not isinstance(raw, Mapping) or not raw:
        return None
    named = raw.get("quant_method")
    method = f"{named:.40}" if isinstance(named, str) else BITSANDBYTES if _loaded_bits(raw) else "an unnamed method"
    if method in FP8:
        return Quantized(method, "fp8")
    bits = _loaded_bits(raw) if method == BITSANDBYTES else raw.get("bits", raw.get("w_bit"))
    if isinstance(bits, bool) or not isinstance(bits, int):
        return Quantized(method)
    known = method in (*BY_BITS, BITSANDBYTES)
    return Quantized(f"{method}, {bits:.4g} bits", INTEGER_OF.get(bits) if known else None)


def _loaded_bits(raw: Mapping[Any, Any]) -> int | None:
    """Bits of a weight that bitsandbytes loads."""
    return 8 if raw.get("load_in_8bit") is True else 4 if raw.get("load_in_4bit") is True else None


def weights_dtype_of(model: ModelSpec, given: str | None) -> str | None:
    """The format of the weights: as ``given``, else as the model's file has them; None where neither says."""
    if given is not None or model.quantized is None:
        return given
    return model.quantized.weights_dtype


def told(model: ModelSpec, taken: str | None, otherwise: str) -> list[str]:
    """In words, what was made of the format that the file names. ``taken``: from it; None: ``otherwise`` counts instead."""
    if model.quantized is None:
        return []
    named = f"The file of {model.name} names {model.quantized.words} for its weights"
    if taken is not None:
        return [f"{named}: every weight is counted as {taken}, scales are not; --weights-dtype says otherwise."]
    return [
        f"{named}, which nothing here is like: they are counted as {otherwise}; --weights-dtype fp8, int8 or int4 counts them narrower."
    ]
