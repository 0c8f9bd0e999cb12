"""Times of an engine whose kernels are in no table: each kernel at shares of the roofs of its device, fitted to whole runs.

A product with few rows reads its weights, at a share of DRAM's rate; where they are packed in blocks of 256 each is unpacked by vector
instructions, which hold back GPUs with few of them. One with many rows multiplies: 16-bit weights at a share of the peak, weights in
blocks at the rate at which vector units scale the integer sums of each block. Each kernel takes cycles to begin.
Source: ggml-org/ggml @d99724f, src/ggml-cuda (mmvq, mmq), src/ggml-metal (mul_mv, mul_mm).
"""

from __future__ import annotations

from dataclasses import asdict

from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Calibration, Device
from perfmodel.core.roofline import Estimate, rates_of
from perfmodel.serving.engine import Engine, RoofShares
from perfmodel.timing.base import dram_bandwidth
from perfmodel.timing.predict import CALIBRATED, Prediction
from perfmodel.transformer.op import ATTENTION, Op
from perfmodel.transformer.op_time import Pricing
from perfmodel.transformer.operation import ROUTER

FEW = 32  # known
"""FLOP per byte of a product up to which it reads its weights alone: eight rows of 4-bit weights (MMVQ_MAX_BATCH_SIZE), 16 of 16 bits."""
BLOCK = 32  # known
"""Weights with a scale of their own."""


def priced_by(shares: RoofShares, device: Device, unpacked: bool) -> Pricing:
    """Times of kernels at ``shares`` of the roofs of ``device``, no less than their bounds; ``unpacked``: weights are K-quants.

    Their intervals are those of the engine's runs. UnavailableError without a DRAM bandwidth or a clock in the profile.
    """
    bandwidth, vector, clock = dram_bandwidth(device), device.peaks.vector["fp32"].number / 2, _clock_hz(device)
    parameters = {name: float(value) for name, value in asdict(shares).items()}

    def seconds(op: Op, cost: Estimate) -> float:
        flops, moved, times = float(op.kernel.flops), float(cost.dram.total), [0.0]
        peak = rates_of(device, op.kernel.dtype).matmul if flops else 1.0
        if op.group == ATTENTION:
            times += [moved / (bandwidth * shares.cache), flops / (peak * shares.attention)]
        else:
            times.append(moved / (bandwidth * shares.dram))
            if flops <= FEW * moved:
                times.append(flops / 2 * shares.weight_ops * unpacked / vector)
            elif shares.block_ops and op.compute_dtype is not None:
                routed = op.timed is not None and op.timed.preferred is not None and op.timed.preferred.kind == "moe"
                times.append(flops / 2 / BLOCK * (shares.expert_ops if routed else shares.block_ops) / vector)
            else:
                times.append(flops / (peak * shares.products))
        return (shares.router_cycles if op.name == ROUTER else shares.cycles) / clock + max(times)

    def priced(op: Op, cost: Estimate) -> Prediction:
        found = max(seconds(op, cost), float(cost.lower_s))
        block = Calibration(NAME, op.group, NAME, [op.kernel.dtype.name], parameters, 0, 1.0, 1.0, NAME, "", "")
        return Prediction(found, found, found, CALIBRATED, "shares of the roofs, fitted to runs of the engine", block)

    return priced


NAME = "roof shares"


def shares_on(engine: Engine, device: Device) -> RoofShares | None:
    """Shares of the device's maker; None where kernels are predicted one by one. UnavailableError for a maker of whom no run is known."""
    if not engine.roof_shares:
        return None
    if device.vendor not in engine.roof_shares or "fp32" not in device.peaks.vector:
        makers = " or ".join(engine.roof_shares)
        raise UnavailableError(f"{device.id}: no run of {engine.name} is known there", f"take a device of {makers}")
    return engine.roof_shares[device.vendor]


def _clock_hz(device: Device) -> float:
    clock = device.clocks.vector or device.clocks.max
    if clock is None:
        raise UnavailableError(f"{device.id} has no clock in its profile", "add clocks.vector")
    return clock.number
