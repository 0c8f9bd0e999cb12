"""Formulas of all numbers of a training step: state per parameter, tensors that a layer keeps, the peak; then seconds and FLOP."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perfmodel.core.arith import ceil_div
from perfmodel.core.roofline import rates_of
from perfmodel.core.trace import FormulaStep, Trace, Traced
from perfmodel.transformer.explain import traced
from perfmodel.transformer.parameters import active
from perfmodel.transformer.spec import Layer, ModelSpec
from perfmodel.transformer.training import korthikanti
from perfmodel.transformer.training.implementations import kind_titles
from perfmodel.transformer.training.matrices import Shape, shape_of, stage_layers
from perfmodel.transformer.training.memory import MemoryResult
from perfmodel.transformer.training.question import FULL, NONE, SELECTIVE

if TYPE_CHECKING:
    from perfmodel.transformer.training.step.estimate import TrainingEstimate

STATE_SOURCE = "perfmodel/transformer/training/state.py: Micikevicius et al. 2018; ZeRO, Rajbhandari et al. 2020"
TAPE_SOURCE = "perfmodel/transformer/training/tape.py: what torch.autograd keeps"
LITERATURE_SOURCE = "perfmodel/transformer/training/korthikanti.py: Korthikanti et al. 2022, Table 2"
PEAK_SOURCE = "perfmodel/transformer/training/memory.py: all bytes at the worst moment"


def explain(result: MemoryResult) -> list[FormulaStep]:
    """Formula steps of the numbers of ``result``; each uses earlier ones. It calls no function that caches its results."""
    trace = Trace()
    _state(trace, result)
    layers = tuple(stage_layers(result.training.model, result.training.parallel, result.peak.stage))  # one of each kind
    spec, titles = traced(replace(result.training.model, layers=layers), trace), kind_titles(layers)
    shape = _shape(trace, result, spec)
    for traced_layer, layer in zip(spec.layers, layers, strict=True):
        place = f" in {titles[layer].removeprefix('layer: ')}" if len(layers) > 1 else ""
        _tensors(trace, result, traced_layer, shape, place)
    _literature(trace, result, spec, shape)
    _peak(trace, result)
    return list(trace.steps.values())


def _shape(trace: Trace, result: MemoryResult, spec: ModelSpec) -> Shape:
    shape = shape_of(result.training)
    batch = _batch(trace, result)
    length: Any = trace.symbol("s", shape.length, "tokens of a sequence on one GPU", "given")
    keys: Any = length if shape.keys == shape.length else trace.symbol("N", shape.keys, "tokens of a sequence", "given")
    tokens: Any = trace.define("T", "tokens of a micro-batch on one GPU", batch * length, TAPE_SOURCE)
    return replace(shape, model=spec, tokens=tokens, length=length, keys=keys)


def _batch(trace: Trace, result: MemoryResult) -> Any:
    return trace.symbol("b", shape_of(result.training).sequences, "sequences at a time on one GPU", "given")


def _state(trace: Trace, result: MemoryResult) -> None:
    state = result.peak.state
    counts: dict[int, Any] = {}
    for part in state.parts:
        if part.elements not in counts:
            name, source = f"P_{len(counts) + 1}" if counts else "P", "perfmodel/transformer/parameters.py"
            counts[part.elements] = trace.symbol(name, part.elements, "parameters on the fullest GPU", source)
        elements = counts[part.elements] if part.shards == 1 else ceil_div(counts[part.elements], part.shards)
        element_size, remainder = divmod(part.bytes, ceil_div(part.elements, part.shards))
        if remainder:  # scales of blocks, rows and columns of matrices: no fixed number of bytes per parameter
            trace.symbol(part.name, part.bytes, "B", STATE_SOURCE)
        else:
            trace.define(part.name, "B", elements * element_size, STATE_SOURCE)


def _tensors(trace: Trace, result: MemoryResult, layer: Layer, shape: Shape, place: str) -> None:
    """Defines each tensor that a layer keeps, and their sum."""
    kind = result.training.recompute.kind
    tape = result.implementation.tape_of(layer, shape, selective=kind == SELECTIVE)
    names = list(tape.saved()) if kind in (NONE, SELECTIVE) else [tape.stream]
    sizes = [trace.define(f"{name}{place}, kept", "B", tape.sizes[name], TAPE_SOURCE) for name in names if tape.sizes[name]]
    trace.define(f"one layer{place}, kept", "B", sum(sizes), TAPE_SOURCE)


def _literature(trace: Trace, result: MemoryResult, spec: ModelSpec, shape: Shape) -> None:
    batch, heads, parallel = _batch(trace, result), spec.layers[0].attention.heads, result.training.parallel
    for kind in (NONE, SELECTIVE, FULL):
        size = korthikanti.layer_bytes(shape.length, batch, spec.hidden, heads, parallel.tp, sp=parallel.sp, recompute=kind)
        trace.define(f"one layer by the literature, recompute {kind}", "B", size, LITERATURE_SOURCE)


def _peak(trace: Trace, result: MemoryResult) -> None:
    worst = result.peak
    rows = [
        ("all weights", worst.state.weights),
        ("all optimizer state", worst.state.optimizer),
        ("gradients at the peak", worst.gradients),
        ("activations at the peak", worst.activations),
    ]
    parts: list[Traced] = [trace.symbol(name, value, f"B, {worst.moment.title}", PEAK_SOURCE) for name, value in rows if value]
    whole: Any = sum(parts[1:], parts[0])
    trace.define("peak", "B allocated", whole, PEAK_SOURCE)


KERNEL_SOURCE = "sum of the kernels of one GPU, perfmodel/transformer/training/step/layer_time.py"
RUN_SOURCE = "sum of the kernels of all GPUs, perfmodel/transformer/training/step/flops.py"
PIPELINE_SOURCE = "1F1B: Narayanan et al. 2021, arXiv 2104.04473, section 2.2"
PALM_SOURCE = "Chowdhery et al. 2022, arXiv 2204.02311, appendix B"


def explain_step(estimate: TrainingEstimate) -> list[FormulaStep]:
    """Steps of a training step's time; the last ones are the numbers of the report."""
    trace = Trace()
    step = trace.define("step", "seconds of a step", _step(trace, estimate), PIPELINE_SOURCE)
    batch: Any = trace.symbol("B", estimate.training.batch, "sequences of a step", "given")
    length = trace.symbol("T", estimate.training.n, "tokens of a sequence", "given")
    tokens: Any = trace.define("tokens", "of a step", batch * length, "given")
    trace.define("tokens/s", "over all GPUs", tokens / step, "tokens of a step over its seconds")
    _shares(trace, estimate, tokens, step)
    return list(trace.steps.values())


def _step(trace: Trace, estimate: TrainingEstimate) -> Any:
    """Steps of the time: m micro-batches on the slowest stage, the bubble, and work that is done once."""
    from perfmodel.transformer.training.step.step_time import BUBBLE, HOST

    time, p = estimate.time, estimate.training.parallel
    micro = time.micro_batch
    times = {
        "t_f": ("forward pass of a micro-batch", micro.forward_s),
        "t_r": ("what of it runs again", micro.recompute_s),
        "t_b": ("backward pass of a micro-batch", micro.backward_s),
        "t_g": ("its gradients added to those before", micro.accumulate_s),
        "t_p": ("handed to and from the stages beside", micro.hand_over_s),
        "t_x": ("exchanges within the stage that nothing hides", sum(micro.exposed.values())),
    }
    used = [trace.symbol(name, seconds, f"s, {words}", KERNEL_SOURCE) for name, (words, seconds) in times.items() if seconds]
    whole = trace.define("t", "s, a micro-batch on one GPU of the slowest stage", sum(used[1:], used[0]), KERNEL_SOURCE)
    micro_batches = trace.symbol("m", time.micro_batches, "micro-batches", "given")
    total = micro_batches * whole
    if p.pp > 1:
        all_stages = time.parts[BUBBLE] * p.interleave + micro.seconds
        stages = trace.symbol("S", all_stages, f"s, a micro-batch on all {p.pp} stages, one after the other", KERNEL_SOURCE)
        turns = trace.symbol("v", p.interleave, "chunks of layers per stage", "given")
        total = total + trace.define("bubble", "s, until the pipeline is full and empty again", (stages - whole) / turns, PIPELINE_SOURCE)
    once = {"optimizer": "t_o", "gradients cleared": "t_c", "data parallel": "t_d", HOST: "t_h"}
    for part, name in once.items():
        if time.parts[part]:
            total = total + trace.symbol(name, time.parts[part], f"s, {part}", KERNEL_SOURCE)
    return total


def _shares(trace: Trace, estimate: TrainingEstimate, tokens: Any, step: Any) -> None:
    """Steps of MFU and HFU, and of PaLM's convention; Megatron's is only a row of the table."""
    from perfmodel.transformer.training.step.flops import attention_flops, passes

    t, job = estimate.training, estimate.job
    weights = trace.symbol("N", active(t.model), "parameters that a token uses", t.model.source)
    pairs = trace.symbol("4LHQT", attention_flops(t.model, t.n), "FLOP of attention per token, forward", PALM_SOURCE)
    model = trace.define(
        "model FLOP by PaLM",
        "of a step, attention over all pairs of tokens, masked or not",
        tokens * (2 * passes(t) * weights + 3 * pairs),
        PALM_SOURCE,
    )
    hardware = model
    if t.recompute.kind == SELECTIVE:
        hardware = model + tokens * pairs
    elif t.recompute.of_layers:
        hardware = model + tokens * (2 * weights + pairs)
    hardware = trace.define("hardware FLOP by PaLM", "of a step, with what runs again", hardware, PALM_SOURCE)
    gpus = trace.symbol("GPUs", t.parallel.gpus, "in all", "given")
    rate = rates_of(estimate.device, job.micro_batch.forward.dtype).matmul
    peak = trace.symbol("P", rate, f"FLOP/s, {job.micro_batch.forward.dtype.name}, datasheet", f"profile of {estimate.device.id}")
    available = trace.define("available", "FLOP of all GPUs in that time", step * gpus * peak, PALM_SOURCE)
    trace.define("of the peak by PaLM", "share of them", model / available, PALM_SOURCE)
    trace.define("of the peak by PaLM, with what runs again", "share of them", hardware / available, PALM_SOURCE)
    visible = trace.symbol("visible", estimate.run.model, "FLOP of the kernels of all GPUs, on scores that the mask leaves", RUN_SOURCE)
    executed = trace.symbol("executed", estimate.run.hardware, "FLOP that these kernels execute", RUN_SOURCE)
    trace.define("MFU", "share of them that is visible", visible / available, RUN_SOURCE)
    trace.define("HFU", "share of them that is executed", executed / available, RUN_SOURCE)
