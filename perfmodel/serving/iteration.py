"""One step of an engine's loop, and its micro-batches over pipeline stages.

A token passes all stages, so its time is that of its micro-batch through all of them. With a micro-batch in each stage, all stages are busy
and each sequence gets one token per round. A round lasts at least as long as one micro-batch takes through all stages, and at least as long
as the slowest stage takes for all micro-batches. Source: vLLM, ``max_concurrent_batches`` (one batch per stage); SGLang, ``event_loop_pp``;
Huang et al. 2019 (GPipe), section 2.3, of the bubble that is left without enough micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

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

    >>> [(one.chunk, one.prompts, one.decodes) for one in micro_batches(Iteration(900, 300, 3, 5, 100), 2)]
    [(600, 2, 2), (300, 1, 3)]
    >>> [(one.chunk, one.prompts, one.decodes) for one in micro_batches(Iteration(900, 900, 1, 5, 100), 2, cut=True)]
    [(450, 1, 2), (450, 1, 3)]
    """
    prompts = step.prompts if step.chunk else 0
    if cut and 0 < prompts < in_flight <= step.chunk:
        prompts = in_flight
    count = max(min(in_flight, prompts + step.decodes), 1)
    batches, prompts_given, decoded, tokens = [], 0, 0, 0
    for index in range(1, count + 1):
        prompts_here = -(-prompts * index // count) - prompts_given
        decodes = step.decodes * index // count - decoded
        chunk = step.chunk * (prompts_given + prompts_here) // prompts - tokens if prompts else 0
        batches.append(Iteration(chunk, step.chunk_context, max(prompts_here, 1), decodes, step.context, step.queries))
        prompts_given, decoded, tokens = prompts_given + prompts_here, decoded + decodes, tokens + chunk
    return batches


@cached_by_identity
def slowest_share(model: ModelSpec, pp: int) -> float:
    """Share of a pass that its slowest stage takes, by the weights that a token uses there; the last stage has the head.

    >>> from perfmodel.catalog import find_model
    >>> round(slowest_share(find_model("llama-3-70b"), 4), 3)
    0.261
    """
    matrices = {kind: layer_matrices(model, kind) for kind, _ in model.layer_kinds}
    sizes = [
        sum(count * matrices[kind] for kind, count in replace(model, layers=stage_layers).layer_kinds) for stage_layers in stages(model, pp)
    ]
    sizes[-1] += model.hidden * model.vocab
    return float(max(sizes) / sum(sizes))


def round_s(ways: Sequence[float], slowest: float) -> float:
    """Seconds of a round. ``ways``: seconds of each micro-batch through all stages; ``slowest``: share of them in the slowest stage.

    >>> round_s([4.0, 4.0], 0.5), round_s([4.0], 0.5), round_s([4.0, 4.0], 0.625)
    (4.0, 4.0, 5.0)
    """
    return max(*ways, slowest * sum(ways))
