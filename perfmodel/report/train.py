"""The report of a training step: what it takes, part by part and kernel by kernel, FLOP by convention, memory."""

from __future__ import annotations

from typing import Any

from perfmodel.core.roofline import Estimate
from perfmodel.report.document import Report
from perfmodel.report.memory import question
from perfmodel.report.metrics import as_json, of_cost
from perfmodel.report.operation import head, with_steps
from perfmodel.report.train_tables import conventions_table, kernels_table, memory_table, notes, parts_table, totals_table, verdict
from perfmodel.transformer.op import COLLECTIVE, WEIGHTS
from perfmodel.transformer.parameters import active, parts, total
from perfmodel.transformer.training.question import MIXED
from perfmodel.transformer.training.step.answer import TrainingAnswer
from perfmodel.transformer.training.step.estimate import Line
from perfmodel.transformer.training.step.executed import MEANING
from perfmodel.transformer.training.step.explain import explain
from perfmodel.transformer.training.step.parallel_time import BUBBLE, HOST

KERNELS = ("forward", "recompute", "backward", "gradients added up", "optimizer", "gradients cleared")
"""Parts of a step that are sums of kernels."""
WAITING = "waiting"


def report(found: TrainingAnswer, *, explained: bool = False) -> Report:
    """``found`` as a Report; its data follows the schema perfmodel.model/1."""
    tables = [parts_table(found), kernels_table(found), totals_table(found), conventions_table(found), *memory_table(found)]
    plain = Report(title(found), verdict(found), tables, notes(found), data(found))
    return with_steps(plain, [("every number of the step", {"phase": "train"}, explain(found))]) if explained else plain


def title(found: TrainingAnswer) -> str:
    """Model, tokens, formats, GPUs."""
    t, gpus = found.training, found.training.parallel.gpus
    form = found.found.job.frame.forward.dtype.name
    joined = found.found.job.system
    where = f"{'' if gpus == 1 else f'{gpus:,} x '}{found.device.name}{'' if joined is None else f', {joined.name}'}"
    return f"{t.model.name}: training step on {t.batch:,} x {t.n:,} tokens, {form if t.precision != MIXED else f'{form} mixed'} on {where}"


# The JSON object


def inputs_of(found: TrainingAnswer) -> dict[str, Any]:
    """What was asked, with defaults filled in."""
    job = found.found.job
    return {
        **question(found.training),
        "phase": "train",
        "dtype": job.frame.forward.dtype.name,
        "implementation": found.found.implementation,
        "system": None if job.system is None else job.system.name,
        "overlap": job.overlap,
    }


def data(found: TrainingAnswer) -> dict[str, Any]:
    """The object of schema perfmodel.model/1. Rows of ``ops`` are sums over ``count`` runs on one GPU: they add up to ``totals``."""
    step, model = found.found, found.training.model
    shares, ran, utilization = found.shares, found.run, found.utilization
    return {
        **head("model", inputs_of(found), found.device),
        "gpus": found.training.parallel.gpus,
        "parameters": {"total": total(model), "active": active(model), "parts": parts(model)},
        "ops": [*(_entry(line, found) for line in step.lines), *_others(found)],
        "totals": _with_times(as_json(of_cost(step.cost)), step.prediction, interval=step.validated),
        "parts_s": {name: seconds for name, seconds in step.time.parts.items() if seconds},
        "micro_batches": step.time.micro_batches,
        "stage": step.time.stage,
        "bubble": step.time.bubble,
        "step_s": step.seconds,
        "tokens_per_s": step.tokens_per_s,
        "model_flops": ran.model,
        "mfu": utilization[0],
        "hfu": utilization[1],
        "flop_convention": MEANING,
        "needed_flops": ran.model,
        "executed_flops": ran.hardware,
        "conventions": {
            name: {"model_flops": counted.model, "hardware_flops": counted.hardware, "mfu": shares[name][0], "hfu": shares[name][1]}
            for name, counted in found.counted.items()
        },
        "times_from": "roofline" if step.prediction is None else "predicted",
        "memory": _memory(found),
    }


def _entry(line: Line, found: TrainingAnswer) -> dict[str, Any]:
    op, p = line.row.op, line.prediction
    entry = {
        "name": op.name,
        "phase": line.part,
        "group": op.group,
        "count": op.count,
        "weight_bytes": op.count * op.bytes_of(WEIGHTS),
        **_with_times(as_json(of_cost(line.cost)), line.times),
        "share": line.seconds / found.found.seconds,
        "bytes": line.cost.dram.total,
    }
    if p is None:
        return {**entry, "implementation": None, "not_predicted": line.missing}
    source = {"kind": p.kind, "provenance": p.provenance, "model": p.calibration.model}
    return {**entry, "implementation": p.calibration.implementation, "prediction": source}


def _others(found: TrainingAnswer) -> list[dict[str, Any]]:
    """Exchanges that nothing hides, and waits: seconds only."""
    entries = []
    for name, seconds in found.found.time.parts.items():
        if name in KERNELS or not seconds:
            continue
        group = WAITING if name in (BUBBLE, HOST) else COLLECTIVE
        times = (seconds, seconds, seconds)
        entry = {
            "name": name,
            "phase": group,
            "group": group,
            "count": 1,
            "weight_bytes": 0,
            **_with_times(as_json(of_cost(Estimate())), times),
        }
        entries.append({**entry, "share": seconds / found.found.seconds, "bytes": 0, "implementation": None})
    return entries


def _memory(found: TrainingAnswer) -> dict[str, Any]:
    memory = found.memory
    if memory is None:
        return {"peak": None, "why": found.unknown, "capacity": found.capacity, "fits": None}
    return {
        "weights": memory.state.weights,
        "gradients": memory.gradients,
        "optimizer": memory.state.optimizer,
        "activations": memory.activations,
        "peak": memory.bytes,
        "total": memory.bytes,
        "capacity": found.capacity,
        "fits": found.fits,
    }


def _with_times(entry: dict[str, Any], times: tuple[float, float, float] | None, *, interval: bool = True) -> dict[str, Any]:
    if times is not None:
        entry["time_s"] |= dict(zip(("predicted", "low", "high") if interval else ("predicted",), times, strict=False))
    return entry
