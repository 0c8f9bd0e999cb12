"""A model on several GPUs: exchanges between them, and memory of each.

Tensor parallel: each GPU has its heads, its columns of the MLP and its part of the vocabulary; two all-reduces per layer and one after the
lookup add up partial results (Megatron-LM, Shoeybi et al. 2019), and the logits are gathered. Data-parallel attention: groups of such GPUs,
each with its own sequences. Expert parallel: the same GPUs hold different experts. Groups send their tokens there and back by two exchanges
per layer; a single group needs none, as all its GPUs have all its tokens. Pipeline parallel: stages of consecutive layers run in turn, so a
step is no shorter, but each GPU needs less memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from itertools import pairwise
from typing import Any

from perfmodel.core.arith import Number, ceil_div, maximum
from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.kept import cached_by_identity
from perfmodel.kernels.collectives import ALL_GATHER, P2P
from perfmodel.transformer.kv_cache import BITS, CacheFormat, attention_kinds, largest_batch, layer_caches, stored_tokens
from perfmodel.transformer.op import WEIGHTS, Op, collective, total_bytes
from perfmodel.transformer.operation import LAST_NORM
from perfmodel.transformer.ops import head_ops, layer_ops, step_ops
from perfmodel.transformer.spec import Layer, ModelSpec
from perfmodel.transformer.step import DECODE, ModelPass, Split

NODE = 8
"""GPUs that direct links join on SXM and OAM boards of all vendors here (HGX, DGX, MI300X platforms, Gaudi)."""
RACK, RACK_DEVICES = 72, ("gb200", "gb300")
"""GPUs of an NVL72 rack, which NVLink switches join, and the devices that come in one. Source: NVIDIA GB200 NVL72 datasheet."""
BRIDGE = 2
"""GPUs that an NVLink bridge joins."""
SLICE = 256
"""Least number of TPUs that their own links join. Source: Google Cloud, TPU v5e and v6e, the smallest pods."""
MOST_STAGES = 16
"""Most pipeline stages that are tried for a model that does not fit."""
HELD_BACK = "held back"
"""Name of memory reserved beyond the activations."""
EVERY_EXPERT = 10**9
"""A batch in which no expert stays idle."""


def joined_gpus(device: Device) -> int:
    """GPUs like ``device`` that its links connect, by the name of the links; the network beyond is not described by the profile."""
    if device.interconnect is not None:
        name, links = device.interconnect.name, device.interconnect.links
        if "bridge" in name:
            return BRIDGE
        if "ICI" in name:
            return SLICE
        if "Infinity Fabric" in name and links is not None:  # without a switch: each GPU has one link to every other
            return min(NODE, int(links.number) + 1)
    return RACK if any(word in device.id for word in RACK_DEVICES) else NODE


def hand_over(model: ModelSpec, step: ModelPass) -> list[Op]:
    """Collectives that gather the logits of tensor-parallel GPUs and pass the hidden state from stage to stage."""
    return [*gathered_logits(model, step), *to_next_stage(model, step)]


def gathered_logits(model: ModelSpec, step: ModelPass) -> list[Op]:
    """The all-gather of the logits from all tensor-parallel GPUs; nothing on one."""
    return [collective(ALL_GATHER, step.split.tp, step.heads * model.vocab, step)] if step.split.tp > 1 else []


def to_next_stage(model: ModelSpec, step: ModelPass) -> list[Op]:
    """The sends of the hidden state from every stage but the last."""
    stages = step.split.pp
    return [collective(P2P, 2, step.tokens * model.hidden, step).times(stages - 1)] if stages > 1 else []


def stages(model: ModelSpec, pp: int) -> list[tuple[Layer, ...]]:
    """Layers of each pipeline stage; if they are uneven, the first stages have one more.

    >>> from perfmodel.transformer.spec import DenseMlp, GroupedAttention
    >>> layer = Layer(GroupedAttention(8, 8, 64), DenseMlp(2048))
    >>> [len(stage) for stage in stages(ModelSpec("small", "llama", 512, 1000, (layer,) * 5), 2)]
    [3, 2]
    """
    size, longer = divmod(len(model.layers), pp)
    starts = [stage * size + min(stage, longer) for stage in range(pp + 1)]
    return [model.layers[start:end] for start, end in pairwise(starts)]


@cached_by_identity
def weight_bytes(model: ModelSpec, step: ModelPass) -> Number:
    """Bytes of weights on the fullest GPU; without any split, all parameters of the model."""
    pp = step.split.pp
    every_weight = replace(step, imbalance=0.0, batch=EVERY_EXPERT, n=1, kv_len=1, fused=False)
    layer_bytes = {layer: total_bytes(layer_ops(layer, model, every_weight), WEIGHTS) for layer, _ in model.layer_kinds}
    kinds_of_stages = [replace(model, layers=layers).layer_kinds for layers in stages(model, pp)]
    stage_bytes = [sum(count * layer_bytes[layer] for layer, count in kinds) for kinds in kinds_of_stages]
    stage_bytes[0] += table_bytes(model, step)
    ends = head_ops(model, every_weight)
    if model.tied_embeddings and pp == 1:  # the head is the table
        ends = [op for op in ends if op.name == LAST_NORM]
    stage_bytes[-1] += total_bytes(ends, WEIGHTS)
    return max(stage_bytes)


def table_bytes(model: ModelSpec, step: ModelPass) -> Number:
    """Bytes of the embedding, its rows divided among tensor-parallel GPUs, and of the table of positions."""
    positions = model.max_positions if model.learned_positions and model.max_positions else 0
    rows = ceil_div(model.vocab, step.split.tp) + positions
    if model.table_format is not None and step.weights_from_file:
        return model.table_format.bytes(model.hidden, rows)
    return ceil_div(rows * model.hidden * step.weight_bits, 8)


def draft_bytes(model: ModelSpec, published: bool) -> Number:
    """Bytes of a checkpoint's layers that predict further tokens, which no step here runs.

    Each has its own table and head, a matrix from two hidden states to one, and three norms, all in 16 bits (DeepSeek-V3,
    README_WEIGHTS.md).
    """
    step = ModelPass(DECODE, EVERY_EXPERT, 1, 1, weights_from_file=published)
    ends = 2 * model.vocab * model.hidden + 2 * model.hidden**2 + 3 * model.hidden
    return sum(2 * ends + total_bytes(layer_ops(layer, model, step), WEIGHTS) for layer in model.draft)


def kv_bytes(model: ModelSpec, step: ModelPass) -> Number:
    """Bytes of the KV cache of ``step.kv_len`` tokens per sequence on the fullest GPU; 0 if none is kept."""
    return step.sequences * sequence_bytes(model, step, step.kv_len) if step.cached else 0


def sequence_bytes(
    model: ModelSpec, step: ModelPass, n: Number, block_size: int = 1, tokens: Callable[..., Number] = stored_tokens
) -> Number:
    """Bytes of the cache of one sequence of ``n`` tokens on the fullest GPU, in the formats and the split of ``step``.

    ``tokens``: ``stored_tokens`` of a layer at ``n`` tokens, or ``most_stored_tokens``, the most while the sequence grows to them.
    """
    dtype = next(name for name, bits in BITS.items() if bits == step.kv_bits)
    form = CacheFormat(dtype, block_size=block_size)
    stage_bytes = []
    for layers in stages(model, step.split.pp):
        kinds = [(attention.divided(step.split.tp), count) for attention, count in attention_kinds(replace(model, layers=layers))]
        stage_bytes.append(sum(cache.bytes for cache in layer_caches(kinds, n, form, tokens)))
    return max(stage_bytes)


def activation_bytes(model: ModelSpec, step: ModelPass) -> Number:
    """Bytes of activations at their peak: the residual stream beside the inputs and outputs of the largest kernel."""
    kernels = [op.activation_bytes for op in step_ops(model, step)]
    return step.tokens * model.hidden * step.dtype.size + max(kernels)


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Memory of the fullest GPU, in bytes, and how many sequences fit.

    ``batch``: sequences of each of ``groups`` data-parallel groups, with ``sequence`` bytes of cache each. ``reserved``: bytes reserved for
    other things, by name. ``growing``: function that gives activations and reserves together for a number of sequences; None if they do
    not depend on it. ``capacity``: bytes of the device; None if unknown.
    """

    capacity: Number | None
    weights: Number
    sequence: Number
    batch: Number = 1
    groups: int = 1
    activations: Number = 0
    reserved: Mapping[str, Number] = field(default_factory=dict)
    growing: Callable[[int], Number] | None = None

    @property
    def kv_cache(self) -> Number:
        """Bytes of the cache of ``batch`` sequences."""
        return self.batch * self.sequence

    @property
    def total(self) -> Number:
        """Bytes of all parts."""
        return self.weights + self.kv_cache + self.activations + sum(self.reserved.values())

    @property
    def fits(self) -> bool | None:
        """Whether all of it fits; None if the capacity is unknown."""
        return None if self.capacity is None else bool(self.total <= self.capacity)

    @property
    def free(self) -> Number | None:
        """Bytes left for the cache, negative if the rest is too large; None if the capacity is unknown."""
        if self.capacity is None:
            return None
        left = self.capacity - self.weights
        for size in (self.activations, *self.reserved.values()):
            if size:
                left = left - size
        return left

    @property
    def max_batch(self) -> int | None:
        """The most sequences of all groups that fit; None if the capacity is unknown."""
        if self.capacity is None or self.free is None:
            return None
        room = self.free if self.growing is None else self.capacity - self.weights
        return int(self.groups * largest_batch(room, self.sequence, self.growing))


def memory_fit(model: ModelSpec, step: ModelPass, device: Device, sequence: Number, **parts: Any) -> MemoryFit:
    """Memory of the fullest GPU in the formats and the split of ``step``; ``parts``: fields of MemoryFit, such as ``reserved``."""
    capacity = None if device.dram.capacity is None else int(device.dram.capacity.number)
    return MemoryFit(capacity, weight_bytes(model, step), sequence, step.sequences, step.split.dp, **parts)


def step_memory(model: ModelSpec, step: ModelPass, device: Device, reserve: int = 0) -> MemoryFit:
    """Memory of ``step``, with ``reserve`` bytes for activations and for what is not counted: driver, framework, fragmentation."""

    def growing(sequences: int) -> Number:
        return maximum(activation_bytes(model, replace(step, batch=sequences * step.split.dp)), reserve)

    activations = activation_bytes(model, step)
    reserved = {HELD_BACK: maximum(reserve - activations, 0)}
    sequence = sequence_bytes(model, step, step.kv_len) if step.cached else 0
    return memory_fit(model, step, device, sequence, activations=activations, reserved=reserved, growing=growing)


def smallest_split(model: ModelSpec, step: ModelPass, device: Device, reserve: int = 0) -> Split | None:
    """The layout with the fewest GPUs that hold ``step``: linked GPUs share matrices, then pipeline stages; None if none holds it."""
    if device.interconnect is None:
        return None
    asked, factors = step.split, [2**power for power in range(MOST_STAGES.bit_length())]
    dp_given = asked.dp != Split(asked.tp, asked.ep).dp
    candidates = []
    for tp in (asked.tp * factor for factor in factors):
        dp = asked.dp if dp_given else Split(tp, asked.ep).dp
        candidates += [replace(asked, tp=tp, pp=asked.pp * factor, dp=dp) for factor in factors]
    most_linked = max(joined_gpus(device), asked.stage)
    for split in sorted(candidates, key=lambda split: (split.gpus, split.pp)):
        if split.stage > most_linked:
            continue
        try:
            split.check(model)
        except UsageError:
            continue
        if step_memory(model, replace(step, split=split), device, reserve).fits:
            return split
    return None
