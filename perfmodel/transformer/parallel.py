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
RACK, RACKS = 72, ("gb200", "gb300")
"""GPUs of an NVL72 rack, which NVLink switches join, and the devices that come in one. Source: NVIDIA GB200 NVL72 datasheet."""
FABRIC = "Infinity Fabric"
"""Links without a switch: each GPU has one to every other (AMD Instinct platforms)."""
BRIDGE, BRIDGED = 2, "bridge"
"""GPUs that an NVLink bridge joins, and the word that says so in a profile."""
SLICE, SLICED = 256, "ICI"
"""Least number of TPUs that their own links join. Source: Google Cloud, TPU v5e and v6e, the smallest pods."""
MOST_STAGES = 16
"""Most pipeline stages that are tried for a model that does not fit."""
HELD_BACK = "held back"
"""Name of memory reserved beyond the activations."""
EVERY_EXPERT = 10**9
"""A batch in which no expert stays idle."""


def joined_gpus(device: Device) -> int:
    """GPUs like ``device`` that the links of its profile connect; the profile does not describe the network beyond."""
    name = "" if device.interconnect is None else device.interconnect.name
    if BRIDGED in name:
        return BRIDGE
    if SLICED in name:
        return SLICE
    if FABRIC in name and device.interconnect is not None and device.interconnect.links is not None:
        return min(NODE, int(device.interconnect.links.number) + 1)
    return RACK if any(word in device.id for word in RACKS) else NODE


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
    whole = replace(step, imbalance=0.0, batch=EVERY_EXPERT, n=1, kv_len=1, fused=False)
    sizes = {layer: total_bytes(layer_ops(layer, model, whole), WEIGHTS) for layer, _ in model.layer_kinds}
    sizes_of_stages = []
    for index, layers in enumerate(stages(model, pp)):
        size = sum(count * sizes[layer] for layer, count in replace(model, layers=layers).layer_kinds)
        if index == 0:
            size += table_bytes(model, step)
        if index == pp - 1:
            tied = model.tied_embeddings and pp == 1
            size += total_bytes((op for op in head_ops(model, whole) if op.name == LAST_NORM or not tied), WEIGHTS)
        sizes_of_stages.append(size)
    return max(sizes_of_stages)


def table_bytes(model: ModelSpec, step: ModelPass) -> Number:
    """Bytes of the embedding, its rows divided among tensor-parallel GPUs, and of the table of positions."""
    positions = model.max_positions if model.learned_positions and model.max_positions else 0
    rows = ceil_div(model.vocab, step.split.tp) + positions
    if model.table_format is not None and step.weights_from_file:
        return model.table_format.bytes(model.hidden, rows)
    return ceil_div(rows * model.hidden * step.weight_bits, 8)


def draft_bytes(model: ModelSpec, published: bool) -> Number:
    """Bytes of a checkpoint's layers that predict further tokens, which no step here runs.

    Each has its own table and head, a matrix from two hidden states to one, and three norms (DeepSeek-V3, README_WEIGHTS.md).
    """
    step = ModelPass(DECODE, EVERY_EXPERT, 1, 1, weights_from_file=published)
    ends = sum(2 * (2 * model.vocab * model.hidden + 2 * model.hidden**2 + 3 * model.hidden) for _ in model.draft)
    return ends + sum(total_bytes(layer_ops(layer, model, step), WEIGHTS) for layer in model.draft)


def kv_bytes(model: ModelSpec, step: ModelPass) -> Number:
    """Bytes of the KV cache of ``step.kv_len`` tokens per sequence on the fullest GPU; 0 if none is kept."""
    return step.sequences * sequence_bytes(model, step, step.kv_len) if step.cached else 0


def sequence_bytes(
    model: ModelSpec, step: ModelPass, n: Number, block_size: int = 1, tokens: Callable[..., Number] = stored_tokens
) -> Number:
    """Bytes of the cache of one sequence of ``n`` tokens on the fullest GPU, in the formats and the split of ``step``.

    ``tokens``: function that gives the tokens that a layer holds; ``most_stored_tokens`` gives the most while the sequence grows.
    """
    form = CacheFormat(next(name for name, bits in BITS.items() if bits == step.kv_bits), block_size=block_size)
    held = []
    for layers in stages(model, step.split.pp):
        kinds = [(attention.divided(step.split.tp), count) for attention, count in attention_kinds(replace(model, layers=layers))]
        held.append(sum(cache.bytes for cache in layer_caches(kinds, n, form, tokens)))
    return max(held)


def activation_bytes(model: ModelSpec, step: ModelPass) -> Number:
    """Bytes of activations at their peak: the residual stream beside the inputs and outputs of the largest kernel."""
    kernels = [op.activation_bytes for op in step_ops(model, step)]
    return step.tokens * model.hidden * step.dtype.size + max(kernels)


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Memory of the fullest GPU, in bytes, and how many sequences fit.

    ``batch``: sequences of each of ``groups`` data-parallel groups, with ``sequence`` bytes of cache each. ``reserved``: bytes reserved for
    other things, by name. ``growing``: bytes beside weights and cache by the number of sequences; None if activations and reserves do not
    depend on it. ``capacity``: bytes of the device; None if unknown.
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
            left = left - size if size else left
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

    def growing(each: int) -> Number:
        return maximum(activation_bytes(model, replace(step, batch=each * step.split.dp)), reserve)

    activations = activation_bytes(model, step)
    reserved = {HELD_BACK: maximum(reserve - activations, 0)}
    sequence = sequence_bytes(model, step, step.kv_len) if step.cached else 0
    return memory_fit(model, step, device, sequence, activations=activations, reserved=reserved, growing=growing)


def smallest_split(model: ModelSpec, step: ModelPass, device: Device, reserve: int = 0) -> Split | None:
    """The layout with the fewest GPUs that hold ``step``: linked GPUs share matrices, then pipeline stages; None if none holds it."""
    if device.interconnect is None:
        return None
    sizes, now, joined = [2**power for power in range(MOST_STAGES.bit_length())], step.split, joined_gpus(device)
    wanted = [replace(now, tp=now.tp * a, pp=now.pp * b, dp=_groups(now, a)) for a in sizes for b in sizes]
    linked = (split for split in wanted if split.stage <= max(joined, now.stage))
    for split in sorted(linked, key=lambda split: (split.gpus, split.pp)):
        try:
            split.check(model)
        except UsageError:
            continue
        if step_memory(model, replace(step, split=split), device, reserve).fits:
            return split
    return None


def _groups(now: Split, times: int) -> int:
    """Data-parallel groups if each has ``times`` as many GPUs: the requested number, else the split's own."""
    given = now.dp != Split(now.tp, now.ep).dp
    return now.dp if given else Split(now.tp * times, now.ep).dp
