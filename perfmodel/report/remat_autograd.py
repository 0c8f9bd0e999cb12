"""The report of what autograd keeps: operation by operation, and memory with gradients allocated early or late."""

from __future__ import annotations

from typing import Any

from perfmodel import __version__
from perfmodel.remat.autograd import Picture, eager_bytes, lazy_bytes
from perfmodel.remat.evaluate import Question
from perfmodel.remat.simulate import columns
from perfmodel.report.document import Report, Table
from perfmodel.report.remat_words import Words
from perfmodel.report.timeline import sparkline

SPARK = 44
SHOWN = 12
"""Layers whose operations are listed; of more, the first and the last ones."""


def report(picture: Picture, question: Question) -> Report:
    """``picture`` as a Report; its data follows the schema perfmodel.autograd/1."""
    words = Words(question)
    tables = [_records(picture, words), _trace(picture, words), _timelines(picture, words)]
    title = f"What autograd keeps: {question.title}"
    return Report(title, _verdict(picture, words), tables, _notes(picture, question), data(picture, question))


def data(picture: Picture, question: Question) -> dict[str, Any]:
    """The object of schema perfmodel.autograd/1."""
    layers = range(1, len(picture.chain) + 1)
    return {
        "schema": "perfmodel.autograd/1",
        "version": __version__,
        "inputs": {"layers": len(picture.chain)},
        "units": {"size": "B" if question.sized else "values"},
        "operations": [
            {"operation": r.operation, "keeps": r.keeps, "size": r.size, "purpose": r.purpose, "freed_by": r.freed_by}
            for r in picture.records
        ],
        "forward": {
            "gradients_with_values": [eager_bytes(picture.chain, layer) for layer in layers],
            "gradients_in_backward": [lazy_bytes(picture.chain, layer) for layer in layers],
        },
        "peak": {"gradients_with_values": picture.eager_peak, "gradients_in_backward": picture.lazy_peak},
        "kept": sum(record.size for record in picture.records),
    }


def _verdict(picture: Picture, words: Words) -> list[str]:
    chain, count = picture.chain, len(picture.chain)
    each = {layer.output for layer in chain.layers}
    per_layer = ""
    if len(each) == 1:
        [size] = each
        per_layer = f"Each layer leaves {words.size(size)}, or {words.size(2 * size)} if the gradient of its output is allocated with it. "
    eager, lazy = eager_bytes(chain, count), lazy_bytes(chain, count)
    first = f"{per_layer}Forward grows to {words.size(lazy)} beside its input; {words.size(eager)} with every gradient allocated at once."
    kept = sum(record.size for record in picture.records)
    return [
        first,
        f"Backward needs {words.size(kept)} of it and of the input; each tensor can go with the backward step of the layer that reads it.",
    ]


def _records(picture: Picture, words: Words) -> Table:
    rows = [[r.operation, r.keeps, words.size(r.size) if r.size else "kept already", r.purpose, r.freed_by] for r in picture.records]
    if len(rows) > SHOWN:
        rows = [*rows[: SHOWN // 2], ["...", "", "", "", ""], *rows[-SHOWN // 2 :]]
    columns_ = ["operation", "keeps", "takes", "for", "goes after backward of"]
    return Table("on the tape, in order", columns_, rows, "llrll")


def _trace(picture: Picture, words: Words) -> Table:
    chain, count = picture.chain, len(picture.chain)
    layers = range(count) if count <= SHOWN else [*range(SHOWN // 2), *range(count - SHOWN // 2, count)]
    rows = [[str(layer), words.size(eager_bytes(chain, layer + 1)), words.size(lazy_bytes(chain, layer + 1))] for layer in layers]
    if count > SHOWN:
        rows.insert(SHOWN // 2, ["...", "", ""])
    return Table("forward, after each layer, its input not counted", ["layer", "gradients with values", "gradients in backward"], rows)


def _timelines(picture: Picture, words: Words) -> Table:
    top = max(picture.eager_peak, picture.lazy_peak)
    rows = [
        ["gradients with values", words.size(picture.eager_peak), sparkline(columns(picture.eager, SPARK), top)],
        ["gradients in backward", words.size(picture.lazy_peak), sparkline(columns(picture.lazy, SPARK), top)],
    ]
    return Table("memory over forward and backward, all of it", ["", "peak", "time"], rows, "lrl")


def _notes(picture: Picture, question: Question) -> list[str]:
    notes = ["Layers count from 0; layer i makes x_(i+1) of x_i. W_i is kept by nobody: it is there anyway, and dx_i needs it."]
    if any("ReLU" in record.operation for record in picture.records):
        notes.append(
            "z_i goes at once. The sign of a ReLU's result is one bit per element; it takes none where the next layer keeps the result."
        )
    notes.append("With values: gradients stay to the end. In backward: a gradient comes when backward reaches it and goes with its value.")
    weights = any(layer.weights for layer in picture.chain.layers)
    return [*notes, *(["Peaks include weights and their gradients."] if weights else []), *question.basis]
