"""What single constants, signs and terms must be: each expectation is worked out by hand, or by a second way of counting."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.catalog import find_device, find_model
from perfmodel.core.cache import dram_bytes, resident_blocks
from perfmodel.core.cost import Tile
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.units import Quantity
from perfmodel.core.workload import Attention, Stream
from perfmodel.kernels.attention.algorithms import find
from perfmodel.kernels.attention.patterns import Density
from perfmodel.kernels.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL
from perfmodel.kernels.experts import ACTIVATE, DOWN, SUM, UP, Experts
from perfmodel.kernels.matmul import Matmul, library_tile
from perfmodel.timing.base import Case
from perfmodel.timing.case_bounds import kernels_of, roof_s
from perfmodel.timing.models.experts import seconds as experts_seconds
from perfmodel.timing.reference_devices import with_parts
from perfmodel.transformer.op import EXPONENTIALS, VECTOR_WORK
from perfmodel.transformer.ops import layer_ops
from perfmodel.transformer.spec import MoeMlp
from perfmodel.transformer.step import DECODE, ModelPass
from perfmodel.transformer.training.question import Parallel
from perfmodel.transformer.training.step.layer_time import HostTime, exposed_host_s, host_time, longest_path_s
from perfmodel.transformer.training.step.system import DATA, Exchange, LinkLevel, System, calibrated, exchange_seconds, slower
from perfmodel.transformer.training.tape import Tape, TapeNode, TapePass, backward, forward
from perfmodel.transformer.weight_formats import quantized

MIB = 1 << 20
A100, H100, H200, B200 = (find_device(f"nvidia-{name}") for name in ("a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm", "b200-sxm"))
BYTE = DTYPES["fp16"]._replace(size=1)


# Devices


def test_the_nearest_device_lends_parts_first() -> None:
    bare = replace(find_device("nvidia-h100-pcie-80gb"), calibration=[])
    lent = with_parts(bare, "eager-attention", "fp16", lambda: [A100, B200, H200]).calibration
    parts = ("matmul", "scale", "softmax", "copy")
    own = [one for one in H200.calibration if one.workload in parts and "bf16" in one.dtypes and one.implementation != "cublas"]
    assert len(own) >= 4
    assert [block.parameters for block in lent[: len(own)]] == [block.parameters for block in own]


def test_tiles_are_wide_from_hopper_on() -> None:
    others = [find_device(name) for name in ("nvidia-v100-sxm-32gb", "nvidia-l4", "nvidia-rtx-5090", "amd-mi300x")]
    fp16 = DTYPES["fp16"]
    assert [library_tile(device, fp16).bc for device in (A100, H100, H200, B200, *others)] == [128, 256, 256, 256, 128, 128, 128, 128]


# Traffic


@pytest.mark.parametrize(("m", "n"), [(65536, 65536), (65536, 256), (256, 65536)])
def test_a_wave_of_tiles_is_as_square_as_the_grid_allows(m: int, n: int) -> None:
    """Panels far beyond the L2: DRAM sees each once per wave that meets it; a wave is s x s tiles, or the whole of a short side."""
    k, tile = 65536, 128
    [kernel] = Matmul(m, n, k).kernels(Tile(tile, tile))
    assert kernel.launch is not None
    slots = resident_blocks(kernel.launch, H200)
    down, across = m // tile, n // tile
    side = math.isqrt(slots)
    a_scans = math.ceil(across / max(side, slots // down))
    b_scans = math.ceil(down / max(side, slots // across))
    assert dram_bytes(kernel, H200, "read") == 2 * (m * k * a_scans + k * n * b_scans)


def test_a_warm_roof_counts_bytes_beyond_the_last_cache() -> None:
    size = 1 << 28
    copy = Case(Stream("copy", 1, size, dtype=BYTE), "torch-copy", cache="warm")
    assert roof_s(copy, H200) == pytest.approx((2 * size - 60 * MIB) / 4.8e12)
    assert roof_s(replace(copy, cache="clean"), H200) == pytest.approx(2 * size / 4.8e12)


def test_a_record_without_a_tile_is_taken_at_128_by_128() -> None:
    [flash] = kernels_of(Case(Attention(n=1024, kv_len=1024, d=64, dv=64), "torch-sdpa-flash"))
    assert flash.launch is not None
    assert flash.launch.blocks == 8
    assert next(a for a in flash.accesses if a.tensor == "K").elements == 8 * 1024 * 64
    [flash1] = kernels_of(Case(Attention(n=1024, kv_len=1024, d=64, dv=64), "numba-flash1"))
    assert next(a for a in flash1.accesses if a.tensor == "Q").elements == 8 * 1024 * 64
    product = Case(Matmul(1024, 1024, 64), "torch-matmul")
    assert [kernels_of(product, device)[0].launch.blocks for device in (None, A100, H100)] == [64, 64, 32]  # type: ignore[union-attr]


def test_experts_move_hidden_states_both_ways_and_weights_once() -> None:
    w = Experts(tokens=4, hidden=8, width=16, experts=4, experts_per_token=2, touched=3)
    moved = {(access.tensor, access.kind): access.bytes for access in w.kernels(Tile(1, 1))[0].accesses}
    assert moved == {("hidden states", "read"): 4 * 8 * 2, ("weights", "read"): 3 * 3 * 8 * 16 * 2, ("result", "write"): 4 * 8 * 2}


def test_parts_of_experts_move_what_they_read_and_write() -> None:
    """Matmuls free of cost: what is left is bytes of activations over the bandwidth. 8 pairs of token and expert."""
    free = {**dict.fromkeys(("dram_share", "compute_share"), 1e30), **dict.fromkeys(("launch_us", "tile_us"), 0.0)}
    p = {**free, "half_bandwidth_share": 0.2, "activation_share": 1.0}
    tokens, pairs, hidden, width = 4, 8, 8, 16
    for dtype, size in (("bf16", 2), ("fp8", 1)):
        w = Experts(tokens, hidden, width, 4, 2, 4, DTYPES[dtype])
        moved = {
            part: experts_seconds(Case(replace(w, parts=(part,)), "triton-moe"), H200, p) * 4.8e12 for part in (UP, ACTIVATE, DOWN, SUM)
        }
        assert moved == pytest.approx(
            {
                UP: tokens * hidden * 2 + pairs * hidden * size + pairs * 2 * width * 2,
                ACTIVATE: pairs * 2 * width * 2 + pairs * width * 2,
                DOWN: pairs * width * size + pairs * hidden * 2,
                SUM: pairs * hidden * 2 + tokens * hidden * 2,
            }
        )


def test_matmuls_of_experts_write_a_row_per_pair() -> None:
    model = find_model("mixtral-8x7b")
    layer = next(layer for layer, _ in model.layer_kinds if isinstance(layer.mlp, MoeMlp))
    ops = {op.name: op for op in layer_ops(layer, model, ModelPass(DECODE, 3, 1, 64, DTYPES["bf16"], 16, 16, False))}
    written = {name: op.kernel.bytes("write") for name, op in ops.items() if name.startswith("experts")}
    assert written == {"experts, gate and up": 3 * 2 * 2 * 14336 * 2, "experts, down": 3 * 2 * 4096 * 2}


def test_split_k_adds_up_its_parts() -> None:
    product, total = Matmul(64, 32, 128, batch=2, split_k=4).kernels(Tile(64, 32))
    outputs = 2 * 64 * 32
    assert product.bytes("write") == total.bytes("read") == 4 * outputs * 4, "partial sums in fp32"
    assert total.bytes("write") == outputs * 2
    assert (total.work.tensor, total.work.vector, total.work.sfu) == (0, 3 * outputs, 0), "of four numbers three sums"


# Vector work


class Tally(float):
    """A number that counts the operations on it."""

    done = 0

    def _counted(self, other: float = 0.0) -> Tally:
        Tally.done += 1
        return Tally(1.0)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _counted  # type: ignore[assignment]


X = Tally(1.0)
SUM_SO_FAR = WEIGHT = SCALE = MEAN = COS = SIN = 1.0


def free(x: Any) -> Tally:
    """An exponential or tanh: no vector operation."""
    return Tally(1.0)


OPERATIONS: dict[str, Any] = {
    "add": lambda: X + X,
    "norm": lambda: (SUM_SO_FAR + X * X, X * SCALE * WEIGHT),
    "layer norm": lambda: (SUM_SO_FAR + X, SUM_SO_FAR + X * X, (X - MEAN) * SCALE * WEIGHT),
    "rotate": lambda: X * COS + X * SIN,
    "copy": lambda: X,
    "silu-mul": lambda: X / (1 + free(-X)) * X,
    "gelu": lambda: 0.5 * X * (1 + free(0.797885 * (X + 0.044715 * (X * X * X)))),
}


def test_vector_operations_per_element_are_those_of_the_formulas() -> None:
    found = {}
    for name, formula in OPERATIONS.items():
        Tally.done = 0
        formula()
        found[name] = Tally.done
    assert found == VECTOR_WORK
    assert EXPONENTIALS == {"silu-mul": 1, "gelu": 1}


def vector(name: str, direction: str, tile: Tile, **options: Any) -> dict[str, float]:
    """Vector FLOP of each kernel with any, for 256 queries and keys, d = 64, d_v = 32."""
    w = Attention(n=256, kv_len=256, d=64, dv=32, **options).check()
    return {kernel.name: kernel.work.vector for kernel in getattr(find(name), direction)(w, tile) if kernel.work.vector}


S, ROWS, DV = 256 * 256, 256, 32
T = Tile(64, 128)
"""4 x 2 tiles."""


def test_vector_work_of_attention() -> None:
    """Per score: max, scale and subtract, sum, divide. O rescaled with each tile, forward alone: dQ, dK and dV only add up."""
    assert vector("standard", "forward", T) == {"softmax": 4 * S}
    assert vector("standard", "backward", T) == {"softmax backward": 4 * S}
    assert vector("flash2", "forward", T) == {"forward": 4 * S + 2 * ROWS * DV}
    assert vector("flash2", "backward", T) == {"row sums D": 2 * ROWS * DV, "backward": 4 * S}
    assert vector("flash1", "forward", T) == {"forward": 4 * S + 2 * ROWS * DV}
    assert vector("flash1", "backward", T) == {"backward": 4 * S}
    half = {"sparsity": Density(1, 2)}
    assert vector("block-sparse", "forward", T, **half) == {"forward": 4 * S / 2 + ROWS * DV}
    assert vector("block-sparse", "backward", T, **half) == {"backward": 4 * S / 2}
    split = T._replace(splits=2)
    assert vector("split-kv", "forward", split) == {"split": 4 * S + 2 * ROWS * DV, "combine": 2 * 2 * ROWS * DV}
    assert vector("memory-efficient", "forward", T) == {"exp": 3 * S, "combine": 3 * 2 * ROWS * DV}


def test_vector_work_of_options() -> None:
    """A mask is added, a dropped score compared and scaled; where scores lie in memory each is a kernel, and a gradient's scale too."""
    options = {"mask": True, "dropout": 0.1, "unfused_scale": True}
    assert vector("flash2", "forward", T, **options)["forward"] == (4 + 1 + 2) * S + 2 * ROWS * DV
    assert vector("standard", "forward", T, **options) == {"scale": S, "additive mask": S, "softmax": 4 * S, "dropout": 2 * S}
    assert vector("standard", "backward", T, **options) == {"dropout backward": 2 * S, "softmax backward": 4 * S, "scale backward": S}


# Exchanges and hosts


def quantity(number: float) -> Quantity:
    return Quantity("", "datasheet", "test", number)


TWO_LEVELS = System(
    "two levels",
    "any",
    16,
    {"test": "by hand"},
    [LinkLevel("inside", 8, quantity(100e9), None, quantity(1e-6)), LinkLevel("outside", 16, quantity(50e9), None, quantity(5e-6))],
    quantity(7e-6),
)
"""Two domains of eight GPUs."""


@pytest.mark.parametrize(
    ("op", "size", "expected"),
    [
        # a tree over both domains is 1 step deep outside and 3 inside, up and down
        (ALL_REDUCE, 1000.0, 2 * (1 * 5e-6 + 3 * 1e-6) + 2 * 1000 / 100e9),
        # a ring crosses 2 borders, one of them in each round's last step: 14 of 16 steps of a round stay inside
        (ALL_REDUCE, 1e9, 2 * 1 * 5e-6 + 2 * 14 * 1e-6 + 2 * 1e9 * 15 / 16 / 100e9),
        (ALL_GATHER, 1e9, 1 * 5e-6 + 14 * 1e-6 + 1e9 * 15 / 16 / 100e9),
        (ALL_TO_ALL, 1e9, 1e9 * 8 / 16 / 50e9 + 8 * 5e-6 + 7 * 1e-6),
    ],
)
def test_exchanges_over_two_levels(op: str, size: float, expected: float) -> None:
    found = exchange_seconds(Exchange(DATA, op, size, 3), TWO_LEVELS, Parallel(dp=16))
    assert found == pytest.approx(3 * (7e-6 + expected), rel=1e-12)


def test_slower_links_take_longer() -> None:
    assert slower(TWO_LEVELS, H200) == pytest.approx(4.5), "450 GB/s over 100 GB/s"
    exchange = Exchange(DATA, ALL_REDUCE, 1 << 24)
    alone = calibrated(exchange, 8, H200)
    assert alone is not None
    assert exchange_seconds(exchange, TWO_LEVELS, Parallel(dp=8), H200) == pytest.approx(4.5 * alone)


def test_seconds_of_the_host() -> None:
    p = {"host_forward_us": 100.0, "host_backward_us": 200.0, "host_checkpoint_us": 10.0, "host_again_us": 5.0}
    assert host_time(p, 12, 148, recomputes=False) == pytest.approx((12 * 100e-6, 12 * 200e-6, 148 * 5.6e-6))
    assert host_time(p, 12, 148, recomputes=True) == pytest.approx((12 * 110e-6, 12 * (200 + 100 + 5) * 1e-6, 148 * 5.6e-6))
    # kernels of 2 + 5 + 1 s; the update's, 1 s, starts when the host is done, after 3 + 4 + 1 s
    assert exposed_host_s(HostTime(3.0, 4.0, 1.0), 2.0, 5.0, 1, 1.0) == 1.0
    assert exposed_host_s(HostTime(3.0, 4.0, 1.0), 2.0, 5.0, 2, 1.0) == (2 * 7 + 1 + 1) - (2 * 7 + 1)
    assert exposed_host_s(HostTime(0.0, 0.0, 0.0), 2.0, 5.0, 3, 1.0) == 0.0


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=5))
def test_a_step_is_the_longest_way_through_host_and_device(phases: list[tuple[float, float]]) -> None:
    """Kernel by kernel: each starts once it is enqueued and the one before has ended."""
    kernels, enqueued, ended = 200, 0.0, 0.0
    for host, device in phases:
        for _ in range(kernels):
            enqueued += host / kernels
            ended = max(ended, enqueued) + device / kernels
    assert longest_path_s(phases) == pytest.approx(ended, abs=2 * max(max(phase) for phase in phases) / kernels + 1e-9)


# Tapes


@st.composite
def tapes(draw: st.DrawFn) -> Tape:
    """Operations in a row; each writes a tensor, some of which are read again much later, or never."""
    count = draw(st.integers(1, 7))
    sizes: dict[str, Any] = {"t0": draw(st.integers(1, 100))}
    nodes = []
    for index in range(1, count + 1):
        reads = draw(st.lists(st.sampled_from(sorted(sizes)), min_size=1, max_size=2, unique=True)) if index > 1 else ["t0"]
        sizes[f"t{index}"] = draw(st.integers(1, 100))
        saves = draw(st.lists(st.sampled_from(sorted(sizes)), max_size=2, unique=True))
        nodes.append(TapeNode(f"op{index}", tuple(reads), (f"t{index}",), tuple(saves), scratch=draw(st.integers(0, 50))))
    return Tape("t0", sizes, nodes)


@given(tapes())
def test_a_tensor_lives_from_its_making_to_its_last_use(tape: Tape) -> None:
    """Each moment by itself: a tensor is there while an operation makes it or will still read it, and if it is kept or leaves."""
    kept = {name for node in tape.nodes for name in node.saves} | {tape.out}
    count = len(tape.nodes)
    made = {name: index for index, node in enumerate(tape.nodes) for name in node.writes} | {tape.stream: -1}
    last = {name: max([made[name], *(i for i, node in enumerate(tape.nodes) if name in node.reads)]) for name in made}

    def there(index: int) -> int:
        return sum(tape.sizes[name] for name in made if made[name] <= index and (name in kept or last[name] >= index))

    highs = [there(index) + tape.nodes[index].scratch for index in range(count)]
    found = forward(tape)
    assert found.high == max(0, *(high - tape.sizes[tape.stream] for high in highs))
    assert found.net == sum(tape.sizes[name] for name in kept) - tape.sizes[tape.stream]


def test_a_residual_on_tape() -> None:
    """w = x + b(a(x)); a and b keep their inputs and have weights whose gradients stay: 3 and 5 bytes."""
    nodes = [
        TapeNode("a", ("x",), ("y",), ("x",), gradients=3),
        TapeNode("b", ("y",), ("z",), ("y",), gradients=5, backward_scratch=1),
        TapeNode("sum", ("x", "z"), ("w",), adds=True),
    ]
    tape = Tape("x", dict.fromkeys("xyzw", 10), nodes)
    assert forward(tape) == TapePass(30, 20, "sum"), "y, z and w at once; x and y stay beside w, the stream that entered counts nothing"
    # b: 5 of weights, dy, scratch; then y goes. a: 3 of weights, a second dx beside the shared one; then dy and x go.
    assert backward(tape) == TapePass(18, -12, "a")


# Weights


def test_eight_bits_are_eight_bits() -> None:
    stored = quantized({"load_in_8bit": True})
    assert stored is not None
    assert stored.main is not None
    assert stored.main.bytes(4096, 1024) == 4096 * 1024 + 1024 * 4, "a byte per weight, an fp32 scale per output"
