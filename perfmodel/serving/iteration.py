"""One step of an engine's loop, and its micro-batches over pipeline stages.

In a round each micro-batch passes all stages once, and each sequence gets one token. With a micro-batch in each stage, all stages are busy.
A round lasts at least as long as one micro-batch takes through all stages, and at least as long as the slowest stage takes for all
micro-batches. Sources: vLLM, ``max_concurrent_batches`` (one batch per stage); SGLang, ``event_loop_pp``; Huang et al. 2019 (GPipe),
section 2.3 (the bubble that too few micro-batches leave).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from perfmodel.core.arith import ceil_div
from perfmodel.core.kept import cached_by_identity
from perfmodel.transformer.parallel import stages
from perfmodel.transformer.parameters import layer_matrices
from perfmodel.transformer.spec import ModelSpec


class Iteration(NamedTuple):
    """A step: a chunk of prompts and a token for each running sequence, in the same kernels. Counts are of the whole replica.

    ``chunk``: tokens of all ``prompts`` together; ``chunk_context``: tokens of each prompt after the step. ``decodes``: sequences of
    ``context`` tokens that run ``queries`` tokens each. Contexts are means over sequences and count the new tokens.
    """

    chunk: int = 0
    chunk_context: int = 0
    prompts: int = 1
    decodes: int = 0
    context: int = 0
    queries: int = 1


class StepTimes(Protocol):
    """Protocol for the times of steps of one model, device, engine and layout."""

    def seconds(self, step: Iteration) -> float:
        """Seconds of ``step``, kernels and engine overhead; 0 for a step without tokens."""
        ...


def micro_batches(step: Iteration, in_flight: int, cut: bool = False) -> list[Iteration]:
    """``step`` cut into at most ``in_flight`` micro-batches, each with its part of the prompts and of the decoding sequences.

    ``cut``: the engine runs prompts in chunks, so the next chunk of a prompt enters the pipeline behind the one before it.

    >>> [(batch.chunk, batch.prompts, batch.decodes) for batch in micro_batches(Iteration(900, 300, 3, 5, 100), 2)]
    [(600, 2, 2), (300, 1, 3)]
    >>> [(batch.chunk, batch.prompts, batch.decodes) for batch in micro_batches(Iteration(900, 900, 1, 5, 100), 2, cut=True)]
    [(450, 1, 2), (450, 1, 3)]
    """
    prompts = step.prompts if step.chunk else 0
    if cut and 0 < prompts < in_flight <= step.chunk:
        prompts = in_flight  # a chunk of a prompt for each micro-batch
    count = max(min(in_flight, prompts + step.decodes), 1)
    batches = []
    prompts_before = decodes_before = tokens_before = 0
    for index in range(1, count + 1):  # what the first ``index`` micro-batches have, less what those before this one have
        prompts_so_far, decodes_so_far = ceil_div(prompts * index, count), step.decodes * index // count
        tokens_so_far = step.chunk * prompts_so_far // prompts if prompts else 0
        batch = step._replace(chunk=tokens_so_far - tokens_before, decodes=decodes_so_far - decodes_before)
        batches.append(batch._replace(prompts=max(prompts_so_far - prompts_before, 1)))
        prompts_before, decodes_before, tokens_before = prompts_so_far, decodes_so_far, tokens_so_far
    return batches


@cached_by_identity
def slowest_share(model: ModelSpec, pp: int) -> float:
    """Share of a pass that its slowest stage takes, by the weights that a token uses there; the last stage has the head.

    >>> from perfmodel.catalog import find_model
    >>> round(slowest_share(find_model("llama-3-70b"), 4), 3)
    0.261
    """
    weights = {kind: layer_matrices(model, kind) for kind, _ in model.layer_kinds}
    stage_weights = [sum(weights[layer] for layer in stage_layers) for stage_layers in stages(model, pp)]
    stage_weights[-1] += model.hidden * model.vocab
    return float(max(stage_weights) / sum(stage_weights))


def round_s(pass_s: Sequence[float], slowest: float) -> float:
    """Seconds of a round. ``pass_s``: seconds of each micro-batch through all stages; ``slowest``: share of them in the slowest stage.

    >>> round_s([4.0, 4.0], 0.5), round_s([4.0], 0.5), round_s([4.0, 4.0], 0.625)
    (4.0, 4.0, 5.0)
    """
    return max(*pass_s, slowest * sum(pass_s))
