"""Report on the tensors that autograd keeps of a chain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfmodel.core.arith import Number
from perfmodel.remat.autograd import Picture, TapeRecord, eager_bytes, lazy_bytes
from perfmodel.remat.source import Source
from perfmodel.report.document import Figure, Meter, Report, Table
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.op_common import columns, head, sparkline
from perfmodel.report.remat import Units, timeline

NARROW = 44
"""Columns of a line of bars beside two other columns."""
SHOWN = 12
"""Most layers with listed operations; of more, the first and last ones are listed."""


def autograd_report(picture: Picture, source: Source, pictures: bool = False) -> Report:
    """``picture`` as a Report with data of schema perfmodel.autograd/1."""
    units, content = Units(source.timed, source.sized), autograd_data(picture, source)
    eager_sizes, lazy_sizes = content["forward"].values()
    allocations = [("gradients in backward", picture.lazy, picture.lazy_peak), ("gradients with values", picture.eager, picture.eager_peak)]
    top = max(picture.eager_peak, picture.lazy_peak)
    lines = [[name, units.size(peak), sparkline(columns(moments, NARROW), top)] for name, moments, peak in reversed(allocations)]
    grown = [[str(layer), *map(units.size, sizes)] for layer, sizes in enumerate(zip(eager_sizes, lazy_sizes, strict=True))]
    heads = ["layer", "gradients with values", "gradients in backward"]
    tables = [
        _shortened(as_rows("on the tape, in order", [_record(record, units) for record in picture.records])),
        _shortened(Table("forward, after each layer, its input not counted", heads, grown)),
        Table("memory over forward and backward, all of it", ["", "peak", "time"], lines, "lrl", drawn=True),
    ]
    over = [(name, list(moments)) for name, moments, _ in allocations]
    return Report(
        f"What autograd keeps: {source.title}",
        _autograd_headline(picture, eager_sizes[-1], lazy_sizes[-1], content["kept"], units),
        tables,
        _notes(picture, source),
        content,
        charts=[timeline(over, "time" if source.timed else "steps", units)] if pictures else [],
        meters=[Meter(name, float(peak / top), units.held(peak)) for name, _, peak in allocations] if top else [],
        metered="larger peak",
        figures=[Figure(f"peak, {name}", units.held(peak)) for name, _, peak in allocations],
    )


def autograd_data(picture: Picture, source: Source) -> dict[str, Any]:
    """The object of schema perfmodel.autograd/1."""
    chain, layers, units = picture.chain, range(1, len(picture.chain) + 1), Units(source.timed, source.sized)
    return {
        **head("autograd", {"layers": len(chain)}),
        "units": {"size": "B" if source.sized else "values"},
        "operations": [as_json(_record(record, units)) for record in picture.records],
        "forward": {
            "gradients_with_values": [eager_bytes(chain, layer) for layer in layers],
            "gradients_in_backward": [lazy_bytes(chain, layer) for layer in layers],
        },
        "peak": {"gradients_with_values": picture.eager_peak, "gradients_in_backward": picture.lazy_peak},
        "kept": sum(record.size for record in picture.records),
    }


def _record(record: TapeRecord, units: Units) -> list[Metric]:
    return [
        Metric("operation", record.operation, "operation", "text"),
        Metric("keeps", record.keeps, "keeps", "text"),
        Metric("size", record.size),
        Metric("", units.size(record.size) if record.size else "kept already", "takes"),
        Metric("purpose", record.purpose, "for", "text"),
        Metric("freed_by", record.freed_by, "goes after backward of", "text"),
    ]


def _shortened(table: Table) -> Table:
    """``table`` with its first and last rows, if it has many."""
    if len(table.rows) <= SHOWN:
        return table
    return replace(table, rows=[*table.rows[: SHOWN // 2], ["...", *[""] * (len(table.columns) - 1)], *table.rows[-SHOWN // 2 :]])


def _autograd_headline(picture: Picture, eager: Number, lazy: Number, tape_size: Number, units: Units) -> list[str]:
    outputs, text_of = {layer.output for layer in picture.chain.layers}, units.held
    sentences = [f"Forward grows to {text_of(lazy)} beside its input, {text_of(eager)} with all gradients."]
    if len(outputs) == 1:
        [name] = outputs
        sentences.append(f"Each layer leaves {text_of(name)}, {text_of(2 * name)} with the gradient of its output.")
    needs = f"Backward needs {text_of(tape_size)} of values and input, each until the last backward step that reads it."
    return [*sentences, needs]


def _notes(picture: Picture, source: Source) -> list[str]:
    notes = ["Layers count from 0: layer i makes x_(i+1) from x_i. W_i, which dx_i needs, is not counted: the model holds it anyway."]
    if any("ReLU" in record.operation for record in picture.records):
        sign = "The sign of a ReLU's result is one bit per element"
        notes.append(f"z_i is freed at once. {sign}; it takes none where the next layer keeps the result.")
    notes.append("With values: gradients stay to the end. In backward: a gradient is allocated when reached, and freed with its value.")
    weights = any(layer.weights for layer in picture.chain.layers)
    return [*notes, *["Peaks include weights and their gradients."] * weights, *source.basis]
