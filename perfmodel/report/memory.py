"""The report of training memory: what is held, what each layer keeps, the timeline, and what fits."""

from __future__ import annotations

from typing import Any

from perfmodel.report.document import Report
from perfmodel.report.memory_tables import kept_table, literature_table, moments_table, state_table, sums_table, timeline_table
from perfmodel.report.memory_words import notes, verdict
from perfmodel.report.operation import head, with_steps
from perfmodel.transformer.training.activations import Kept
from perfmodel.transformer.training.explain import explain
from perfmodel.transformer.training.memory import MemoryResult
from perfmodel.transformer.training.question import EVERY, MIXED, Training
from perfmodel.transformer.training.timeline import Moment


def report(result: MemoryResult, *, explained: bool = False) -> Report:
    """``result`` as a Report; its data follows the schema perfmodel.memory/1. ``explained``: with every formula."""
    training = result.training
    precision = f"{training.precision} precision" if training.precision == MIXED else training.precision
    title = f"Training memory of {training.model.name}: {training.batch:,} x {training.n:,} tokens, {precision}, {training.optimizer}"
    tables = [sums_table(result), state_table(result), *kept_table(result), literature_table(result), *timeline_table(result)]
    plain = Report(title, verdict(result), [*tables, moments_table(result)], notes(result), data(result))
    return with_steps(plain, [("every number", {"model": training.model.name}, explain(result))]) if explained else plain


# The JSON object


def data(result: MemoryResult) -> dict[str, Any]:
    """The object of schema perfmodel.memory/1. ``bytes``: of the fullest GPU; ``at_peak`` adds up to ``peak``."""
    found, state = result.peak, result.peak.state
    return {
        **head("memory", _inputs(result), result.device),
        "parameters": result.parameters,
        "gpus": result.training.parallel.gpus,
        "bytes": {
            "weights": state.weights,
            "gradients": state.gradients,
            "optimizer": state.optimizer,
            "activations": found.stored,
            "peak": found.bytes,
        },
        "at_peak": {
            "moment": found.moment.title,
            "phase": found.moment.phase,
            "stage": found.stage,
            "weights": state.weights,
            "gradients": found.gradients,
            "optimizer": state.optimizer,
            "activations": found.activations,
        },
        "state": [
            {
                "name": part.name,
                "group": part.group,
                "parameters": part.elements,
                "shards": part.shards,
                "bytes": part.bytes,
                "bytes_per_parameter": float(part.bytes * part.shards / part.elements),
            }
            for part in state.parts
        ],
        "kept": [_kept(row) for row in result.kept],
        "literature": {
            "source": "Korthikanti et al. 2022",
            "layer": result.literature.layer,
            "layers": result.literature.layers,
            "ends": result.literature.ends,
            "describes_model": result.literature.meant,
        },
        "timeline": [_moment(moment) for moment in found.moments],
        "memory": {"capacity_bytes": result.capacity, "fits": result.fits},
        "max_micro_batch": result.largest,
        "max_batch": None if result.largest is None else result.largest * result.training.micro_batches * result.training.parallel.dp,
    }


def _inputs(result: MemoryResult) -> dict[str, Any]:
    training, p = result.training, result.training.parallel
    return {
        "model": training.model.name,
        "batch": training.batch,
        "n": training.n,
        "micro_batch": training.sequences,
        "precision": training.precision,
        "optimizer": training.optimizer,
        "recompute": recompute_text(training),
        "flash": training.flash,
        "dropout": training.dropout,
        "lora": training.lora,
        "lora_targets": training.lora_targets if training.lora is not None else None,
        "gradients": training.gradients,
        "gradient_life": training.gradient_life,
        "fused_optimizer": training.fused_optimizer,
        "implementation": result.implementation.name,
        "zero": p.zero,
        "tensor_parallel": p.tp,
        "sequence_parallel": p.sp,
        "pipeline_parallel": p.pp,
        "interleave": p.interleave,
        "context_parallel": p.cp,
        "expert_parallel": p.ep,
        "data_parallel": p.dp,
    }


def recompute_text(training: Training) -> str:
    """The kind as the option writes it."""
    kind = training.recompute.kind
    return f"{kind}:{training.recompute.every}" if kind == EVERY else kind


def _kept(row: Kept) -> dict[str, Any]:
    return {
        "where": row.where,
        "part": row.part,
        "name": row.name,
        "bytes": row.bytes,
        "count": row.count,
        "total_bytes": row.bytes * row.count,
        "freed_by": row.freed_by,
    }


def _moment(moment: Moment) -> dict[str, Any]:
    return {
        "phase": moment.phase,
        "where": moment.where,
        "start_bytes": moment.start,
        "end_bytes": moment.bytes,
        "high_bytes": moment.high,
        "high_at": moment.at,
        "gradients_bytes": moment.gradients,
        "blocks": moment.count,
    }
