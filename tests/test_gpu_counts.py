"""A count of GPUs costs no work: an answer, or one message, comes however many there are."""

from __future__ import annotations

import pytest
from fuzzing import answer, calls

from tools.commands import command

HUGE = 10**9
MOST_CALLS = 20e6
"""Of one answer; the largest takes less than half."""
ASKED = {"model": ("", "--phase train"), "memory": ("",), "batch": ("",), "kv-cache": ("",), "serve": ("", "--search")}
COUNTS = ("tp", "pp", "dp", "ep", "cp", "gpus", "search", "workers", "prefill_workers", "prefill_tp", "prefill_dp", "prefill_ep")
QUESTIONS = [
    f"{name} {model} {more} {max(param.opts, key=len)}"
    for name, kinds in ASKED.items()
    for more in kinds
    for param in command(name).params
    if param.name in COUNTS and not param.is_flag
    for model in ("gpt2", "mixtral-8x7b")
] + [f"sweep {workload} --model mixtral-8x7b --hardware h100 --{count}" for workload, count in (("serve", "ep"), ("model", "dp"))]


@pytest.mark.parametrize("question", QUESTIONS)
def test_work_does_not_grow_with_a_count_of_gpus(question: str) -> None:
    with calls(MOST_CALLS):
        code, _, problem = answer([*question.split(), str(HUGE)])
    assert code == 0 or len(problem.splitlines()) == 2
