"""Grouped products of PyTorch of shapes drawn at random, timed: ``python -m tools.measure.grouped SEED SECONDS OUT [DEVICE]``.

Half of the shapes, by turns, are for the fit; the others are held out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

from perfmodel.validation.cases import FIT, HELD_OUT, KernelCase
from perfmodel.validation.libraries import load_torch
from tools.measure.drawn import MOST_BYTES, MOST_FLOP, Shape, _log, time_into, until
from tools.measure.hardware import current_profile

EXPERTS, TOP_K = (4, 8, 16, 32, 60, 64, 128, 160, 256), (1, 2, 4, 6, 8)


def grouped(random: Random) -> Shape:
    """Routed rows over the matrices of experts: few and many of both, sizes in steps of 64 or 8."""
    while True:
        experts, top_k, tokens, step = random.choice(EXPERTS), random.choice(TOP_K), _log(random, 1, 32768), random.choice((64, 64, 8))
        n, k = (_log(random, 128, 16384) // step * step for _ in range(2))
        rows = tokens * top_k
        touched = min(experts, rows) if random.random() < 0.8 else _log(random, 1, min(experts, rows))
        if min(n, k) and 2.0 * rows * n * k <= 4 * MOST_FLOP and 2 * (rows * (n + k) + experts * n * k) <= 4 * MOST_BYTES:
            return {"tokens": tokens, "top_k": top_k, "experts": experts, "touched": touched, "n": n, "k": k}


def drawn(seed: int) -> Iterator[KernelCase]:
    """Cases without end; the same for the same seed."""
    random = Random(seed)
    while True:
        for role in (FIT, HELD_OUT):
            yield KernelCase("grouped-matmul", "torch-grouped-mm", grouped(random), role=role)


def main(arguments: list[str]) -> None:
    """Time cases until the seconds are over."""
    hardware = arguments[3] if len(arguments) > 3 else current_profile(load_torch())
    time_into(Path(arguments[2]), until(drawn(int(arguments[0])), float(arguments[1])), hardware)


if __name__ == "__main__":
    main(sys.argv[1:])
