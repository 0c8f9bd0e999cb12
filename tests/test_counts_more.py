"""Closed forms of split-KV and block-sparse attention against their walks; their options and mistakes."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
import walker
from hypothesis import assume, given
from hypothesis import strategies as st
from test_counts import BATCH_IDS, BATCHES, PER_BATCH, check, closed_form, random_shape, random_shapes, workload
from walker import Shape

from perfmodel.catalog import find_device
from perfmodel.core.cost import Kernel, Tile
from perfmodel.core.errors import UsageError
from perfmodel.core.roofline import estimate, total
from perfmodel.core.workload import Attention, BlockPattern
from perfmodel.kernels.attention.algorithms import find
from perfmodel.kernels.attention.algorithms.split_kv import effective_splits, num_splits
from perfmodel.kernels.attention.evaluate import compulsory_elements
from perfmodel.kernels.attention.patterns import NAMED, Blocks, Density, Named, block_pattern
from perfmodel.kernels.attention.walk import visible_scores

DEVICE = find_device("nvidia-h200-sxm")


def same(memory: walker.Memory, ref: dict[str, np.ndarray], outputs: tuple[str, ...], s: Shape) -> None:
    for name in outputs:
        np.testing.assert_allclose(memory[name], ref[name], rtol=1e-9, atol=1e-9, err_msg=f"{name} {s}")


# Split-KV


@pytest.mark.parametrize("batch", BATCH_IDS)
def test_split_kv_equals_walk(batch: int | str) -> None:
    algorithm = find("split-kv")
    for rng, drawn in random_shapes("split-kv", batch):
        s = replace(drawn, splits=rng.choice([1, 2, 2, 3, 4, 7, 30]))
        if rng.random() < 0.3:
            s = replace(s, n=1)
        x = walker.inputs(s, rng.randrange(2**32))
        memory = walker.flash2_forward(s, x)
        same(memory, walker.reference(s, x), ("O", "logsumexp"), s)
        check(memory, algorithm.forward(workload(s), Tile(s.br, s.bc, splits=s.splits)), s, s.d + s.dv)


def test_one_split_is_flash2() -> None:
    rng = random.Random(7)
    for _ in range(50):
        w, tile = workload(random_shape(rng)), Tile(rng.randint(1, 9), rng.randint(1, 9))
        [split], [flash] = find("split-kv").forward(w, tile), find("flash2").forward(w, tile)
        assert split._replace(name="forward") == flash


@given(blocks=st.integers(1, 300), slots=st.integers(1, 300), tiles=st.integers(1, 300))
def test_the_heuristic_takes_the_fewest_nearly_best_splits(blocks: int, slots: int, tiles: int) -> None:
    """As in flash_api.cpp, in exact fractions; a split count that leaves a split empty is never taken."""
    chosen = num_splits(blocks, slots, tiles)
    assert effective_splits(tiles, chosen) == chosen or chosen == 1
    if blocks >= 0.8 * slots:
        assert chosen == 1
        return

    def efficiency(s: int) -> Fraction:
        return Fraction(blocks * s, slots * ceil(Fraction(blocks * s, slots)))

    eligible = [s for s in range(1, min(128, slots, tiles) + 1) if s == 1 or ceil(tiles / s) != ceil(tiles / (s - 1))]
    best = max(map(efficiency, eligible))
    close = [s for s in eligible if abs(float(efficiency(s) / best) - 0.85) < 1e-9]  # as float rounds
    assert chosen in (next(s for s in eligible if efficiency(s) / best >= Fraction(85, 100)), *close)


@given(tiles=st.integers(1, 10**6), splits=st.integers(1, 10**6))
def test_effective_splits_are_those_with_a_tile(tiles: int, splits: int) -> None:
    found = effective_splits(tiles, splits)
    per_split = ceil(Fraction(tiles, splits))
    assert (found - 1) * per_split < tiles <= found * per_split
    assert effective_splits(tiles, found) == found


@pytest.mark.parametrize(("d", "tile"), [(64, (64, 256)), (96, (64, 128)), (128, (64, 128)), (256, (64, 64)), (512, (1, 64))])
def test_split_kv_tiles_are_flash_attention_2s(run, d, tile) -> None:
    [result] = run(f"attention --n 1 --kv-len 4096 --d {d} --hardware h200 --algorithm split-kv --json").json["results"]
    assert (result["tile"]["br"], result["tile"]["bc"]) == tile


# Block-sparse


def sparse_shape(rng: random.Random, drawn: Shape) -> tuple[Shape, BlockPattern]:
    s = replace(drawn, window=None, pattern=rng.choice([*NAMED, "file"]))
    if s.pattern != "file":
        s = replace(s, packed=s.packed and not (s.causal and s.group > 1))
        return s, Named(s.pattern)
    grid = [(i, j) for i in range(ceil(s.n / s.br)) for j in range(ceil(s.kv_len / s.bc))]
    pairs = frozenset(rng.sample(grid, rng.randint(1, len(grid))))
    return replace(s, pairs=pairs), Blocks("file", tuple(sorted(pairs)))


@pytest.mark.parametrize("batch", BATCH_IDS)
def test_block_sparse_equals_walk(batch: int | str) -> None:
    algorithm = find("block-sparse")
    for rng, drawn in random_shapes("block-sparse", batch):
        s, pattern = sparse_shape(rng, drawn)
        w, tile = workload(s, pattern), Tile(s.br, s.bc)
        assert algorithm.obstacle(w, "forward") is None
        x = walker.inputs(s, rng.randrange(2**32))
        ref = walker.reference(s, x)
        seen = s.batch * s.heads * int(walker.all_visible(s).sum())
        if seen == 0:
            with pytest.raises(UsageError, match="the causal mask hides every nonzero block"):
                algorithm.forward(w, tile)
            continue
        forward, kernels = walker.flash1_forward(s, x), algorithm.forward(w, tile)
        same(forward, ref, ("O",), s)
        check_sparse(forward, kernels, s, s.d + s.dv)
        assert kernels[0].flops == 2 * seen * (s.d + s.dv)
        backward, kernels = walker.flash_backward(1, s, x, ref), algorithm.backward(w, tile)
        same(backward, ref, ("dQ", "dK", "dV"), s)
        check_sparse(backward, kernels, s, 3 * s.d + 2 * s.dv)
        assert kernels[0].flops == 4 * seen * (s.d + s.dv)


def check_sparse(memory: walker.Memory, kernels: list[Kernel], s: Shape, contractions: int) -> None:
    check(memory, kernels, s, contractions)
    seeing = next(access.compulsory for access in kernels[0].accesses if access.tensor == "Q")
    assert seeing == s.d * s.batch * s.heads * int(walker.all_visible(s).any(1).sum()), s


def test_shapes_cover_what_they_claim() -> None:
    rng = random.Random("block-sparse 0")
    drawn = [sparse_shape(rng, random_shape(rng))[0] for _ in range(BATCHES * PER_BATCH)]
    found = Counter((s.pattern, s.causal) for s in drawn)
    assert len(found) == 8
    assert min(found.values()) > 40
    kinds = {
        "partial tiles": lambda s: s.n % s.br and s.kv_len % s.bc,
        "more keys, causal": lambda s: s.causal and s.kv_len > s.n,
        "more queries, causal": lambda s: s.causal and s.kv_len < s.n,
        "group": lambda s: s.group > 1,
        "packed group": lambda s: s.packed and s.group > 1,
        "d_v differs": lambda s: s.d != s.dv,
    }
    for kind, is_one in kinds.items():
        assert sum(bool(is_one(s)) for s in drawn) > 40, kind


def test_density_is_a_share_of_the_dense_walk() -> None:
    """Rows and scores that flash1's walk counts, times the decimal that was typed, rounded up; all of them at 1."""
    rng = random.Random("density")
    for _ in range(200):
        s = random_shape(rng)
        share = rng.choice([0.05, 0.1, 0.25, 0.3, 0.7, 1.0])
        w, tile = workload(s, block_pattern(share, None)), Tile(s.br, s.bc)
        x = walker.inputs(s, rng.randrange(2**32))
        dense = walker.flash1_forward(s, x)
        walks = s.batch * (s.kv_heads if s.packed else s.heads)
        rows = ceil(Fraction(str(share)) * dense.counts["Q", "read"] / s.d / walks)
        [kernel] = find("block-sparse").forward(w, tile)
        assert closed_form([kernel])["Q", "read"] == walks * rows * s.d
        assert closed_form([kernel])["K", "read"] == dense.counts["K", "read"]
        scores = walks * ceil(Fraction(str(share)) * dense.computed_scores / walks)
        visible = s.batch * s.heads * ceil(Fraction(str(share)) * visible_scores(w))
        assert kernel.flops == 2 * visible * (s.d + s.dv)
        assert kernel.executed_flops == 2 * max(scores, visible) * (s.d + s.dv)
        if share == 1:
            assert unbound([kernel]) == unbound(find("flash1").forward(w, tile))
            assert unbound(find("block-sparse").backward(w, tile)) == unbound(find("flash1").backward(w, tile))


def unbound(kernels: list[Kernel]) -> list[Kernel]:
    """Kernels without what bounds them: a density does not say which rows and keys are needed."""
    return [k._replace(accesses=tuple(access._replace(compulsory=0) for access in k.accesses)) for k in kernels]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMED)
def test_named_patterns_are_exact_and_instant_for_huge_sequences(name: str, causal: bool) -> None:
    """10^10 tiles: what grows grows as the rule says."""
    edge = 1 << 7
    n = edge << 33
    counts = Named(name).counts(Attention(n=n, kv_len=n, d=64, dv=64, causal=causal), edge, edge)
    tiles = 1 << 33
    step = ceil(2**16.5)
    columns = range(0, tiles, step)
    both = {  # blocks on and below the diagonal, blocks above it
        "local-global": (tiles + (tiles - 1) + (tiles - 2), tiles - 1 + tiles - 2),
        "butterfly": (tiles + 33 * tiles // 2, 33 * tiles // 2),
    }
    if name == "strided":
        lower = sum(tiles - j for j in columns) + tiles + tiles - 1 - len(columns) - len(columns) + (columns[-1] == tiles - 1)
        both["strided"] = lower, len(columns) * tiles + 3 * tiles - 2 - lower
        overlap = sum((j > 0) + 1 + (j < tiles - 1) for j in columns)
        both["strided"] = lower, len(columns) * tiles + 3 * tiles - 2 - overlap - lower
    below, above = both[name]
    assert counts.streamed_rows == edge * (below if causal else below + above)
    assert counts.scores == edge * counts.streamed_rows
    hidden = tiles * (edge * (edge - 1) // 2) if causal else 0
    assert counts.visible_scores == counts.scores - hidden
    assert counts.distinct_rows == counts.seeing_rows == n


@pytest.mark.parametrize("name", ["split-kv", "memory-efficient"])
def test_other_counts_are_exact_and_instant_for_huge_sequences(name: str) -> None:
    n = 10**14
    w = Attention(n=n, kv_len=n, d=64, dv=64, causal=True)
    kernels = find(name).forward(w, Tile(100, 200, splits=4))
    assert all(isinstance(kernel.elements("read", "write"), int) for kernel in kernels)
    if name == "split-kv":
        tiles = n // 200
        rows = 200 * tiles * (tiles + 1)  # two row tiles of 100 per key tile
        assert kernels[0].elements("read") == 4 * n * 64 + rows * 128
    else:
        assert kernels[0].elements("write") == n * n


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("pattern", ["--sparsity 0.3", *(f"--pattern {name}" for name in NAMED)])
def test_packing_leaves_the_blocks_as_they_are(run, pattern, direction) -> None:
    line = f"attention --n 4096 --d 64 --heads 16 --kv-heads 2 --algorithm block-sparse {pattern} --pass {direction} --json"
    (apart,), (packed,) = (run(line + option).json["results"] for option in ("", " --packed"))
    assert packed["flops"] == apart["flops"]
    assert packed["traffic"]["sram"]["read_bytes"] < apart["traffic"]["sram"]["read_bytes"]
    if "pattern" in pattern:
        assert packed["executed_flops"] == apart["executed_flops"], "whole blocks"


def test_blocks_of_a_pattern_do_not_shrink_with_the_sram(run) -> None:
    """Smaller ones would be other scores; those that fit are named."""
    line = "attention --n 4096 --d 256 --algorithm block-sparse --pattern strided"
    outcome = run(line)
    assert outcome.code == 2
    assert "a 128 x 128 tile" in outcome.err
    assert "--block-q 64 --block-kv 64 fits" in outcome.err
    assert run(f"{line} --block-q 64 --block-kv 64").code == 0


def test_a_pattern_file(run, tmp_path) -> None:
    path = tmp_path / "blocks.txt"
    path.write_text("# band\n0 0\n 1\t1  # on the diagonal\n\n2 1\n")
    line = f"attention --n 384 --d 64 --algorithm block-sparse --block-q 128 --block-kv 128 --pattern {path} --json"
    [result] = run(line).json["results"]
    assert result["flops"] == 2 * 3 * 128 * 128 * 128
    assert result["accesses"]["reads"] == 2 * 384 * 64 + 3 * 128 * (2 * 64 + 2)
    many = run(line + " --causal --packed --heads 1000000000000 --kv-heads 1")
    assert many.code == 2
    assert "add --unpacked" in many.err
    [causal] = run(line + " --causal").json["results"]
    assert causal["flops"] == 2 * (2 * 128 * 129 // 2 + 128 * 128) * 128


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("0 0\n0\n", 1, ["line 2", "'0' is not a pair", "3 0"]),
        ("0 0\n-1 0\n", 1, ["line 2", "'-1 0'"]),
        ("0 0 0\n", 1, ["line 1"]),
        ("0 x\n", 1, ["line 1", "'0 x'"]),
        ("0 0\n# again\n0 0\n", 1, ["line 3", "block 0 0 is already on line 1"]),
        ("9" * 5000 + " 0\n", 1, ["line 1", "is not a pair"]),
        ("# nothing\n", 1, ["lists no block"]),
        ("0 0\n1 7\n", 2, ["block 1 7 is outside the grid of 2 x 2 blocks", "128 x 128"]),
        ("2 0\n", 2, ["block 2 0 is outside the grid"]),
        ("0 0\n" * 300_000, 1, ["larger than"]),
        ("0 \udcff\n", 1, ["not UTF-8"]),
    ],
)
def test_pattern_file_mistakes(run, tmp_path, text, code, words) -> None:
    path = tmp_path / "blocks.txt"
    path.write_bytes(text.encode(errors="surrogateescape"))
    outcome = run(f"attention --n 256 --d 64 --algorithm block-sparse --block-q 128 --block-kv 128 --pattern {path}")
    assert (outcome.code, outcome.out) == (code, ""), outcome
    assert str(path) in outcome.err
    for word in words:
        assert word in outcome.err
    assert len(outcome.err.splitlines()) <= 2
    assert len(outcome.err) < 400


def test_all_takes_what_can_run(run) -> None:
    def names(options: str) -> list[str]:
        found = run(f"attention --n 64 --d 64 --algorithm all {options} --json").json["results"]
        return list(dict.fromkeys(result["algorithm"] for result in found))

    assert {"split-kv", "memory-efficient"} <= set(names(""))
    assert "block-sparse" in names("--sparsity 0.5")
    assert {"split-kv", "block-sparse"}.isdisjoint(names("--pass both"))


# What holds for every workload, tile and pattern

PATTERNS = st.sampled_from([*map(Named, NAMED), Density(1, 10), Density(3, 4), Density(1, 1)])


@given(
    n=st.integers(1, 3000),
    kv_len=st.integers(1, 3000),
    edges=st.tuples(st.integers(1, 200), st.integers(1, 200)),
    causal=st.booleans(),
    group=st.integers(1, 3),
    pattern=PATTERNS,
    splits=st.integers(1, 40),
    case=st.sampled_from([("block-sparse", "forward"), ("block-sparse", "backward"), ("split-kv", "forward")]),
)
def test_traffic_times_and_arrays(n, kv_len, edges, causal, group, pattern, splits, case) -> None:
    name, direction = case
    w = Attention(n=n, kv_len=kv_len, d=64, dv=32, causal=causal, heads=2 * group, kv_heads=2, sparsity=pattern)
    assume(pattern.name != "butterfly" or n <= kv_len)  # else the mask may hide every block
    algorithm, tile = find(name), Tile(*edges, splits=splits)
    passed = algorithm.forward if direction == "forward" else algorithm.backward
    kernels = passed(w, tile)
    cost = total(estimate(kernel, DEVICE) for kernel in kernels)
    assert cost.flops <= cost.executed_flops
    assert cost.dram.read <= cost.sram.read
    assert cost.dram.write <= cost.sram.write
    assert 0 < cost.lower_s <= cost.roofline_s * (1 + 1e-12) <= cost.no_overlap_s * (1 + 1e-11)
    for access in (access for kernel in kernels for access in kernel.accesses if access.kind in ("read", "write")):
        assert access.compulsory <= access.footprint <= access.elements or access.elements == 0
    if name == "split-kv":
        assert compulsory_elements(w, direction) * w.dtype.size <= cost.sram.total
    arrays = replace(w, n=np.array([n, 7.0]), kv_len=np.array([kv_len, 9.0]))
    for kernel, vectorised in zip(kernels, passed(arrays, tile), strict=True):
        for kind in ("read", "write", "zero_fill"):
            found = vectorised.bytes(kind)
            assert np.broadcast_to(found, 2)[0] == kernel.bytes(kind)
        assert np.broadcast_to(vectorised.flops, 2)[0] == kernel.flops
        assert np.broadcast_to(vectorised.executed_flops, 2)[0] == kernel.executed_flops
