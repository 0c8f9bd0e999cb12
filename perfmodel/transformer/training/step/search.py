"""The fastest layout of a training step that fits the memory of a given number of GPUs.

Every layout is timed first, which is quick as equal layers are computed once. Then memory is checked, the fastest layout first, until
enough layouts fit. The search covers tensor parallelism within an NVLink domain, with and without sequence parallelism; pipeline stages of
equal size, interleaved or not; context and expert parallelism; ZeRO; micro-batches in powers of two; recomputation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import gcd
from time import perf_counter

from perfmodel.core.arith import divisors
from perfmodel.core.errors import PerfmodelError, UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.transformer.spec import ModelSpec, MoeMlp
from perfmodel.transformer.step import Split
from perfmodel.transformer.training.implementations import FUSED
from perfmodel.transformer.training.memory import peak
from perfmodel.transformer.training.question import FULL, NONE, SELECTIVE, Parallel, Recomputation, TrainingConfig
from perfmodel.transformer.training.step.job import job_of
from perfmodel.transformer.training.step.layer_time import Machine
from perfmodel.transformer.training.step.step_time import step_time
from perfmodel.transformer.training.step.system import System

MICRO_BATCHES = (1, 2, 4, 8, 16)
"""Sequences of a micro-batch that are tried."""
INTERLEAVES = (1, 2, 3, 4, 6, 8)
"""Chunks of layers per stage that are tried."""
FEWEST_TOKENS = 1024
"""Fewest tokens of a sequence on one of the context-parallel GPUs."""
MOST_STAGES_OF_ZERO = 1
"""Most pipeline stages with ZeRO 2 or 3: with more, gradients and weights would be exchanged for each micro-batch."""


@dataclass(frozen=True, slots=True)
class TimedLayout:
    """A layout of a step, its seconds, and the peak bytes of its fullest GPU."""

    training: TrainingConfig
    seconds: float
    bytes: int

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second over all GPUs."""
        return float(self.training.batch * self.training.n / self.seconds)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The fastest layouts of ``training`` that fit, best first. ``tried``: layouts timed, in ``took_s``.

    ``refused``: faster ones that did not fit. ``half``: the 16-bit format.
    """

    training: TrainingConfig
    gpus: int
    machine: Machine
    system: System | None
    half: str
    layouts: list[TimedLayout]
    tried: int
    refused: int
    took_s: float


def parallels(model: ModelSpec, gpus: int, batch: int, n: int, domain: int, flash: bool) -> Iterator[Parallel]:
    """Layouts that divide ``model`` among ``gpus`` GPUs; ``domain``: GPUs that share NVLink."""
    layers = len(model.layers)
    for tp in divisors(gpus, domain):
        try:
            Split(tp).check(model)
        except PerfmodelError:
            continue
        for pp in divisors(gpus // tp, layers):
            if layers % pp:
                continue
            for cp in divisors(gpus // tp // pp, max(n // FEWEST_TOKENS, 1)) if flash else [1]:
                dp = gpus // tp // pp // cp
                if batch % dp or n % cp:
                    continue
                zero_stages = [0, 1] if pp > MOST_STAGES_OF_ZERO else [0, 1, 2, 3]
                if dp * cp == 1:
                    zero_stages = [0]
                for ep, zero, sp in product(_expert_groups(model, dp), zero_stages, (False, True) if tp > 1 else (False,)):
                    yield Parallel(tp, sp, pp, cp=cp, ep=ep, dp=dp, zero=zero)


def _expert_groups(model: ModelSpec, dp: int) -> list[int]:
    """Numbers of GPUs that can share the experts of every layer; 1 for a model without experts."""
    expert_counts = {layer.mlp.experts for layer, _ in model.layer_kinds if isinstance(layer.mlp, MoeMlp)}
    return divisors(gcd(dp, *expert_counts)) if expert_counts else [1]


def candidates(training: TrainingConfig, gpus: int, domain: int) -> Iterator[TrainingConfig]:
    """Every layout of ``training`` on ``gpus``, with other parallelism, micro-batches and recomputation."""
    kinds = (NONE, FULL) if training.flash else (NONE, SELECTIVE, FULL)
    for parallel in parallels(training.model, gpus, int(training.batch), int(training.n), domain, training.flash):
        sequences = int(training.batch) // parallel.dp
        for micro_batch, interleave in product(MICRO_BATCHES, INTERLEAVES):
            if sequences % micro_batch == 0 and _can_interleave(training.model, parallel, interleave, sequences // micro_batch):
                for kind in kinds:
                    interleaved = replace(parallel, interleave=interleave)
                    yield replace(training, micro_batch=micro_batch, parallel=interleaved, recompute=Recomputation(kind))


def _can_interleave(model: ModelSpec, parallel: Parallel, interleave: int, micro_batches: int) -> bool:
    """Whether stages of equal size can hold ``interleave`` equal chunks, and ``micro_batches`` fill all stages evenly."""
    if interleave == 1:
        return True
    layers_of_stage = len(model.layers) // parallel.pp
    return parallel.pp > 1 and layers_of_stage % interleave == 0 and micro_batches % parallel.pp == 0


def search(
    training: TrainingConfig,
    gpus: int,
    machine: Machine,
    system: System | None,
    *,
    half: str = "bf16",
    overlap: bool = True,
    most: int = 10,
    headroom: float = 0.0,
) -> SearchResult:
    """The ``most`` fastest layouts that leave a share of ``headroom`` of each GPU's memory; UnavailableError without a capacity."""
    capacity = machine.device.dram.capacity
    if capacity is None:
        raise UnavailableError(f"{machine.device.id} has no DRAM capacity in its profile", "add the capacity of its dram level")
    room, begin = capacity.number * (1 - headroom), perf_counter()
    domain = gpus if system is None else system.levels[0].gpus
    timed: list[tuple[float, TrainingConfig]] = []
    tried = 0
    for layout in candidates(training, gpus, domain):
        tried += 1
        job = job_of(layout, machine, system, FUSED, half=half, overlap=overlap)
        states = [job.state(stage) for stage in {0, layout.parallel.pp - 1}]
        if max(int(state.weights + state.optimizer) for state in states) <= room:  # a quick first test: activations come on top
            timed.append((step_time(job).seconds, layout))
    fitting: list[TimedLayout] = []
    refused = 0
    for seconds, layout in sorted(timed, key=lambda seconds_and_layout: seconds_and_layout[0]):
        if len(fitting) == most:
            break
        size = int(peak(layout, FUSED).bytes)
        if size <= room:
            fitting.append(TimedLayout(layout, seconds, size))
        else:
            refused += 1
    return SearchResult(training, gpus, machine, system, half, fitting, tried, refused, perf_counter() - begin)
