"""The fastest layout of a training step that fits the memory of a given number of GPUs.

Every layout is timed first, which is quick as equal pieces are computed once. Then memory is checked in the order of speed, until enough
layouts fit. The search covers tensor parallelism within an NVLink domain, with and without sequence parallelism; pipeline stages of equal
size, interleaved or not; context and expert parallelism; ZeRO; micro-batches in powers of two; recomputation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
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

LARGEST_MICRO_BATCH = 16
TURNS = (1, 2, 3, 4, 6, 8)
"""Chunks of layers per stage that are tried."""
LEAST_PART = 1024
"""Fewest tokens of a part of a sequence."""
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
    on: Machine
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
            if layers % pp and pp > 1:
                continue
            for cp in divisors(gpus // tp // pp, max(n // LEAST_PART, 1)) if flash else [1]:
                dp = gpus // tp // pp // cp
                if batch % dp or n % cp:
                    continue
                for ep in _expert_groups(model, dp):
                    for zero in range(4 if dp * cp > 1 else 1):
                        if zero < 2 or pp <= MOST_STAGES_OF_ZERO:
                            for sp in (False, True) if tp > 1 else (False,):
                                yield Parallel(tp, sp, pp, cp=cp, ep=ep, dp=dp, zero=zero)


def _expert_groups(model: ModelSpec, dp: int) -> list[int]:
    counts = {layer.mlp.experts for layer, _ in model.layer_kinds if isinstance(layer.mlp, MoeMlp)}
    return [ep for ep in divisors(dp) if all(count % ep == 0 for count in counts)] if counts else [1]


def candidates(training: TrainingConfig, gpus: int, domain: int) -> Iterator[TrainingConfig]:
    """Every layout of ``training`` on ``gpus``, with other parallelism, micro-batches and recomputation."""
    kinds = (NONE, FULL) if training.flash else (NONE, SELECTIVE, FULL)
    layers = len(training.model.layers)
    for parallel in parallels(training.model, gpus, int(training.batch), int(training.n), domain, training.flash):
        sequences_of_group = int(training.batch) // parallel.dp
        for sequences in (size for size in divisors(sequences_of_group, LARGEST_MICRO_BATCH) if size & (size - 1) == 0):
            for turns in TURNS if parallel.pp > 1 else (1,):
                if turns > 1 and ((layers // parallel.pp) % turns or (sequences_of_group // sequences) % parallel.pp):
                    continue
                turned = replace(parallel, interleave=turns)
                yield from (replace(training, micro_batch=sequences, parallel=turned, recompute=Recomputation(kind)) for kind in kinds)


def search(
    training: TrainingConfig,
    gpus: int,
    on: Machine,
    system: System | None,
    *,
    half: str = "bf16",
    overlap: bool = True,
    most: int = 10,
    headroom: float = 0.0,
) -> SearchResult:
    """The ``most`` fastest layouts that leave a share of ``headroom`` of each GPU's memory; UnavailableError without a capacity."""
    capacity = on.device.dram.capacity
    if capacity is None:
        raise UnavailableError(f"{on.device.id} has no DRAM capacity in its profile", "add the capacity of its dram level")
    room, begin = capacity.number * (1 - headroom), perf_counter()
    domain = gpus if system is None else system.levels[0].gpus
    timed: list[tuple[float, TrainingConfig]] = []
    for layout in candidates(training, gpus, domain):
        job = job_of(layout, on, system, FUSED, half=half, overlap=overlap)
        states = [job.state(stage) for stage in {0, layout.parallel.pp - 1}]
        held = max(int(state.weights + state.optimizer) for state in states)  # a quick first test: activations come on top
        timed.append((step_time(job).seconds if held <= room else float("inf"), layout))
    fitting: list[TimedLayout] = []
    refused = 0
    for seconds, layout in sorted(timed, key=lambda pair: pair[0]):
        if len(fitting) == most or seconds == float("inf"):
            break
        size = int(peak(layout, FUSED).bytes)
        if size <= room:
            fitting.append(TimedLayout(layout, seconds, size))
        else:
            refused += 1
    return SearchResult(training, gpus, on, system, half, fitting, len(timed), refused, perf_counter() - begin)
