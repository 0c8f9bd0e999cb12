"""Library kernels of shapes as users have them, clean, dirty and warm: ``python -m tools.measure.wide SEED SECONDS OUT [DEVICE]``.

Wider than ``drawn``: every head dim in steps of 8, 1 to 65,536 tokens, odd lengths, every layout of GQA, sizes and row widths that
nothing divides, fp32, tf32 and fp8. Families come in turn, so that a run cut short leaves all alike. ``role`` is held out.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.timing.base import STATES
from perfmodel.validation.cases import HELD_OUT, KernelCase
from perfmodel.validation.libraries import Torch, load_torch
from perfmodel.validation.libraries.measure import MOST_EAGER_SCORES
from tools.measure.drawn import LEAST_FLOP, MOST_BYTES, MOST_FLOP, Shape, _log, time_into, until
from tools.measure.hardware import current_profile

HEAD_DIMS = (32, 40, 48, 56, 64, 64, 64, 72, 80, 88, 96, 112, 128, 128, 128, 128, 160, 192, 224, 256)
GROUPS = (1, 1, 1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 12, 16)
LONGEST, MOST_ROWS, LEAST_ELEMENTS, MOST_ELEMENTS = 1 << 16, 1 << 18, 1 << 12, 1 << 28
SIXTEEN = ("bf16", "fp16")
EMPTY_LAUNCHES = 20000


def _size(random: Random, low: int, high: int) -> int:
    """Powers of two, multiples of 64 and 8, and any number, alike often."""
    size, step = _log(random, low, high), random.choice((0, 64, 8, 1))
    return 1 << size.bit_length() - 1 if not step else max(size // step * step, low)


def attention(random: Random, grouped: bool = True) -> Shape:
    """Several queries; causal ones over as many keys."""
    while True:
        kv_heads = _log(random, 1, 32)
        n, causal = _size(random, 2, LONGEST), random.random() < 0.5
        kv_len = n if causal or random.random() < 0.7 else _size(random, 2, LONGEST)
        heads = kv_heads * (random.choice(GROUPS) if grouped else 1)
        shape = {"batch": _log(random, 1, 64), "heads": heads, "kv_heads": kv_heads, "n": n, "kv_len": kv_len}
        shape |= {"d": random.choice(HEAD_DIMS), "causal": causal}
        flop, size = 4.0 * shape["batch"] * heads * n * kv_len * shape["d"], 4 * shape["batch"] * heads * (n + kv_len) * shape["d"]
        if LEAST_FLOP / 10 <= flop <= MOST_FLOP and size <= MOST_BYTES:
            return shape


def decode(random: Random) -> Shape:
    """One query."""
    while True:
        kv_heads, kv_len, d, batch = _log(random, 1, 40), _size(random, 64, 131072), random.choice(HEAD_DIMS), _log(random, 1, 256)
        if 1 << 18 <= 4 * batch * kv_heads * kv_len * d <= MOST_BYTES:
            shape = {"batch": batch, "heads": kv_heads * random.choice(GROUPS), "kv_heads": kv_heads, "n": 1}
            return shape | {"kv_len": kv_len, "d": d, "causal": False}


def eager(random: Random) -> Shape:
    """As many keys as queries and KV heads as heads; a causal mask is added."""
    while True:
        shape = attention(random, grouped=False)
        shape |= {"kv_len": shape["n"]} | ({"mask": True} if shape["causal"] else {})
        if shape["batch"] * shape["heads"] * shape["n"] ** 2 <= MOST_EAGER_SCORES:
            return shape


def filled(random: Random) -> Shape:
    """Eager attention with a mask that is filled in."""
    shape = eager(random) | {"causal": True}
    shape.pop("mask", None)
    return shape


def matmul(random: Random, step: int = 1) -> Shape:
    """C [m, n] = A [m, k] B [k, n]."""
    while True:
        m, n, k = (max(step, _size(random, *ends) // step * step) for ends in ((1, 16384), (64, 49152), (64, 49152)))
        if 2.0 * m * n * k <= 2 * MOST_FLOP and 2 * (m * k + n * k + m * n) <= MOST_BYTES:
            return {"m": m, "n": n, "k": k}


def rows(random: Random) -> Shape:
    """Rows of any width."""
    while True:
        shape = {"rows": _log(random, 1, MOST_ROWS), "cols": _size(random, 32, LONGEST)}
        if LEAST_ELEMENTS <= shape["rows"] * shape["cols"] <= MOST_ELEMENTS:
            return shape


def _norm(kind: str) -> Callable[[Random], Shape]:
    return lambda random: rows(random) | {"kind": kind}


Family = tuple[str, str, str, Callable[[Random], Shape], tuple[str, ...]]
ROWS: tuple[Family, ...] = (
    ("softmax", "torch-softmax", FORWARD, rows, SIXTEEN),
    ("norm", "torch-rms-norm", FORWARD, _norm("rmsnorm"), SIXTEEN),
    ("norm", "torch-layer-norm", FORWARD, _norm("layernorm"), SIXTEEN),
    *(("scale", name, FORWARD, rows, SIXTEEN) for name in ("torch-scale", "torch-add", "torch-silu-mul")),
)
FAMILIES: tuple[Family, ...] = (
    *(("attention", f"torch-sdpa-{name}", way, attention, SIXTEEN) for name in ("flash", "cudnn") for way in (FORWARD, BACKWARD)),
    *(("attention", "torch-sdpa-efficient", way, lambda r: attention(r, False), SIXTEEN) for way in (FORWARD, BACKWARD)),
    *(("attention", f"torch-sdpa-{name}", FORWARD, decode, SIXTEEN) for name in ("flash", "cudnn")),
    *(("attention", "torch-eager", way, eager, SIXTEEN) for way in (FORWARD, BACKWARD)),
    ("attention", "torch-eager-masked-fill", FORWARD, filled, SIXTEEN),
    *(("matmul", "torch-matmul", FORWARD, matmul, dtypes) for dtypes in (SIXTEEN, ("fp32",), ("tf32",))),
    ("matmul", "torch-scaled-mm", FORWARD, lambda r: matmul(r, 16), ("fp8",)),
    *ROWS,
    ("copy", "torch-copy", FORWARD, lambda r: {"bytes": _log(r, 256, 1 << 31) // 2 * 2}, ("bf16",)),
)


def wide(seed: int, families: tuple[Family, ...] = FAMILIES) -> Iterator[KernelCase]:
    """Cases without end, each clean, dirty and warm; the same for the same seed."""
    random = Random(seed)
    for _ in count():
        for workload, name, direction, draw, dtypes in families:
            dtype = random.choice(dtypes)
            case = KernelCase(workload, name, draw(random), dtype, direction, f"drawn wide with seed {seed}; {HELD_OUT}")
            yield from (replace(case, cache=cache) for cache in STATES)


def launch_s(torch: Torch) -> float:
    """Seconds of the host per launch of an operation on one element, from Python, the device being ahead."""
    x = torch.zeros((), device="cuda")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(EMPTY_LAUNCHES):
        x.add_(1.0)
    taken = time.perf_counter() - begin
    torch.cuda.synchronize()
    return taken / EMPTY_LAUNCHES


def main(arguments: list[str]) -> None:
    """Time cases until the seconds are over, and the host's launches in OUT.host.json."""
    seed, seconds, out = int(arguments[0]), float(arguments[1]), Path(arguments[2])
    torch = load_torch()
    hardware = arguments[3] if len(arguments) > 3 else current_profile(torch)
    families = ROWS if "--rows" in arguments else FAMILIES
    out.with_suffix(".host.json").write_text(json.dumps({"launch_us": [1e6 * launch_s(torch) for _ in range(5)]}) + "\n")
    time_into(out, until(wide(seed, families), seconds), hardware)


if __name__ == "__main__":
    main(sys.argv[1:])
