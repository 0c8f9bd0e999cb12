"""Claims about matrix multiplication: intensity, tile reuse, and what a batch does to it."""

from __future__ import annotations

from perfmodel.arith import Number
from perfmodel.claims.base import LECTURE, Claim, Figure
from perfmodel.claims.devices import RIDGE_PCIE
from perfmodel.claims.formulas import ridge_point
from perfmodel.cost import Tile
from perfmodel.ops.matmul import Matmul, flops, minimum_intensity, tile_reuse

GUIDE = f"{LECTURE}, after NVIDIA's Matrix Multiplication Background User's Guide"


def intensity(rows: Number, columns: Number, depth: Number) -> Number:
    """FLOP/B at minimum traffic, 16 bit."""
    return minimum_intensity(Matmul(rows, columns, depth))


CLAIMS = (
    Claim(
        "S021",
        GUIDE,
        "With K = M = 8192 and N = 128 a matmul has 124.1 FLOP/B: memory bound.",
        why="Below the 161 of an A100; the guide compares with the V100's 138.9.",
        inputs={"rows": 8192, "columns": 128, "depth": 8192, **RIDGE_PCIE},
        figures=(
            Figure("intensity", intensity, "124.1 FLOP/B", "FLOP/B"),
            Figure("against the ridge", intensity, ridge_point, "FLOP/B", relation="<"),
        ),
        uses=(minimum_intensity, ridge_point),
    ),
    Claim(
        "S022",
        GUIDE,
        "With K = M = N = 8192 a matmul has 2730.6 FLOP/B: compute bound.",
        why="8192/3 = 2730.67, cut and not rounded; every operand read once.",
        inputs={"rows": 8192, "columns": 8192, "depth": 8192, **RIDGE_PCIE},
        figures=(
            Figure("intensity", intensity, "2730.6 FLOP/B", "FLOP/B", tolerance=0.1 / 2730.6),  # its last digit is cut, not rounded
            Figure("against the ridge", intensity, ridge_point, "FLOP/B", relation=">"),
        ),
        uses=(minimum_intensity, ridge_point),
    ),
    Claim(
        "S024",
        LECTURE,
        "In a 2 x 2 block each element is used twice: sharing saves half the memory accesses.",
        why="A T x T tile divides the loads of a matmul by T.",
        inputs={"rows": 64, "columns": 64, "depth": 64, "edge": 2},
        figures=(
            Figure(
                "loads left",
                lambda rows, columns, depth, edge: 1 / tile_reuse(Matmul(rows, columns, depth), Tile(edge, edge)),
                "0.5 x",
                "x",
            ),
        ),
        uses=(tile_reuse,),
    ),
    Claim(
        "S055",
        "lecture notes on transformer inference",
        "1 x d times d x d takes 2d^2 FLOP; d threads take 2d each.",
        claimed="2d^2, 2d",
        inputs={"d": 4096},
        figures=(
            Figure("FLOP", lambda d: flops(Matmul(1, d, d)), lambda d: 2 * d * d, "FLOP"),
            Figure("per thread", lambda d: flops(Matmul(1, d, d)) / d, lambda d: 2 * d, "FLOP"),
        ),
        uses=(flops,),
    ),
    Claim(
        "S056",
        "lecture notes on transformer inference",
        "In linear layers a large batch makes memory bandwidth the bottleneck.",
        claimed="intensity falls with the batch",
        why="The reverse: a weight matmul of B tokens has about B FLOP/B, so small batches are bandwidth bound; KV caches always are.",
        inputs={"small": 1, "batch": 512, "d": 8192, **RIDGE_PCIE},
        figures=(
            Figure(
                "512 tokens, against 1",
                lambda batch, d: intensity(batch, d, d),
                lambda small, d: intensity(small, d, d),
                "FLOP/B",
                relation="<",
            ),
            Figure("ridge", ridge_point, unit="FLOP/B"),
        ),
        uses=(minimum_intensity, ridge_point),
    ),
)
