"""One step of an engine's loop: a chunk of prompts and a token for each running sequence, in the same kernels."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Iteration(NamedTuple):
    """``chunk`` tokens of ``prompts`` (their sum), each prompt of ``chunk_context`` tokens so far; ``decodes`` sequences of ``context``.

    ``chunk_context`` and ``context`` are means over the sequences and count the new tokens. ``queries``: new tokens of a decoding sequence.
    All counts are of the whole replica: attention data parallelism divides them.
    """

    chunk: int = 0
    chunk_context: int = 0
    prompts: int = 1
    decodes: int = 0
    context: int = 0
    queries: int = 1


class StepTimes(Protocol):
    """Seconds of an engine's step for one model, device, engine and layout."""

    def seconds(self, step: Iteration) -> float:
        """Of kernels and of the engine around them; 0 for a step without tokens."""
        ...
