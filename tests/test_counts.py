"""Closed forms against the brute-force walk and against the golden counts."""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from fractions import Fraction
from math import ceil
from pathlib import Path

import numpy as np
import pytest
import walker
import walker_more
from each import each

from perfmodel.core.cost import Kernel, Tile
from perfmodel.core.workload import Attention, BlockPattern
from perfmodel.kernels.attention.algorithms import find, names
from perfmodel.kernels.attention.walk import visible_scores

BATCHES, PER_BATCH = 20, 100


def workload(s: walker.Shape, sparsity: BlockPattern | None = None) -> Attention:
    own = ("br", "bc", "splits", "pattern", "pairs")
    return Attention(**{name: value for name, value in asdict(s).items() if name not in own}, sparsity=sparsity).check()


LARGE, LARGE_SHAPES = "large", 4
BATCH_IDS = [0, *(pytest.param(batch, marks=pytest.mark.slow) for batch in (*range(1, BATCHES), LARGE))]


def random_shapes(name: str, batch: int | str, count: int = PER_BATCH) -> Iterator[tuple[random.Random, walker.Shape]]:
    """``count`` small shapes, or a few of up to 2,048 rows, each with the generator that drew it."""
    rng = random.Random(f"{name} {batch}")
    for _ in range(LARGE_SHAPES if batch == LARGE else count):
        yield rng, random_shape(rng, 2048 if batch == LARGE else 24)


def random_shape(rng: random.Random, largest: int = 24) -> walker.Shape:
    small = largest <= 24
    kv_heads, group = rng.choice([(1, 1), (1, 1), (2, 1), (1, 2), (1, 3), (2, 2)] if small else [(1, 1), (1, 2)])
    n = rng.randint(1, largest)
    d = rng.randint(1, 5)
    causal = rng.random() < 0.7
    return walker.Shape(
        n=n,
        kv_len=n if rng.random() < 0.3 else rng.randint(1, largest),
        d=d,
        dv=d if rng.random() < 0.4 else rng.randint(1, 5),
        br=rng.randint(1, 12) if small else rng.randint(60, 300),
        bc=rng.randint(1, 12) if small else rng.randint(60, 300),
        causal=causal,
        window=rng.randint(1, largest + 2) if causal and rng.random() < 0.4 else None,
        batch=rng.choice([1, 1, 2]) if small else 1,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        packed=rng.random() < 0.4,
        mask=rng.random() < 0.3,
        masked_fill=causal and rng.random() < 0.2,
        dropout=rng.choice([0.0, 0.0, 0.25]),
        unfused_scale=rng.random() < 0.2,
        printed_backward=rng.random() < 0.4,
    )


def closed_form(kernels: list[Kernel]) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for kernel in kernels:
        for access in kernel.accesses:
            counts[access.tensor, access.kind] += access.elements
    return +counts  # without the zeros


def footprints(kernels: list[Kernel]) -> dict[tuple[str, str], int]:
    sizes: dict[tuple[str, str], int] = {}
    for kernel in kernels:
        for access in kernel.accesses:
            key = (access.tensor, access.kind)
            sizes[key] = max(sizes.get(key, 0), access.footprint)
    return sizes


def check_footprints(kernels: list[Kernel], memory: walker.Memory, s: walker.Shape) -> None:
    """Distinct elements are those that the walk touched; of a mask that packed tiles cut inside a query, at most a key tile per cut off."""
    for (tensor, kind), size in footprints(kernels).items():
        if kind in ("read", "write") and size:
            touched, cuts = memory.touched(tensor, kind), s.packed and s.causal and s.br % s.group and ceil(s.group * s.n / s.br)
            least = touched - cuts * s.bc if tensor == "mask" else touched
            assert least <= size <= touched, (tensor, kind, s)


def check(memory: walker.Memory, kernels: list[Kernel], s: walker.Shape, contractions: float) -> None:
    assert closed_form(kernels) == +memory.counts, s
    check_footprints(kernels, memory, s)
    assert sum(kernel.executed_flops for kernel in kernels) == 2 * memory.computed_scores * contractions, s
    for access in (access for kernel in kernels for access in kernel.accesses if access.kind in ("read", "write")):
        assert access.compulsory <= access.footprint <= access.elements or access.elements == 0, (access, s)


FORWARD = walker.FORWARD | {"memory-efficient": walker_more.memory_efficient_forward}
BACKWARD = walker.BACKWARD | {"memory-efficient": walker_more.memory_efficient_backward}


@pytest.mark.parametrize("batch", BATCH_IDS)
@pytest.mark.parametrize("name", FORWARD)
def test_closed_form_equals_walk(name: str, batch: int | str) -> None:
    algorithm = find(name)
    for rng, shape in random_shapes(name, batch):
        w, tile = workload(shape), Tile(shape.br, shape.bc)
        x = walker.inputs(shape, rng.randrange(2**32))
        ref = walker.reference(shape, x)
        walked = {
            "forward": (FORWARD[name](shape, x), algorithm.forward(w, tile), ("O",)),
            "backward": (BACKWARD[name](shape, x, ref), algorithm.backward(w, tile), ("dQ", "dK", "dV")),
        }
        for direction, (memory, kernels, outputs) in walked.items():
            for output in outputs:
                np.testing.assert_allclose(memory[output], ref[output], rtol=1e-9, atol=1e-9, err_msg=f"{direction} {shape}")
            passes = walker.PASSES.get(name, 1) if direction == "forward" else 1  # each computes Q K^T, the last multiplies by V
            contractions = passes * shape.d + shape.dv if direction == "forward" else 3 * shape.d + 2 * shape.dv
            if name == "standard" and direction == "backward":
                contractions = 2 * (shape.d + shape.dv)
            check(memory, kernels, shape, Fraction(contractions, passes))


def test_walks_cover_what_they_claim() -> None:
    """At least 2,000 small shapes per algorithm, and each kind of shape among them many times."""
    assert BATCHES * PER_BATCH >= 2000
    assert BATCHES * PER_BATCH * len(names()) >= 4000
    rng = random.Random("flash2 0")
    shapes = [random_shape(rng) for _ in range(BATCHES * PER_BATCH)]
    kinds = {
        "partial row tile": lambda s: s.n % s.br,
        "partial key tile": lambda s: s.kv_len % s.bc,
        "window": lambda s: s.window is not None and s.window < s.kv_len,
        "window, packed group": lambda s: s.window is not None and s.packed and s.group > 1,
        "causal, more keys": lambda s: s.causal and s.kv_len > s.n,
        "causal, more queries": lambda s: s.causal and s.kv_len < s.n,
        "group": lambda s: s.group > 1,
        "packed group, causal": lambda s: s.group > 1 and s.packed and s.causal,
        "d_v differs": lambda s: s.dv != s.d,
    }
    for kind, found in kinds.items():
        assert sum(bool(found(s)) for s in shapes) > 100, kind


def test_visible_scores_are_counted_exactly() -> None:
    for n in range(1, 9):
        for kv_len in range(1, 9):
            for causal in (False, True):
                s = walker.Shape(n, kv_len, 1, 1, 1, 1, causal)
                seen = walker.visible(s, np.arange(n), np.arange(kv_len), 1).sum()
                assert visible_scores(workload(s)) == seen


GOLDEN = list(csv.DictReader((Path(__file__).parent / "data" / "io_counts_golden.csv").read_text().splitlines()))


@each("row", GOLDEN)
def test_golden_counts(row: dict[str, str]) -> None:
    shape = {name: int(row[name]) for name in ("n", "kv_len", "d", "dv")}
    printed = row["variant"] == "printed"
    w = Attention(**shape, causal=row["causal"] == "yes", printed_backward=printed)
    algorithm = find(row["algorithm"])
    kernels = (algorithm.forward if row["pass"] == "forward" else algorithm.backward)(w, Tile(int(row["br"]), int(row["bc"])))
    found = {
        "reads": sum(kernel.elements("read") for kernel in kernels),
        "writes": sum(kernel.elements("write") for kernel in kernels),
        "zero_fill": sum(kernel.elements("zero_fill") for kernel in kernels),
        "bytes": sum(kernel.bytes("read", "write") for kernel in kernels),
    }
    assert found == {name: int(row[name]) for name in found}


def test_counts_stay_exact_and_instant_for_huge_sequences() -> None:
    n = 10**12
    w = Attention(n=n, kv_len=n, d=64, dv=64, causal=True)
    [kernel] = find("flash2").forward(w, Tile(128, 128))
    tiles = -(-n // 128)
    assert n % 128 == 0
    assert kernel.elements("read") == n * 64 + 128 * (n * (tiles + 1) // 2)
    for other in ("flash1", "flash2", "standard"):
        assert all(isinstance(k.elements("read"), int) for k in find(other).backward(w, Tile(96, 100)))
