"""What can run a model: an engine on the GPUs of a layout, with the times of its steps and the sequences that its cache holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from perfmodel.core.hardware import Device
from perfmodel.serving.engine import Engine
from perfmodel.serving.iteration import StepTimes
from perfmodel.serving.layouts import layouts
from perfmodel.serving.load import Load
from perfmodel.serving.memory import Memory
from perfmodel.serving.steps import KnownKernels, Table, step_times
from perfmodel.timing.lenders import FallbackDevices
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import ModelPass, Split


@dataclass(frozen=True, slots=True)
class Replica:
    """``split`` of the model under ``engine``. ``most_running``: sequences that the cache holds to their last token.

    ``cache_bytes``: of a prompt, on each GPU that holds a part of it.
    """

    engine: Engine
    split: Split
    times: StepTimes
    most_running: int
    cache_bytes: float = 0.0

    @property
    def gpus(self) -> int:
        """GPUs of the layout."""
        return self.split.gpus


@dataclass(frozen=True, slots=True)
class Missed:
    """A layout whose caches hold no sequence. ``lacks``: bytes on each GPU for one in each group."""

    engine: Engine
    split: Split
    lacks: float


def sizes(gpus: int) -> list[int]:
    """Powers of two up to ``gpus``, and that itself.

    >>> sizes(1), sizes(8), sizes(12)
    ([1], [1, 2, 4, 8], [1, 2, 4, 8, 12])
    """
    return sorted({*(1 << power for power in range(gpus.bit_length())), gpus})


def launches(engine: Engine, split: Split) -> bool:
    """Whether ``engine`` has options for ``split``: attention of TensorRT-LLM is cut among all GPUs, or in groups of one.

    Source: NVIDIA/TensorRT-LLM, docs, "Parallelism in TensorRT LLM" (``enable_attention_dp``).
    """
    return engine.id != "tensorrt-llm" or split.dp == 1 or split.tp == 1


def splits(model: ModelSpec, gpus: int, device: Device, published: bool) -> list[Split]:
    """Layouts of replicas of up to ``gpus`` GPUs, fewest stages first. Groups of a dense model are replicas of their own."""
    found = (one for size in sizes(gpus) for one in layouts(model, size, device, published))
    return sorted((one for one in found if model.is_moe or one.dp == 1), key=lambda one: one.pp)


def replicas(
    model: ModelSpec, device: Device, gpus: int, engines: Iterable[Engine], like: ModelPass, load: Load, fallbacks: FallbackDevices = tuple
) -> tuple[list[Replica], list[Missed]]:
    """All that hold at least one sequence in each group, and those that do not.

    More stages are tried where fewer do not hold it on the same GPUs of a stage: they save memory, and no time. Rows of kernels are
    shared by all. Tables of steps are coarse: a node per factor of two, as they rank what is then asked exactly.
    """
    found, missed, known = list[Replica](), list[Missed](), KnownKernels()
    ways = [replace(like, split=split) for split in splits(model, gpus, device, like.weights_from_file)]
    length = load.isl + load.osl
    tables: dict[tuple[object, ...], Table] = {}
    for engine in engines:
        held: set[tuple[int, int, int]] = set()
        for here in ways:
            split = here.split
            stage = (split.tp, split.ep, split.dp)
            if stage in held or not launches(engine, split):
                continue
            memory = Memory(model, device, engine, here)
            most = memory.most_running(length)
            if most < 1:
                missed.append(Missed(engine, split, memory.total(split.dp, length) - memory.usable))
                continue
            held.add(stage)
            times = replace(step_times(model, device, engine, here, fallbacks), known=known, coarse=True)
            group, k = (split.tp, engine.kernels, engine.fused), engine.kernels
            attention = (split.tp, split.dp, engine.fused, engine.graph_batch, k.attention, k.latent_attention)
            for part, alike in {"group": group, "heads": group, "decode": attention, "prompt": attention}.items():
                times.nodes[part] = tables.setdefault((part, *alike), {})  # experts and stages do not change it
            cache = memory.fit(load.isl).sequence
            found.append(Replica(engine, split, times, most, cache))
    return found, missed
