"""What can run a model: an engine on the GPUs of a layout, with the times of its steps and the sequences that its cache holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Device
from perfmodel.serving.engine import Engine
from perfmodel.serving.iteration import StepTimes
from perfmodel.serving.load import Load
from perfmodel.serving.steps import KernelTimes, step_times
from perfmodel.timing.predict import FallbackDevices
from perfmodel.transformer.estimate import PassRow
from perfmodel.transformer.op import WEIGHTS, Op, total_bytes
from perfmodel.transformer.ops import step_ops
from perfmodel.transformer.parallel import activation_bytes, kv_bytes, weight_bytes
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import DECODE, PREFILL, ModelPass, Split

STAGES = (1, 2, 4, 8)
"""Pipeline stages that are tried, each only where fewer do not hold the model."""


@dataclass(frozen=True, slots=True)
class Replica:
    """``split`` of the model under ``engine``. ``most_running``: sequences that the cache holds to their last token.

    ``least_step_s``: no decode step is shorter: the weights that one token needs, once through the DRAM of a GPU.
    ``cache_bytes``: of a prompt, on each GPU that holds a part of it.
    """

    engine: Engine
    split: Split
    times: StepTimes
    most_running: int
    least_step_s: float = 0.0
    cache_bytes: float = 0.0

    @property
    def gpus(self) -> int:
        """Of the layout."""
        return self.split.gpus


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest GPU of a layout. ``sequence``: the cache of one in each of ``groups``."""

    capacity: float
    weights: float
    activations: float
    sequence: float
    groups: int

    @property
    def room(self) -> float:
        """Bytes for all caches."""
        return self.capacity - self.weights - self.activations

    @property
    def missing(self) -> float:
        """Bytes that one sequence in each group lacks; none above 0 where it fits."""
        return self.sequence - self.room

    @cached_property
    def most_running(self) -> int:
        """Sequences that fit."""
        return max(int(self.room // self.sequence), 0) * self.groups if self.sequence else 10**6


def memory(model: ModelSpec, device: Device, engine: Engine, like: ModelPass, load: Load) -> Memory | None:
    """Of the layout of ``like`` with sequences of ``load`` at their last token, in whole blocks; None where a device states no capacity."""
    if device.dram.capacity is None:
        return None
    tokens = -(-(load.isl + load.osl) // engine.kv_block) * engine.kv_block
    groups = like.split.dp
    one = replace(like, phase=DECODE, batch=groups, n=1, kv_len=tokens)
    step = replace(like, phase=PREFILL, batch=groups, n=engine.batching.token_budget, kv_len=engine.batching.token_budget)
    held = max(float(activation_bytes(model, step)), float(engine.reserve))
    capacity = float(device.dram.capacity.number) * engine.memory_share
    return Memory(capacity, float(weight_bytes(model, one)), held, float(kv_bytes(model, one)), groups)


def layouts(model: ModelSpec, gpus: int) -> Iterator[Split]:
    """Those of up to ``gpus`` GPUs, sizes in powers of two, that ``model`` can be cut into; more stages last."""
    sizes = [1 << power for power in range(gpus.bit_length())]
    for pp in STAGES:
        for tp in sizes:
            for dp in sizes if model.is_moe else (1,):
                for ep in [one for one in sizes if one <= tp * dp] if model.is_moe else (1,):
                    split = Split(tp, ep, pp, dp)
                    if split.gpus <= gpus and _possible(split, model):
                        yield split


def _possible(split: Split, model: ModelSpec) -> bool:
    try:
        split.check(model)
    except PerfmodelError:
        return False
    return True


def launches(engine: Engine, split: Split) -> bool:
    """Whether ``engine`` has options for ``split``: sets of experts are one GPU each, or every GPU holds a part of each.

    TensorRT-LLM alone takes sets in between; its attention is either cut among all GPUs or in groups of one. Sources: ``launch.py``.
    """
    if engine.id == "tensorrt-llm":
        return split.dp == 1 or split.tp == 1
    return split.ep in (1, split.stage)


def replicas(
    model: ModelSpec,
    device: Device,
    gpus: int,
    engines: Iterable[Engine],
    like: ModelPass,
    load: Load,
    fallbacks: FallbackDevices = tuple,
) -> tuple[list[Replica], list[tuple[Engine, Split, Memory]]]:
    """All that hold at least one sequence in each group, and the others with their memory.

    More stages are tried where fewer do not hold it on the same GPUs of a stage: they save memory, and no time. Rows of kernels are
    shared by all. Tables of steps are coarse: a node per factor of two, as they rank what is then asked exactly.
    """
    found: list[Replica] = []
    missed: list[tuple[Engine, Split, Memory]] = []
    known: dict[tuple[Op, bool], PassRow] = {}
    for engine in engines:
        held: set[tuple[int, int, int]] = set()
        for split in layouts(model, gpus):
            stage = (split.tp, split.ep, split.dp)
            if stage in held or not launches(engine, split):
                continue
            here = replace(like, split=split)
            taken = memory(model, device, engine, here, load)
            if taken is not None and taken.most_running < 1:
                missed.append((engine, split, taken))
                continue
            held.add(stage)
            times = step_times(model, device, engine, here, fallbacks)
            times = replace(times, known=known, coarse=True)
            most = 10**6 if taken is None else taken.most_running
            found.append(Replica(engine, split, times, most, _least_step_s(model, device, times), _prompt_bytes(model, here, load)))
    return found, missed


def _least_step_s(model: ModelSpec, device: Device, times: KernelTimes) -> float:
    rate = device.best_dram_rate
    one = replace(times.like, phase=DECODE, batch=1, n=1, kv_len=1)
    return 0.0 if rate is None else float(total_bytes(step_ops(model, one), WEIGHTS)) / rate


def _prompt_bytes(model: ModelSpec, like: ModelPass, load: Load) -> float:
    return float(kv_bytes(model, replace(like, phase=DECODE, batch=1, n=1, kv_len=load.isl)))
