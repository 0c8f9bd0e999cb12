"""The formulas that docs/formulas.md opens with: each is evaluated, and held against what a command prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import ceil, isclose
from typing import Any, NamedTuple

ATTENTION = "attention --n 4096 --d 64 --heads 16 --batch 8"
MATMUL = "matmul -m 8192 -n 128 -k 8192"
CACHE = "kv-cache llama-3-8b --n 8192 --batch 16"
DECODE = "model llama-3-8b --phase decode --batch 8 --kv-len 2048"
A100 = {"P": 312e12, "BW": 2.03904e12}
SHAPE = {"B": 8, "H": 16, "N": 4096, "d": 64, "B_r": 128}
LLAMA = {"L": 32, "H_kv": 8, "d": 128, "s": 2}
SYMBOLS = """B sequences, H query heads, H_kv KV heads, N tokens, d head dim, L layers, s bytes of an element, P FLOP/s and BW B/s of the
device. The values are those of the commands, here in 16 bit on an A100 SXM 80 GB; each formula is evaluated and held against them when this
page is made. Accesses are elements of the two-level model: fast memory of M elements and HBM, nothing between.
"""


class Part(NamedTuple):
    """``name = formula``, which Python can evaluate, and where the program has its value: the path in the JSON of a command."""

    name: str
    formula: str
    path: str
    unit: str = ""
    more: str = ""


class Needed(NamedTuple):
    """A formula that everyone needs, in ``parts``; each may use those before it."""

    what: str
    asked: str
    symbols: Mapping[str, float]
    parts: tuple[Part, ...]
    why: str
    source: str


NEEDED = (
    Needed(
        "FLOP of attention",
        ATTENTION,
        SHAPE,
        (
            Part("FLOP", "4 * B * H * N**2 * d", "results.0.flops"),
            Part("backward", "2 * FLOP", "results.0.flops", more="--pass backward"),
            Part("causal", "FLOP * (N + 1) / (2 * N)", "results.0.flops", more="--causal"),
        ),
        "Two products of 2 N^2 d each; a multiply-add counts 2. A fused backward builds the scores again and runs 2.5 FLOP.",
        "Dao 2023, section 4.1",
    ),
    Needed(
        "Arithmetic intensity and roof",
        MATMUL,
        {"m": 8192, "n": 128, "k": 8192, "s": 2, **A100},
        (
            Part("FLOP", "2 * m * n * k", "results.0.flops"),
            Part("bytes", "s * (m * k + k * n + m * n)", "results.0.minimum_traffic.bytes"),
            Part("I", "FLOP / bytes", "results.0.arithmetic_intensity.minimum", "FLOP/B"),
            Part("T", "max(FLOP / P, bytes / BW)", "results.0.time_s.lower", "s"),
        ),
        "Memory bound where I is below the ridge point P / BW, here 153 FLOP/B; the rate is at most min(P, I BW).",
        "Williams, Waterman & Patterson 2009",
    ),
    Needed(
        "HBM accesses of standard attention",
        ATTENTION,
        SHAPE,
        (Part("accesses", "B * H * (4 * N**2 + 4 * N * d)", "results.0.accesses.total"),),
        "Scores are written and read, so are probabilities: Theta(N^2 + N d).",
        "Dao et al. 2022, Algorithm 0 and Theorem 2",
    ),
    Needed(
        "HBM accesses of FlashAttention",
        ATTENTION,
        SHAPE,
        (Part("accesses", "B * H * (2 * N * d + 2 * N * d * ceil(N / B_r) + N)", "results.1.accesses.total"),),
        "Each of the N / B_r rows of tiles reads all of K and V; a row keeps one sum. B_r is at most about M / d: Theta(N^2 d^2 / M).",
        "Dao et al. 2022, Theorem 2; Dao 2023, Algorithm 1",
    ),
    Needed(
        "Bytes of a KV cache",
        CACHE,
        {**LLAMA, "N": 8192, "B": 16},
        (Part("bytes", "2 * L * H_kv * d * s * N * B", "bytes"),),
        "K and V of every layer, token and sequence.",
        "Pope et al. 2022, section 3.3",
    ),
    Needed(
        "Least time of a decode step",
        DECODE,
        {**LLAMA, **A100, "N": 2048, "B": 8, "W": 7504924672},
        (
            Part("W", "W", "parameters.active"),
            Part("cache", "2 * L * H_kv * d * s * N * B", "memory.kv_cache"),
            Part("T", "max(2 * W * B / P, (s * W + cache) / BW)", "totals.time_s.lower", "s"),
        ),
        "Each weight W that a token passes, which leaves out the table of embeddings, and the cache come from memory once.",
        "roofline of weights and cache",
    ),
)


def lines(answer: Callable[[str], Any], listed: Iterable[Needed] = NEEDED) -> Iterator[str]:
    """A numbered entry each; AssertionError where what ``answer`` gives for a command is not what the formula gives."""
    for place, one in enumerate(listed, 1):
        shown, known = [], dict(one.symbols)
        for part in one.parts:
            value = known[part.name] = eval(part.formula, {"max": max, "ceil": ceil}, known)
            found = answer(f"{one.asked} {part.more} --json".replace("  ", " "))
            for step in part.path.split("."):
                found = found[int(step) if step.isdigit() else step]
            assert isclose(value, found, rel_tol=1e-5), (one.what, part.name, value, found)
            text = f"{found:,}" if isinstance(found, int) else f"{found:.4g} {part.unit}" if part.unit != "s" else f"{found * 1e6:,.1f} us"
            formula = "" if part.formula == part.name else f" = {part.formula.replace('**', '^')}"
            shown.append(f"   `{part.name}{formula} = {text}`{f', with `{part.more}`' if part.more else ''}  \n")
        yield f"{place}. **{one.what}**, `perfmodel {one.asked}`:  \n{''.join(shown)}   {one.why} Source: {one.source}.\n"
