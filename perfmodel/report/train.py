"""The report of a training step, part by part and kernel by kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfmodel.core.roofline import Estimate
from perfmodel.report.charts.schema import Interval
from perfmodel.report.document import Report, Table
from perfmodel.report.memory import question, shared_notes
from perfmodel.report.metrics import Metric, as_json, as_rows, as_table, of_cost
from perfmodel.report.model import DRAWN, STEP_LABELS, TIMES_OF_STEP, of_source
from perfmodel.report.op_common import head, unknown_rates, unread_notes, with_steps
from perfmodel.report.power import of_power, power_note
from perfmodel.report.step import by_share
from perfmodel.report.train_first import KERNELS, answered
from perfmodel.transformer.op import COLLECTIVE, WEIGHTS
from perfmodel.transformer.parameters import active, parts, total
from perfmodel.transformer.step_power import TrainingPower
from perfmodel.transformer.training.explain import explain_step
from perfmodel.transformer.training.implementations import HUGGINGFACE
from perfmodel.transformer.training.question import EVERY, FULL, MIXED, TrainingConfig
from perfmodel.transformer.training.step.estimate import TrainingEstimate, TrainingKernel
from perfmodel.transformer.training.step.flops import MEANING, MEGATRON, PALM, Counted, passes
from perfmodel.transformer.training.step.step_time import BUBBLE, HOST
from perfmodel.transformer.training.step.system import inside_source

WAITING = "waiting"


def report(found: TrainingEstimate, *, explained: bool = False, pictures: bool = False, power: TrainingPower | None = None) -> Report:
    """``found`` as a Report; its data follows the schema perfmodel.model/1.

    ``pictures``: with the parts of the step, the time of its kernels and their roofline. ``power``: as steps run one after another.
    """
    t, job, gpus = found.training, found.job, found.training.parallel.gpus
    form = f"{job.micro_batch.forward.dtype.name}{' mixed' if t.precision == MIXED else ''}"
    where = f"{'' if gpus == 1 else f'{gpus:,} x '}{found.device.name}{'' if job.system is None else f', {job.system.name}'}"
    title = f"{t.model.name}: training step on {t.batch:,} x {t.n:,} tokens, {form} on {where}"
    first = by_share([*(_short(_op(line, found)) for line in found.lines), *_others(found)], BRIEF)
    notes = [*_notes(found), *power_note(power)]
    plain = answered(Report(title, [], _tables(found, power), notes, data(found, power), brief=[first]), found, pictures, power)
    return with_steps(plain, [("every number of the step", {"phase": "train"}, explain_step(found))]) if explained else plain


def data(found: TrainingEstimate, power: TrainingPower | None = None) -> dict[str, Any]:
    """The object of schema perfmodel.model/1. Rows of ``ops`` are sums over ``count`` runs on one GPU: they add up to ``totals``."""
    job, model, ran = found.job, found.training.model, found.run
    inputs = {
        **question(found.training),
        "phase": "train",
        "dtype": job.micro_batch.forward.dtype.name,
        "implementation": found.implementation,
        "system": None if job.system is None else job.system.name,
        "overlap": job.overlap,
    }
    return {
        **head("model", inputs, found.device),
        "gpus": found.training.parallel.gpus,
        "parameters": {"total": total(model), "active": active(model), "parts": parts(model)},
        "ops": [as_json(op) for op in (*(_op(line, found) for line in found.lines), *_others(found))],
        "totals": as_json(_totals(found, power)),
        "parts_s": {name: seconds for name, seconds in found.time.parts.items() if seconds},
        "stage": found.time.stage,
        **as_json([Metric("bubble", found.time.bubble, unit="share")]),
        "step_s": found.seconds,
        **as_json(_rates(found)),
        "model_flops": ran.model,
        "mfu": found.utilization[0],
        "hfu": found.utilization[1],
        "flop_convention": MEANING,
        "needed_flops": ran.model,
        "executed_flops": ran.hardware,
        "conventions": {name: as_json(_shares(name, one, *found.shares[name])) for name, one in found.counted.items()},
        "times_from": "roofline" if found.prediction is None else "predicted",
        "memory": as_json(_memory(found)),
    }


SYMBOLS = {"inputs": "dX", "weights": "dW", "biases": "db"}
BRIEF = ("name", "phase", "time", "share", "FLOP, run", "bytes", "count")
OPS = ("name", "phase", "count", "FLOP, run", "bytes", "time_s.lower", "time_s.predicted", "share", "source")
TOTALS = ("flops", "executed_flops", *TIMES_OF_STEP, "time_s.sustained", *DRAWN, "micro_batches", "tokens_per_s", "tokens_per_s_and_gpu")
LABELS = STEP_LABELS | {"flops": "FLOP, needed"}
SHARES = {"convention": "", "model_flops": "model", "hardware_flops": "with what runs again", "mfu": "of the peak", "hfu": "all that runs"}
SOURCES = {PALM: "PaLM: {}N + 12LHQT per token", MEGATRON: "Megatron-LM: matrices, attention, logits"}
RUN = "MFU and HFU: visible, executed"


def _op(line: TrainingKernel, found: TrainingEstimate) -> list[Metric]:
    op = line.op
    return [
        Metric("name", op.name, "kernel", "text"),
        Metric("phase", line.part, "part", "text"),
        Metric("group", op.group),
        Metric("", round(op.count), "count"),
        Metric("count", op.count, "count"),
        Metric("weight_bytes", op.count * op.bytes_of(WEIGHTS)),
        *of_cost(line.cost, line.interval and Interval(*line.interval), {"time_s.lower": "lower"}),
        Metric("", line.cost.executed_flops or None, "FLOP, run", "FLOP"),
        Metric("", line.seconds, "time", "s", before="" if line.interval else ">= "),
        Metric("share", line.seconds / found.seconds, "share", "share"),
        Metric("bytes", line.cost.dram.total, "bytes", "B"),
        *of_source(line.prediction, line.missing, "-"),
    ]


def _short(entry: list[Metric]) -> list[Metric]:
    """A row of a screen: gradients by their symbols."""
    name = entry[0].value
    for words, symbol in SYMBOLS.items():
        name = name.replace(f"gradient of {words}", symbol)
    return [replace(entry[0], value=name), *entry[1:]]


def _others(found: TrainingEstimate) -> list[list[Metric]]:
    """Exchanges that nothing hides, and waits: seconds only."""
    entries = []
    for name, seconds in found.time.parts.items():
        if name in KERNELS or not seconds:
            continue
        group = WAITING if name in (BUBBLE, HOST) else COLLECTIVE
        entries.append(
            [
                Metric("name", name, "kernel", "text"),
                Metric("phase", group, "part", "text"),
                *(Metric(*one) for one in {"group": group, "count": 1}.items()),
                *of_cost(Estimate(), Interval(seconds, seconds, seconds)),
                Metric("", seconds, "time", "s"),
                Metric("share", seconds / found.seconds, "share", "share"),
                *(Metric(*one) for one in {"weight_bytes": 0, "bytes": 0, "implementation": None}.items()),
            ]
        )
    return entries


def _totals(found: TrainingEstimate, power: TrainingPower | None) -> list[Metric]:
    """Sums over all kernels of one GPU, and what a step draws."""
    known = None if found.prediction is None else Interval(*found.prediction) if found.validated else Interval(found.prediction[0])
    tokens = found.training.batch * found.training.n
    each = [] if power is None else [Metric("sustained.energy_per_token_j", power.joules / tokens, "energy per token", "J")]
    return [*of_cost(found.cost, known, LABELS), *of_power(power), *each]


def _rates(found: TrainingEstimate) -> list[Metric]:
    return [
        Metric("micro_batches", found.time.micro_batches, "micro-batches"),
        Metric("tokens_per_s", found.tokens_per_s, "tokens/s, all GPUs", ""),
        Metric("tokens_per_s_and_gpu", found.tokens_per_s / found.training.parallel.gpus, "tokens/s per GPU", ""),
    ]


def _shares(source: str, counted: Counted, mfu: float, hfu: float) -> list[Metric]:
    """FLOP of the whole step by one convention, and their share of the peak."""
    return [
        Metric("", source, "convention", "text"),
        Metric("model_flops", counted.model, unit="FLOP"),
        Metric("hardware_flops", counted.hardware, unit="FLOP"),
        Metric("mfu", mfu, unit="share"),
        Metric("hfu", hfu, unit="share"),
    ]


def _memory(found: TrainingEstimate) -> list[Metric]:
    """The peak of the fullest GPU, by what it is made of."""
    memory = found.memory
    known = [Metric("capacity", found.capacity, "capacity", "B"), Metric("fits", None if memory is None else found.fits)]
    if memory is None:
        return [Metric("peak", None), Metric("why", found.unknown), *known]
    return [
        Metric("weights", memory.state.weights, "weights", "B"),
        Metric("gradients", memory.gradients, "gradients", "B"),
        Metric("optimizer", memory.state.optimizer, "optimizer", "B"),
        Metric("activations", memory.activations, "activations", "B"),
        Metric("peak", memory.bytes, "peak", "B"),
        Metric("total", memory.bytes, unit="B"),
        *known,
    ]


def _tables(found: TrainingEstimate, power: TrainingPower | None) -> list[Table]:
    times = {name: seconds for name, seconds in found.time.parts.items() if seconds} | {"step": found.seconds}
    parts_of_step = [
        [Metric("", name, "part", "text"), Metric("", seconds, "time", "s"), Metric("", seconds / found.seconds, "share", "share")]
        for name, seconds in times.items()
    ]
    counts = [(SOURCES[name].format(2 * passes(found.training)), one, *found.shares[name]) for name, one in found.counted.items()]
    conventions = [_shares(*one) for one in (*counts, (RUN, found.run, *found.utilization))]
    memory = [] if found.memory is None else [as_table("memory of the fullest GPU", {"bytes": _memory(found)})]
    return [
        as_rows("", parts_of_step),
        as_rows("kernels of one GPU", [_op(line, found) for line in found.lines], labels=OPS),
        as_table("totals", {"train": [*_totals(found, power), *_rates(found)]}, labels=TOTALS),
        as_rows("FLOP by convention, all GPUs", conventions, labels=SHARES),
        *memory,
    ]


def _notes(found: TrainingEstimate) -> list[str]:
    t = found.training
    words = [
        "Lower: needed work only, each kernel's operands in DRAM; nothing for what runs again, for exchanges or for waits.",
        f"{', '.join(f'{symbol}: gradient of {words}' for words, symbol in SYMBOLS.items())}.",
        "Backward: two matmuls for one, attention 2.5 times its forward FLOP executed, 2 needed.",
        f"{MEANING}. Conventions of publications count the whole square of scores under a causal mask, of which kernels run about half: "
        "their shares of the peak can be above HFU, and above 100 %.",
        f"Kernels as {found.implementation} runs them. Rows are sums over their runs on one GPU.",
    ]
    if found.memory is None:
        words.append(f"Memory is not known: {found.unknown}.")
    if found.implementation == HUGGINGFACE:
        words.append("Launched one by one from Python: host times of GPT-2's layers, as measured beside an H200; another host has others.")
    else:
        words.append("The host is taken to keep ahead of the device.")
    missing = list(dict.fromkeys(f"{line.op.name} ({line.missing})" for line in found.lines if line.interval is None))
    if missing:
        words.append(f"At the roof, as not predicted: {'; '.join(missing[:3])}{'; ...' if len(missing) > 3 else ''}.")
    longest = t.model.max_positions
    if longest is not None and t.n > longest:
        words.append(f"{t.model.name} was made for at most {longest:,} tokens.")
    if t.lora is not None and t.model.is_moe:
        words.append("Adapters on all matrices of attention and MLP; experts are without adapters.")
    return [*words, *shared_notes(t), *_parallel_notes(found, t), *unread_notes(t.model), *unknown_rates([found.cost], found.device)]


def _parallel_notes(found: TrainingEstimate, t: TrainingConfig) -> list[str]:
    p, job, words = t.parallel, found.job, []
    if p.tp > 1:
        words.append("Tensor parallel: partial sums are exchanged twice per layer and pass, with sequence parallelism as two halves.")
    if p.pp > 1:
        words.append(f"Pipeline: 1F1B over {p.pp} stages; the slowest, number {found.time.stage + 1}, is shown.")
    if p.pp > 1 and t.recompute.kind in (FULL, EVERY):
        words.append("What runs again counts to the backward pass of its stage.")
    if p.cp > 1:
        words.append("Context parallel: K and V go around a ring beside attention, whose causal work is shared evenly.")
    if p.dp * p.cp > 1:
        beside = "beside backward and forward passes" if job.overlap else "after the backward pass"
        words.append(f"Data parallel: gradients and weights are exchanged {beside}.")
    if job.system is not None:
        words += filter(None, [inside_source(job.system, p, job.on.device)])
    if not found.validated:
        free = "as hidden behind kernels without slowing them" if job.overlap else "at the full rate of its links"
        words.append(
            f"ZeRO {p.zero} over a network is not validated, so no interval is given: what is exchanged is taken {free}, and systems "
            "have been published that took several times as long (Narayanan et al. 2021, Table 2)."
        )
    return words
