"""Library kernels of shapes drawn at random, timed: ``python -m tools.measure.drawn SEED SECONDS OUT``.

For rows that no fit and no rule has seen. Families come in turn, so that a run cut short leaves all alike. Every second case has a
shape like those of the shipped records ("alike"), every other one goes beyond them ("wider"): the record's source says which.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from math import exp, log
from pathlib import Path
from random import Random
from typing import Any

from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.validation.cases import HELD_OUT, KernelCase
from perfmodel.validation.libraries import load_torch
from perfmodel.validation.libraries.measure import MOST_EAGER_SCORES, as_line, measure
from tools.measure.hardware import current_profile
from tools.measure.prepared import find

ALIKE, WIDER = "alike", "wider"
HEAD_DIMS = {ALIKE: (64, 64, 128, 128, 96, 192, 256), WIDER: (32, 40, 72, 80, 112, 160, 224, 64, 128)}
LONGEST = {ALIKE: 32768, WIDER: 65536}
MOST_FLOP, LEAST_FLOP, MOST_BYTES = 1e12, 1e8, 2 << 30

Shape = dict[str, Any]


def _log(random: Random, low: int, high: int) -> int:
    """A whole number, its logarithm evenly spread."""
    return min(high, int(exp(random.uniform(log(low), log(high + 1)))))


def _length(random: Random, low: int, high: int) -> int:
    """A length: even multiples of tiles as often as odd numbers."""
    step = random.choice((1, 8, 64, 128))
    return max(1, _log(random, low, high) // step) * step


def _heads(random: Random, most: int) -> tuple[int, int]:
    kv_heads = _log(random, 1, most)
    return kv_heads * random.choice((1, 1, 1, 2, 4, 8)), kv_heads


def _attention(random: Random, kind: str, grouped: bool = True) -> Shape:
    while True:
        heads, kv_heads = _heads(random, 32)
        n, causal = _length(random, 128 if kind == ALIKE else 16, LONGEST[kind]), random.random() < 0.5
        kv_len = n if causal or random.random() < 0.7 else _length(random, 128 if kind == ALIKE else 16, LONGEST[kind])
        shape = {"batch": _log(random, 1, 32), "heads": heads if grouped else kv_heads, "kv_heads": kv_heads, "n": n, "kv_len": kv_len}
        shape |= {"d": random.choice(HEAD_DIMS[kind]), "causal": causal}
        flop = 4.0 * shape["batch"] * shape["heads"] * n * kv_len * shape["d"]
        size = 4 * shape["batch"] * shape["heads"] * (n + kv_len) * shape["d"]
        if LEAST_FLOP <= flop <= MOST_FLOP and size <= MOST_BYTES:
            return shape


def _decode(random: Random, kind: str) -> Shape:
    while True:
        heads, kv_heads = _heads(random, 40)
        kv_len, d, batch = _length(random, 420, 131072), random.choice(HEAD_DIMS[kind]), _log(random, 1, 256)
        if 1 << 18 <= 4 * batch * kv_heads * kv_len * d <= MOST_BYTES:
            return {"batch": batch, "heads": heads, "kv_heads": kv_heads, "n": 1, "kv_len": kv_len, "d": d, "causal": False}


def _eager(random: Random, kind: str) -> Shape:
    while True:
        shape = _attention(random, kind, grouped=False)
        shape |= {"kv_len": shape["n"]} | ({"mask": True} if shape["causal"] else {})
        if shape["batch"] * shape["heads"] * shape["n"] ** 2 <= MOST_EAGER_SCORES:
            return shape


def _matmul(random: Random, kind: str) -> Shape:
    while True:
        step = random.choice((64, 64, 8) if kind == ALIKE else (8, 2, 1))
        m, (n, k) = _log(random, 1, 16384), (max(1, _log(random, 64, 49152) // step) * step for _ in range(2))
        if 2.0 * m * n * k <= 2 * MOST_FLOP and 2 * (m * k + n * k + m * n) <= MOST_BYTES:
            return {"m": m, "n": n, "k": k}


def _rows(random: Random, kind: str) -> Shape:
    while True:
        rows, cols = _log(random, 24, 262144), _length(random, 302 if kind == ALIKE else 64, 16384 if kind == ALIKE else 65536) // 8 * 8
        if cols and 1 << 14 <= rows * cols <= 1 << 29:
            return {"rows": rows, "cols": cols}


def _norm(name: str) -> Callable[[Random, str], Shape]:
    return lambda random, kind: _rows(random, kind) | {"kind": name}


def _copy(random: Random, kind: str) -> Shape:
    return {"bytes": _log(random, 4096 if kind == ALIKE else 256, 1 << 32) // 16 * 16}


Family = tuple[str, str, str, Callable[[Random, str], Shape]]
FAMILIES: tuple[Family, ...] = (
    *(("attention", f"torch-sdpa-{name}", way, _attention) for name in ("flash", "cudnn") for way in (FORWARD, BACKWARD)),
    *(("attention", "torch-sdpa-efficient", way, lambda r, kind: _attention(r, kind, grouped=False)) for way in (FORWARD, BACKWARD)),
    *(("attention", f"torch-sdpa-{name}", FORWARD, _decode) for name in ("flash", "cudnn")),
    *(("attention", "torch-eager", way, _eager) for way in (FORWARD, BACKWARD)),
    ("matmul", "torch-matmul", FORWARD, _matmul),
    ("softmax", "torch-softmax", FORWARD, _rows),
    ("norm", "torch-rms-norm", FORWARD, _norm("rmsnorm")),
    ("norm", "torch-layer-norm", FORWARD, _norm("layernorm")),
    *(("scale", name, FORWARD, _rows) for name in ("torch-scale", "torch-add", "torch-silu-mul")),
    ("copy", "torch-copy", FORWARD, _copy),
)


def drawn(seed: int) -> Iterator[KernelCase]:
    """Cases without end; the same for the same seed."""
    random = Random(seed)
    while True:
        for kind in (ALIKE, WIDER):
            for workload, name, direction, draw in FAMILIES:
                dtype = random.choice(("bf16", "fp16")) if workload != "copy" else "bf16"
                role = f"drawn with seed {seed}, {kind}; {HELD_OUT}"
                yield KernelCase(workload, name, draw(random, kind), dtype, direction, role)


def until(cases: Iterable[KernelCase], seconds: float) -> Iterator[KernelCase]:
    """``cases``, as long as the seconds last."""
    end = time.monotonic() + seconds
    return takewhile(lambda case: time.monotonic() <= end, cases)


def time_into(out: Path, cases: Iterable[KernelCase], hardware: str) -> None:
    """Time ``cases``, a record per line of ``out``; what does not run, with its reason, in OUT.skipped."""
    with out.open("w", encoding="utf-8") as records, out.with_suffix(".skipped").open("w", encoding="utf-8") as skipped:

        def write(record: Any) -> None:
            records.write(as_line(record))
            records.flush()

        def skip(case: KernelCase, reason: str) -> None:
            row = {name: getattr(case, name) for name in ("implementation", "dtype", "direction", "shape")} | {"reason": reason}
            skipped.write(json.dumps(row) + "\n")
            skipped.flush()

        measure(cases, hardware, write, skip, find=find)


def main(arguments: list[str]) -> None:
    """Time cases until the seconds are over."""
    seed, seconds, out = int(arguments[0]), float(arguments[1]), Path(arguments[2])
    hardware = arguments[3] if len(arguments) > 3 else current_profile(load_torch())
    time_into(out, until(drawn(seed), seconds), hardware)


if __name__ == "__main__":
    main(sys.argv[1:])
