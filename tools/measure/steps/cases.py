"""Which steps and collectives are measured; models, batches and lengths of the held-out steps are not those of the fitted ones."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from perfmodel.validation.cases import FIT, HELD_OUT

PREFILL, DECODE = "prefill", "decode"
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class StepCase:
    """One step of ``model`` on ``world`` GPUs; ``length``: tokens of the prompt in prefill, of the cache in decode."""

    model: str
    phase: str
    batch: int
    length: int
    world: int
    role: str

    @property
    def shape(self) -> dict[str, int | bool | str]:
        """Keys of a record."""
        return {
            "model": self.model,
            "phase": self.phase,
            "batch": self.batch,
            "n" if self.phase == PREFILL else "kv_len": self.length,
            "tensor_parallel": self.world,
            "fused_elementwise": False,
            "cuda_graph": self.phase == DECODE,
        }


FITTED = {
    PREFILL: [(1, 512), (4, 2048), (1, 128), (16, 256), (1, 2048), (1, 8192), (2, 4096)],
    DECODE: [(1, 2048), (64, 1024), (4, 8192), (16, 512), (1, 32768), (16, 4096), (128, 256), (4, 512), (64, 4096)],
}
DRAWN_APART = {
    PREFILL: [(1, 1024), (8, 1024), (1, 3072), (2, 768), (1, 384), (1, 6144), (3, 1536), (1, 12288)],
    DECODE: [(1, 1024), (32, 1536), (8, 3072), (2, 6144), (1, 12288), (32, 384), (96, 768), (8, 1024), (1, 384), (24, 2560)],
}
"""(batch, length), the most telling first."""
PARALLEL_SHAPES = 8
"""How many of each are run on several GPUs."""

MODELS = {"llama-3.2-1b": FIT, "llama-2-7b": HELD_OUT, "llama-3-8b": FIT, "llama-2-13b": HELD_OUT}
PARALLEL_MODELS = ("llama-3-8b", "llama-2-13b", "llama-3-70b")
"""No step or collective of several GPUs is fitted: kernels are known from one GPU, collectives from public tables."""


def step_cases(model: str, world: int = 1) -> list[StepCase]:
    """Prefills and decodes of one model in turn."""
    role = MODELS.get(model, HELD_OUT)
    shapes = FITTED if role == FIT else DRAWN_APART
    most = None if world == 1 else PARALLEL_SHAPES
    pairs = zip_longest(shapes[PREFILL][:most], shapes[DECODE][:most])
    found = []
    for pair in pairs:
        for phase, size in zip((PREFILL, DECODE), pair, strict=True):
            if size is not None:
                found.append(StepCase(model, phase, size[0], size[1], world, role if world == 1 else HELD_OUT))
    return found


OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")


def collective_sizes() -> list[int]:
    """Bytes of the full buffer: powers of four, one and a half and three times as much, up to 1 GiB."""
    powers = [4**power for power in range(6, 15)]
    return sorted([*powers, *(3 * size // 2 for size in powers), *(3 * size for size in powers), GIB])
