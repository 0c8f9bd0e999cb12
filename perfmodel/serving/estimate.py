"""A closed form of an engine's loop: it ranks layouts in a search, and says where a simulation begins. Answers are simulated.

In a cycle each user's request runs its prompt and G decode steps, and meets the prompt of each other user once (a closed loop; Little
1961: users = rate x cycle). Prompts that come in the same decode step share a step as far as its tokens reach.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.serving.engine import Batching
from perfmodel.serving.iteration import Iteration, StepTimes
from perfmodel.serving.load import Load


@dataclass(frozen=True, slots=True)
class LoopEstimate:
    """Means of a closed loop of ``users``, all of whom run: seconds to the first token, and seconds of all decode steps."""

    users: float
    ttft_s: float
    decode_s: float

    @property
    def requests_per_s(self) -> float:
        """Requests that end per second."""
        return self.users / (self.ttft_s + self.decode_s)


def loop_estimate(times: StepTimes, load: Load, batching: Batching, request_s: float, users: int) -> LoopEstimate:
    """The loop of ``users``, none of whom waits for a slot; all prompts and outputs have the longest length.

    ``request_s``: mean seconds until the scheduler knows a request.
    """
    steps, prompt = (load.osl - 1) / load.tokens_per_step, load.new_tokens
    decode = Iteration(decodes=users, context=load.isl + load.osl // 2, queries=load.queries)
    plain = times.seconds(decode) if steps else 0.0
    decode_part = decode if batching.mixed and steps and users > 1 else Iteration()
    room = (
        max(batching.token_budget - decode_part.decodes * load.queries, 1) if batching.chunked or prompt < batching.token_budget else prompt
    )
    coming = users * prompt / max(steps, 1.0)
    chunk = int(min(max(coming, prompt), room))
    reached = load.prefix + (prompt if prompt <= chunk else (prompt + chunk) // 2)
    step = Iteration(chunk, reached, max(chunk // prompt, 1), decode_part.decodes, decode_part.context, load.queries)
    took = times.seconds(step)
    other_prompts_s = (took - (plain if decode_part.decodes else 0.0)) * prompt / chunk
    own_prompt_s = took * max(prompt / chunk, 1.0)
    if not steps:
        return LoopEstimate(users, max(request_s + own_prompt_s, users * other_prompts_s), 0.0)
    behind = plain * (0.5 + batching.ahead) if users > 1 else 0.0
    return LoopEstimate(users, request_s + own_prompt_s + behind, steps * plain + (users - 1) * max(other_prompts_s, 0.0))
