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

    Time to first token: ``request_s`` + own prompt + wait for the step under way (half of it, and all of the next if scheduled ahead).
    Decode: steps x seconds of a step + (users - 1) x what the prompt of each other user adds. ``request_s``: mean seconds until the
    scheduler knows a request.
    """
    steps, prompt = (load.osl - 1) / load.tokens_per_step, load.new_tokens
    decode = Iteration(decodes=users, context=load.isl + load.osl // 2, queries=load.queries)
    decode_step_s = times.seconds(decode) if steps else 0.0
    beside = decode if batching.mixed and steps and users > 1 else Iteration()  # what decodes in the step of a prompt
    left_by_decodes = max(batching.token_budget - beside.decodes * load.queries, 1)
    most_tokens = left_by_decodes if batching.chunked or prompt < batching.token_budget else prompt
    arriving_tokens = users * prompt / max(steps, 1.0)  # prompt tokens that come in the time of a decode step
    chunk_tokens = int(min(max(arriving_tokens, prompt), most_tokens))
    chunk_context = load.prefix + (prompt if prompt <= chunk_tokens else (prompt + chunk_tokens) // 2)
    step = Iteration(chunk_tokens, chunk_context, max(chunk_tokens // prompt, 1), beside.decodes, beside.context, load.queries)
    prompt_step_s = times.seconds(step)
    other_prompts_s = (prompt_step_s - (decode_step_s if beside.decodes else 0.0)) * prompt / chunk_tokens
    own_prompt_s = prompt_step_s * max(prompt / chunk_tokens, 1.0)
    if not steps:
        return LoopEstimate(users, max(request_s + own_prompt_s, users * other_prompts_s), 0.0)
    wait_s = decode_step_s * (0.5 + batching.ahead) if users > 1 else 0.0
    return LoopEstimate(users, request_s + own_prompt_s + wait_s, steps * decode_step_s + (users - 1) * max(other_prompts_s, 0.0))
