"""Every number of a training step's memory as its formula: state per parameter, each tensor that a layer keeps, the peak."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfmodel.core.arith import ceil_div
from perfmodel.core.trace import FormulaStep, Trace, Traced
from perfmodel.transformer.explain import traced
from perfmodel.transformer.spec import Layer, ModelSpec
from perfmodel.transformer.training import korthikanti
from perfmodel.transformer.training.implementations import kind_titles
from perfmodel.transformer.training.matrices import chunks_of
from perfmodel.transformer.training.memory import MemoryResult
from perfmodel.transformer.training.question import FULL, NONE, SELECTIVE, Shape, shape_of

STATE_SOURCE = "perfmodel/transformer/training/state.py: Micikevicius et al. 2018; ZeRO, Rajbhandari et al. 2020"
TAPE_SOURCE = "perfmodel/transformer/training/tape.py: what torch.autograd keeps"
LITERATURE_SOURCE = "perfmodel/transformer/training/korthikanti.py: Korthikanti et al. 2022, Table 2"
PEAK_SOURCE = "perfmodel/transformer/training/memory.py: all bytes at the worst moment"


def explain(result: MemoryResult) -> list[FormulaStep]:
    """How the numbers of ``result`` come about; each step rests on earlier ones. No function that remembers its results is called."""
    trace = Trace()
    _state(trace, result)
    layers = _own_layers(result)
    spec, titles = traced(replace(result.training.model, layers=layers), trace), kind_titles(layers)
    shape = _shape(trace, result, spec)
    for layer, own in zip(spec.layers, layers, strict=True):
        place = f" in {titles[own].removeprefix('layer: ')}" if len(layers) > 1 else ""
        _tensors(trace, result, spec, layer, shape, place)
    _literature(trace, result, spec, shape)
    _peak(trace, result)
    return list(trace.steps.values())


def _own_layers(result: MemoryResult) -> tuple[Layer, ...]:
    """One layer of each kind on the fullest GPU."""
    chunks = chunks_of(result.training.model, result.training.parallel, result.peak.stage)
    return tuple(dict.fromkeys(layer for _, runs in chunks for layer, _ in runs))


def _shape(trace: Trace, result: MemoryResult, spec: ModelSpec) -> Shape:
    shape = shape_of(result.training)
    batch = _batch(trace, result)
    length: Any = trace.symbol("s", shape.length, "tokens of a sequence on one GPU", "given")
    keys: Any = length if shape.keys == shape.length else trace.symbol("N", shape.keys, "tokens of a sequence", "given")
    tokens: Any = trace.define("T", "tokens of a micro-batch on one GPU", batch * length, TAPE_SOURCE)
    return replace(shape, hidden=spec.hidden, tokens=tokens, length=length, keys=keys)


def _batch(trace: Trace, result: MemoryResult) -> Any:
    return trace.symbol("b", shape_of(result.training).sequences, "sequences at a time on one GPU", "given")


def _state(trace: Trace, result: MemoryResult) -> None:
    state = result.peak.state
    counts: dict[int, Any] = {}
    for part in state.parts:
        if part.elements not in counts:
            name = "P" if not counts else f"P_{len(counts) + 1}"
            counts[part.elements] = trace.symbol(
                name, part.elements, "parameters on the fullest GPU", "perfmodel/transformer/parameters.py"
            )
        each = counts[part.elements] if part.shards == 1 else ceil_div(counts[part.elements], part.shards)
        size, rest = divmod(part.bytes, ceil_div(part.elements, part.shards))
        if rest:  # scales of blocks, rows and columns of matrices: no fixed number of bytes per parameter
            trace.symbol(part.name, part.bytes, "B", STATE_SOURCE)
        else:
            trace.define(part.name, "B", each * size, STATE_SOURCE)


def _tensors(trace: Trace, result: MemoryResult, spec: ModelSpec, layer: Layer, shape: Shape, place: str) -> None:
    """Each tensor that a layer keeps, and their sum."""
    made, kind = result.implementation, result.training.recompute.kind
    tape = made.layer(spec, layer, shape)
    if kind == SELECTIVE:
        tape = replace(tape, again=made.core & {node.name for node in tape.nodes})
    names = list(tape.saved()) if kind in (NONE, SELECTIVE) else [tape.stream]
    sizes = [trace.define(f"{name}{place}, kept", "B", tape.sizes[name], TAPE_SOURCE) for name in names if tape.sizes[name]]
    trace.define(f"one layer{place}, kept", "B", sum(sizes), TAPE_SOURCE)


def _literature(trace: Trace, result: MemoryResult, spec: ModelSpec, shape: Shape) -> None:
    batch, heads, parallel = _batch(trace, result), spec.layers[0].attention.heads, result.training.parallel
    for kind in (NONE, SELECTIVE, FULL):
        size = korthikanti.layer_bytes(shape.length, batch, spec.hidden, heads, parallel.tp, sp=parallel.sp, recompute=kind)
        trace.define(f"one layer by the literature, recompute {kind}", "B", size, LITERATURE_SOURCE)


def _peak(trace: Trace, result: MemoryResult) -> None:
    found = result.peak
    rows = [
        ("all weights", found.state.weights),
        ("all optimizer state", found.state.optimizer),
        ("gradients at the peak", found.gradients),
        ("activations at the peak", found.activations),
    ]
    parts: list[Traced] = [trace.symbol(name, value, f"B, {found.moment.title}", PEAK_SOURCE) for name, value in rows if value]
    whole: Any = sum(parts[1:], parts[0])
    trace.define("peak", "B allocated", whole, PEAK_SOURCE)
