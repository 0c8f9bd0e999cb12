"""Times of engines whose kernels have no time models: each kernel runs at shares of the device's roofs, fitted to whole runs.

A product with few rows takes the time to read its weights, at a share of the DRAM bandwidth. Vector instructions unpack weights in blocks
of 256; on GPUs with few vector units that takes longer than the reading. A product with many rows takes the time to multiply: for 16-bit
weights at a share of the peak, for weights in blocks at the rate at which vector units scale the integer sum of each block. Each kernel
takes some cycles to start. Source: ggml-org/ggml @d99724f, src/ggml-cuda (mmvq, mmq), src/ggml-metal (mul_mv, mul_mm).
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

FEW_ROWS = 32  # known
"""FLOP per byte up to which a product has few rows: eight rows of 4-bit weights (MMVQ_MAX_BATCH_SIZE), 16 rows of 16 bits."""
BLOCK = 32  # known
"""Weights that share a scale."""
NAME = "roof shares"
"""Stands in predictions where kernels with time models name their model."""


def priced_by(shares: RoofShares, device: Device, unpacked: bool) -> Pricing:
    """Pricing of kernels at ``shares`` of the roofs of ``device``, never below their bounds. ``unpacked``: weights are K-quants.

    Intervals come from the engine's runs. UnavailableError without a DRAM bandwidth or a clock in the profile.
    """
    bandwidth, clock = dram_bandwidth(device), _clock_hz(device)
    vector_ops_per_s = device.peaks.vector["fp32"].number / 2
    parameters = {name: float(value) for name, value in asdict(shares).items()}

    def seconds(op: Op, cost: Estimate) -> float:
        start_s = (shares.router_cycles if op.name == ROUTER else shares.cycles) / clock
        flops, dram_bytes = float(op.kernel.flops), float(cost.dram.total)
        peak = rates_of(device, op.kernel.dtype).matmul if flops else 1.0
        if op.group == ATTENTION:
            return start_s + max(dram_bytes / (bandwidth * shares.cache), flops / (peak * shares.attention))
        multiply_adds = flops / 2
        if flops <= FEW_ROWS * dram_bytes:
            work_s = multiply_adds * shares.weight_ops / vector_ops_per_s if unpacked else 0.0
        elif shares.block_ops and op.compute_dtype is not None:
            routed = op.timed is not None and op.timed.preferred is not None and op.timed.preferred.kind == "moe"
            work_s = multiply_adds / BLOCK * (shares.expert_ops if routed else shares.block_ops) / vector_ops_per_s
        else:
            work_s = flops / (peak * shares.products)
        return start_s + max(dram_bytes / (bandwidth * shares.dram), work_s)

    def priced(op: Op, cost: Estimate) -> Prediction:
        predicted_s = max(seconds(op, cost), float(cost.lower_s))
        calibration = Calibration(NAME, op.group, NAME, [op.kernel.dtype.name], parameters, 0, 1.0, 1.0, NAME, "", "")
        words = "shares of the roofs, fitted to runs of the engine"
        return Prediction(predicted_s, predicted_s, predicted_s, CALIBRATED, words, calibration)

    return priced


def shares_on(engine: Engine, device: Device) -> RoofShares | None:
    """Roof shares for the maker of ``device``; None if kernels have time models. UnavailableError for a maker without known runs."""
    if not engine.roof_shares:
        return None
    if device.vendor not in engine.roof_shares or "fp32" not in device.peaks.vector:
        makers = " or ".join(engine.roof_shares)
        raise UnavailableError(f"{device.id}: no run of {engine.name} is known there", f"take a device of {makers}")
    return engine.roof_shares[device.vendor]


def _clock_hz(device: Device) -> float:
    """Clock of the vector units of ``device`` in Hz."""
    clock = device.clocks.vector or device.clocks.max
    if clock is None:
        raise UnavailableError(f"{device.id} has no clock in its profile", "add clocks.vector")
    return clock.number
