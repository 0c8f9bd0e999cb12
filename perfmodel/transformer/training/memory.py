"""Memory of training on a device: what is held, what is kept, when it peaks, and the largest micro-batch that fits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.core.arith import Number
from perfmodel.core.hardware import Device
from perfmodel.transformer.parameters import total
from perfmodel.transformer.training import korthikanti
from perfmodel.transformer.training.checks import checked
from perfmodel.transformer.training.implementations import FUSED, Implementation, Kept, implementation_named, kept
from perfmodel.transformer.training.question import EVERY, FULL, Training
from perfmodel.transformer.training.timeline import Peak, peak


@dataclass(frozen=True, slots=True)
class Literature:
    """Bytes by the literature's account: one layer, all that the first stage keeps, and the two ends of the model."""

    layer: Number
    layers: Number
    ends: Number
    meant: bool


@dataclass(frozen=True, slots=True)
class MemoryResult:
    """``kept``: on the fullest GPU, of all micro-batches in flight, ``stored`` of the peak in all. ``parameters``: of the whole model.

    ``capacity``, ``largest``: of the device, and the most sequences at a time that fit it; None where the profile has no capacity.
    """

    training: Training
    device: Device
    implementation: Implementation
    parameters: Number
    peak: Peak
    kept: list[Kept]
    literature: Literature
    capacity: int | None
    largest: int | None

    @property
    def fits(self) -> bool | None:
        """Whether the peak fits; None where the capacity is unknown."""
        return None if self.capacity is None else bool(self.peak.bytes <= self.capacity)


def evaluate(training: Training, device: Device, implementation: str = FUSED) -> MemoryResult:
    """Everything about the memory of ``training`` on the fullest of its GPUs."""
    made = implementation_named(implementation)
    checked(training)
    capacity = None if device.dram.capacity is None else int(device.dram.capacity.number)
    found = peak(training, implementation)
    return MemoryResult(
        training=training,
        device=device,
        implementation=made,
        parameters=total(training.model),
        peak=found,
        kept=kept(training, found.stage, implementation),
        literature=_literature(training),
        capacity=capacity,
        largest=None if capacity is None else largest_micro_batch(training, capacity, implementation),
    )


def _literature(training: Training) -> Literature:
    model, parallel = training.model, training.parallel
    heads, kind = model.layers[0].attention.heads, training.recompute.kind
    layer = korthikanti.layer_bytes(
        training.length,
        training.sequences,
        model.hidden,
        heads,
        parallel.tp,
        sp=parallel.sp,
        recompute=FULL if kind == EVERY else kind,
    )
    stages, ends = korthikanti.stage_bytes(training), korthikanti.ends_bytes(training)
    return Literature(layer, stages, ends, korthikanti.describes(model))


def largest_micro_batch(training: Training, capacity: Number, implementation: str = FUSED) -> int:
    """The most sequences at a time with which every GPU stays within ``capacity``, as many micro-batches as now; 0 if none does."""

    def fits(sequences: int) -> bool:
        batch = sequences * training.micro_batches * training.parallel.dp
        return bool(peak(replace(training, batch=batch, micro_batch=sequences), implementation).bytes <= capacity)

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
