"""A step on many GPUs: micro-batches through pipeline stages, then work that is done once per step.

The pipeline (1F1B, Narayanan et al. 2021) takes m micro-batches on the slowest of p stages, plus the time of one micro-batch on all other
stages to fill and drain it, divided by v if each stage holds v interleaved chunks of layers. For equal stages the bubble is
(p - 1) / (v m). Stages also wait for the one with the most work once per step.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.transformer.op import WEIGHTS, Op
from perfmodel.transformer.operation import HEAD
from perfmodel.transformer.spec import Layer
from perfmodel.transformer.training.matrices import slowest_stages
from perfmodel.transformer.training.question import Parallel
from perfmodel.transformer.training.state import State
from perfmodel.transformer.training.step.job import TrainingJob, adding_up, clearing, optimizer, shared_gradients, shared_weights
from perfmodel.transformer.training.step.layer_time import (
    BACKWARD_PASS,
    FORWARD_PASS,
    LayerTime,
    Machine,
    Window,
    exposed_host_s,
    host_time,
    joined,
    ops_window,
)
from perfmodel.transformer.training.step.system import Exchange, System, exchange_seconds, needs, stage_border

BUBBLE, HOST = "pipeline bubble", "waiting for the host"
OPTIMIZER, CLEARED, DATA_PARALLEL = "optimizer", "gradients cleared", "data parallel"


@dataclass(frozen=True, slots=True)
class MicroBatchTime:
    """Times of one micro-batch on one GPU of a stage, in seconds.

    ``forward``, ``backward``: windows of the kernels of each pass, with the resources that kernels and exchanges use; ``backward`` includes
    ``recompute_s`` of recomputation. ``accumulate_s``: addition of the gradients to their sum. ``hand_over_s``: transfers to and from the
    neighbouring stages. Exchanges within the stage: ``exposed``, seconds that no kernel hides, by group; ``hidden_s``, seconds beside
    kernels. ``layers``: layers of the stage. ``head_s``: forward pass from the last norm on, if this GPU has it.
    """

    forward: Window
    backward: Window
    recompute_s: float
    accumulate_s: float
    hand_over_s: float
    exposed: dict[str, float]
    hidden_s: float
    layers: int
    head_s: float

    @property
    def forward_s(self) -> float:
        """Seconds of the forward kernels."""
        return self.forward.seconds

    @property
    def backward_s(self) -> float:
        """Seconds of the backward kernels, without recomputation."""
        return self.backward.seconds - self.recompute_s

    @property
    def kernels_s(self) -> float:
        """Seconds of all kernels, recomputation included."""
        return self.forward.seconds + self.backward.seconds + self.accumulate_s

    @property
    def before_head_s(self) -> float:
        """Seconds of the forward kernels up to the last norm."""
        return self.forward_s - self.head_s

    @property
    def exposed_s(self) -> float:
        """Seconds of exchanges that no kernel hides, those with other stages included."""
        return self.hand_over_s + sum(self.exposed.values())

    @property
    def seconds(self) -> float:
        """Seconds of the micro-batch: kernels and exposed exchanges."""
        return self.kernels_s + self.exposed_s


def micro_batch(job: TrainingJob, stage: int) -> MicroBatchTime:
    """Times of one micro-batch on a GPU of ``stage``."""
    training, times = job.training, job.times(stage)
    recomputed = joined(
        (repeated.window, repeated.share * count) for place, count in times for repeated in place.repeated(training.recompute)
    )
    forward = joined((place.forward, count) for place, count in times)
    backward = joined([*((place.backward, count) for place, count in times), (recomputed, 1)])
    exposed, hidden_s = _stage_exchanges(job, times, forward, backward)
    return MicroBatchTime(
        forward=forward,
        backward=backward,
        recompute_s=recomputed.seconds,
        accumulate_s=ops_window(adding_up(training, job.state(stage), job.micro_batch.forward), job.machine).seconds,
        hand_over_s=_hand_over_s(job),
        exposed=exposed,
        hidden_s=hidden_s,
        layers=sum(count for place, count in times if isinstance(place.where, Layer)),
        head_s=sum((place.forward.seconds for place, _ in times if place.where == HEAD), 0.0),
    )


def _hand_over_s(job: TrainingJob) -> float:
    """Seconds to exchange hidden states and their gradients with neighbouring stages, for all chunks of layers."""
    parallel, shape = job.training.parallel, job.micro_batch.shape
    if parallel.pp == 1 or job.system is None:
        return 0.0
    return 2 * parallel.interleave * stage_border(shape.tokens * shape.hidden * shape.size, job.system, parallel, job.machine.device)


def _stage_exchanges(
    job: TrainingJob, times: list[tuple[LayerTime, int]], forward: Window, backward: Window
) -> tuple[dict[str, float], float]:
    """Exposed seconds of the exchanges within a stage by group, and hidden seconds, which are booked in the windows of the passes."""
    exposed_s, hidden_s = dict[str, float](), 0.0
    if job.system is None:
        return exposed_s, hidden_s
    p = job.training.parallel
    within_stage = Parallel(tp=p.tp, cp=p.cp, ep=p.ep, dp=p.ep)  # all that these groups depend on, so that the cache serves many layouts
    for place, count in times:
        passes = [(FORWARD_PASS, forward), (BACKWARD_PASS, backward)]
        if job.training.recompute.of_layers and isinstance(place.where, Layer):
            passes.append((FORWARD_PASS, backward))  # recomputation exchanges again what the forward pass did
        for pass_name, window in passes:
            exchanges = _layer_exchanges(place, pass_name, job.system, within_stage, job.machine, job.overlap)
            window.book(exchanges.booked, count)
            hidden_s += count * exchanges.hidden_s
            for group, seconds in exchanges.exposed.items():
                exposed_s[group] = exposed_s.get(group, 0.0) + count * seconds
    return exposed_s, hidden_s


class _LayerExchanges(NamedTuple):
    """Exchanges of a layer in one pass: exposed seconds by group, hidden seconds, and seconds of each resource in the hidden part."""

    exposed: dict[str, float]
    hidden_s: float
    booked: dict[str, float]


@lru_cache(maxsize=8192)
def _layer_exchanges(
    layer: LayerTime, pass_name: str, system: System, parallel: Parallel, machine: Machine, overlap: bool
) -> _LayerExchanges:
    """Exchanges of ``layer`` in one pass."""
    forward = pass_name == FORWARD_PASS
    kernels = layer.forward if forward else layer.backward
    whole_pass = joined([(kernels, 1)])  # a copy, in which hidden exchanges are booked
    cover = {
        behind: replace(window, busy=dict(window.busy), outer=whole_pass)
        for (pass_of_window, behind), window in layer.cover.items()
        if pass_of_window == pass_name
    }
    exposed, hidden_s = dict[str, float](), 0.0
    for exchange in layer.ops.forward_exchanges if forward else layer.ops.backward_exchanges:
        window = cover[exchange.behind] if exchange.behind and overlap else None
        seconds, beside_s = _run_and_hidden_s(exchange, window, system, parallel, machine.device)
        exposed[exchange.group] = exposed.get(exchange.group, 0.0) + seconds - beside_s
        hidden_s += beside_s
    return _LayerExchanges(exposed, hidden_s, {name: busy - kernels.busy.get(name, 0.0) for name, busy in whole_pass.busy.items()})


def _run_and_hidden_s(exchange: Exchange, window: Window | None, system: System, parallel: Parallel, device: Device) -> tuple[float, float]:
    """Seconds of ``exchange``, and how many of them run beside the kernels of ``window``."""
    seconds = exchange_seconds(exchange, system, parallel, device)
    hidden_s = 0.0 if window is None else window.hide(seconds, needs(exchange, seconds, system, parallel, device))
    return seconds, hidden_s


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step on the GPUs of its slowest ``stage``, part by part; ``parts`` add up to ``seconds``.

    ``exchanged_s``: all exchanges of the GPU with the most, hidden or not; faster kernels would hide less of them.
    """

    stage: int
    micro_batches: int
    micro_batch: MicroBatchTime
    parts: dict[str, float]
    exchanged_s: float

    @property
    def seconds(self) -> float:
        """Seconds of the whole step."""
        return sum(self.parts.values())

    @property
    def bubble(self) -> float:
        """Share of the step in which the stage waits for others."""
        return self.parts[BUBBLE] / self.seconds


def step_time(job: TrainingJob) -> StepTime:
    """Seconds of the step, by its slowest stage; UsageError if the system has too few GPUs."""
    training, pp = job.training, job.training.parallel.pp
    micro_batches = int(training.micro_batches)
    stages = {stage: micro_batch(job, stage) for stage in slowest_stages(training.model, pp)}
    slowest = max(stages, key=lambda stage: stages[stage].seconds)
    micro = stages[slowest]
    once = {stage: _once_per_step(job, stage, times) for stage, times in stages.items()}
    later_s = max(work.seconds for work in once.values()) - once[slowest].seconds
    exchanged_s = [
        micro_batches * (times.exposed_s + times.hidden_s) + once[stage].exposed_s + once[stage].hidden_s for stage, times in stages.items()
    ]
    parts = {
        "forward": micro_batches * micro.forward_s,
        "recompute": micro_batches * micro.recompute_s,
        "backward": micro_batches * micro.backward_s,
        "gradients added up": micro_batches * micro.accumulate_s,
        OPTIMIZER: once[slowest].optimizer_s,
        CLEARED: once[slowest].cleared_s,
        BUBBLE: (_all_stages_s(stages, pp) - micro.seconds) / training.parallel.interleave + later_s,
        "pipeline hand-over": micro_batches * micro.hand_over_s,
        **{f"{group} parallel": micro_batches * seconds for group, seconds in micro.exposed.items()},
        DATA_PARALLEL: once[slowest].exposed_s,
    }
    parts[HOST] = host_seconds(job, micro, parts[OPTIMIZER])
    return StepTime(slowest, micro_batches, micro, parts, max(exchanged_s))


class _OncePerStep(NamedTuple):
    """Seconds of a stage's work after or beside its micro-batches; exchanges between GPUs with the same weights are exposed or hidden."""

    optimizer_s: float
    cleared_s: float
    exposed_s: float
    hidden_s: float

    @property
    def seconds(self) -> float:
        """Seconds after the micro-batches."""
        return self.optimizer_s + self.cleared_s + self.exposed_s


def _once_per_step(job: TrainingJob, stage: int, micro: MicroBatchTime) -> _OncePerStep:
    """Seconds of the work of ``stage`` once per step."""
    training, step, state = job.training, job.micro_batch.forward, job.state(stage)
    optimizer_s = ops_window([optimizer(training, state, step)], job.machine).seconds
    cleared_s = ops_window(clearing(training, state, step), job.machine).seconds
    return _OncePerStep(optimizer_s, cleared_s, *data_seconds(job, micro, state))


def data_seconds(job: TrainingJob, micro: MicroBatchTime, state: State) -> tuple[float, float]:
    """Exposed and hidden seconds of exchanges between GPUs with the same weights.

    Gradients go out during backward passes, weights come in during the passes that need them. Nothing hides the weights that the first
    layer waits for, and the gradients that the last one leaves.
    """
    if job.system is None:
        return 0.0, 0.0
    training, parallel = job.training, job.training.parallel
    forward, backward = joined([(micro.forward, 1)]), joined([(micro.backward, 1)])  # copies, which the exchanges may book
    gathering_passes = [forward, backward] if parallel.zero == 3 else [forward]
    # Each exchange with the pass that hides it; a pass hides its part of the runs
    hidden_in = [(exchange, len(gathering_passes), window) for exchange in shared_weights(training, state) for window in gathering_passes]
    hidden_in += [(exchange, 1, backward) for exchange in shared_gradients(training, state)]
    layer_share = 1 / max(micro.layers, 1)  # what belongs to the first or the last layer of an exchange
    exposed_s = hidden_s = 0.0
    for exchange, passes, window in hidden_in:
        runs = float(exchange.count) / passes
        once = replace(exchange, count=1)
        run_s, hidden_run_s = _run_and_hidden_s(once, window if job.overlap else None, job.system, parallel, job.machine.device)
        least_exposed_s = layer_share * run_s if job.overlap else 0.0
        total_exposed_s = max(runs * (run_s - hidden_run_s), least_exposed_s)
        exposed_s += total_exposed_s
        hidden_s = hidden_s + runs * run_s - total_exposed_s
    return exposed_s, hidden_s


def _all_stages_s(stages: dict[int, MicroBatchTime], pp: int) -> float:
    """Seconds of a micro-batch on all stages in turn; of the stages between the ends only number 1 was timed, and all count like it."""
    timed_s = sum(micro.seconds for micro in stages.values())
    return timed_s + (pp - len(stages)) * stages[1].seconds if pp > len(stages) else timed_s


def host_seconds(job: TrainingJob, micro: MicroBatchTime, optimizer_s: float) -> float:
    """Seconds that a step takes longer because the host enqueues its kernels one by one."""
    if not job.micro_batch.eager or job.machine.parameters is None:
        return 0.0
    host = host_time(job.machine.parameters, micro.layers, tensors(job), recomputes=job.training.recompute.of_layers)
    return exposed_host_s(host, micro.before_head_s, micro.kernels_s - micro.before_head_s, int(job.training.micro_batches), optimizer_s)


def tensors(job: TrainingJob) -> int:
    """Number of parameter tensors of the model: each matrix, bias and norm's weights."""
    return sum(count * _weight_tensors(op) for place, count in job.times() for op in place.ops.forward)


def _weight_tensors(op: Op) -> int:
    """Number of weight tensors that a forward row reads; the two of a layer norm are one access."""
    count = sum(access.tensor == WEIGHTS for access in op.kernel.accesses)
    return 2 * count if op.timed is not None and op.timed.implementations == ("torch-layer-norm",) else count
