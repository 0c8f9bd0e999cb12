"""What lies in the memory of the fullest GPU: weights, KV cache, activations; and the largest batch that fits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.core.arith import Number, floor
from perfmodel.core.hardware import Device
from perfmodel.transformer.parallel import activation_bytes, kv_bytes, weight_bytes
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import Step


@dataclass(frozen=True, slots=True)
class Layout:
    """Bytes on one GPU; ``capacity`` and ``max_batch`` are None where the profile has no DRAM capacity.

    Nothing is set aside for the driver, the framework or fragmentation.
    """

    weights: Number
    kv_cache: Number
    activations: Number
    capacity: int | None
    max_batch: int | None

    @property
    def total(self) -> Number:
        """All of it."""
        return self.weights + self.kv_cache + self.activations

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None where the capacity is unknown."""
        return None if self.capacity is None else bool(self.total <= self.capacity)


def layout(model: ModelSpec, step: Step, device: Device) -> Layout:
    """Memory of ``step`` on one of the GPUs."""
    capacity = device.dram.capacity
    weights = weight_bytes(model, step)
    room = None if capacity is None else int(capacity.number) - weights
    most = None if room is None else largest_batch(model, step, room)
    return Layout(weights, kv_bytes(model, step), activation_bytes(model, step), None if capacity is None else int(capacity.number), most)


def largest_batch(model: ModelSpec, step: Step, room: Number) -> int:
    """Sequences whose cache and activations fit ``room`` bytes on each GPU; 0 if none does.

    Both grow in proportion to the batch up to rounding, so the search starts from the proportion.
    """

    def taken(batch: int) -> Number:
        one = replace(step, batch=batch)
        return kv_bytes(model, one) + activation_bytes(model, one)

    groups = step.split.ep
    if taken(1) > room:
        return 0
    batch = max(int(floor(room * groups / taken(groups))), 1)
    while batch > 1 and taken(batch) > room:
        batch -= max(int((taken(batch) - room) * batch / taken(batch)), 1)
    while taken(batch + 1) <= room:
        batch += 1
    return max(batch, 1)
