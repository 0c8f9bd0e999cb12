"""Layers that the host runs where a GPU does not hold them all, as llama.cpp does: the first ones, from the host's memory.

For few tokens the CPU reads their weights and cache at a share of its DRAM's rate. For a prompt the weights are copied to the GPU, which
runs them as its own. Source: ggml-org/llama.cpp, src/llama-model.cpp (i_gpu_start), ggml (GGML_OP_OFFLOAD_MIN_BATCH 32).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.core.errors import UsageError
from perfmodel.core.hardware import Device
from perfmodel.transformer.op import CACHE, WEIGHTS
from perfmodel.transformer.ops import group_ops, routed_ops, sequence_ops
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import DECODE, PREFILL, ModelPass

COPIED_FROM = 32  # known
"""Tokens of a step from which weights are copied to the GPU."""
HOST_SHARE = 0.62  # tuned
"""Of the host's DRAM rate: Llama 2 7B in Q4_0 at 16.7 tokens a second, DDR5-6400 (ggml-org/llama.cpp issue 34)."""
LINK_SHARE, LINK = 0.8, 31.5e9  # known
"""Of the link's rate, as PCIe reaches in copies; B/s of PCIe 4.0 x16, for a device whose profile has another link."""


@dataclass(frozen=True)
class HostLayers:
    """``layers`` of a model in the formats of ``like``, in the memory of a host that reads ``bandwidth`` B/s; ``link``: to the GPU."""

    layers: ModelSpec
    like: ModelPass
    bandwidth: float
    link: float

    def seconds(self, tokens: int, context: int) -> float:
        """Seconds that a step of ``tokens`` waits for the host, each sequence ``context`` tokens long, whatever the GPU does meanwhile."""
        if tokens >= COPIED_FROM:
            return self._moved(self._pass(PREFILL, 1, tokens, tokens), WEIGHTS) / (self.link * LINK_SHARE)
        return self._moved(self._pass(DECODE, tokens, 1, context), WEIGHTS, CACHE) / (self.bandwidth * HOST_SHARE)

    def _pass(self, phase: str, batch: int, n: int, length: int) -> ModelPass:
        return replace(self.like, phase=phase, batch=batch, n=n, kv_len=length)

    def _moved(self, step: ModelPass, *tensors: str) -> float:
        counts = {**group_ops(self.layers, step), **routed_ops(self.layers, step), **dict.fromkeys(sequence_ops(self.layers, step), 1)}
        return float(sum(count * op.count * op.bytes_of(*tensors) for op, count in counts.items()))


def offloaded(model: ModelSpec, like: ModelPass, device: Device, on_gpu: int, bandwidth: float) -> tuple[ModelSpec, HostLayers | None]:
    """The last ``on_gpu`` layers of ``model``, with its head, and the others; None where there are none.

    UsageError for more layers than there are, and where the GPU has no memory of its own.
    """
    count = len(model.layers)
    if not 0 < on_gpu <= count:
        raise UsageError(f"--gpu-layers {on_gpu}: {model.name} has {count} layers", f"give 1 to {count}")
    if device.vendor == "Apple":
        raise UsageError(f"--gpu-layers: GPU and CPU of {device.id} share one memory", "leave it out")
    if on_gpu == count:
        return model, None
    link = device.interconnect.bandwidth_per_direction.number if device.interconnect is not None and device.over_pcie else LINK
    first, last = model.layers[: count - on_gpu], model.layers[count - on_gpu :]
    return replace(model, layers=last), HostLayers(replace(model, layers=first), like, bandwidth, link)
