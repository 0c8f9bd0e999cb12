"""A serving engine: which kernels it runs, how it makes batches, what it keeps for itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from perfmodel.transformer.kernel_choice import KernelChoice


@dataclass(frozen=True, slots=True)
class Batching:
    """Continuous batching: which tokens run in one step.

    ``token_budget``: most tokens of a step; a prompt that is longer is cut into chunks if ``chunked``, else runs alone. ``mixed``: prompts
    and decoding sequences share a step; else waiting prompts run first, and decoding waits. ``max_sequences``: that run at a time.
    """

    token_budget: int = 8192
    chunked: bool = True
    mixed: bool = True
    max_sequences: int = 1024


@dataclass(frozen=True, slots=True)
class Overhead:
    """Host seconds of the engine that no kernel hides: per step, per sequence of a step, and per request before its first step.

    ``fitted``: the rows they were fitted to, in words; empty for none.
    """

    step_s: float = 0.0
    sequence_s: float = 0.0
    request_s: float = 0.0
    fitted: str = ""


@dataclass(frozen=True, slots=True)
class Engine:
    """A preset, of ``configs/engines``. ``memory_share``: of a GPU's memory it takes; ``reserve``: bytes of it without weights or cache.

    ``graph_batch``: largest decode batch run as a CUDA graph. ``kv_block``: tokens of a block of the cache.
    """

    id: str
    name: str
    kernels: KernelChoice = field(default_factory=KernelChoice)
    fused: bool = True
    graph_batch: int = 512
    batching: Batching = field(default_factory=Batching)
    kv_block: int = 16
    memory_share: float = 0.9
    reserve: int = 0
    overhead: Overhead = field(default_factory=Overhead)
    sources: tuple[tuple[str, str], ...] = ()
