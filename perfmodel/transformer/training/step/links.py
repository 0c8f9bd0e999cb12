"""Seconds of an exchange over the links of a system: as calibrated inside of a host, else rings and trees by steps and bandwidth.

A ring over several domains crosses each border as often as it has members inside, each over the link of another GPU, so that its
pace is that of all of them together, at most that of the inner links. All-to-all and point-to-point use each GPU's own link.
Sources: Patarasuk & Yuan 2009 (ring); Thakur et al. 2005 (tree); NCCL, src/graph/tuning.cc (start, latency per step of each kind).
"""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.hardware import Device
from perfmodel.kernels.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, P2P, Collective
from perfmodel.timing.base import Case, calibrations, find_model
from perfmodel.transformer.training.question import Parallel
from perfmodel.transformer.training.step.exchange import CONTEXT, DATA, EXPERT, STAGES, TENSOR, Exchange
from perfmodel.transformer.training.step.system import Span, System, crossed, span
from perfmodel.transformer.training.step.window import DRAM

PROBE = 1 << 24
"""Bytes of an exchange by which it is told whether calibrations cover a number of GPUs."""


def seconds(exchange: Exchange, system: System, parallel: Parallel, device: Device | None = None) -> float:
    """All runs of ``exchange``, one after the other. ``device``: what its calibrations of NCCL cover, they tell."""
    where = span(system, parallel, exchange.group)
    known = None if device is None or where.level is not system.levels[0] else calibrated(exchange, where.world, device)
    if known is not None and device is not None:
        known *= slower(system, device)
    return float(exchange.count) * (system.start_s + _once(exchange, where) if known is None else known)


def needs(exchange: Exchange, taken_s: float, system: System, parallel: Parallel, device: Device) -> dict[str, float]:
    """Seconds of each resource in the ``taken_s`` of ``exchange``: all of them of the links of every level that it crosses, and of
    DRAM what it sends and receives.
    """
    size = float(exchange.count * 2 * sent_bytes(exchange, span(system, parallel, exchange.group).world))
    return {
        **{level.name: taken_s for level in crossed(system, parallel, exchange.group)},
        DRAM: size / (device.dram.bandwidth_bytes_per_s or float("inf")),
    }


def sent_bytes(exchange: Exchange, world: int) -> Number:
    """Bytes that each of ``world`` GPUs sends, and receives, in one run around a ring."""
    if exchange.op == P2P:
        return exchange.bytes
    return (2 if exchange.op == ALL_REDUCE else 1) * exchange.bytes * (world - 1) / world


def slower(system: System, device: Device) -> float:
    """How many times slower the innermost links of ``system`` are than those beside which ``device`` was calibrated; below 1 if faster."""
    own = device.interconnect
    return 1.0 if own is None else float(own.bandwidth_per_direction.number / system.levels[0].bandwidth.number)


def inside_source(system: System, parallel: Parallel, device: Device) -> str:
    """A sentence on where the times of exchanges over the innermost links are from; empty if nothing passes there."""
    level = system.levels[0]
    spans = [span(system, parallel, group) for group in (TENSOR, CONTEXT, EXPERT, DATA)]
    worlds = {each.world for each in spans if each.world > 1 and each.level is level}
    if not worlds:
        return ""
    if all(calibrated(Exchange(TENSOR, ALL_REDUCE, PROBE), world, device) is None for world in worlds):
        return f"Exchanges over {level.name}: by the steps and bandwidth that the system file gives."
    factor = slower(system, device)
    if factor == 1:
        return f"Exchanges over {level.name}: as NCCL was calibrated on {device.name}, where a calibration covers them."
    return (
        f"Exchanges over {level.name}: NCCL as calibrated on {device.name}, times {factor:.3g}, the ratio of its links' bandwidth to these."
    )


def calibrated(exchange: Exchange, world: int, device: Device) -> float | None:
    """Seconds of one run among ``world`` GPUs of one host; None where nothing is calibrated that covers it."""
    case = Case(Collective(exchange.op, world, exchange.bytes, DTYPES["fp16"]), "nccl")  # bytes count, whatever they mean
    blocks = calibrations(device, "collective", "fp16", case)
    return find_model(blocks[0].model).seconds(case, device, blocks[0].parameters) if blocks else None


def _once(exchange: Exchange, at: Span) -> float:
    size, world = float(exchange.bytes), at.world
    if exchange.op == P2P:
        return at.level.alpha_s + size / at.level.reached
    outside = at.inside < world
    if exchange.op == ALL_TO_ALL:
        inner, outer = size * (at.inside - 1) / world, size * (world - at.inside) / world
        steps = (world - at.inside) * at.level.alpha_s if outside else 0.0
        return max(inner / at.inner.reached, outer / at.level.reached) + steps + (at.inside - 1) * at.inner.alpha_s
    pace = min(at.inner.reached, at.inside * at.level.reached) if outside else at.level.reached
    rounds = 2 if exchange.op == ALL_REDUCE else 1
    domains = -(-world // at.inside)
    crossed, kept = rounds * (domains - 1), rounds * (world - domains)
    ring = crossed * at.level.alpha_s + kept * at.inner.alpha_s + rounds * size * (world - 1) / world / pace
    if exchange.op != ALL_REDUCE:
        return ring
    depth = (domains - 1).bit_length() * at.level.alpha_s + (at.inside - 1).bit_length() * at.inner.alpha_s
    return min(ring, 2 * depth + 2 * size / pace)


def stage_border(size: Number, system: System, parallel: Parallel, device: Device | None = None) -> float:
    """Seconds to hand ``size`` bytes of hidden state to the next stage: each tensor-parallel GPU sends its share, and they gather it.

    Under sequence parallelism each has only a share to send. Source: Narayanan et al. 2021, section 4.1, scatter and gather.
    """
    found = seconds(Exchange(STAGES, P2P, size // parallel.tp), system, parallel)
    if parallel.tp > 1 and not parallel.sp:
        found += seconds(Exchange(TENSOR, ALL_GATHER, size), system, parallel, device)
    return found
