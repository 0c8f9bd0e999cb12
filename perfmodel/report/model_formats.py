"""What a report of a whole model says of number formats: those of weights and cache, and those in which products run."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.core.units import format_si
from perfmodel.transformer.answer import Answer
from perfmodel.transformer.estimate import CONVENTION
from perfmodel.transformer.parallel import draft_bytes
from perfmodel.transformer.request import Request, native_dtype
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.weight_formats._base import MatrixFormat


def format_notes(found: Answer) -> list[str]:
    """In what weights and cache are stored and multiplied, and of which peaks the MFU is a share."""
    peaks = found.mfu_peaks
    listed = ", ".join(f"{name} {format_si(peak, 'FLOP/s')}" for name, peak in peaks.items())
    apart = "" if list(peaks) == [found.request.dtype.name] else f", each row's over that of the format it runs in ({listed})"
    return [*weights_notes(found.request), f"MFU: {CONVENTION}{apart}."]


def weights_notes(r: Request) -> list[str]:
    """Of weights and cache."""
    words, form = file_notes(r.model, r.weights_from_file), stored_format(r)
    if form is not None and form.name == "fp8" and r.dtype.size == 2:
        words.append(_fp8_weights(r))
    elif r.integer_weights or (form is not None and form.bits < 8 * r.dtype.size):
        named = form.name if form is not None else f"int{r.weight_bits}"
        inside = form is not None and form.multiplied in r.device.peaks_of("tensor")
        how = f"products may run in {form.multiplied}" if form and inside else f"dequantised, and multiplied in {r.dtype.name}"
        words.append(f"{named} weights: they alone are narrower; read as such, {how}.")
    elif r.weight_bits == 8 and r.dtype.size == 2:
        words.append(_fp8_weights(r))
    if r.integer_kv:
        words.append(f"int{r.kv_bits} KV cache: read as such, dequantised, and multiplied in {r.dtype.name}.")
    return words


def stored_format(r: Request) -> MatrixFormat | None:
    """The format that the model's file names for most matrices, if they are stored so."""
    return r.model.quantized.main if r.weights_from_file and r.model.quantized is not None else None


def file_notes(model: ModelSpec, published: bool) -> list[str]:
    """What the model's file says of its weights, and what in it no rule reads. ``published``: weights are stored as it says."""
    words, quantized = [], model.quantized
    if published and quantized is not None:
        kept = f"its matrices are counted so, with their scales, the rest as {native_dtype(model)}"
        words.append(f"The file of {model.name} names {quantized.words} for its weights: {kept}; --weights-dtype says otherwise.")
    if model.draft:
        size = format_si(draft_bytes(model, published), "B")
        words.append(f"Of the checkpoint, {size} more predict a further token ({len(model.draft)} layer): not loaded.")
    return words + unread_notes(model, quantized.unread if published and quantized is not None else ())


def unread_notes(model: ModelSpec, quantization: Sequence[str] = ()) -> list[str]:
    """The fields of the model's file, and of its quantization_config, that no rule reads."""
    unread = [*model.unread, *(f"quantization_config.{name}" for name in quantization)]
    if not unread:
        return []
    return [f"No rule reads {', '.join(unread)} in the file of {model.name}: if they change its sizes, the counts here are wrong."]


def _fp8_weights(r: Request) -> str:
    if "fp8" in r.device.peaks_of("tensor"):
        return "fp8 weights: activations are rounded to fp8 too, and products run in fp8 (W8A8)."
    return f"fp8 weights: {r.device.id} does not multiply fp8; they are read as such and multiplied in {r.dtype.name}."
