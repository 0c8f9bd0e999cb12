"""Memory of one training step: bytes over forward, backward and optimizer, the worst moment, and the largest micro-batch that fits.

Moments follow each other on one GPU. With several micro-batches the worst moment is in a later one: gradients of the earlier ones are held,
and in a pipeline also the activations of micro-batches in flight (1F1B).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

from perfmodel.core.arith import Number
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.transformer.operation import EMBEDDING, HEAD
from perfmodel.transformer.parameters import total
from perfmodel.transformer.training.implementations import (
    BACKWARD,
    FORWARD,
    FUSED,
    OPTIMIZER,
    Implementation,
    Kept,
    LayerBlock,
    StepMoment,
    block_of,
    chunk_blocks,
    implementation_named,
    saved_tensors,
)
from perfmodel.transformer.training.korthikanti import Literature, literature
from perfmodel.transformer.training.matrices import Shape, chunks_of, fullest_stages, in_flight, shape_of
from perfmodel.transformer.training.question import NONE, TrainingConfig, checked
from perfmodel.transformer.training.recorder import TOKEN_SIZE
from perfmodel.transformer.training.state import State, state_bytes
from perfmodel.transformer.training.tape import TapePass, added


@dataclass(frozen=True, slots=True)
class Peak:
    """The worst ``moment`` on the fullest GPU, which is in pipeline stage ``stage``. ``moments``: timeline of its step.

    ``stored``: bytes of activations that wait for their backward pass at the end of a forward pass.
    """

    moment: StepMoment
    stage: int
    state: State
    stored: Number
    moments: tuple[StepMoment, ...]

    @property
    def bytes(self) -> Number:
        """All bytes allocated at the peak."""
        return self.moment.high

    @property
    def gradients(self) -> Number:
        """Bytes of gradients of weights at the peak."""
        return self.moment.gradients

    @property
    def activations(self) -> Number:
        """Bytes at the peak beside weights, optimizer state and gradients."""
        return self.bytes - self.state.weights - self.state.optimizer - self.gradients


@dataclass(frozen=True, slots=True)
class _Stage:
    """One GPU of a pipeline stage, sizes in bytes. ``chunks``: its layers by interleaved chunk; ``in_flight``: micro-batches in each.

    ``held``: bytes held during the whole step, ``gradients`` among them. ``stream``: bytes of a tensor that is passed between stages.
    ``waiting``: bytes beside the tensors on the tapes that a micro-batch holds from its embedding to the embedding's backward pass.
    """

    state: State
    held: Number
    waiting: Number
    gradients: Number
    stream: Number
    chunks: list[list[LayerBlock]]
    in_flight: list[int]

    def received(self, chunk: int) -> Number:
        """Bytes that a micro-batch receives from the stage before."""
        return 0 if self.chunks[chunk][0].name == EMBEDDING else self.stream

    def kept(self, chunk: int) -> Number:
        """Bytes that a micro-batch keeps between its two passes through a chunk; what it sent to the next stage is freed."""
        blocks = self.chunks[chunk]
        sent = 0 if blocks[-1].name == HEAD else self.stream
        return self.received(chunk) + sum(block.forward.net * block.count for block in blocks) - sent

    @property
    def stored(self) -> Number:
        """Bytes of all tensors that wait for their backward pass."""
        return sum(count * self.kept(chunk) for chunk, count in enumerate(self.in_flight))

    def walk(self, chunk: int) -> Iterator[StepMoment]:
        """Moments of the forward and backward pass of one micro-batch through ``chunk``, while the others wait."""
        level = self.held + self.stored - self.kept(chunk) + self.received(chunk)
        gradients, saved = self.gradients, dict[str, Number]()
        for other_chunk, count in enumerate(self.in_flight):
            waiting = count - 1 if other_chunk == chunk else count
            for block in self.chunks[other_chunk]:
                saved = added(saved, block.forward.net_saved, waiting * block.count)
        for block in self.chunks[chunk]:
            moment = block.run(FORWARD, level, gradients, saved)
            yield moment
            level = moment.bytes + (self.waiting if block.name == EMBEDDING else 0)
            saved = added(saved, block.forward.net_saved, block.count)
        for block in reversed(self.chunks[chunk]):
            level -= self.waiting if block.name == EMBEDDING else 0
            moment = block.run(BACKWARD, level, gradients, saved)
            yield moment
            level = moment.bytes
            gradients += block.gradients * block.count
            saved = added(saved, block.backward.net_saved, block.count)

    def moments(self) -> tuple[StepMoment, ...]:
        """The worst walk, then the optimizer's step: no activations, all gradients."""
        walks = [tuple(self.walk(chunk)) for chunk, count in enumerate(self.in_flight) if count]
        worst = max(walks, key=lambda walk: max(moment.high for moment in walk))
        level = self.held - self.gradients + self.state.gradients
        return *worst, StepMoment(OPTIMIZER, "", level, TapePass(self.state.temporary, 0, ""), gradients=self.state.gradients)


def _stage(training: TrainingConfig, shape: Shape, stage: int, implementation: str) -> _Stage:
    """A GPU of pipeline stage ``stage``; ``shape``: sizes of a micro-batch."""
    model, parallel = training.model, training.parallel
    builder, state = implementation_named(implementation), state_bytes(training, stage)
    buffers = state.gradients if training.buffers_gradients else 0
    chunks = [chunk_blocks(first, layers, shape, training.recompute, implementation) for first, layers in chunks_of(model, parallel, stage)]
    if stage == 0:
        chunks[0].insert(0, block_of((EMBEDDING,), shape, NONE, implementation))
    if stage == parallel.pp - 1:
        chunks[-1].append(block_of((HEAD,), shape, NONE, implementation))
    tokens = 0 if stage else TOKEN_SIZE * shape.tokens
    return _Stage(
        state=state,
        held=state.weights + state.optimizer + buffers + tokens + builder.workspaces,
        waiting=builder.bytes_until_backward(shape, training.recompute),
        gradients=buffers,
        stream=shape.local_tokens * shape.hidden * shape.size,
        chunks=chunks,
        in_flight=in_flight(parallel, stage, training.micro_batches),
    )


def peak(training: TrainingConfig, implementation: str = FUSED) -> Peak:
    """The worst moment on the fullest GPU, weights and optimizer included."""
    peaks, shape = list[Peak](), shape_of(training)
    for stage in fullest_stages(training.model, training.parallel.pp):
        gpu = _stage(training, shape, stage, implementation)
        moments = gpu.moments()
        peaks.append(Peak(max(moments, key=lambda moment: moment.high), stage, gpu.state, gpu.stored, moments))
    return max(peaks, key=lambda stage_peak: stage_peak.bytes)  # of equal ones the first stage


@dataclass(frozen=True, slots=True)
class MemoryResult:
    """Memory of a step. ``kept``: saved tensors on the fullest GPU, of all micro-batches in flight; ``stored``: their bytes at the peak.

    ``parameters``: number for the whole model. ``capacity``: bytes of the device; ``largest``: most sequences of a micro-batch that fits;
    both are None if the profile has no capacity.
    """

    training: TrainingConfig
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
        """Whether the peak fits; None if the capacity is unknown."""
        return None if self.capacity is None else bool(self.peak.bytes <= self.capacity)


def evaluate(training: TrainingConfig, device: Device, implementation: str = FUSED) -> MemoryResult:
    """Memory of ``training`` on the fullest of its GPUs, in bytes, part by part; UsageError if a value has no meaning."""
    builder = implementation_named(implementation)
    checked(training)
    capacity = None if device.dram.capacity is None else int(device.dram.capacity.number)
    highest = peak(training, implementation)
    return MemoryResult(
        training=training,
        device=device,
        implementation=builder,
        parameters=total(training.model),
        peak=highest,
        kept=saved_tensors(training, highest.stage, implementation),
        literature=literature(training),
        capacity=capacity,
        largest=None if capacity is None else largest_micro_batch(training, capacity, implementation),
    )


def largest_micro_batch(training: TrainingConfig, capacity: Number, implementation: str = FUSED) -> int:
    """Most sequences per micro-batch within ``capacity`` bytes on every GPU, with as many micro-batches as now; 0 if none fits."""

    def fits(sequences: int) -> bool:
        batch = sequences * training.micro_batches * training.parallel.dp
        return bool(peak(replace(training, batch=batch, micro_batch=sequences), implementation).bytes <= capacity)

    high = 1
    while fits(high):
        high *= 2
    return bisect_left(range(high), True, lo=high // 2 + 1, key=lambda sequences: not fits(sequences)) - 1
