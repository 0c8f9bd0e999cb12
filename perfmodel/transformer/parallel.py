"""A model on several GPUs: what passes between them, and what each has to hold.

Tensor parallel: each GPU has its heads, its columns of the MLP and its part of the vocabulary; two all-reduces per layer and one
after the lookup add up partial results (Megatron-LM, Shoeybi et al. 2019), and the logits are gathered. Data-parallel attention: groups
of such GPUs, each with its own sequences. Expert parallel: the same GPUs hold different experts; groups send their tokens there and back
by two exchanges per layer, and one group alone needs none: all its GPUs have all its tokens. Pipeline parallel: stages of consecutive
layers, one after the other, so that a step is no shorter; what it saves is memory.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

from perfmodel.core.arith import Number, ceil_div, floor, maximum
from perfmodel.core.errors import UsageError
from perfmodel.core.hardware import Device
from perfmodel.kernels.collectives import ALL_GATHER, P2P
from perfmodel.transformer.layer import LAST_NORM
from perfmodel.transformer.op import WEIGHTS, Op, collective, total_bytes
from perfmodel.transformer.ops import head_ops, layer_ops, step_ops
from perfmodel.transformer.spec import Layer, ModelSpec, visible
from perfmodel.transformer.step import DECODE, ModelPass, Split

NODE = 8
"""GPUs that links of their own join in SXM and OAM boards of all vendors here (HGX, DGX, MI300X platforms, Gaudi)."""
RACK, RACKS = 72, ("gb200", "gb300")
"""GPUs of an NVL72 rack, which NVLink switches join, and the devices that come in one. Source: NVIDIA GB200 NVL72 datasheet."""
FABRIC = "Infinity Fabric"
"""Links without a switch: each GPU has one to every other (AMD Instinct platforms)."""
BRIDGE, BRIDGED = 2, "bridge"
"""GPUs that an NVLink bridge joins, and the word that says so in a profile."""
SLICE, SLICED = 256, "ICI"
"""TPUs that their own links join at least. Source: Google Cloud, TPU v5e and v6e, the smallest pods."""
MOST_STAGES = 16
"""Pipeline stages that are tried where a model does not fit."""
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
    """Logits gathered from all tensor-parallel GPUs, and the hidden state passed from stage to stage."""
    return [*gathered_logits(model, step), *to_next_stage(model, step)]


def gathered_logits(model: ModelSpec, step: ModelPass) -> list[Op]:
    """From all tensor-parallel GPUs, if there are any."""
    return [collective(ALL_GATHER, step.split.tp, step.heads * model.vocab, step)] if step.split.tp > 1 else []


def to_next_stage(model: ModelSpec, step: ModelPass) -> list[Op]:
    """The hidden state, from every stage but the last."""
    stages = step.split.pp
    return [collective(P2P, 2, step.tokens * model.hidden, step).times(stages - 1)] if stages > 1 else []


def stages(model: ModelSpec, pp: int) -> list[tuple[Layer, ...]]:
    """Layers of each pipeline stage, the first ones one longer where they do not come out even.

    >>> from perfmodel.transformer.spec import DenseMlp, GroupedAttention
    >>> layer = Layer(GroupedAttention(8, 8, 64), DenseMlp(2048))
    >>> [len(stage) for stage in stages(ModelSpec("small", "llama", 512, 1000, (layer,) * 5), 2)]
    [3, 2]
    """
    size, longer = divmod(len(model.layers), pp)
    starts = [stage * size + min(stage, longer) for stage in range(pp + 1)]
    return [model.layers[start:end] for start, end in pairwise(starts)]


def weight_bytes(model: ModelSpec, step: ModelPass) -> Number:
    """Bytes of weights on the fullest GPU; without any split, all parameters of the model."""
    pp = step.split.pp
    whole = replace(step, imbalance=0.0, batch=EVERY_EXPERT, n=1, kv_len=1, fused=False)
    found = []
    for index, layers in enumerate(stages(model, pp)):
        kinds = replace(model, layers=layers).layer_kinds
        size = sum(count * total_bytes(layer_ops(layer, model, whole), WEIGHTS) for layer, count in kinds)
        if index == 0:
            size += _table_bytes(model, step)
        if index == pp - 1:
            tied = model.tied_embeddings and pp == 1
            size += total_bytes((op for op in head_ops(model, whole) if op.name == LAST_NORM or not tied), WEIGHTS)
        found.append(size)
    return max(found)


def _table_bytes(model: ModelSpec, step: ModelPass) -> Number:
    """The embedding, its rows divided among tensor-parallel GPUs, and the table of positions."""
    positions = model.max_positions if model.learned_positions and model.max_positions else 0
    rows = ceil_div(model.vocab, step.split.tp) + positions
    return ceil_div(rows * model.hidden * step.weight_bits, 8)


def draft_bytes(model: ModelSpec, published: bool) -> Number:
    """Bytes of the layers that a checkpoint holds to predict further tokens, which no step here runs.

    Each has a table and a head of its own, a matrix from two hidden states to one, and three norms (DeepSeek-V3, README_WEIGHTS.md).
    """
    step = ModelPass(DECODE, EVERY_EXPERT, 1, 1, weights_from_file=published)
    ends = sum(2 * (2 * model.vocab * model.hidden + 2 * model.hidden**2 + 3 * model.hidden) for _ in model.draft)
    return ends + sum(total_bytes(layer_ops(layer, model, step), WEIGHTS) for layer in model.draft)


def kv_bytes(model: ModelSpec, step: ModelPass) -> Number:
    """Bytes of the KV cache of ``step.kv_len`` tokens per sequence on the fullest GPU; 0 if none is kept."""
    if not step.cached:
        return 0
    return ceil_div(step.sequences * max(_sequence_bits(model, layers, step) for layers in stages(model, step.split.pp)), 8)


def _sequence_bits(model: ModelSpec, layers: tuple[Layer, ...], step: ModelPass) -> Number:
    """Bits that ``layers`` keep of one sequence on one GPU: elements of tokens, keys of indexers, states."""
    bits: Number = 0
    for layer, count in replace(model, layers=layers).layer_kinds:
        a = layer.attention.divided(step.split.tp)
        bits += count * (a.kept * visible(a, step.kv_len) * step.kv_bits + 8 * (a.index_bytes * step.kv_len + a.state_bytes))
    return bits


def activation_bytes(model: ModelSpec, step: ModelPass) -> Number:
    """Bytes of activations at their peak: the residual stream beside the inputs and outputs of the largest kernel."""
    kernels = [op.activation_bytes for op in step_ops(model, step)]
    return step.tokens * model.hidden * step.dtype.size + max(kernels)


@dataclass(frozen=True, slots=True)
class Layout:
    """Bytes on one GPU; ``capacity`` and ``max_batch`` are None where the profile has no DRAM capacity.

    ``reserve``: held back for activations and all that is not counted: driver, framework, fragmentation.
    """

    weights: Number
    kv_cache: Number
    activations: Number
    capacity: int | None
    max_batch: int | None
    reserve: int = 0

    @property
    def held_back(self) -> Number:
        """What the reserve holds beyond the activations."""
        return maximum(self.reserve - self.activations, 0)

    @property
    def total(self) -> Number:
        """Sum of all parts."""
        return self.weights + self.kv_cache + self.activations + self.held_back

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None where the capacity is unknown."""
        return None if self.capacity is None else bool(self.total <= self.capacity)


def layout(model: ModelSpec, step: ModelPass, device: Device, reserve: int = 0) -> Layout:
    """Memory of ``step`` on one of the GPUs, of which ``reserve`` bytes are for activations and what is not counted."""
    capacity, weights = None if device.dram.capacity is None else int(device.dram.capacity.number), weight_bytes(model, step)
    most = None if capacity is None else largest_batch(model, step, capacity - weights, reserve)
    return Layout(weights, kv_bytes(model, step), activation_bytes(model, step), capacity, most, reserve)


def smallest_split(model: ModelSpec, step: ModelPass, device: Device, reserve: int = 0) -> Split | None:
    """The fewest GPUs that hold ``step``: those that links join share matrices, then pipeline stages; None where none of these does."""
    if device.interconnect is None:
        return None
    sizes, now, joined = [2**power for power in range(MOST_STAGES.bit_length())], step.split, joined_gpus(device)
    wanted = [replace(now, tp=now.tp * a, pp=now.pp * b, dp=_groups(now, a)) for a in sizes for b in sizes]
    for split in sorted((one for one in wanted if one.stage <= max(joined, now.stage)), key=lambda one: (one.gpus, one.pp)):
        try:
            split.check(model)
        except UsageError:
            continue
        if layout(model, replace(step, split=split), device, reserve).fits:
            return split
    return None


def _groups(now: Split, times: int) -> int:
    """Data-parallel groups with ``times`` as many GPUs each: those that were asked for, else those of that split."""
    given = now.dp != Split(now.tp, now.ep).dp
    return now.dp if given else Split(now.tp * times, now.ep).dp


def largest_batch(model: ModelSpec, step: ModelPass, room: Number, reserve: int = 0) -> int:
    """Sequences whose cache, with activations or ``reserve``, fits ``room`` bytes on each GPU; 0 if none does.

    Each group has its own sequences. Both grow in proportion to them up to rounding, so the search starts from the proportion.
    """
    groups = step.split.dp

    @cache
    def taken(each: int) -> Number:
        one = replace(step, batch=each * groups)
        return kv_bytes(model, one) + activation_bytes(model, one)

    if taken(1) > room:
        return 0
    each = max(int(floor(room / taken(1))), 1)
    while each > 1 and taken(each) > room:
        each -= max(int((taken(each) - room) * each / taken(each)), 1)
    while taken(each + 1) <= room:
        each += 1
    if reserve:
        fewer = range(1, each + 1)
        each = bisect_left(fewer, True, key=lambda some: kv_bytes(model, replace(step, batch=some * groups)) + reserve > room)
    return each * groups
