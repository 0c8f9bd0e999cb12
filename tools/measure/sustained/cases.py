"""Which kernels and steps: drawn anew for each seed, those of ``tools.measure.drawn`` and products of layers in every format."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from perfmodel.core.workload import FORWARD
from perfmodel.validation.cases import HELD_OUT, KernelCase
from tools.measure.drawn import ALIKE, FAMILIES, WIDER, Shape, _log
from tools.measure.steps.cases import DECODE, PREFILL, StepCase

FP8, SCALED = "fp8", "torch-scaled-mm"
LEAST_COPY = 1 << 26
PRODUCTS = (("torch-matmul", "bf16"), ("torch-matmul", "fp16"), (SCALED, FP8), ("torch-matmul", "tf32"), ("torch-matmul", "fp32"))
LEAST_FLOP, MOST_FLOP = 2e10, 4e12


def _product(random: Random, kind: str) -> Shape:
    """A product of a layer's size; sizes are multiples of 16, which fp8 needs."""
    while True:
        m, n, k = (2 ** random.randint(9, 13) if kind == ALIKE else _log(random, 512, 16384) // 16 * 16 for _ in "mnk")
        if LEAST_FLOP < 2.0 * m * n * k < MOST_FLOP:
            return {"m": m, "n": n, "k": k}


def kernels(seed: int) -> Iterator[KernelCase]:
    """Cases without end; families come in turn."""
    random = Random(seed)
    while True:
        for kind in (ALIKE, WIDER):
            for workload, name, direction, draw in FAMILIES:
                shape, dtype = draw(random, kind), random.choice(("bf16", "fp16"))
                if workload == "copy":
                    shape, dtype = {"bytes": max(shape["bytes"], LEAST_COPY)}, "bf16"
                yield KernelCase(workload, name, shape, dtype, direction, f"drawn with seed {seed}, {kind}; {HELD_OUT}")
            for name, dtype in PRODUCTS:
                role = f"drawn with seed {seed}, {kind}; {HELD_OUT}"
                yield KernelCase("matmul", name, _product(random, kind), dtype, FORWARD, role)


MODELS = ("llama-3.2-1b", "llama-3.1-8b", "llama-2-13b", "llama-2-7b")
STEPS_EACH = 6
LONGEST = {PREFILL: 8192, DECODE: 65536}
"""Tokens of all sequences of a step together."""


def steps(seed: int) -> Iterator[tuple[str, list[StepCase]]]:
    """Each model with its prefills and decodes in turn."""
    random = Random(seed)
    for model in MODELS:
        yield (
            model,
            [_step(random, model, (PREFILL, DECODE)[index % 2], f"drawn with seed {seed}; {HELD_OUT}") for index in range(STEPS_EACH)],
        )


def _step(random: Random, model: str, phase: str, role: str) -> StepCase:
    while True:
        batch, length = (_log(random, low, high) for low, high in ((1, 64), (256, 16384)))
        if 512 <= batch * length <= LONGEST[phase]:
            return StepCase(model, phase, batch, length, 1, role)
