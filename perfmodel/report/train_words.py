"""What the report of a training step says in words: the verdict, and what the numbers rest on."""

from __future__ import annotations

from perfmodel.core.units import format_si, format_time
from perfmodel.report.memory_words import uneven
from perfmodel.report.metrics import BOUND_WORDS
from perfmodel.report.model_words import unread_notes
from perfmodel.report.operation import unknown_rates
from perfmodel.transformer.training.implementations import HUGGINGFACE
from perfmodel.transformer.training.question import EVERY, FULL, TrainingConfig
from perfmodel.transformer.training.step.estimate import TrainingAnswer
from perfmodel.transformer.training.step.flops import MEANING
from perfmodel.transformer.training.step.step_time import BUBBLE, HOST
from perfmodel.transformer.training.step.system import inside_source


def verdict(found: TrainingAnswer) -> list[str]:
    """How long, what for, how near to the bound, and whether it fits."""
    step, parts = found.found, found.found.time.parts
    ends = "" if step.prediction is None else f", {format_time(step.prediction[1], 3)} to {format_time(step.prediction[2], 3)}"
    known = f"predicted{ends}" if step.prediction else "roof"
    largest = max(parts, key=lambda name: parts[name])
    mfu, hfu = found.utilization
    cost = step.cost
    took = f"A step takes {format_time(step.seconds)} ({known}), {100 * parts[largest] / step.seconds:.3g} % of it {largest}"
    bound = f"the bound of its needed work is {format_time(cost.lower_s)}"
    term = f"the largest term of the roof is {BOUND_WORDS.get(cost.bound or '', 'unknown')}"
    rates = f"{format_si(step.tokens_per_s)} tokens/s, MFU {100 * mfu:.3g} %, HFU {100 * hfu:.3g} % (FLOP on visible scores; FLOP executed)"
    sentences = [f"{took}; {bound}; {term}. {rates}."]
    waits = [f"{name} takes {100 * parts[name] / step.seconds:.3g} %" for name in (BUBBLE, HOST) if parts[name] > 0.05 * step.seconds]
    sentences += [f"{'; '.join(waits).capitalize()}."] if waits else []
    memory = found.memory
    if found.fits is False and memory is not None:
        sentences.append(f"It does not fit: {format_si(float(memory.bytes), 'B')} of {format_si(found.capacity or 0, 'B')} per GPU.")
    return sentences


def notes(found: TrainingAnswer) -> list[str]:
    """What the numbers rest on."""
    t, step = found.training, found.found
    words = [
        "Lower: needed work only, each kernel's operands in DRAM; nothing for what runs again, for exchanges or for waits.",
        "Backward: two matmuls for one, attention 2.5 times its forward FLOP executed, 2 needed.",
        f"{MEANING}. Conventions of publications count the whole square of scores under a causal mask, of which kernels run about half: "
        "their shares of the peak can be above HFU, and above 100 %.",
        f"Kernels as {step.implementation} runs them. Rows are sums over their runs on one GPU.",
    ]
    if found.memory is None:
        words.append(f"Memory is not known: {found.unknown}.")
    if step.implementation == HUGGINGFACE:
        words.append("Launched one by one from Python: host times of GPT-2's layers, as measured beside an H200; another host has others.")
    else:
        words.append("The host is taken to keep ahead of the device.")
    missing = list(dict.fromkeys(f"{line.row.op.name} ({line.missing})" for line in step.lines if line.times is None))
    if missing:
        words.append(f"At the roof, as not predicted: {'; '.join(missing[:3])}{'; ...' if len(missing) > 3 else ''}.")
    longest = t.model.max_positions
    if longest is not None and t.n > longest:
        words.append(f"{t.model.name} was made for at most {longest:,} tokens.")
    if t.lora is not None and t.model.is_moe:
        words.append("Adapters on all matrices of attention and MLP; experts are without adapters.")
    if t.batch % t.parallel.dp:
        words.append(uneven(t))
    if t.model.is_moe:
        words.append("Every expert is taken to get as many tokens as any other.")
    return [*words, *_parallel_notes(found, t), *unread_notes(t.model), *unknown_rates([step.cost], found.device)]


def _parallel_notes(found: TrainingAnswer, t: TrainingConfig) -> list[str]:
    p, words = t.parallel, []
    if p.tp > 1:
        words.append("Tensor parallel: partial sums are exchanged twice per layer and pass, with sequence parallelism as two halves.")
    if p.pp > 1:
        words.append(f"Pipeline: 1F1B over {p.pp} stages; the slowest, number {found.found.time.stage + 1}, is shown.")
    if p.pp > 1 and t.recompute.kind in (FULL, EVERY):
        words.append("What runs again counts to the backward pass of its stage.")
    if p.cp > 1:
        words.append("Context parallel: K and V go around a ring beside attention, whose causal work is shared evenly.")
    if p.dp * p.cp > 1:
        beside = "beside backward and forward passes" if found.found.job.overlap else "after the backward pass"
        words.append(f"Data parallel: gradients and weights are exchanged {beside}.")
    job = found.found.job
    if job.system is not None:
        words += [said] if (said := inside_source(job.system, p, job.on.device)) else []
    if not found.found.validated:
        free = "as hidden behind kernels without slowing them" if job.overlap else "at the full rate of its links"
        words.append(
            f"ZeRO {p.zero} over a network is not validated, so no interval is given: what is exchanged is taken {free}, and systems "
            "have been published that took several times as long (Narayanan et al. 2021, Table 2)."
        )
    return words
