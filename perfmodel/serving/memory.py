"""What an engine's memory holds: weights, activations of its largest step, and a cache in blocks for so many sequences.

An engine takes a share of the GPU's memory, runs its largest step once to see what activations need, and gives the rest to the cache
(vLLM, ``gpu_worker.determine_available_memory``; SGLang and TensorRT-LLM likewise). Each data-parallel group has a cache of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property

from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.serving.engine import Engine
from perfmodel.transformer.layer import local_layer
from perfmodel.transformer.parallel import activation_bytes, stages, weight_bytes
from perfmodel.transformer.spec import Layer, ModelSpec
from perfmodel.transformer.step import PREFILL, ModelPass


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest GPU of ``engine`` serving ``model``; ``like`` is a pass with its formats and split."""

    model: ModelSpec
    device: Device
    engine: Engine
    like: ModelPass

    @property
    def capacity(self) -> int:
        """Of the device; UnavailableError where its profile has none."""
        if self.device.dram.capacity is None:
            raise UnavailableError(f"{self.device.id} has no DRAM capacity in its profile", "add it, or take another device")
        return int(self.device.dram.capacity.number)

    @property
    def usable(self) -> int:
        """What the engine takes."""
        return int(self.capacity * self.engine.memory_share)

    @cached_property
    def weights(self) -> int:
        """Of all layers of a stage."""
        return int(weight_bytes(self.model, self.like))

    @cached_property
    def activations(self) -> int:
        """Of the largest step: each group's token budget, over as many sequences as may run."""
        batching, groups = self.engine.batching, self.like.split.dp
        sequences = min(batching.max_sequences, batching.token_budget)
        n = ceil_div(batching.token_budget, sequences)
        step = replace(self.like, phase=PREFILL, batch=groups * sequences, n=n, kv_len=n, fused=self.engine.fused)
        return int(activation_bytes(self.model, step))

    @property
    def room(self) -> int:
        """What is left for the cache; 0 if nothing is."""
        return max(self.usable - self.weights - self.activations - self.engine.reserve, 0)

    @cached_property
    def _stages(self) -> list[list[tuple[int, int | None, int]]]:
        """Of each stage's layers, alike ones together: bytes of a block, the most blocks that a window needs, and bytes of a state."""
        return [self._kinds(layers) for layers in stages(self.model, self.like.split.pp)]

    def _kinds(self, layers: tuple[Layer, ...]) -> list[tuple[int, int | None, int]]:
        block, found = self.engine.kv_block, list[tuple[int, int | None, int]]()
        for layer, count in replace(self.model, layers=layers).layer_kinds:
            a = local_layer(layer, self.like.split.tp).attention
            # known: a window's oldest block stays until none of its tokens is seen (vLLM, SlidingWindowManager)
            most = None if a.window is None else int(ceil_div(a.window - 1, block) + 1)
            size = ceil_div(block * a.kept * self.like.kv_bits, 8) + block * a.index_bytes
            found.append((int(count * size), most, int(count * a.state_bytes)))
        return found

    def sequence_bytes(self, length: int) -> int:
        """Cache of one sequence of ``length`` tokens, in whole blocks; a layer with a window keeps those that it sees, others a state."""
        blocks = int(ceil_div(length, self.engine.kv_block))
        return max(
            sum(size * (blocks if most is None else min(blocks, most)) + state for size, most, state in kinds) for kinds in self._stages
        )

    def most_running(self, length: int) -> int:
        """Sequences of ``length`` tokens of all groups that run at a time: as many as fit, and as the engine lets run; 0 if none fits."""
        each = self.sequence_bytes(length)
        fit = self.engine.batching.max_sequences if not each else self.room // each
        return min(int(fit), self.engine.batching.max_sequences) * self.like.split.dp

    def slots(self, isl: int, osl: int, spread: float = 1.0) -> int:
        """Sequences that run at a time on average, each with the room that the engine keeps for it; see ``spread`` in ``simulate``."""
        return self.most_running(max(round((1 + spread) / 2 * self.engine.held(isl, osl)), 1))

    def cached_tokens(self, length: int) -> int:
        """Tokens that the caches of all groups hold, in sequences of ``length``, the last one cut to whole blocks."""
        block, each = self.engine.kv_block, self.sequence_bytes(length)
        full = self.room // each if each else 0
        left, blocks = self.room - full * each, range(1, length // block + 1)
        rest = bisect_left(blocks, True, key=lambda some: self.sequence_bytes(some * block) > left)
        return int(full * length + rest * block) * self.like.split.dp

    def total(self, running: int, length: int) -> int:
        """Bytes with ``running`` sequences of ``length`` tokens, in the fullest group."""
        cache = ceil_div(running, self.like.split.dp) * self.sequence_bytes(length)
        return int(self.weights + self.activations + self.engine.reserve + cache)
