"""Layers that the host runs if a GPU does not hold them all, as in llama.cpp: the first layers, from the host's memory.

For few tokens, the CPU reads weights and cache at a share of its DRAM bandwidth. For a prompt, the weights are copied to the GPU, which
runs these layers too. Source: ggml-org/llama.cpp, src/llama-model.cpp (i_gpu_start), ggml (GGML_OP_OFFLOAD_MIN_BATCH 32).
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.transformer.op import CACHE, WEIGHTS
from perfmodel.transformer.ops import group_ops, routed_ops, sequence_ops
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import DECODE, PREFILL, ModelPass

COPIED_FROM = 32  # known
"""Tokens of a step from which on weights are copied to the GPU."""
HOST_SHARE = 0.62  # tuned
"""Share of the host's DRAM bandwidth reached: Llama 2 7B in Q4_0 at 16.7 tokens a second, DDR5-6400 (ggml-org/llama.cpp issue 34)."""
LINK_SHARE, LINK = 0.8, 31.5e9  # known
"""Share of the PCIe bandwidth that copies reach, and the B/s of PCIe 4.0 x16, used if the profile states another kind of link."""


@dataclass(frozen=True)
class HostLayers:
    """Layers in the memory of a host that reads ``bandwidth`` B/s; ``base_pass`` has their formats, ``link`` is the B/s to the GPU."""

    layers: ModelSpec
    base_pass: ModelPass
    bandwidth: float
    link: float

    def seconds(self, tokens: int, context: int) -> float:
        """Seconds of the host's layers in a step of ``tokens`` with sequences of ``context`` tokens; the GPU waits meanwhile."""
        if tokens >= COPIED_FROM:
            prefill = replace(self.base_pass, phase=PREFILL, batch=1, n=tokens, kv_len=tokens)
            return self._bytes(prefill, WEIGHTS) / (self.link * LINK_SHARE)
        decode = replace(self.base_pass, phase=DECODE, batch=tokens, n=1, kv_len=context)
        return self._bytes(decode, WEIGHTS, CACHE) / (self.bandwidth * HOST_SHARE)

    def _bytes(self, step: ModelPass, *tensors: str) -> float:
        """Bytes of ``tensors`` that all layers read in ``step``."""
        counts = {**group_ops(self.layers, step), **routed_ops(self.layers, step), **dict.fromkeys(sequence_ops(self.layers, step), 1)}
        return float(sum(count * op.count * op.bytes_of(*tensors) for op, count in counts.items()))


def offloaded(model: ModelSpec, base_pass: ModelPass, device: Device, on_gpu: int, bandwidth: float) -> tuple[ModelSpec, HostLayers | None]:
    """The model of the last ``on_gpu`` layers with the head, and the host's layers; None if the GPU holds all.

    UsageError for more layers than the model has, or a GPU without memory of its own.
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
    return replace(model, layers=last), HostLayers(replace(model, layers=first), base_pass, bandwidth, link)
