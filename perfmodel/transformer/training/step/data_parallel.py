"""What GPUs with the same weights exchange: gradients to sum, and under ZeRO shares of gradients and weights.

Stage 1 and 2 of ZeRO scatter the sum and gather the updated weights, the bytes of an all-reduce in all; stage 2 scatters after each
micro-batch, as it keeps no more than its share; stage 3 gathers weights for each pass. Source: Rajbhandari et al. 2020, section 7.
"""

from __future__ import annotations

from perfmodel.transformer.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from perfmodel.transformer.training.question import MIXED, SIXTEEN_BIT, Training
from perfmodel.transformer.training.state import GRADIENTS, WEIGHTS, Part, State
from perfmodel.transformer.training.step import links
from perfmodel.transformer.training.step.exchange import DATA, EXPERT_DATA, Exchange
from perfmodel.transformer.training.step.job import Job
from perfmodel.transformer.training.step.micro_batch import MicroBatch
from perfmodel.transformer.training.step.update import FROZEN, copies


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


def data_seconds(job: Job, one: MicroBatch, state: State) -> float:
    """Seconds of them that no kernel hides: gradients go out during backward passes, weights come in during forward passes.

    What the last layer to run backward leaves, and what the first one forward waits for, nothing hides.
    """
    if job.system is None:
        return 0.0
    t, system, device = job.training, job.system, job.on.device
    gradients = sum(links.seconds(each, system, t.parallel, device) for each in shared_gradients(t, state))
    weights = sum(links.seconds(each, system, t.parallel, device) for each in shared_weights(t, state))
    if not job.overlap:
        return gradients + weights
    often, first = int(t.micro_batches), 1 / max(one.layers, 1)
    backward, forward = one.backward_s + one.again_s, one.forward_s
    sums = often if t.parallel.zero >= 2 else 1
    gathers, behind = (often, forward + backward) if t.parallel.zero == 3 else (1, forward)
    return max(gradients - sums * backward, gradients / sums * first) + max(weights - gathers * behind, weights / gathers * first)
