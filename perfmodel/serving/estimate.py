"""A closed form of an engine's loop: it ranks layouts in a search, and says where a simulation begins. Answers are simulated.

In a cycle each user's request runs its prompt and ``steps`` decode steps, and meets the prompt of each other user once (a closed loop;
Little 1961: users = rate x cycle). Prompts that come in the same decode step share a step as far as its tokens reach.
"""

from __future__ import annotations

from perfmodel.core.frozen import dataclass
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

    Time to first token: ``request_s`` + the request's own prompt + wait for the step under way (half of it, and all of the next if steps
    are scheduled ahead). Decode: steps x seconds of a step + (users - 1) x what the prompt of another user adds to a step. ``request_s``:
    mean seconds until the scheduler knows a request.
    """
    steps, prompt_tokens = (load.osl - 1) / load.tokens_per_step, load.new_tokens
    decode = Iteration(decodes=users, context=load.isl + load.osl // 2, queries=load.queries)
    decode_step_s = times.seconds(decode) if steps else 0.0
    # The step of a prompt: as many prompt tokens as come in the time of a decode step, and what decodes beside them
    beside = decode if batching.mixed and steps and users > 1 else Iteration()
    budget_left = max(batching.token_budget - beside.decodes * load.queries, 1)
    most_tokens = budget_left if batching.chunked or prompt_tokens < batching.token_budget else prompt_tokens
    arriving_tokens = users * prompt_tokens / max(steps, 1.0)
    chunk_tokens = int(min(max(arriving_tokens, prompt_tokens), most_tokens))
    mean_end = prompt_tokens if prompt_tokens <= chunk_tokens else (prompt_tokens + chunk_tokens) // 2  # of a chunk in its prompt
    prompts = max(chunk_tokens // prompt_tokens, 1)
    prompt_step = Iteration(chunk_tokens, load.prefix + mean_end, prompts, beside.decodes, beside.context, load.queries)
    prompt_step_s = times.seconds(prompt_step)
    added_s = prompt_step_s - (decode_step_s if beside.decodes else 0.0)
    added_by_prompt_s = added_s * prompt_tokens / chunk_tokens
    own_prompt_s = prompt_step_s * max(prompt_tokens / chunk_tokens, 1.0)
    if not steps:
        return LoopEstimate(users, max(request_s + own_prompt_s, users * added_by_prompt_s), 0.0)
    wait_s = decode_step_s * (0.5 + batching.ahead) if users > 1 else 0.0
    decode_s = steps * decode_step_s + (users - 1) * max(added_by_prompt_s, 0.0)
    return LoopEstimate(users, request_s + own_prompt_s + wait_s, decode_s)
