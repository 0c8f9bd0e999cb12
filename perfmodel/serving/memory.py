"""Memory of an engine: weights, activations of its largest step, and how many sequences the cache holds.

An engine takes a share of the GPU's memory, measures the activations of its largest step, and gives the rest to the cache (vLLM,
``gpu_worker.determine_available_memory``; SGLang and TensorRT-LLM likewise). Each data-parallel group has a cache of its own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.serving.engine import Engine
from perfmodel.transformer.kv_cache import most_stored_tokens
from perfmodel.transformer.parallel import MemoryFit, activation_bytes, memory_fit, sequence_bytes, table_bytes
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import PREFILL, ModelPass

RUNTIME, LEFT_FREE = "runtime", "left free"
"""Names of memory that neither weights, activations nor the cache may use."""


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest GPU of ``engine`` with ``model``; ``base_pass`` has the number formats and the layout."""

    model: ModelSpec
    device: Device
    engine: Engine
    base_pass: ModelPass

    @property
    def capacity(self) -> int:
        """Bytes of the device's memory; UnavailableError where its profile has none."""
        if self.device.dram.capacity is None:
            raise UnavailableError(f"{self.device.id} has no DRAM capacity in its profile", "add it, or take another device")
        return int(self.device.dram.capacity.number)

    @property
    def usable(self) -> int:
        """Bytes that the engine takes: ``--gpu-memory-utilization`` of vLLM, ``--mem-fraction-static`` of SGLang."""
        return int(self.capacity * self.engine.memory_share)

    @property
    def reserved(self) -> dict[str, int]:
        """Bytes by name: the engine's ``reserve``, and the memory beyond its share."""
        return {RUNTIME: self.engine.reserve, LEFT_FREE: self.capacity - self.usable}

    @cached_property
    def activations(self) -> int:
        """Bytes of activations of the largest step: the token budget of each group, over as many sequences as may run.

        vLLM: ``profile_run`` of ``vllm/v1/worker/gpu_model_runner.py``.
        """
        batching, groups = self.engine.batching, self.base_pass.split.dp
        sequences = min(batching.max_sequences, batching.token_budget)
        n = ceil_div(batching.token_budget, sequences)
        step = replace(self.base_pass, phase=PREFILL, batch=groups * sequences, n=n, kv_len=n, fused=self.engine.fused)
        return int(activation_bytes(self.model, step))

    @cached_property
    def _empty(self) -> MemoryFit:
        """Memory without any sequence."""
        fit = memory_fit(self.model, self.base_pass, self.device, 0, activations=self.activations, reserved=self.reserved)
        on_host = int(table_bytes(self.model, self.base_pass)) if self.engine.table_on_host else 0
        return replace(fit, weights=fit.weights - on_host)

    @property
    def weights(self) -> int:
        """Bytes of the weights of all layers of the fullest pipeline stage."""
        return int(self._empty.weights)

    def fit(self, length: int, running: int = 0) -> MemoryFit:
        """Memory with ``running`` sequences of ``length`` tokens in whole blocks of the cache, and how many sequences fit."""
        sequence = sequence_bytes(self.model, self.base_pass, length, self.engine.kv_block, most_stored_tokens)
        return replace(self._empty, sequence=int(sequence), batch=ceil_div(running, self.base_pass.split.dp))

    def most_running(self, length: int) -> int:
        """Most sequences of ``length`` tokens in all groups together that fit and that the engine admits; 0 if none fits."""
        return min(self.fit(length).max_batch or 0, self.engine.batching.max_sequences * self.base_pass.split.dp)

    def slots(self, isl: int, osl: int, spread: float = 1.0) -> int:
        """Mean number of sequences that can run at a time with the room that the engine keeps for each; ``spread``: see ``simulate``."""
        return self.most_running(max(round((1 + spread) / 2 * self.engine.held(isl, osl)), 1))

    def total(self, running: int, length: int) -> int:
        """Bytes that the engine uses on a GPU of the fullest group with ``running`` sequences of ``length`` tokens in all groups."""
        return int(self.fit(length, running).total) - (self.capacity - self.usable)
