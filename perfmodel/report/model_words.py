"""Words that reports of models and of their caches share: where times come from, and what a model's file says of its weights."""

from __future__ import annotations

from perfmodel.core.units import format_si
from perfmodel.report.op_common import unread_notes
from perfmodel.transformer.estimate import MIXED, PREDICTED, ROOF
from perfmodel.transformer.parallel import draft_bytes
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import native_dtype

TIMES = {PREDICTED: "predicted", ROOF: "roof", MIXED: "predicted; roof where nothing is calibrated"}
"""Labels for the source of a time."""


def at_least(times_from: str) -> str:
    """Prefix of a time in which roofs stand for predictions."""
    return "" if times_from == PREDICTED else "at least "


def at_most(times_from: str) -> str:
    """Prefix of a rate at such a time."""
    return "" if times_from == PREDICTED else "at most "


def file_notes(model: ModelSpec, published: bool) -> list[str]:
    """Notes on what the model's file says about weights, and on fields that no rule reads. ``published``: weights are stored as there."""
    words, quantized = [], model.quantized
    if published and quantized is not None:
        stored = f"its matrices are counted so, with their scales, the rest as {native_dtype(model)}"
        words.append(f"Weights of {model.name} are stored as {quantized.words}: {stored}; --weights-dtype counts another format.")
    if model.draft:
        size = format_si(draft_bytes(model, published), "B")
        words.append(f"Of the checkpoint, {size} more predict a further token ({len(model.draft)} layer): not loaded.")
    return words + unread_notes(model, quantized.unread if published and quantized is not None else ())
