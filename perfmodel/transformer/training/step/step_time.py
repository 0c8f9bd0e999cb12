"""A step on many GPUs: micro-batches through pipeline stages, then work that is done once per step. Pipeline (1F1B, Narayanan et al.

2021): m micro-batches on the slowest of p stages, plus the time of one micro-batch on all others to fill and drain the pipeline, divided by
v if each stage holds v interleaved chunks of layers. For equal stages the bubble is (p - 1) / (v m). Stages also wait for the one with the
longest work per step.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

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
    host_phases,
    joined,
    ops_window,
)
from perfmodel.transformer.training.step.system import Exchange, System, exchange_seconds, needs, stage_border

BUBBLE, HOST = "pipeline bubble", "waiting for the host"
OPTIMIZER, CLEARED, DATA_PARALLEL = "optimizer", "gradients cleared", "data parallel"


@dataclass(frozen=True, slots=True)
class MicroBatchTime:
    """Times of one micro-batch on one GPU of a stage, in seconds.

    ``added_s``: accumulation of its gradients; ``handed_s``: transfers to and from the neighbouring stages. ``forward``, ``backward``:
    windows of the kernels of each pass, with the resources that kernels and exchanges use; ``backward`` includes ``again_s`` of
    recomputation. ``passed``: exposed exchanges by group. ``head_s``: forward pass from the last norm on, if this GPU has it. ``hidden_s``:
    exchanges within the stage that overlap with kernels.
    """

    forward: Window
    backward: Window
    again_s: float
    added_s: float
    handed_s: float
    passed: dict[str, float]
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
        return self.backward.seconds - self.again_s

    @property
    def kernels_s(self) -> float:
        """Seconds of all kernels, recomputation included."""
        return self.forward.seconds + self.backward.seconds + self.added_s

    @property
    def before_head_s(self) -> float:
        """Seconds of the forward kernels up to the last norm."""
        return self.forward_s - self.head_s

    @property
    def exposed_s(self) -> float:
        """Seconds of exchanges that do not overlap with kernels."""
        return self.handed_s + sum(self.passed.values())

    @property
    def seconds(self) -> float:
        """Seconds of the micro-batch: kernels and exposed exchanges."""
        return self.kernels_s + self.exposed_s


def micro_batch(job: TrainingJob, stage: int) -> MicroBatchTime:
    """Times of one micro-batch on a GPU of ``stage``."""
    t, times = job.training, job.times(stage)
    again = joined((getattr(each, name), share * count) for each, count in times for name, share in each.repeated(t.recompute))
    forward = joined((each.forward, count) for each, count in times)
    backward = joined([*((each.backward, count) for each, count in times), (again, 1)])
    passed, hidden = _passed(job, times, forward, backward)
    return MicroBatchTime(
        forward=forward,
        backward=backward,
        again_s=again.seconds,
        added_s=ops_window(adding_up(t, job.state(stage), job.micro_batch.forward), job.on).seconds,
        handed_s=_handed(job),
        passed=passed,
        hidden_s=hidden,
        layers=sum(count for each, count in times if isinstance(each.where, Layer)),
        head_s=sum((each.forward.seconds for each, _ in times if each.where == HEAD), 0.0),
    )


def _handed(job: TrainingJob) -> float:
    """Seconds to exchange hidden states and their gradients with neighbouring stages, for all chunks of layers."""
    p = job.training.parallel
    if p.pp == 1 or job.system is None:
        return 0.0
    size = job.micro_batch.shape.tokens * job.micro_batch.shape.hidden * job.micro_batch.shape.size
    return 2 * p.interleave * stage_border(size, job.system, p, job.on.device)


def _passed(job: TrainingJob, times: list[tuple[LayerTime, int]], forward: Window, backward: Window) -> tuple[dict[str, float], float]:
    """Seconds of exposed exchanges by group, and seconds of hidden ones, which are booked in the windows of the passes."""
    if job.system is None:
        return {}, 0.0
    p = job.training.parallel
    near = Parallel(tp=p.tp, cp=p.cp, ep=p.ep, dp=p.ep)  # all that groups inside of a stage depend on
    passes = [(FORWARD_PASS, forward), (BACKWARD_PASS, backward)]
    exposed_s, beside = dict[str, float](), 0.0
    for each, count in times:
        again = [(FORWARD_PASS, backward)] if job.training.recompute.of_layers and isinstance(each.where, Layer) else []
        for way, window in (*passes, *again):
            exposed, hidden, taken = _exchanged(each, way, job.system, near, job.on, job.overlap)
            window.book(taken, count)
            beside += count * hidden
            for group, seconds in exposed.items():
                exposed_s[group] = exposed_s.get(group, 0.0) + count * seconds
    return exposed_s, beside


@lru_cache(maxsize=8192)
def _exchanged(
    layer: LayerTime, way: str, system: System, near: Parallel, on: Machine, overlap: bool
) -> tuple[dict[str, float], float, dict[str, float]]:
    """A layer's exchanges in one pass: exposed seconds by group, hidden seconds, and seconds of each resource for hidden ones."""
    forward = way == FORWARD_PASS
    kernels, passed = (layer.forward, layer.ops.forward_exchanges) if forward else (layer.backward, layer.ops.backward_exchanges)
    outer, exposed, beside = joined([(kernels, 1)]), dict[str, float](), 0.0
    cover = {word: replace(window, busy=dict(window.busy), outer=outer) for (at, word), window in layer.cover.items() if at == way}
    for exchange in passed:
        behind = cover[exchange.behind] if exchange.behind and overlap else None
        seconds, hidden = _hidden(exchange, behind, system, near, on.device)
        exposed[exchange.group] = exposed.get(exchange.group, 0.0) + seconds - hidden
        beside += hidden
    return exposed, beside, {name: busy - kernels.busy.get(name, 0.0) for name, busy in outer.busy.items()}


def _hidden(exchange: Exchange, behind: Window | None, system: System, parallel: Parallel, device: Device) -> tuple[float, float]:
    """Seconds of ``exchange``, and the part of them that runs beside the kernels of the window ``behind``."""
    seconds = exchange_seconds(exchange, system, parallel, device)
    return seconds, 0.0 if behind is None else behind.hide(seconds, needs(exchange, seconds, system, parallel, device))


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
    t, p, often = job.training, job.training.parallel, int(job.training.micro_batches)
    stages = {stage: micro_batch(job, stage) for stage in slowest_stages(t.model, p.pp)}
    slowest = max(stages, key=lambda stage: stages[stage].seconds)
    micro, once = stages[slowest], {stage: _once(job, stage, each) for stage, each in stages.items()}
    ends = {stage: end for stage, (end, _) in once.items()}
    later = max(sum(end.values()) for end in ends.values()) - sum(ends[slowest].values())
    exchanged = max(often * (each.exposed_s + each.hidden_s) + once[at][0][DATA_PARALLEL] + once[at][1] for at, each in stages.items())
    parts = {
        "forward": often * micro.forward_s,
        "recompute": often * micro.again_s,
        "backward": often * micro.backward_s,
        "gradients added up": often * micro.added_s,
        OPTIMIZER: ends[slowest][OPTIMIZER],
        CLEARED: ends[slowest][CLEARED],
        BUBBLE: (_all_stages(stages, p.pp) - micro.seconds) / p.interleave + later,
        "pipeline hand-over": often * micro.handed_s,
        **{f"{group} parallel": often * seconds for group, seconds in micro.passed.items()},
        DATA_PARALLEL: ends[slowest][DATA_PARALLEL],
    }
    parts[HOST] = host_seconds(job, micro, parts[OPTIMIZER])
    return StepTime(slowest, often, micro, parts, exchanged)


def _once(job: TrainingJob, stage: int, micro: MicroBatchTime) -> tuple[dict[str, float], float]:
    """Seconds of a stage's work once per step, after or beside its micro-batches, and seconds of exchanges that these hide."""
    t, step, state = job.training, job.micro_batch.forward, job.state(stage)
    updated, cleared = (ops_window(ops, job.on).seconds for ops in ([optimizer(t, state, step)], clearing(t, state, step)))
    exposed, hidden = data_seconds(job, micro, state)
    return {OPTIMIZER: updated, CLEARED: cleared, DATA_PARALLEL: exposed}, hidden


def data_seconds(job: TrainingJob, micro: MicroBatchTime, state: State) -> tuple[float, float]:
    """Exposed and hidden seconds of exchanges between GPUs with the same weights.

    Gradients go out during backward passes, weights come in during the passes that need them. Nothing hides the weights that the first
    layer waits for, and the gradients that the last one leaves.
    """
    if job.system is None:
        return 0.0, 0.0
    t, p, edge = job.training, job.training.parallel, 1 / max(micro.layers, 1)
    forward, backward = joined([(micro.forward, 1)]), joined([(micro.backward, 1)])
    passes = [forward, backward] if p.zero == 3 else [forward]
    exchanges = [(each, len(passes), window) for each in shared_weights(t, state) for window in passes]
    exposed_s = hidden_s = 0.0
    for exchange, times, window in [*exchanges, *((each, 1, backward) for each in shared_gradients(t, state))]:
        # ``times`` per micro-batch or step, each once in a window like this
        single, runs = replace(exchange, count=1), float(exchange.count) / times
        seconds, hidden = _hidden(single, window if job.overlap else None, job.system, p, job.on.device)
        exposed = max(runs * (seconds - hidden), edge * seconds if job.overlap else 0.0)
        exposed_s, hidden_s = exposed_s + exposed, hidden_s + runs * seconds - exposed
    return exposed_s, hidden_s


def _all_stages(stages: dict[int, MicroBatchTime], pp: int) -> float:
    """Seconds of a micro-batch on all stages in turn; unknown stages between the ends count like the known one."""
    known = sum(micro.seconds for micro in stages.values())
    return known + (pp - len(stages)) * stages[1].seconds if pp > len(stages) else known


def host_seconds(job: TrainingJob, micro: MicroBatchTime, optimizer_s: float) -> float:
    """Seconds that a step takes longer because the host enqueues its kernels one by one."""
    if not job.micro_batch.eager or job.on.parameters is None:
        return 0.0
    host = host_phases(job.on.parameters, micro.layers, tensors(job), again=job.training.recompute.of_layers)
    return exposed_host_s(host, micro.before_head_s, micro.kernels_s - micro.before_head_s, int(job.training.micro_batches), optimizer_s)


def tensors(job: TrainingJob) -> int:
    """Number of parameter tensors of the model: each matrix, bias and norm's weights."""
    return sum(count * sum(_learned(op) for op in each.ops.forward) for each, count in job.times())


def _learned(op: Op) -> int:
    """Number of weight tensors that a forward row reads; a layer norm's two are one access."""
    count = sum(access.tensor == WEIGHTS for access in op.kernel.accesses)
    return 2 * count if op.timed is not None and op.timed.implementations == ("torch-layer-norm",) else count
