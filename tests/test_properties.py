"""What must hold for every workload, tile and device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from each import each
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from perfmodel.catalog import find_device
from perfmodel.core import arith, units
from perfmodel.core.cache import dram_bytes
from perfmodel.core.cost import Kernel, Tile
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UsageError
from perfmodel.core.roofline import TERMS, estimate, total
from perfmodel.core.workload import Attention
from perfmodel.kernels.attention.algorithms import find, names
from perfmodel.kernels.attention.evaluate import compare, compulsory_elements, theta
from perfmodel.kernels.attention.patterns import NAMED, Density
from perfmodel.kernels.attention.question import AttentionQuestion

DEVICES = [find_device(name) for name in ("nvidia-a100-sxm-80gb", "nvidia-h200-sxm", "nvidia-h100-sxm-80gb", "nvidia-l40s", "amd-mi300x")]


@st.composite
def workloads(draw: st.DrawFn, largest: int = 1 << 20) -> Attention:
    causal = draw(st.booleans())
    kv_heads, group = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    return Attention(
        n=draw(st.integers(1, largest)),
        kv_len=draw(st.integers(1, largest)),
        d=draw(st.integers(1, 256)),
        dv=draw(st.integers(1, 256)),
        batch=draw(st.integers(1, 64)),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        dtype=DTYPES[draw(st.sampled_from(["fp32", "tf32", "fp16", "bf16"]))],
        causal=causal,
        window=draw(st.none() | st.integers(1, largest)) if causal else None,
        mask=draw(st.booleans()),
        masked_fill=causal and draw(st.booleans()),
        dropout=draw(st.sampled_from([0.0, 0.1])),
        unfused_scale=draw(st.booleans()),
        packed=draw(st.booleans()),
        printed_backward=draw(st.booleans()),
    )


tiles = st.tuples(st.integers(1, 300), st.integers(1, 300), st.sampled_from([128, 256])).map(lambda sizes: Tile(*sizes))
algorithms = st.sampled_from([find(name) for name in names()])
devices = st.sampled_from(DEVICES)
directions = st.sampled_from(["forward", "backward"])


def kernels_of(algorithm: Any, w: Attention, tile: Tile, direction: str) -> list[Kernel]:
    found: list[Kernel] = (algorithm.forward if direction == "forward" else algorithm.backward)(w, tile)
    return found


@given(w=workloads(), tile=tiles, algorithm=algorithms, direction=directions, device=devices)
def test_traffic_and_times_are_ordered(w: Attention, tile: Tile, algorithm: Any, direction: str, device: Any) -> None:
    assume(not algorithm.obstacle(w, direction))
    kernels = kernels_of(algorithm, w, tile, direction)
    cost = total(estimate(kernel, device) for kernel in kernels)
    assert cost.flops <= cost.executed_flops
    assert compulsory_elements(w, direction) * w.dtype.size <= cost.sram.total
    assert cost.dram.read <= cost.sram.read
    assert cost.dram.write <= cost.sram.write
    assert 0 < cost.lower_s <= cost.roofline_s * (1 + 1e-12)
    assert cost.roofline_s <= cost.no_overlap_s * (1 + 1e-12)
    assert cost.bound in TERMS
    for kernel in kernels:
        for access in kernel.accesses:
            assert access.compulsory <= access.footprint or access.kind == "zero_fill"
            assert access.footprint <= access.elements or access.elements == 0


@given(w=workloads(), tile=tiles, algorithm=algorithms, direction=directions, grown=st.sampled_from(["n", "kv_len", "batch"]))
def test_accesses_grow(w: Attention, tile: Tile, algorithm: Any, direction: str, grown: str) -> None:
    """More queries, keys or sequences never move less; doubling the heads moves exactly twice as much."""
    assume(not algorithm.obstacle(w, direction))

    def moved(w: Attention) -> Any:
        return sum(kernel.elements("read", "write") for kernel in kernels_of(algorithm, w, tile, direction))

    both = {"n": w.n + 1, "kv_len": w.kv_len + 1}  # the same diagonal, one more row and column
    larger = both if w.causal and grown != "batch" else {grown: getattr(w, grown) + 1}
    assert moved(replace(w, **larger)) >= moved(w)
    assert moved(replace(w, heads=2 * w.heads, kv_heads=2 * w.kv_heads)) == 2 * moved(w)


PATTERNS = st.none() | st.fixed_dictionaries({"pattern": st.sampled_from(sorted(NAMED))}) | st.just({"sparsity": 0.3})
EDGES = st.none() | st.sampled_from([8, 48, 64, 100])


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.fixed_dictionaries(
        {"n": st.integers(1, 700), "kv_len": st.integers(1, 700), "d": st.sampled_from([24, 64, 128]), "dv": st.sampled_from([16, 64])}
    ),
    groups=st.tuples(st.integers(1, 3), st.integers(1, 5)),
    causal=st.booleans(),
    blocks=PATTERNS,
    edges=st.tuples(EDGES, EDGES),
    moves=st.fixed_dictionaries(
        {
            "packed": st.booleans(),
            "sram": st.none() | st.sampled_from(["+64KiB", "131072", "150KB"]),
            "mask": st.booleans(),
            "unfused_scale": st.booleans(),
            "printed_backward": st.booleans(),
            "dropout": st.sampled_from([0.0, 0.1]),
            "splits": st.none() | st.integers(1, 9),
            "dtype": st.sampled_from(["fp16", "bf16", "fp32"]),
            "hardware": st.sampled_from(["nvidia-a100-sxm-80gb", "nvidia-l40s"]),
        }
    ),
    direction=st.sampled_from(["forward", "backward"]),
)
@example({"n": 300, "kv_len": 300, "d": 64, "dv": 64}, (2, 4), False, {"pattern": "strided"}, (None, None), {"packed": True}, "forward")
@example({"n": 300, "kv_len": 300, "d": 64, "dv": 64}, (1, 3), False, {"sparsity": 0.3}, (7, 9), {"packed": True}, "backward")
@example({"n": 300, "kv_len": 300, "d": 64, "dv": 64}, (1, 1), False, {"pattern": "strided"}, (None, None), {"sram": "40KiB"}, "forward")
def test_what_only_moves_bytes_leaves_the_visible_flops(
    sizes: dict[str, int],
    groups: tuple[int, int],
    causal: bool,
    blocks: dict[str, Any] | None,
    edges: tuple[int | None, int | None],
    moves: dict[str, Any],
    direction: str,
) -> None:
    """Layout, tiles, SRAM, options and device change what moves, never what is computed; a block pattern's tiles are its blocks."""
    kv_heads, group = groups
    base = AttentionQuestion(**sizes, kv_heads=kv_heads, heads=kv_heads * group, causal=causal, direction=direction, **(blocks or {}))
    tiles = {"block_q": edges[0], "block_kv": edges[1]}
    if blocks is not None and "pattern" in blocks:
        base = base.updated(tiles)

    def flops(algorithm: str, options: dict[str, Any]) -> int | None:
        """None where it is refused, as a tile may not fit."""
        mine = {name: value for name, value in options.items() if name != "splits" or algorithm == "split-kv"}
        request = replace(base, algorithm=algorithm, **({} if algorithm == "block-sparse" else {"pattern": None, "sparsity": None}))
        try:
            [result] = request.updated(mine).compare(find_device(mine.get("hardware") or "nvidia-a100-sxm-80gb")).results
        except UsageError:
            return None
        return int(result.total.flops)

    for algorithm in names():
        plain, moved = flops(algorithm, {"packed": False}), flops(algorithm, tiles | moves)
        assert moved in (plain, None) or plain is None


@settings(max_examples=40, deadline=None)
@given(
    points=st.lists(workloads(largest=5000), min_size=2, max_size=6),
    algorithm=algorithms,
    direction=directions,
    device=devices,
    tile=st.tuples(*2 * [st.sampled_from([1, 16, 48, 64, 128])]).map(lambda sizes: Tile(*sizes)),
    causal=st.booleans(),
    packed=st.booleans(),
)
def test_vectorised_equals_scalar(
    points: list[Attention], algorithm: Any, direction: str, device: Any, tile: Tile, causal: bool, packed: bool
) -> None:
    """One formula: float64 arrays give what exact integers give."""
    assume(not algorithm.obstacle(points[0], direction))
    plain = {"dropout": 0.0, "mask": points[0].mask, "unfused_scale": False, "printed_backward": False, "masked_fill": False}
    windows = [w.window or 7 for w in points] if causal and packed else [None] * len(points)
    points = [
        replace(w, dtype=points[0].dtype, causal=causal, packed=packed, window=window, **plain)
        for w, window in zip(points, windows, strict=True)
    ]
    sizes = ["n", "kv_len", "d", "dv", "batch", "heads", "kv_heads", *(["window"] if windows[0] else [])]
    arrays = replace(points[0], **{name: np.array([getattr(w, name) for w in points], float) for name in sizes})

    def numbers(w: Attention) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for kernel in kernels_of(algorithm, w, tile, direction):
            found[f"{kernel.name} flops"], found[f"{kernel.name} executed"] = kernel.flops, kernel.executed_flops
            found |= {f"{kernel.name} {unit}": work for unit, work in kernel.work.items()}
            for kind in ("read", "write", "zero_fill", "group_sum"):
                found[f"{kernel.name} {kind}"] = kernel.bytes(kind)
        return found

    vectorised = numbers(arrays)
    for index, w in enumerate(points):
        for name, value in numbers(w).items():
            assert np.broadcast_to(vectorised[name], len(points))[index] == pytest.approx(value, rel=1e-12), name
    # tile sizes of a launch are scalars, so the L2 model vectorises over n, heads and batch
    shared = [replace(w, d=points[0].d, dv=points[0].dv) for w in points]
    arrays = replace(arrays, d=points[0].d, dv=points[0].dv)
    for position, kernel in enumerate(kernels_of(algorithm, arrays, tile, direction)):
        for kind in ("read", "write"):
            found = np.broadcast_to(dram_bytes(kernel, device, kind), len(points))
            for index, w in enumerate(shared):
                alone = dram_bytes(kernels_of(algorithm, w, tile, direction)[position], device, kind)
                assert found[index] == pytest.approx(alone, rel=1e-9, abs=2)


@each(
    ("name", "by", "factor"),
    [
        *((name, "n", 4) for name in names()),
        ("flash1", "sram", 0.5),
        ("flash1", "d", 4),
        ("block-sparse", "sram", 0.5),
        ("block-sparse", "s", 2),
    ],
)
def test_declared_classes_are_growth_ratios(name: str, by: str, factor: float) -> None:
    """Accesses grow as ``io_class`` says: N^2; 1/M and d^2 for FlashAttention with its own tile."""
    device, algorithm = DEVICES[0], find(name)
    quarter = Density(1, 4) if name == "block-sparse" else None
    w, sram = Attention(n=1 << 22, kv_len=1 << 22, d=64, dv=64, sparsity=quarter), 1 << 20

    def moved(w: Attention, sram: int) -> int:
        [result] = compare([algorithm], w, device, ["forward"], sram)
        return int(result.total.reads + result.total.writes)

    before = moved(w, sram)
    if by == "sram":
        after = moved(w, 2 * sram)
    elif by == "s":
        after = moved(replace(w, sparsity=Density(1, 2)), sram)
    else:
        sizes = {"n": {"n": 2 * w.n, "kv_len": 2 * w.kv_len}, "d": {"d": 2 * w.d, "dv": 2 * w.dv}}[by]
        after = moved(replace(w, **sizes), sram)
    assert after / before == pytest.approx(factor, rel=0.03)


def test_theta_has_both_regimes_and_no_constant() -> None:
    w = Attention(n=4096, kv_len=4096, d=64, dv=64)
    large, small = theta(w, 64 * 64), theta(w, 64 * 64 - 1)
    assert large is not None
    assert small is not None
    assert (large.io_class, small.io_class) == ("N^2 d^2 / M", "N^2 d / sqrt(M)")
    assert large.value_without_constant == 4096**2
    assert small.value_without_constant == pytest.approx(large.value_without_constant, rel=1e-3)
    assert theta(w, 63) is None
    assert theta(w, 4096 * 64 + 1) is None


@given(
    n=st.integers(0, 200),
    a=st.integers(1, 300),
    b=st.integers(-3000, 3000),
    m=st.integers(1, 300),
    low=st.integers(0, 9),
    span=st.integers(0, 9),
)
def test_clipped_floor_sum(n: int, a: int, b: int, m: int, low: int, span: int) -> None:
    brute = sum(min(low + span, max(low, (a * i + b) // m)) for i in range(n))
    assert arith.clipped_floor_sum(n, a, b, m, low, low + span) == brute
    arrays = (np.array([float(x), float(x)]) for x in (n, a, b, m, low, low + span))
    assert (arith.clipped_floor_sum(*arrays) == brute).all()


@given(st.integers(1, 10**6), st.sampled_from(["", "k", "M", "G", "T", "P"]), st.sampled_from(["FLOP/s", "B/s", "B", "Hz", "W"]))
def test_prefixes_round_trip(value: int, prefix: str, base: str) -> None:
    factor = 1000 ** ["", "k", "M", "G", "T", "P"].index(prefix)
    assert units.parse(f"{value} {prefix}{base}", base) == value * factor
    assert float(units.format_si(value * factor, base, digits=12).split()[0].replace(",", "")) > 0
