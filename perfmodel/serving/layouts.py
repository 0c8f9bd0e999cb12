"""Layouts of a model on a number of GPUs: those that serving engines accept, and why they refuse the others.

An engine takes the degree of tensor, data and pipeline parallelism, and has the experts either cut by all GPUs of a stage or dealt out
among them (vLLM, ``--enable-expert-parallel``; SGLang, ``--ep-size``; TensorRT-LLM, ``moe_expert_parallel_size``). Stages may span nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfmodel.core.checks import positive_int
from perfmodel.core.errors import UsageError
from perfmodel.core.hardware import Device
from perfmodel.transformer.layer import operations
from perfmodel.transformer.spec import DenseMlp, Layer, ModelSpec, MoeMlp
from perfmodel.transformer.step import Split


@dataclass(frozen=True, slots=True)
class Refused:
    """A layout that no engine takes, and why."""

    split: Split
    reason: str


def layouts(model: ModelSpec, gpus: int, device: Device, published: bool = True) -> list[Split]:
    """Every layout of one replica on ``gpus`` that engines accept, whether it fits the memory or not: fewest stages and groups first.

    ``published``: weights are stored as the model's file says, in blocks that a cut may not divide.

    >>> from perfmodel.catalog import find_device, find_model
    >>> [(s.tp, s.ep, s.pp, s.dp) for s in layouts(find_model("mixtral-8x7b"), 2, find_device("h200"))]
    [(2, 1, 1, 1), (2, 2, 1, 1), (1, 1, 1, 2), (1, 2, 1, 2), (1, 1, 2, 1)]
    """
    return [split for split in candidates(model, gpus) if not why_refused(model, split, device, published)]


def refused(model: ModelSpec, gpus: int, device: Device, published: bool = True) -> list[Refused]:
    """The layouts on ``gpus`` that ``layouts`` leaves out."""
    found = ((split, why_refused(model, split, device, published)) for split in candidates(model, gpus))
    return [Refused(split, reason) for split, reason in found if reason]


def candidates(model: ModelSpec, gpus: int) -> Iterator[Split]:
    """Every product of stages, groups and GPUs of a group that makes ``gpus``; experts cut or dealt out."""
    positive_int("gpus", gpus)
    for pp in _divisors(gpus):
        for dp in _divisors(gpus // pp):
            stage = gpus // pp
            for ep in sorted({1, stage}) if model.is_moe else (1,):
                yield Split(stage // dp, ep, pp, dp)


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def why_refused(model: ModelSpec, split: Split, device: Device, published: bool = True) -> str:
    """Why no engine runs ``model`` so; empty if one does."""
    try:
        split.check(model)
    except UsageError as error:
        return error.message
    exchanges = split.tp > 1 or split.pp > 1 or (split.dp > 1 and model.is_moe)
    if exchanges and device.interconnect is None:
        return f"{device.id} has no interconnect in its profile"
    return next((reason for layer, _ in model.layer_kinds for reason in _uneven(model, layer, split, published)), "")


def _uneven(model: ModelSpec, layer: Layer, split: Split, published: bool) -> Iterator[str]:
    """What does not come out even: columns of an MLP, or blocks of a stored matrix."""
    mlp, tp, expert_tp = layer.mlp, split.tp, split.expert_tp
    widths = [("an MLP", mlp.width, tp)] if isinstance(mlp, DenseMlp) else []
    if isinstance(mlp, MoeMlp):
        widths = [("an expert", mlp.width, expert_tp), ("the shared expert", mlp.shared_width, tp)]
    for name, width, ways in widths:
        if width % ways:
            yield f"{ways} GPUs do not divide the {width} columns of {name}"
    if published:
        yield from _cut_blocks(model, layer, split)


def _cut_blocks(model: ModelSpec, layer: Layer, split: Split) -> Iterator[str]:
    """Matrices whose part is no whole number of the blocks that share a scale (vLLM, ``validate_fp8_block_shape``)."""
    formats = dict(layer.formats)
    whole, part = (
        [matrix for op in operations(model, layer, tp, expert_tp=expert_tp) for matrix in op.matrices]
        for tp, expert_tp in ((1, 1), (split.tp, split.expert_tp))
    )
    for all_of_it, own in zip(whole, part, strict=True):
        for rows, columns, _ in formats[own.stored].beside if own.stored in formats else ():
            for size, cut, block in ((all_of_it.inputs, own.inputs, rows), (all_of_it.outputs, own.outputs, columns)):
                if block and cut != size and cut % block:
                    yield f"a GPU's {cut} of {size} rows or columns of {own.name} are no whole blocks of {block} with a scale each"
