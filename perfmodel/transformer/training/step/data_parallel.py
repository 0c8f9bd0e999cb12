"""What GPUs with the same weights exchange: gradients to sum, and under ZeRO shares of gradients and weights.

Stage 1 and 2 of ZeRO scatter the sum and gather the updated weights, the bytes of an all-reduce in all; stage 2 scatters after each
micro-batch, as it keeps no more than its share; stage 3 gathers weights for each pass. Source: Rajbhandari et al. 2020, section 7.
"""

from __future__ import annotations

from perfmodel.kernels.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from perfmodel.transformer.training.question import MIXED, SIXTEEN_BIT, Training
from perfmodel.transformer.training.state import GRADIENTS, WEIGHTS, Part, State
from perfmodel.transformer.training.step import links
from perfmodel.transformer.training.step.exchange import DATA, EXPERT_DATA, Exchange
from perfmodel.transformer.training.step.job import Job
from perfmodel.transformer.training.step.micro_batch import MicroBatch
from perfmodel.transformer.training.step.update import FROZEN, copies
from perfmodel.transformer.training.step.window import Window, joined


def shared_gradients(training: Training, state: State) -> list[Exchange]:
    """Sums of gradients, in the format in which they are kept longest."""
    p = training.parallel
    wide = training.precision == MIXED and training.gradients != SIXTEEN_BIT
    parts = [part for part in state.parts if part.group == GRADIENTS and (not wide or part.name.startswith("fp32"))]
    times = training.micro_batches if p.zero >= 2 else 1
    op = REDUCE_SCATTER if p.zero else ALL_REDUCE
    return [_exchange(part, op, int(times)) for part in parts if copies(part, p) > 1]


def shared_weights(training: Training, state: State) -> list[Exchange]:
    """Weights gathered from the GPUs that hold or have updated them."""
    p = training.parallel
    if p.zero == 0:
        return []
    parts = [part for part in state.parts if part.group == WEIGHTS and (p.zero == 3 or not part.name.startswith(FROZEN))]
    times = 2 * training.micro_batches if p.zero == 3 else 1
    return [_exchange(part, ALL_GATHER, int(times)) for part in parts if copies(part, p) > 1]


def _exchange(part: Part, op: str, times: int) -> Exchange:
    return Exchange(EXPERT_DATA if part.name.endswith("experts") else DATA, op, part.bytes * part.shards, times)


def data_seconds(job: Job, one: MicroBatch, state: State) -> tuple[float, float]:
    """Seconds of them that no kernel hides, and those that kernels do: gradients go out during backward passes, weights come in during
    the passes that need them.

    What the first layer of a step waits for, and what the last one leaves, nothing hides.
    """
    if job.system is None:
        return 0.0, 0.0
    t, edge = job.training, 1 / max(one.layers, 1)
    forward, backward = joined([(one.forward, 1)]), joined([(one.backward, 1)])
    passes = [forward, backward] if t.parallel.zero == 3 else [forward]
    weights = [(each, len(passes), window) for each in shared_weights(t, state) for window in passes]
    gradients = [(each, 1, backward) for each in shared_gradients(t, state)]
    parts = [_exposed_and_hidden(job, *exchange, edge) for exchange in (*weights, *gradients)]
    return sum(exposed for exposed, _ in parts), sum(hidden for _, hidden in parts)


def _exposed_and_hidden(job: Job, exchange: Exchange, times: int, window: Window, edge: float) -> tuple[float, float]:
    """Seconds of ``exchange``, which runs ``times`` per micro-batch or step, once in a ``window`` like this; ``edge``: a share that
    nothing hides.
    """
    assert job.system is not None
    one, runs = Exchange(exchange.group, exchange.op, exchange.bytes), float(exchange.count) / times
    seconds = links.seconds(one, job.system, job.training.parallel, job.on.device)
    if not job.overlap:
        return runs * seconds, 0.0
    hidden = window.hide(seconds, links.needs(one, seconds, job.system, job.training.parallel, job.on.device))
    exposed = max(runs * (seconds - hidden), edge * seconds)
    return exposed, runs * seconds - exposed
