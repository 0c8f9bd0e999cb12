"""Layouts of a model on a number of GPUs: those that serving engines accept, reasons for refusing others, and replicas that fit.

An engine is given degrees of tensor, data and pipeline parallelism. GPUs of a stage cut each expert, or distribute the experts among
them (vLLM, ``--enable-expert-parallel``; SGLang, ``--ep-size``; TensorRT-LLM, ``moe_expert_parallel_size``). Stages may span nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from perfmodel.core.arith import divisors
from perfmodel.core.checks import positive_int
from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.serving.engine import Engine
from perfmodel.serving.iteration import StepTimes
from perfmodel.serving.load import Load
from perfmodel.serving.memory import Memory
from perfmodel.serving.steps import KernelCache, KernelTimes, Table, step_times
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.transformer.layer import operations
from perfmodel.transformer.spec import DenseMlp, Layer, ModelSpec, MoeMlp
from perfmodel.transformer.step import ModelPass, Split


def layouts(model: ModelSpec, gpus: int, device: Device, published: bool = True) -> list[Split]:
    """Every layout of one replica on ``gpus`` that engines accept, fewest stages and groups first; it need not fit the memory.

    ``published``: weights are stored as in the model's file, in blocks that a cut may not divide.

    >>> from perfmodel.catalog import find_device, find_model
    >>> [(s.tp, s.ep, s.pp, s.dp) for s in layouts(find_model("mixtral-8x7b"), 2, find_device("h200"))]
    [(2, 1, 1, 1), (2, 2, 1, 1), (1, 1, 1, 2), (1, 2, 1, 2), (1, 1, 2, 1)]
    """
    return [split for split in candidates(model, gpus) if not why_refused(model, split, device, published)]


def candidates(model: ModelSpec, gpus: int) -> Iterator[Split]:
    """Every combination of stages, groups and GPUs per group that makes ``gpus``, with experts cut or distributed."""
    positive_int("gpus", gpus)
    for pp in divisors(gpus):
        for dp in divisors(gpus // pp):
            stage = gpus // pp
            for ep in sorted({1, stage}) if model.is_moe else (1,):
                yield Split(stage // dp, ep, pp, dp)


def why_refused(model: ModelSpec, split: Split, device: Device, published: bool = True) -> str:
    """Sentence that says why no engine runs ``model`` in this layout; empty if one does."""
    try:
        split.check(model)
    except UsageError as error:
        return error.message
    exchanges = split.tp > 1 or split.pp > 1 or (split.dp > 1 and model.is_moe)
    if exchanges and device.interconnect is None:
        return f"{device.id} has no interconnect in its profile"
    for layer, _ in model.layer_kinds:
        reason = _uneven_columns(layer, split) or (_cut_block(model, layer, split) if published else "")
        if reason:
            return reason
    return ""


def _uneven_columns(layer: Layer, split: Split) -> str:
    """Sentence on columns of an MLP that the GPUs do not divide evenly; empty if they do."""
    mlp, widths = layer.mlp, list[tuple[str, int, int]]()
    if isinstance(mlp, DenseMlp):
        widths = [("an MLP", mlp.width, split.tp)]
    elif isinstance(mlp, MoeMlp):
        widths = [("an expert", mlp.width, split.expert_tp), ("the shared expert", mlp.shared_width, split.tp)]
    return next((f"{gpus} GPUs do not divide the {width} columns of {name}" for name, width, gpus in widths if width % gpus), "")


def _cut_block(model: ModelSpec, layer: Layer, split: Split) -> str:
    """Sentence on a matrix that is not cut between the blocks that share a scale (vLLM, ``validate_fp8_block_shape``); empty for none."""
    formats = dict(layer.formats)
    matrices = [matrix for op in operations(model, layer, 1, expert_tp=1) for matrix in op.matrices]
    parts = [matrix for op in operations(model, layer, split.tp, expert_tp=split.expert_tp) for matrix in op.matrices]
    for whole, part in zip(matrices, parts, strict=True):
        if part.stored not in formats:
            continue
        for block_rows, block_columns, _ in formats[part.stored].beside:
            for size, part_size, block in ((whole.inputs, part.inputs, block_rows), (whole.outputs, part.outputs, block_columns)):
                if block and part_size != size and part_size % block:
                    return f"a GPU's {part_size} of {size} rows or columns of {part.name} are no whole blocks of {block} with a scale each"
    return ""


@dataclass(frozen=True, slots=True)
class Replica:
    """An engine with a layout. ``most_running``: sequences that the cache can hold until their last token.

    ``cache_bytes``: bytes of a prompt's cache on each GPU that holds a part of it.
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
    """A layout whose cache has no room for a sequence. ``lacks``: bytes missing on each GPU for one sequence per group."""

    engine: Engine
    split: Split
    lacks: float


def sizes(gpus: int) -> list[int]:
    """Powers of two up to ``gpus``, and ``gpus`` itself.

    >>> sizes(1), sizes(8), sizes(12)
    ([1], [1, 2, 4, 8], [1, 2, 4, 8, 12])
    """
    return sorted({*(1 << power for power in range(gpus.bit_length())), gpus})


def launches(engine: Engine, split: Split) -> bool:
    """Whether ``engine`` can run ``split``. TensorRT-LLM cuts attention among all GPUs or has groups of one; llama.cpp has only stages.

    Source: NVIDIA/TensorRT-LLM, docs, "Parallelism in TensorRT LLM" (``enable_attention_dp``).
    """
    if engine.in_stages:
        return split == Split(pp=split.pp)
    return engine.id != "tensorrt-llm" or split.dp == 1 or split.tp == 1


def splits(model: ModelSpec, gpus: int, device: Device, published: bool) -> list[Split]:
    """Layouts of replicas on up to ``gpus`` GPUs, fewest stages first. Dense models have no groups, as these would be replicas."""
    all_layouts = (split for size in sizes(gpus) for split in layouts(model, size, device, published))
    return sorted((split for split in all_layouts if model.is_moe or split.dp == 1), key=lambda split: split.pp)


def replicas(
    model: ModelSpec,
    device: Device,
    gpus: int,
    engines: Iterable[Engine],
    base_pass: ModelPass,
    load: Load,
    fallbacks: FallbackDevices = tuple,
) -> tuple[list[Replica], list[Missed]]:
    """The replicas that hold at least one sequence in each group, and the layouts that do not.

    More stages are tried only if fewer do not hold the model with the same GPUs per stage, as they save memory but no time. Replicas share
    the times of kernels. Their tables of steps are coarse, with a node per factor of two, because they only rank candidates.
    """
    fitting, missed, kernels = list[Replica](), list[Missed](), KernelCache()
    passes = [replace(base_pass, split=split) for split in splits(model, gpus, device, base_pass.weights_from_file)]
    length = load.isl + load.osl
    tables: dict[tuple[object, ...], Table] = {}
    for engine in engines:
        fitting_stages: set[tuple[int, int, int]] = set()
        for layout_pass in passes:
            split = layout_pass.split
            stage = (split.tp, split.ep, split.dp)
            if stage in fitting_stages or not launches(engine, split):
                continue
            memory = Memory(model, device, engine, layout_pass)
            most_running = memory.most_running(length)
            if most_running < 1:
                missed.append(Missed(engine, split, memory.total(split.dp, length) - memory.usable))
                continue
            fitting_stages.add(stage)
            times = replace(step_times(model, device, engine, layout_pass, fallbacks), kernel_cache=kernels, coarse=True)
            _share_tables(times, tables)
            fitting.append(Replica(engine, split, times, most_running, memory.fit(load.isl).sequence))
    return fitting, missed


def _share_tables(times: KernelTimes, tables: dict[tuple[object, ...], Table]) -> None:
    """Gives ``times`` the tables of parts of a step that experts and stages do not change; ``tables``: by all that does change them."""
    engine, split = times.engine, times.base_pass.split
    matmuls = (split.tp, engine.kernels, engine.fused)
    attention_kernels = (engine.kernels.attention, engine.kernels.latent_attention)
    attention = (split.tp, split.dp, engine.fused, engine.graph_batch, *attention_kernels)
    for part, settings in {"group": matmuls, "heads": matmuls, "decode": attention, "prompt": attention}.items():
        times.nodes[part] = tables.setdefault((part, *settings), {})
