"""A count of GPUs costs no work: an answer, or one message, comes however many there are."""

from __future__ import annotations

import pytest

from tests.fuzzing import answer, calls

HUGE = 10**9
MOST_CALLS = 20e6
"""Of one answer; the largest takes less than half."""
QUESTIONS = (
    "model gpt2 --dp",
    "model mixtral-8x7b --ep",
    "model mixtral-8x7b --tp",
    "model mixtral-8x7b --pp",
    "model gpt2 --phase train --dp",
    "model mixtral-8x7b --phase train --ep",
    "model mixtral-8x7b --phase train --cp",
    "memory mixtral-8x7b --dp",
    "memory mixtral-8x7b --ep",
    "memory mixtral-8x7b --cp",
    "batch llama-3.1-8b --dp",
    "batch mixtral-8x7b --ep",
    "serve mixtral-8x7b --ep",
    "serve llama-3.1-8b --dp",
    "serve llama-3.1-8b --gpus",
    "serve llama-3.1-8b --search --gpus",
    "serve llama-3.1-8b --prefill-workers",
    "sweep serve --model mixtral-8x7b --hardware h100 --ep",
    "sweep model --model gpt2 --hardware h100 --dp",
)


@pytest.mark.parametrize("question", QUESTIONS)
def test_work_does_not_grow_with_a_count_of_gpus(question: str) -> None:
    with calls(MOST_CALLS):
        code, _, problem = answer([*question.split(), str(HUGE)])
    assert code == 0 or len(problem.splitlines()) == 2
