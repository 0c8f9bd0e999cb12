"""An all-reduce that does the residual add and the norm after it: one row for two, and the bytes that it saves."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.catalog import find_model
from perfmodel.transformer.fused_all_reduce import FUSED, LARGEST, SUMMED
from perfmodel.transformer.kernel_choice import KernelChoice
from perfmodel.transformer.ops import step_ops
from perfmodel.transformer.step import Split, decode

LLAMA = find_model("llama-3-70b")
STEP = decode(16, 2048, fused=True, split=Split(tp=8))
JOINED = replace(STEP, kernels=KernelChoice(fused_all_reduce=True))


def counts(step):
    found = {}
    for op in step_ops(LLAMA, step):
        found[op.name] = found.get(op.name, 0) + op.count
    return found


def moved(ops, *names):
    return sum(op.count * sum(a.elements * a.element_size for a in op.kernel.accesses) for op in ops if op.name in names)


def test_two_rows_of_each_half_layer_are_one():
    apart, joined = counts(STEP), counts(JOINED)
    assert (apart["all-reduce"], apart[SUMMED]) == (161, 160)
    assert (joined["all-reduce"], joined[FUSED]) == (1, 160)  # the embedding's has no residual to add
    assert SUMMED not in joined


def test_a_norm_over_the_heads_of_all_gpus_adds_up_its_squares():
    """MiniMax-M2 norms Q and K over all heads: one small all-reduce in each layer more, which is no residual's; M3 norms each head."""
    for step in (STEP, JOINED):
        [sums] = [op for op in step_ops(find_model("minimax-m2.5"), step) if op.name == "all-reduce of norms"]
        assert (sums.count, sums.exchange.bytes) == (62, 16 * 2 * 4)
    for name, split in (("minimax-m2.5", Split()), ("minimax-m3", STEP.split), ("llama-3-70b", STEP.split)):
        assert all(op.name != "all-reduce of norms" for op in step_ops(find_model(name), replace(STEP, split=split)))


def test_it_saves_writing_the_sum_and_reading_it_back():
    apart, joined = step_ops(LLAMA, STEP), step_ops(LLAMA, JOINED)
    saved = moved(apart, "all-reduce", SUMMED) - moved(joined, "all-reduce", FUSED)
    assert saved == 160 * 16 * LLAMA.hidden * 2  # what a row of the all-reduce counts is its buffer, read once


def test_large_buffers_are_summed_apart():
    tokens = LARGEST[8] // (2 * LLAMA.hidden)
    assert FUSED in counts(replace(JOINED, batch=tokens))
    assert FUSED not in counts(replace(JOINED, batch=tokens + 1))
    assert FUSED not in counts(replace(JOINED, split=Split(tp=1)))
    assert FUSED not in counts(replace(JOINED, fused=False))


def test_the_kernel_is_that_of_every_engine():
    row = next(op for op in step_ops(LLAMA, JOINED) if op.name == FUSED)
    assert row.timed.implementations == ("trtllm-allreduce", "nccl")
    assert row.exchange.bytes == 16 * LLAMA.hidden * 2
