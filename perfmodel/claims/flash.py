"""Claims about FlashAttention: accesses, tiles, extra memory, block sparsity, and its Figure 2."""

from __future__ import annotations

from perfmodel.arith import Number
from perfmodel.attention.algorithms import block_sparse, flash1, flash2, standard
from perfmodel.attention.walk import key_tiles
from perfmodel.bounds import theta
from perfmodel.claims.base import FLASH, INCOMPLETE, LECTURE, RELABELLED, WRONG, Claim, Figure
from perfmodel.claims.formulas import (
    block_sparse_streamed,
    flash1_both_bytes,
    flash1_both_bytes_filled,
    flash1_both_flops,
    flash1_forward,
    flash1_statistics,
    flash2_forward,
    flash2_statistics,
    paper_tile,
    plain_both_bytes,
    quotient,
    square,
    sram_over_d2,
    standard_both_bytes,
    standard_both_flops,
    standard_forward,
)
from perfmodel.cost import Tile

FLASH_NOTES = "lecture notes on FlashAttention"
FIGURE_2 = f"{LECTURE}, after FlashAttention's Figure 2 (Dao et al. 2022)"
_M = 98304  # 192 KiB of fp16
_SHAPE = {"n": 131072, "d": 64, "m": _M}
_SPARSE = {"n": 2**16, "d": 64, "br": 64, "bc": 512}
_FIGURE_2 = {"n": 1024, "d": 64, "heads": 16, "batch": 64, "br": 64, "bc": 384}
_RATIO = "elements of flash1.forward / elements of standard.forward"


def _accesses_ratio(n: Number, d: Number, m: Number) -> Number:
    return flash1_forward(n, d, m) / standard_forward(n, d)


def _last_d(m: Number) -> Number:
    """The law of the leading terms that the algorithm declares."""
    assert flash1.ALGORITHM.pays_while is not None
    return flash1.ALGORITHM.pays_while[1](m, Tile(1, 1))


CLAIMS = (
    Claim(
        "S026",
        f"{LECTURE}, after FlashAttention's Theorem 2",
        "FlashAttention takes Theta(N^2 d^2 / M) HBM accesses, standard attention Theta(Nd + N^2).",
        claimed="4 times at 2N and 2d, half at 2M",
        why="Exact: 2Nd + 3Nd T_c + 4N T_c and 4N^2 + 4Nd elements. Twice N or d is four times, twice M half the accesses.",
        inputs=_SHAPE,
        figures=(
            Figure("flash at 2N", lambda n, d, m: flash1_forward(2 * n, d, m), lambda n, d, m: 4 * flash1_forward(n, d, m), tolerance=0.02),
            Figure("flash at 2d", lambda n, d, m: flash1_forward(n, 2 * d, m), lambda n, d, m: 4 * flash1_forward(n, d, m), tolerance=0.02),
            Figure("flash at 2M", lambda n, d, m: flash1_forward(n, d, 2 * m), lambda n, d, m: flash1_forward(n, d, m) / 2, tolerance=0.02),
            Figure("standard at 2N", lambda n, d: standard_forward(2 * n, d), lambda n, d: 4 * standard_forward(n, d), tolerance=0.02),
        ),
        uses=(flash1.forward, standard.forward),
    ),
    Claim(
        "S027",
        FIGURE_2,
        "FlashAttention does about 9x fewer HBM writes.",
        declared=RELABELLED,
        why="The 40.3 and 4.4 GB behind it are reads and writes together.",
        inputs={"before": 40.3, "after": 4.4},
        figures=(Figure("40.3 GB over 4.4 GB", quotient, "9 x", "x"),),
        uses=(quotient,),
    ),
    Claim(
        "S028",
        FIGURE_2,
        "GFLOPs rise from 66.6 to 75.2, by 13 %.",
        why="The ratio is as printed, but its matmuls take 824.6 and 962.1 GFLOP; the printed ones are 62 and 70 FLOP per score.",
        inputs={**_FIGURE_2, "before": 66.6, "after": 75.2},
        figures=(
            Figure("rise as printed", lambda before, after: 100 * (quotient(after, before) - 1), "13 %", "%"),
            Figure("standard", standard_both_flops, "66.6 GFLOP", "FLOP"),
            Figure("flash", flash1_both_flops, "75.2 GFLOP", "FLOP"),
        ),
        uses=(quotient, standard.forward, standard.backward, flash1.forward, flash1.backward),
    ),
    Claim(
        "S029",
        FIGURE_2,
        "Standard attention moves 40.3 GB over HBM.",
        why="Fits with an unfused additive mask, in the L2 for all heads, and dropout: 36 B per score. Algorithms 0 and 3 alone: 25.2 GB.",
        inputs=_FIGURE_2,
        figures=(
            Figure("with mask and dropout", standard_both_bytes, "40.3 GB", "B"),
            Figure("algorithms alone", plain_both_bytes, unit="B"),
        ),
        uses=(standard.forward, standard.backward),
    ),
    Claim(
        "S030",
        FIGURE_2,
        "FlashAttention moves 4.4 GB over HBM.",
        claimed="4.4 GB",
        declared=INCOMPLETE,
        why="Bracketed, not reproduced: tile and zero fills are not stated. 4.10 GB with B_c = 384, 4.65 with zero fills; 5.20 with 256.",
        inputs=_FIGURE_2,
        figures=(
            Figure("B_c = 384", flash1_both_bytes, "4.4 GB", "B", relation="<="),
            Figure("B_c = 384, zero fills", flash1_both_bytes_filled, "4.4 GB", "B", relation=">="),
            Figure("B_c = 256", flash1_both_bytes, unit="B", at={"bc": 256}),
        ),
        uses=(flash1.forward, flash1.backward),
    ),
    Claim(
        "S053",
        "lecture notes on attention in tiles",
        "Load Q_i, K_j, V_j; update O_j.",
        claimed="O_j",
        declared=WRONG,
        why="O_i: the output has the rows of Q.",
    ),
    Claim(
        "S070",
        f"{FLASH_NOTES}, after its Algorithm 1",
        "B_c = ceil(M/4d), B_r = min(ceil(M/4d), d).",
        claimed="ceil(M/4d), min(ceil(M/4d), d)",
        why="With M in elements, not bytes. Where the ceiling overflows M by a row, the floor fits.",
        inputs={"m": _M, "d": 64},
        figures=(
            Figure("B_c", lambda m, d: paper_tile(m, d).bc, lambda m, d: -(-m // (4 * d)), "rows"),
            Figure("B_r", lambda m, d: paper_tile(m, d).br, lambda m, d: min(-(-m // (4 * d)), d), "rows"),
        ),
        uses=(flash1.default_tile,),
    ),
    Claim(
        "S071",
        FLASH_NOTES,
        "The outer loop runs T_c = O(Nd/M) times.",
        claimed="4Nd/M",
        inputs=_SHAPE,
        figures=(
            Figure(
                "outer passes", lambda n, d, m: key_tiles(square(n, d), paper_tile(m, d).bc), lambda n, d, m: 4 * n * d / m, tolerance=0.01
            ),
        ),
        uses=(key_tiles, flash1.default_tile),
    ),
    Claim(
        "S074",
        FLASH_NOTES,
        "With M the 192 KB of one SM, FlashAttention wins at d = 64, 128 and 256, not from d = 512.",
        claimed="wins up to d = 256",
        why="Algorithm 1 needs d < sqrt(M/3) = 181, M in elements; 8N^2 at d = 256. Q_i, O_i resident: 2.7N^2.",
        inputs=_SHAPE,
        figures=(
            *(
                Figure(f"flash1 / standard, d = {d}", _accesses_ratio, "1 x", "x", relation="<", at={"d": d}, formula=_RATIO)
                for d in (64, 128, 256)
            ),
            Figure("largest d, leading terms", _last_d, unit="columns"),
            Figure("flash2 / N^2, d = 256", lambda n, d, m: flash2_forward(n, d, m // (2 * d), 1) / n**2, unit="N^2", at={"d": 256}),
        ),
        uses=(flash1.forward, standard.forward, flash2.forward),
    ),
    Claim("S075", FLASH_NOTES, "It pays where d^2 is far smaller than 1/M.", claimed="1/M", declared=WRONG, why="Than M: a typo."),
    Claim(
        "S077",
        FLASH_NOTES,
        "PyTorch's memory-efficient backend shrinks the footprint but not the HBM accesses.",
        declared=WRONG,
        why="So does Rabe & Staats' algorithm in plain kernels; the backend is a fused one (CUTLASS FMHA), without N^2 traffic.",
    ),
    Claim(
        "S084",
        FLASH,
        "FlashAttention needs O(N) memory beyond inputs and outputs.",
        claimed="twice at 2N",
        why="2N statistics (l, m) in FlashAttention-1, N (logsumexp) in FlashAttention-2.",
        inputs={"n": 1024, "d": 64},
        figures=(
            Figure("flash1 at 2N", lambda n, d: flash1_statistics(2 * n, d), lambda n, d: 2 * flash1_statistics(n, d), "numbers"),
            Figure("flash1", flash1_statistics, unit="numbers"),
            Figure("flash2", flash2_statistics, unit="numbers"),
        ),
        uses=(flash1.forward, flash2.forward),
    ),
    Claim(
        "S085",
        FLASH,
        "For typical d of 64 to 128 and M of around 100 KB, d^2 is many times smaller than M.",
        claimed="many times",
        declared=INCOMPLETE,
        why="51,200 fp16 elements: 12.5 times d^2 at 64, 3.1 at 128, where 12d^2/M leaves 3.84N^2 against standard attention's 4N^2.",
        inputs={"m": 51200, "d": 64},
        figures=(
            Figure("M / d^2, d = 64", sram_over_d2, "1 x", "x", relation=">"),
            Figure("M / d^2, d = 128", sram_over_d2, "1 x", "x", relation=">", at={"d": 128}),
            Figure("12 d^2 / M, d = 128", lambda m, d: 12 / sram_over_d2(m, d), at={"d": 128}),
        ),
        uses=(theta,),
    ),
    Claim(
        "S087",
        f"{FLASH}, Proposition 4",
        "Block-sparse FlashAttention takes Theta(Nd + N^2 d^2 s/M) accesses.",
        claimed="proportional to s beside Nd",
        why="Exact for full tiles: 2Nd + s T_r T_c B_r (3d + 4), so the second part is proportional to s.",
        inputs={**_SPARSE, "numerator": 1, "denominator": 4},
        figures=(
            Figure(
                "beside K, V, at 2s",
                lambda n, d, numerator, denominator, br, bc: block_sparse_streamed(n, d, 2 * numerator, denominator, br, bc),
                lambda n, d, numerator, denominator, br, bc: 2 * block_sparse_streamed(n, d, numerator, denominator, br, bc),
                "elements",
            ),
            Figure(
                "the same, exact form",
                block_sparse_streamed,
                lambda n, d, numerator, denominator, br, bc: numerator * n * n * (3 * d + 4) / (denominator * bc),
                "elements",
            ),
        ),
        uses=(block_sparse.forward,),
    ),
    Claim(
        "S088",
        FLASH,
        "With s = 1/sqrt(N) accesses grow as N sqrt(N), with s = log N / N as N log N.",
        claimed="8 and 4.5 times at 4N",
        why="For d and M held, beside the linear term: from N = 2^16 to 2^18 8 times, and 4 x 18/16 times.",
        inputs=_SPARSE,
        figures=(
            Figure(
                "s = 1/sqrt(N), N = 2^18",
                lambda n, d, br, bc: block_sparse_streamed(4 * n, d, 1, 512, br, bc),
                lambda n, d, br, bc: 8 * block_sparse_streamed(n, d, 1, 256, br, bc),
                "elements",
            ),
            Figure(
                "s = log2(N)/N, N = 2^18",
                lambda n, d, br, bc: block_sparse_streamed(4 * n, d, 18, 4 * n, br, bc),
                lambda n, d, br, bc: 4.5 * block_sparse_streamed(n, d, 16, n, br, bc),
                "elements",
            ),
        ),
        uses=(block_sparse.forward,),
    ),
)
