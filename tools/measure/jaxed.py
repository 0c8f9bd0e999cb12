"""Products and attention of JAX, timed by CUPTI: ``python -m tools.measure.jaxed SEED COUNT OUT [DEVICE]``.

XLA takes cuBLAS for products and, where asked to, cuDNN for attention. A record holds the time of all kernels of a call, on the buffers of
the call before; calls are long enough that what CUPTI leaves out, the launch, does not tell.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from perfmodel.timing.base import WARM
from perfmodel.validation.cases import HELD_OUT, KernelCase
from perfmodel.validation.libraries.measure import as_line
from perfmodel.validation.records import Seconds
from tools.measure.drawn import Shape
from tools.measure.wide import SIXTEEN, attention, matmul

LEAST_FLOP, RUNS, WARM_UP = 2e10, 9, 2
HEAD_DIMS = (64, 128)


def _attention(random: Random) -> Shape:
    while True:
        shape = attention(random) | {"d": random.choice(HEAD_DIMS)}
        if 4.0 * shape["batch"] * shape["heads"] * shape["n"] * shape["kv_len"] * shape["d"] >= LEAST_FLOP and shape["n"] % 64 == 0:
            return shape


def _matmul(random: Random) -> Shape:
    while True:
        shape = matmul(random, 8)
        if 2.0 * shape["m"] * shape["n"] * shape["k"] >= LEAST_FLOP:
            return shape


def drawn(seed: int, count: int) -> Iterator[KernelCase]:
    """``count`` cases of each kind; the same for the same seed."""
    random = Random(seed)
    for _ in range(count):
        for workload, name, draw in (("attention", "jax-cudnn", _attention), ("matmul", "jax-matmul", _matmul)):
            yield KernelCase(workload, name, draw(random), random.choice(SIXTEEN), role=f"drawn with seed {seed}; {HELD_OUT}", cache=WARM)


def prepared(case: KernelCase, jax: Any) -> tuple[Callable[..., Any], list[Any]]:
    """The compiled function of ``case`` and its arguments."""
    s, dtype = case.shape, {"bf16": jax.numpy.bfloat16, "fp16": jax.numpy.float16}[case.dtype]

    def draw(*sizes: int) -> Any:
        return jax.random.normal(jax.random.key(len(sizes)), sizes, dtype=dtype)

    if case.workload == "matmul":
        return jax.jit(lambda a, b: a @ b.T), [draw(s["m"], s["k"]), draw(s["n"], s["k"])]
    q = draw(s["batch"], s["n"], s["heads"], s["d"])
    k, v = (draw(s["batch"], s["kv_len"], s["kv_heads"], s["d"]) for _ in range(2))
    return jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=s["causal"], implementation="cudnn")), [q, k, v]


def main(arguments: list[str]) -> None:
    """Time the cases, a record per line of OUT."""
    import jax
    from jax.experimental.mosaic.gpu import profiler

    hardware = arguments[3] if len(arguments) > 3 else "nvidia-h200-sxm"
    with Path(arguments[2]).open("w", encoding="utf-8") as out:
        for case in drawn(int(arguments[0]), int(arguments[1])):
            try:
                run, operands = prepared(case, jax)
                times = [sum(ms for _, ms in profiler.measure(run, aggregate=False)(*operands)[1]) for _ in range(WARM_UP + RUNS)][WARM_UP:]
            except Exception as error:
                print(case.label, str(error).split("\n", 1)[0][:120], flush=True)
                continue
            seconds = Seconds.of([ms / 1e3 for ms in times])
            out.write(as_line(case.record(hardware, seconds, f"jax {jax.__version__}, CUPTI", environment={"runs": len(times)})))
            out.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
