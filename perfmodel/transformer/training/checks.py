"""A training question, checked: each failure is a UsageError that names the option and the fix."""

from __future__ import annotations

from perfmodel.core.arith import ceil_div
from perfmodel.core.checks import positive_int
from perfmodel.core.errors import UsageError, suggest
from perfmodel.transformer.step import Split
from perfmodel.transformer.training.question import (
    APPLIED,
    EVERY,
    FULL,
    GRADIENTS,
    LIVES,
    MIXED,
    NONE,
    PRECISIONS,
    SELECTIVE,
    SIXTEEN_BIT,
    TARGETS,
    Parallel,
    Recomputation,
    TrainingConfig,
)
from perfmodel.transformer.training.state import optimizer_named

LEAST_LENGTH = 2
"""Tokens of a sequence on one GPU: one, and the next, which it predicts."""


def recompute_named(text: str) -> Recomputation:
    """``none``, ``selective``, ``full`` or ``every:K``.

    >>> recompute_named("every:4")
    Recomputation(kind='every', every=4)
    """
    if text in (NONE, SELECTIVE, FULL):
        return Recomputation(text)
    kind, _, number = text.partition(":")
    if kind == EVERY and number.isdecimal() and 0 < int(number) < 10**6:
        return Recomputation(EVERY, int(number))
    if kind == EVERY:
        raise UsageError(f"--recompute {text[:40]}: how many layers make a segment is missing", "write it like every:4")
    raise UsageError(f"--recompute: unknown kind {text[:40]!r}", suggest(text, [NONE, SELECTIVE, FULL, "every:4"]))


def checked(training: TrainingConfig) -> TrainingConfig:
    """``training``, if every value has a meaning."""
    for option, number in (("dp", training.parallel.dp), ("cp", training.parallel.cp), ("interleave", training.parallel.interleave)):
        positive_int(option, number)
    _check_sizes(training)
    for option, value, known in (
        ("precision", training.precision, PRECISIONS),
        ("gradients", training.gradients, GRADIENTS),
        ("gradient-life", training.gradient_life, LIVES),
        ("lora-targets", training.lora_targets, TARGETS),
    ):
        if value not in known:
            raise UsageError(f"--{option}: unknown value {value!r}", suggest(value, list(known), f"one of {', '.join(known)}"))
    optimizer_named(training.optimizer)
    _check_gradients(training)
    _check_parallel(training)
    return training


def timed(training: TrainingConfig) -> TrainingConfig:
    """``training``, if a step of it can be timed: one token alone has none before it to be predicted from."""
    checked(training)
    if training.length < LEAST_LENGTH:
        where = f"--n {training.n}" + (f" --cp {training.parallel.cp}" if training.parallel.cp > 1 else "")
        fix = f"give at least --n {LEAST_LENGTH * training.parallel.cp}"
        raise UsageError(f"{where}: a GPU has {training.length} token of a sequence; a step predicts each from those before it", fix)
    return training


def _check_sizes(training: TrainingConfig) -> None:
    model, parallel = training.model, training.parallel
    for option, value in (
        ("batch", training.batch),
        ("n", training.n),
        ("micro-batch", 1 if training.micro_batch is None else training.micro_batch),
    ):
        positive_int(option, value)
    if training.recompute.every > len(model.layers):
        fix = f"give at most {len(model.layers)}"
        raise UsageError(f"--recompute every:{training.recompute.every}: {model.name} has {len(model.layers)} layers", fix)
    if training.lora is not None and not 1 <= training.lora <= model.hidden:
        raise UsageError(f"--lora {training.lora}", f"give a rank from 1 to {model.hidden}, the hidden size of {model.name}")
    own = ceil_div(training.batch, parallel.dp)
    if training.sequences > own:
        fix = f"give at most {own}, or a larger --batch"
        raise UsageError(f"--micro-batch {training.sequences}: each GPU has {own} of the {training.batch} sequences", fix)
    if own % training.sequences:
        fits = [str(size) for size in range(1, min(int(own), 64) + 1) if own % size == 0]
        raise UsageError(
            f"--micro-batch {training.sequences} does not divide the {own} sequences of a GPU", f"one of {', '.join(fits)} does"
        )


def _check_gradients(training: TrainingConfig) -> None:
    if training.gradients != SIXTEEN_BIT and training.precision != MIXED:
        raise UsageError(
            f"--gradients {training.gradients}: {training.precision} has one format", "leave it out, or give --precision mixed"
        )
    if training.gradient_life == APPLIED and training.micro_batches > 1:
        fix = "give one micro-batch per GPU, or --gradient-life freed"
        raise UsageError(f"--gradient-life applied: gradients of {training.micro_batches} micro-batches are added up first", fix)


def _check_parallel(training: TrainingConfig) -> None:
    p, model = training.parallel, training.model
    Split(p.tp, p.ep, p.pp).check(model)
    if p.zero not in range(4):
        raise UsageError(f"--zero {p.zero}", "give 0 (nothing divided), 1 (optimizer), 2 (gradients too) or 3 (weights too)")
    if p.sp and p.tp == 1:
        raise UsageError("--sp divides what --tp GPUs would each hold, and --tp is 1", "give --tp too, or leave out --sp")
    if p.dp % p.ep:
        raise UsageError(f"--ep {p.ep} does not divide --dp {p.dp}", "expert-parallel groups are made of data-parallel GPUs")
    if training.n % p.cp:
        raise UsageError(f"--cp {p.cp} does not divide --n {training.n}", "give one that does")
    _check_stages(p, len(model.layers), model.name, int(training.micro_batches))


def _check_stages(p: Parallel, layers: int, name: str, micro_batches: int) -> None:
    if p.interleave == 1:
        return
    if p.pp == 1:
        raise UsageError(f"--interleave {p.interleave} needs pipeline stages, and --pp is 1", "give --pp too")
    if p.pp * p.interleave > layers:
        raise UsageError(f"--pp {p.pp} --interleave {p.interleave}: {name} has {layers} layers", f"their product can be at most {layers}")
    if micro_batches % p.pp:
        fix = f"give a --batch of a multiple of {p.pp} micro-batches per GPU"
        raise UsageError(f"--interleave: {micro_batches} micro-batches per GPU are no multiple of --pp {p.pp}", fix)
