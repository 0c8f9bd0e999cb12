"""What a report of a whole model says of number formats: those of weights and cache, and those in which products run."""

from __future__ import annotations

from perfmodel.transformer.answer import Answer
from perfmodel.transformer.estimate import CONVENTION
from perfmodel.transformer.quantized import told
from perfmodel.transformer.request import Request
from perfmodel.units import format_si


def format_notes(found: Answer) -> list[str]:
    """In what weights and cache are stored and multiplied, and of which peaks the MFU is a share."""
    peaks = found.mfu_peaks
    listed = ", ".join(f"{name} {format_si(peak, 'FLOP/s')}" for name, peak in peaks.items())
    apart = "" if list(peaks) == [found.request.dtype.name] else f", each row's over that of the format it runs in ({listed})"
    return [*weights_notes(found.request), f"MFU: {CONVENTION}{apart}."]


def weights_notes(r: Request) -> list[str]:
    """Of weights and cache."""
    words = []
    if r.weights_from_file:
        named = r.model.quantized
        words += told(r.model, None if named is None else named.weights_dtype, r.dtype.name)
    if r.integer_weights:
        words.append(f"int{r.weight_bits} weights: they alone are narrower; read as such, dequantised, and multiplied in {r.dtype.name}.")
    elif r.weight_bits == 8 and r.dtype.size == 2:
        words.append(_fp8_weights(r))
    if r.integer_kv:
        words.append(f"int{r.kv_bits} KV cache: read as such, dequantised, and multiplied in {r.dtype.name}.")
    return words


def _fp8_weights(r: Request) -> str:
    if "fp8" in r.device.peaks_of("tensor"):
        return "fp8 weights: activations are rounded to fp8 too, and products run in fp8 (W8A8)."
    return f"fp8 weights: {r.device.id} does not multiply fp8; they are read as such and multiplied in {r.dtype.name}."
