"""Claims about published measurements: ratios recomputed from the numbers printed beside them."""

from __future__ import annotations

from perfmodel.arith import Number
from perfmodel.claims.base import FLASH, LECTURE, NOT_CHECKABLE, Claim, Figure
from perfmodel.claims.formulas import quotient

GPT2 = f"{LECTURE}, after FlashAttention's Table 2 (Dao et al. 2022)"


def difference(before: Number, after: Number) -> Number:
    """By how much ``after`` lies above ``before``.

    Source: the two numbers as published.
    """
    return after - before


def gain(before: Number, after: Number) -> Number:
    """Percent of speed won when a time falls from ``before`` to ``after``.

    Source: the two times as published.
    """
    return 100 * (before / after - 1)


def ratio(what: str, before: float, after: float, claimed: str | None = None, tolerance: float | None = None) -> Figure:
    """``before`` over ``after``, as a figure."""
    return Figure(what, quotient, claimed, "x", tolerance=tolerance, at={"before": before, "after": after})


_SMALL = (ratio("Megatron-LM", 9.5, 4.7, "2.0 x"), ratio("FlashAttention", 9.5, 2.7, "3.5 x"))
_MEDIUM = (ratio("medium: Megatron-LM", 21.0, 11.5, "1.8 x"), ratio("medium: FlashAttention", 21.0, 6.9, "3.0 x"))

CLAIMS = (
    Claim(
        "S031",
        f"{LECTURE}, after FlashAttention's Figure 2",
        "The runtime falls from 41.7 to 7.3 ms, 6x.",
        why="5.71, which rounds to 6.",
        figures=(ratio("41.7 ms over 7.3 ms", 41.7, 7.3, "6 x"),),
        uses=(quotient,),
    ),
    Claim(
        "S032",
        GPT2,
        "GPT-2 small trains in 9.5 days, with Megatron-LM in 4.7 (2.0x), with FlashAttention in 2.7 (3.5x).",
        figures=_SMALL,
        uses=(quotient,),
    ),
    Claim(
        "S033",
        GPT2,
        "GPT-2 medium trains in 21.0 days, with Megatron-LM in 11.5 (1.8x), with FlashAttention in 6.9 (3.0x).",
        why="Against Megatron-LM FlashAttention wins 1.74x on small and 1.67x on medium.",
        figures=(*_MEDIUM, ratio("small, over Megatron-LM", 4.7, 2.7), ratio("medium, over Megatron-LM", 11.5, 6.9)),
        uses=(quotient,),
    ),
    Claim(
        "S034",
        f"{LECTURE}, after FlashAttention's Table 1",
        "15 % faster than the MLPerf record for BERT-large.",
        why="20.0 against 17.4 minutes: 14.9 % more speed, 13 % less time.",
        figures=(
            Figure("speed", gain, "15 %", "%", at={"before": 20.0, "after": 17.4}),
            Figure("time", lambda before, after: 100 * (1 - quotient(after, before)), unit="%", at={"before": 20.0, "after": 17.4}),
        ),
        uses=(gain, quotient),
    ),
    Claim(
        "S065",
        "lecture notes on transformer inference, after FlashAttention's Table 2",
        "Days to train GPT-2 small and medium, once more.",
        why="As S032 and S033.",
        figures=(*_SMALL, *_MEDIUM),
        uses=(quotient,),
    ),
    Claim(
        "S078",
        "lecture notes on FlashAttention, on CUDA graphs",
        "100 iterations take 0.0157 s eagerly, 0.0856 s (0.18x) and 0.0025 s (6.32x) in the two other runs of a CUDA graph example.",
        why="6.28 from the rounded times. Eager: 157 us per call of 30 kernels, 5.2 us each: bound by launches.",
        inputs={"seconds": 0.0157, "calls": 100, "kernels": 30},
        figures=(
            ratio("second run", 0.0157, 0.0856, "0.18 x"),
            ratio("third run", 0.0157, 0.0025, "6.32 x", tolerance=0.02),  # 0.0025 s is rounded to 2 %
            Figure("per kernel, eager", lambda seconds, calls, kernels: seconds / calls / kernels, unit="s"),
        ),
        uses=(quotient,),
    ),
    Claim(
        "S079",
        FLASH,
        "15 % faster on BERT-large, 3x on GPT-2 with 1K tokens.",
        why="3.5x on the small model, 3.0x on the medium one.",
        figures=(
            Figure("BERT-large", gain, "15 %", "%", at={"before": 20.0, "after": 17.4}),
            ratio("GPT-2 medium", 21.0, 6.9, "3 x"),
            ratio("GPT-2 small", 9.5, 2.7),
        ),
        uses=(gain, quotient),
    ),
    Claim(
        "S083",
        f"{FLASH}, Figure 1",
        "Up to 7.6x faster attention on GPT-2.",
        claimed="7.6x",
        declared=NOT_CHECKABLE,
        why="Its times are not printed. The table of Figure 2, another measurement, gives 5.7x.",
        figures=(ratio("Figure 2", 41.7, 7.3),),
        uses=(quotient,),
    ),
    Claim(
        "S086",
        f"{FLASH}, Figure 2 (middle)",
        "Beyond blocks of 256 something other than HBM accesses limits the runtime.",
        claimed="256",
        declared=NOT_CHECKABLE,
        why="The figure gives no numbers in text, and the kernel behind it is not timed here.",
    ),
    Claim(
        "S089",
        f"{FLASH}, Table 21",
        "20x more memory efficient than exact attention, 2x than Linformer.",
        why="17,024 over 836 MB at 4K; 26,252 over 13,376 MB at 64K. The runtime crossover at 512 to 1024 tokens is not recomputed.",
        figures=(ratio("exact attention, 4K", 17024, 836, "20 x"), ratio("Linformer, 64K", 26252, 13376, "2 x")),
        uses=(quotient,),
    ),
    Claim(
        "S090",
        f"{FLASH}, Table 5",
        "Longer context gains 4.3 points on MIMIC-III and 8.5 on ECtHR.",
        figures=(
            Figure("MIMIC-III", difference, "4.3", at={"before": 52.8, "after": 57.1}),
            Figure("ECtHR", difference, "8.5", at={"before": 72.2, "after": 80.7}),
        ),
        uses=(difference,),
    ),
    Claim(
        "S091",
        f"{FLASH}, Table 4",
        "Four times the context, perplexity 0.7 better and still 30 % faster than Megatron-LM.",
        why="18.2 to 17.5; 4.7 against 3.6 days.",
        figures=(
            Figure("perplexity", lambda before, after: difference(after, before), "0.7", at={"before": 18.2, "after": 17.5}),
            Figure("speed", gain, "30 %", "%", at={"before": 4.7, "after": 3.6}, tolerance=0.03),  # 1.3x in the table: 30.6 % by its days
        ),
        uses=(difference, gain),
    ),
)
