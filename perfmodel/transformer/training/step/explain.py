"""How the numbers of a training step follow from each other, each with its formula and source."""

from __future__ import annotations

from typing import Any

from perfmodel.core.roofline import rates_of
from perfmodel.core.trace import FormulaStep, Trace
from perfmodel.transformer.parameters import active
from perfmodel.transformer.training.question import EVERY, FULL, SELECTIVE
from perfmodel.transformer.training.step.estimate import TrainingAnswer
from perfmodel.transformer.training.step.flops import attention_flops, passes
from perfmodel.transformer.training.step.step_time import BUBBLE, HOST

KERNEL_SOURCE = "sum of the kernels of one GPU, perfmodel/transformer/training/step/layer_time.py"
RUN_SOURCE = "sum of the kernels of all GPUs, perfmodel/transformer/training/step/flops.py"
PIPELINE_SOURCE = "1F1B: Narayanan et al. 2021, arXiv 2104.04473, section 2.2"
PALM_SOURCE = "Chowdhery et al. 2022, arXiv 2204.02311, appendix B"


def explain(found: TrainingAnswer) -> list[FormulaStep]:
    """The steps; the last ones are the numbers of the report."""
    trace = Trace()
    step = trace.define("step", "seconds of a step", _step(trace, found), PIPELINE_SOURCE)
    tokens = _tokens(trace, found)
    trace.define("tokens/s", "over all GPUs", tokens / step, "tokens of a step over its seconds")
    _shares(trace, found, tokens, step)
    return list(trace.steps.values())


def _tokens(trace: Trace, found: TrainingAnswer) -> Any:
    batch = trace.symbol("B", found.training.batch, "sequences of a step", "given")
    return trace.define("tokens", "of a step", batch * trace.symbol("T", found.training.n, "tokens of a sequence", "given"), "given")


def _step(trace: Trace, found: TrainingAnswer) -> Any:
    """m micro-batches on the slowest stage, the bubble, and what is done once."""
    time, p = found.found.time, found.training.parallel
    one = time.one
    known = {
        "t_f": ("forward pass of a micro-batch", one.forward_s),
        "t_r": ("what of it runs again", one.again_s),
        "t_b": ("backward pass of a micro-batch", one.backward_s),
        "t_g": ("its gradients added to those before", one.added_s),
        "t_p": ("handed to and from the stages beside", one.handed_s),
        "t_x": ("exchanges within the stage that nothing hides", sum(one.passed.values())),
    }
    used = [trace.symbol(name, seconds, f"s, {words}", KERNEL_SOURCE) for name, (words, seconds) in known.items() if seconds]
    whole = trace.define("t", "s, a micro-batch on one GPU of the slowest stage", sum(used[1:], used[0]), KERNEL_SOURCE)
    often = trace.symbol("m", time.micro_batches, "micro-batches", "given")
    total = often * whole
    if p.pp > 1:
        all_stages = time.parts[BUBBLE] * p.interleave + one.seconds
        stages = trace.symbol("S", all_stages, f"s, a micro-batch on all {p.pp} stages, one after the other", KERNEL_SOURCE)
        turns = trace.symbol("v", p.interleave, "chunks of layers per stage", "given")
        total = total + trace.define("bubble", "s, until the pipeline is full and empty again", (stages - whole) / turns, PIPELINE_SOURCE)
    once = {"optimizer": "t_o", "gradients cleared": "t_c", "data parallel": "t_d", HOST: "t_h"}
    for part, name in once.items():
        if time.parts[part]:
            total = total + trace.symbol(name, time.parts[part], f"s, {part}", KERNEL_SOURCE)
    return total


def _shares(trace: Trace, found: TrainingAnswer, tokens: Any, step: Any) -> None:
    """MFU and HFU, and beside them PaLM's convention, step by step; the other one is a row of its table."""
    t, job = found.training, found.found.job
    weights = trace.symbol("N", active(t.model), "parameters that a token uses", t.model.source)
    pairs = trace.symbol("4LHQT", attention_flops(t.model, t.n), "FLOP of attention per token, forward", PALM_SOURCE)
    model = trace.define(
        "model FLOP by PaLM",
        "of a step, attention over all pairs of tokens, masked or not",
        tokens * (2 * passes(t) * weights + 3 * pairs),
        PALM_SOURCE,
    )
    kind = t.recompute.kind
    again = pairs if kind == SELECTIVE else 2 * weights + pairs if kind in (FULL, EVERY) else None
    hardware = model if again is None else model + tokens * again
    hardware = trace.define("hardware FLOP by PaLM", "of a step, with what runs again", hardware, PALM_SOURCE)
    gpus = trace.symbol("GPUs", t.parallel.gpus, "in all", "given")
    rate = rates_of(found.device, job.frame.forward.dtype).matmul
    peak = trace.symbol("P", rate, f"FLOP/s, {job.frame.forward.dtype.name}, datasheet", f"profile of {found.device.id}")
    available = trace.define("available", "FLOP of all GPUs in that time", step * gpus * peak, PALM_SOURCE)
    trace.define("of the peak by PaLM", "share of them", model / available, PALM_SOURCE)
    trace.define("of the peak by PaLM, with what runs again", "share of them", hardware / available, PALM_SOURCE)
    visible = trace.symbol("visible", found.run.model, "FLOP of the kernels of all GPUs, on scores that the mask leaves", RUN_SOURCE)
    executed = trace.symbol("executed", found.run.hardware, "FLOP that these kernels execute", RUN_SOURCE)
    trace.define("MFU", "share of them that is visible", visible / available, RUN_SOURCE)
    trace.define("HFU", "share of them that is executed", executed / available, RUN_SOURCE)
