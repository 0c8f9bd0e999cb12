"""One step of an engine's loop, and its micro-batches where pipeline stages share it.

A token passes all stages, so that stages make no sequence faster: its time is that of its micro-batch through all of them. With a
micro-batch in each stage all are busy, and each sequence gets a token per round. A round is no shorter than the way of a micro-batch,
nor than what the slowest stage does for all of them. Source: vLLM, ``max_concurrent_batches`` (one batch per stage); SGLang,
``event_loop_pp``; Huang et al. 2019 (GPipe), section 2.3, of the bubble that is left without enough micro-batches.
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
    """A chunk of prompts and a token for each running sequence, in the same kernels: counts of the whole replica.

    ``chunk``: tokens of all ``prompts`` together, each of which has ``chunk_context`` tokens by then; ``decodes``: sequences of ``context``
    tokens that get ``queries`` new ones each. Contexts are means over the sequences and count the new tokens.
    """

    chunk: int = 0
    chunk_context: int = 0
    prompts: int = 1
    decodes: int = 0
    context: int = 0
    queries: int = 1


class StepTimes(Protocol):
    """Times of the steps of one model, device, engine and layout."""

    def seconds(self, step: Iteration) -> float:
        """Seconds of the kernels of ``step`` and of the engine around them; 0 for a step without tokens."""
        ...


def micro_batches(step: Iteration, in_flight: int, cut: bool = False) -> list[Iteration]:
    """``step`` as so many micro-batches, or fewer where it has fewer sequences: each with its part of the prompts and of the decoding ones.

    ``cut``: the engine runs prompts in chunks, so that a prompt's next chunk enters behind the one before it.

    >>> [(one.chunk, one.prompts, one.decodes) for one in micro_batches(Iteration(900, 300, 3, 5, 100), 2)]
    [(600, 2, 2), (300, 1, 3)]
    >>> [(one.chunk, one.prompts, one.decodes) for one in micro_batches(Iteration(900, 900, 1, 5, 100), 2, cut=True)]
    [(450, 1, 2), (450, 1, 3)]
    """
    prompts = step.prompts if step.chunk else 0
    if cut and 0 < prompts < in_flight <= step.chunk:
        prompts = in_flight
    count = max(min(in_flight, prompts + step.decodes), 1)
    found, given, decoded, tokens = [], 0, 0, 0
    for index in range(1, count + 1):
        own = -(-prompts * index // count) - given
        decodes = step.decodes * index // count - decoded
        chunk = step.chunk * (given + own) // prompts - tokens if prompts else 0
        found.append(Iteration(chunk, step.chunk_context, max(own, 1), decodes, step.context, step.queries))
        given, decoded, tokens = given + own, decoded + decodes, tokens + chunk
    return found


@cached_by_identity
def slowest_share(model: ModelSpec, pp: int) -> float:
    """Share of a pass that its slowest stage takes, by the weights that a token meets there; the head counts to the last stage.

    >>> from perfmodel.catalog import find_model
    >>> round(slowest_share(find_model("llama-3-70b"), 4), 3)
    0.261
    """
    each = {one: layer_matrices(model, one) for one, _ in model.layer_kinds}
    sizes = [sum(count * each[one] for one, count in replace(model, layers=own).layer_kinds) for own in stages(model, pp)]
    sizes[-1] += model.hidden * model.vocab
    return float(max(sizes) / sum(sizes))


def round_s(ways: Sequence[float], slowest: float) -> float:
    """Seconds from a token of each sequence to the next one of each. ``ways``: seconds of each micro-batch through all stages, of which
    the slowest stage takes the share ``slowest``.

    >>> round_s([4.0, 4.0], 0.5), round_s([4.0], 0.5), round_s([4.0, 4.0], 0.625)
    (4.0, 4.0, 5.0)
    """
    return max(*ways, slowest * sum(ways))
