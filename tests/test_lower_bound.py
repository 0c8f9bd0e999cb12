"""The lower bound of a workload: no schedule of its parts beats it, whatever the parts are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perfmodel.catalog import find_device, find_model
from perfmodel.core.cost import READ, WRITE, Kernel, Tile
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.hardware import Device
from perfmodel.core.lower_bound import Needs
from perfmodel.core.roofline import Estimate, estimate, total
from perfmodel.core.workload import Attention
from perfmodel.kernels import fuse, mlp, softmax
from perfmodel.kernels.attention.algorithms import find, names
from perfmodel.kernels.collectives import Collective
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import Case
from perfmodel.timing.case_bounds import lower_bound_s, roof_s
from perfmodel.transformer.answer import answer
from perfmodel.transformer.step import DECODE, GENERATE, PREFILL, Request
from perfmodel.transformer.training.question import TrainingConfig
from perfmodel.transformer.training.step.estimate import estimate as training_estimate

ABOVE = 1 + 1e-9
A100, H200 = find_device("nvidia-a100-sxm-80gb"), find_device("nvidia-h200-sxm")
DEVICES = [
    "nvidia-a100-sxm-80gb",
    "nvidia-h100-sxm-80gb",
    "nvidia-h200-sxm",
    "nvidia-l40s",
    "nvidia-rtx-4090",
    "amd-mi300x",
    "nvidia-b300-sxm",
]
devices = st.sampled_from(DEVICES)
UNTIMED, FEW = settings(deadline=None), settings(max_examples=4, deadline=None)


def cost(kernels: Sequence[Kernel], device: Device) -> Estimate:
    return total(estimate(kernel, device) for kernel in kernels)


@cache
def device_of(name: str, share: float = 1) -> Device:
    """A device with that share of its caches."""
    device = find_device(name)

    def cut(level: Any) -> Any:
        size = level.capacity
        return replace(level, capacity=replace(size, number=size.number * share)) if size and level.level in ("l2", "llc") else level

    return replace(device, memory=[cut(level) for level in device.memory])


def hold(whole: Sequence[Kernel], parts: Sequence[Sequence[Kernel]], name: str) -> None:
    """The bound of the whole is at most the sum of its parts' bounds, and no roof of parts that run one after another is under it.

    Warm, parts that are used again and again share the caches.
    """
    device = device_of(name)
    found, pieces = cost(whole, device), [cost(part, device) for part in parts]
    assert found.lower_s <= sum(piece.lower_s for piece in pieces) * ABOVE
    assert found.lower_s <= sum(piece.roofline_s for piece in pieces) * ABOVE
    assert found.lower_warm_s <= found.needs.flushed_s * ABOVE <= found.lower_s * ABOVE**2 <= found.roofline_s * ABOVE**3
    shared = device_of(name, 1 / len(parts))
    assert found.lower_warm_s <= sum(cost(part, shared).lower_warm_s for part in parts) * ABOVE


@st.composite
def cuts(draw: st.DrawFn, length: int) -> list[tuple[int, int]]:
    """A range in parts, as pairs of first and end."""
    inner = draw(st.sets(st.integers(1, length - 1), min_size=1, max_size=4)) if length > 1 else set()
    return list(pairwise([0, *sorted(inner), length]))


@st.composite
def attentions(draw: st.DrawFn) -> tuple[Attention, list[Attention]]:
    """A workload and its parts by sequences, KV heads with their queries, or query rows."""
    causal = draw(st.booleans())
    n, group, kv_heads = draw(st.integers(1, 1 << 14)), draw(st.integers(1, 8)), draw(st.integers(1, 8))
    w = Attention(
        n=n,
        kv_len=n + draw(st.integers(0, 1 << 14)),
        d=draw(st.integers(1, 256)),
        dv=draw(st.integers(1, 256)),
        batch=draw(st.integers(1, 16)),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        dtype=DTYPES[draw(st.sampled_from(["fp32", "fp16", "bf16"]))],
        causal=causal,
        window=draw(st.none() | st.integers(1, 1 << 14)) if causal else None,
        mask=draw(st.booleans()),
        dropout=draw(st.sampled_from([0.0, 0.1])),
        unfused_scale=draw(st.booleans()),
        packed=draw(st.booleans()),
    )
    along = draw(st.sampled_from(["batch", "heads", "rows"]))
    if along == "batch":
        return w, [replace(w, batch=end - first) for first, end in draw(cuts(w.batch))]
    if along == "heads":
        return w, [replace(w, heads=(end - first) * group, kv_heads=end - first) for first, end in draw(cuts(kv_heads))]
    pieces = draw(cuts(w.n))
    hidden = [w.n - end if causal else 0 for _, end in pieces]  # keys that no row of the part sees
    return w, [replace(w, n=end - first, kv_len=w.kv_len - gone) for (first, end), gone in zip(pieces, hidden, strict=True)]


@UNTIMED
@given(case=attentions(), name=st.sampled_from(names()), passes=st.sampled_from(["forward", "backward", "both"]), device=devices)
def test_attention_in_parts(case: tuple[Attention, list[Attention]], name: str, passes: str, device: str) -> None:
    (w, parts), algorithm = case, find(name)
    run = ["forward", "backward"] if passes == "both" else [passes]
    assume(not any(algorithm.obstacle(one, direction) for one in (w, *parts) for direction in run))

    def kernels(one: Attention) -> list[Kernel]:
        return [kernel for direction in run for kernel in getattr(algorithm, direction)(one, Tile(64, 64))]

    hold(kernels(w), [kernels(part) for part in parts], device)


@UNTIMED
@given(
    sizes=st.tuples(*[st.integers(1, 1 << 13)] * 3, st.integers(1, 16)),
    along=st.sampled_from(["m", "n", "k", "batch"]),
    split_k=st.sampled_from([1, 4]),
    device=devices,
    data=st.data(),
)
def test_matmul_in_parts(sizes: tuple[int, ...], along: str, split_k: int, device: str, data: Any) -> None:
    m, n, k, batch = sizes
    w = Matmul(m, n, k, batch, split_k=split_k)
    parts = [replace(w, **{along: end - first}) for first, end in data.draw(cuts(getattr(w, along)))]
    hold(w.kernels(Tile(128, 128)), [part.kernels(Tile(128, 128)) for part in parts], device)


@UNTIMED
@given(sizes=st.tuples(*[st.integers(1, 1 << 13)] * 4), device=devices, data=st.data(), dx=st.booleans())
def test_mlp_softmax_and_chains_in_parts(sizes: tuple[int, ...], device: str, data: Any, dx: bool) -> None:
    w = mlp.Mlp(*sizes, input_gradient=dx)
    run = data.draw(st.sampled_from([[mlp.forward], [mlp.backward], [mlp.forward, mlp.backward]]))
    parts = [replace(w, batch=end - first) for first, end in data.draw(cuts(w.batch))]
    hold([kernel for one in run for kernel in one(w)], [[kernel for one in run for kernel in one(part)] for part in parts], device)
    rows = softmax.Softmax(sizes[0], sizes[1])
    pieces = [replace(rows, rows=end - first) for first, end in data.draw(cuts(rows.rows))]
    variant = data.draw(st.sampled_from(softmax.VARIANTS))
    hold([softmax.kernel(rows, variant)], [[softmax.kernel(piece, variant)] for piece in pieces], device)
    chain = fuse.FusedChain(sizes[2] * sizes[3], (1, 2), 5)
    split = [fuse.evaluate(replace(chain, elements=end - first), device_of(device)) for first, end in data.draw(cuts(chain.elements))]
    for index, whole in enumerate(fuse.evaluate(chain, device_of(device))):
        assert whole.lower_s <= sum(part[index].lower_s for part in split) * ABOVE
        assert whole.lower_s <= sum(part[2].memory_s for part in split) * ABOVE, "fused, part by part"


@pytest.mark.parametrize("phase", [PREFILL, DECODE, GENERATE])
@FEW
@given(batch=st.integers(2, 64), length=st.integers(1, 3000), first=st.integers(1, 63), device=st.sampled_from(DEVICES[:5]), data=st.data())
def test_models_in_parts(phase: str, batch: int, length: int, first: int, device: str, data: Any) -> None:
    assume(first < batch)
    model = find_model(data.draw(st.sampled_from(["gpt2", "llama-3-8b", "mixtral-8x7b"])))

    def asked(sequences: int) -> Any:
        kv_len = length + (40 if phase == GENERATE else 0)
        most = min(kv_len, model.max_positions or kv_len)
        return answer(Request(phase, sequences, length, most, model=model, device=device_of(device))).cost

    length = min(length, (model.max_positions or length) - 40)
    whole, parts = asked(batch), [asked(first), asked(batch - first)]
    assert whole.lower_s <= sum(part.lower_s for part in parts) * ABOVE
    assert whole.lower_s <= sum(part.roofline_s for part in parts) * ABOVE
    assert whole.lower_warm_s <= whole.lower_s * ABOVE


def test_training_steps_in_parts() -> None:
    """Micro-batches of their own; each part updates the weights, which one step does once."""
    for model in ("gpt2", "llama-3-8b"):
        for device in (A100, H200):
            whole, *parts = (training_estimate(TrainingConfig(find_model(model), batch, 1024), device).cost for batch in (8, 5, 3))
            assert whole.lower_warm_s <= whole.lower_s <= whole.roofline_s
            assert whole.lower_s <= sum(part.lower_s for part in parts) * ABOVE
            assert whole.lower_s <= sum(part.roofline_s for part in parts) * ABOVE


@UNTIMED
@given(op=st.sampled_from(["all_reduce", "all_gather", "p2p"]), size=st.integers(2, 1 << 30), world=st.integers(2, 8), data=st.data())
def test_collectives_in_parts(op: str, size: int, world: int, data: Any) -> None:
    bf16 = DTYPES["bf16"]
    whole = Collective(op, world, size, bf16).estimate(H200)
    parts = [Collective(op, world, end - first, bf16).estimate(H200) for first, end in data.draw(cuts(size))]
    assert whole.lower_s <= min(sum(p.lower_s for p in parts), sum(p.roofline_s for p in parts)) * ABOVE


# Instances


SIZES = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9))


@given(kernels=st.lists(st.tuples(SIZES, SIZES), max_size=6))
def test_a_workload_reads_what_no_earlier_kernel_writes_and_writes_each_tensor_once(kernels: list[tuple[Any, Any]]) -> None:
    """Of a tensor of several sizes the largest counts."""
    found, expected = Needs(), dict[tuple[str, str], int]()
    for reads, writes in kernels:
        own = {(READ, name): size for name, size in reads.items()} | {(WRITE, name): size for name, size in writes.items()}
        needed = {(kind, name) for kind, name in own if kind == WRITE or name not in found.written}
        expected |= {key: max(own[key], expected.get(key, 0)) for key in needed}
        found += Needs(tensors=own, written=frozenset(writes))
    assert found.tensors == expected
    assert found.written == {name for _, writes in kernels for name in writes}


def test_scores_that_stay_in_the_cache_are_no_bound() -> None:
    """Batch 4 in two launches of batch 2 keeps the scores in the L2 of an A100: the bound of batch 4 is no more than that."""
    w = Attention(n=1024, kv_len=1024, d=64, dv=64, heads=16, kv_heads=16, batch=4)
    forward = find("standard").forward
    whole, half = (cost(forward(replace(w, batch=batch), Tile(64, 64)), A100) for batch in (4, 2))
    assert whole.lower_s <= 2 * half.roofline_s
    assert whole.lower_s == pytest.approx(4 * 64 * 1024**2 * 64 / 312e12, rel=2e-3), "the matmuls of 64 heads"


def test_what_a_later_pass_reads_of_an_earlier_one_is_no_input() -> None:
    first = Needs(1.0, 0.0, {("read", "Q"): 10, ("write", "O"): 20}, frozenset({"O", "P"}), 1.0, 5)
    second = Needs(2.0, 0.0, {("read", "Q"): 10, ("read", "P"): 99, ("read", "O"): 20, ("read", "dO"): 7}, frozenset(), 1.0, 5)
    both = first + second
    assert both.tensors == {("read", "Q"): 10, ("write", "O"): 20, ("read", "dO"): 7}
    assert (both.cold_s, both.warm_s, both.flushed_s) == (37, 32, 17 + 15)


def test_one_part_computes_while_another_loads() -> None:
    assert (Needs(3.0, bandwidth=1.0, tensors={("read", "x"): 1}) + Needs(1.0, 0.5, {("read", "y"): 6}, bandwidth=1.0)).cold_s == 7


@UNTIMED
@given(case=attentions(), name=st.sampled_from(["standard", "flash2"]), direction=st.sampled_from(["forward", "backward"]), device=devices)
def test_measurements_are_held_against_a_bound_below_every_roof(
    case: tuple[Attention, list[Attention]], name: str, direction: str, device: str
) -> None:
    """Warm, the roof of kernels counts what the caches hold once for all of them, as the bound does."""
    on, implementation = device_of(device), {"standard": "torch-eager", "flash2": "torch-sdpa-flash"}[name]
    for cold in (True, False):
        asked = Case(case[0], implementation, direction, "clean" if cold else "warm")
        assert lower_bound_s(asked, on) <= roof_s(asked, on) * ABOVE
        parts = [replace(asked, workload=part) for part in case[1]]
        assert not cold or lower_bound_s(asked, on) <= sum(roof_s(part, on) for part in parts) * ABOVE
