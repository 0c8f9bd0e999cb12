"""Presets of serving engines: kernels, batching, and the engine's own memory and time. One file of ``configs/engines`` each."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from perfmodel.core.errors import DataError, UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.transformer.kernel_choice import KernelChoice

if TYPE_CHECKING:
    from perfmodel.core.hardware import Device
    from perfmodel.transformer.spec import ModelSpec
    from perfmodel.transformer.step import Request, Split

STRICT = {"extra": "forbid"}
GIB = 2**30
LONGEST_S = 3600.0
"""Largest overhead in seconds that a preset may state, of any kind."""
Kind = Literal["dense", "experts"]
KINDS: tuple[Kind, ...] = ("dense", "experts")
"""Kinds of models: overheads differ between dense ones and those with experts."""
FULL = 0.9
"""Share of the token budget from which held-back prompts run. Source: SemiAnalysisAI/InferenceX, batch_wait_max_tokens_ratio."""


@dataclass(frozen=True, slots=True)
class Batching:
    """Continuous batching: which tokens run in one step.

    ``token_budget``: most tokens of a step; a longer prompt is cut into chunks if ``chunked``, else it runs alone. ``mixed``: prompts and
    decoding sequences share a step; otherwise waiting prompts run first, while decoding waits. ``max_sequences``: most sequences that run
    at a time. ``admit_every``: decode steps between two looks for new requests. ``ahead``: the next step is scheduled when one begins, so a
    new request joins the step after that. ``hold_steps``: most steps that prompts wait for others to fill a step.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT

    token_budget: int = 8192
    chunked: bool = True
    mixed: bool = True
    max_sequences: int = 1024
    admit_every: int = 1
    ahead: bool = False
    hold_steps: int = 0

    def of_replica(self, split: Split) -> Batching:
        """Batching of a whole replica: all data-parallel groups run such steps at once, with one step in each pipeline stage."""
        return replace(self, token_budget=self.token_budget * split.dp * split.pp, max_sequences=self.max_sequences * split.dp)


@dataclass(frozen=True, slots=True)
class Overhead:
    """Seconds of the engine that no kernel hides.

    In every step: ``step_s``; ``kernel_s`` per kernel; ``sequence_s`` per sequence. In a step with prompts, also ``prompt_s``, and
    ``expert_layer_s`` per layer with routed experts, which no CUDA graph launches. Before a request's first step: ``request_s``, and
    ``request_token_s`` per prompt token. ``fitted``: phrase that names the runs they were fitted to, empty for none. ``kinds``: kinds of
    models among these runs.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT

    step_s: float = 0.0
    prompt_s: float = 0.0
    expert_layer_s: float = 0.0
    kernel_s: float = 0.0
    sequence_s: float = 0.0
    request_s: float = 0.0
    request_token_s: float = 0.0
    fitted: str = ""
    kinds: tuple[Kind, ...] = KINDS

    def before_s(self, isl: float) -> float:
        """Mean seconds from sending a request of ``isl`` prompt tokens until the scheduler knows it."""
        return self.request_s + self.request_token_s * isl


@dataclass(frozen=True, slots=True)
class DeviceDefaults:
    """Batching on devices with at least ``from_gib``, less than ``below_gib``, or one of the words ``named`` in their id."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT

    below_gib: float = 0.0
    from_gib: float = float("inf")
    named: tuple[str, ...] = ()
    token_budget: int | None = None
    max_sequences: int | None = None
    memory_share: float | None = None

    def fits(self, device: Device) -> bool:
        """Whether these defaults apply to ``device``."""
        if set(self.named) & set(device.id.split("-")):
            return True
        if device.dram.capacity is None:
            return False
        size = float(device.dram.capacity.number) / GIB
        return size < self.below_gib or size >= self.from_gib


@dataclass(frozen=True, slots=True)
class RoofShares:
    """Shares of roofs that kernels reach. ``dram``, ``cache``: of the DRAM bandwidth, when reading weights and the KV cache. ``products``,
    ``attention``: of the peak of 16-bit products.

    ``block_ops``: vector instructions per block of weights and row; 0: blocks are unpacked and multiplied in 16 bits. ``expert_ops``: the
    same for routed experts, whose rows fill tiles only in part. ``weight_ops``: vector instructions to unpack a weight of a K-quant for few
    rows. ``cycles``: cycles of the vector units' clock for a kernel's start; ``router_cycles``: the same for the small kernels that choose
    experts.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT

    dram: float
    cache: float
    products: float
    attention: float
    cycles: float
    router_cycles: float = 0.0
    block_ops: float = 0.0
    expert_ops: float = 0.0
    weight_ops: float = 0.0


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine preset.

    Memory: ``memory_share`` of a GPU's memory is the engine's; ``reserve`` bytes of that are for neither weights nor cache; ``kv_block``:
    tokens of a block of the cache; ``reserved``: share of a request's coming tokens for which the cache keeps room when others are
    admitted; ``table_on_host``: the embedding is in the host's memory. Graphs: ``graph_batch``: most tokens of a step that runs as a CUDA
    graph; with ``piecewise_graphs``, which leave out attention, steps with prompts do too. Kernels: ``fuses_all_reduce_from``: compute
    capability from which small all-reduces of models with experts are fused by default, on one node and without data-parallel attention,
    0 for never; ``roof_shares``: by maker of the device, for engines whose kernels have no time models. Defaults: ``by_device``: other
    batching, of which the first that fits counts; ``users``: number of users; ``in_stages``: GPUs are pipeline stages unless another
    layout is given. ``widths``: ends of the 80 % intervals of TTFT and TPOT over the predicted time, by kind of model. ``vendors``: makers
    whose devices it runs on, empty for all. ``sources``: sources of the values.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT

    id: str
    name: str
    kernels: KernelChoice = field(default_factory=KernelChoice)
    fused: bool = True
    graph_batch: int = 512
    piecewise_graphs: bool = False
    batching: Batching = field(default_factory=Batching)
    kv_block: int = 16
    memory_share: float = 0.9
    reserve: int = 0
    reserved: float = 1.0
    overhead: Overhead = field(default_factory=Overhead)
    widths: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    fuses_all_reduce_from: float = 0.0
    by_device: tuple[DeviceDefaults, ...] = ()
    vendors: tuple[str, ...] = ()
    roof_shares: dict[str, RoofShares] = field(default_factory=dict)
    users: int | None = None
    in_stages: bool = False
    table_on_host: bool = False

    def runs_on(self, device: Device) -> bool:
        """Whether the engine has a version for ``device``."""
        return not self.vendors or device.vendor in self.vendors

    def for_device(self, device: Device) -> Engine:
        """This engine with its defaults for ``device``; UsageError if it does not run there."""
        if not self.runs_on(device):
            words = f"--engine {self.id}: {self.name} runs on {', '.join(self.vendors)} devices, not on {device.id}"
            raise UsageError(words, "take --engine llama.cpp" if device.vendor == "Apple" else "take another engine")
        defaults = next((defaults for defaults in self.by_device if defaults.fits(device)), DeviceDefaults())
        shared = self if defaults.memory_share is None else replace(self, memory_share=defaults.memory_share)
        return shared.with_batching(token_budget=defaults.token_budget, max_sequences=defaults.max_sequences)

    def kernels_for(self, model: ModelSpec, device: Device, split: Split) -> KernelChoice:
        """Kernels of ``model`` in the layout ``split`` on ``device``; over PCIe no all-reduce is fused.

        Fused all-reduces: SGLang, ``srt/server_args.py``, ``enable_flashinfer_allreduce_fusion``.
        """
        from perfmodel.transformer.parallel import NODE  # readers of presets need no kernels

        if device.over_pcie:
            return replace(self.kernels, fused_all_reduce=False)
        may_fuse = self.fuses_all_reduce_from and device.vendor == "NVIDIA" and device.capability >= self.fuses_all_reduce_from
        fuses = may_fuse and model.is_moe and split.dp == 1 and split.gpus <= NODE
        return replace(self.kernels, fused_all_reduce=True) if fuses else self.kernels

    def check(self) -> Engine:
        """This preset, if every value has a meaning; else DataError."""
        for place, preset in (("batching", self.batching), *(("by_device", defaults) for defaults in self.by_device)):
            for name in ("token_budget", "max_sequences", "admit_every"):
                value = getattr(preset, name, None)
                if value is not None and value < 1:
                    raise DataError(f"{place}.{name} is {value}", "give a whole number from 1")
        if self.kv_block < 1 or self.graph_batch < 0 or self.reserve < 0:
            raise DataError("kv_block, graph_batch and reserve count tokens, sequences and bytes", "give none below zero, kv_block from 1")
        if self.batching.hold_steps < 0:
            raise DataError(f"batching.hold_steps is {self.batching.hold_steps}", "give a whole number from 0")
        if not 0 <= self.reserved <= 1:
            raise DataError(f"reserved is {self.reserved:g}", "give a share of the tokens still to come, such as 0.1")
        if not 0 < self.memory_share <= 1:
            raise DataError(f"memory_share is {self.memory_share:g}", "give a share of the GPU's memory, such as 0.9")
        for name in ("step_s", "prompt_s", "expert_layer_s", "kernel_s", "sequence_s", "request_s", "request_token_s"):
            value = getattr(self.overhead, name)
            if not 0 <= value <= LONGEST_S:
                raise DataError(f"overhead.{name} is {value:g}", f"give seconds from 0 to {LONGEST_S:g}")
        for kind, ends in self.widths.items():
            for name, (low, high) in ends.items():
                if not 0 < low <= 1 <= high < float("inf"):
                    raise DataError(f"widths.{kind}.{name} is {low:g} to {high:g}", "give shares around 1, such as [0.9, 1.2]")
        return self

    def held(self, isl: int, osl: int) -> float:
        """Cache tokens that the scheduler counts for a request on average (SGLang, ``new_token_ratio`` of its scheduler)."""
        return isl + osl * (1 + self.reserved) / 2

    def runs(self, request: Request) -> Request:
        """``request`` with this engine's kernels; a decode step larger than its CUDA graphs is launched kernel by kernel."""
        graph = request.graph
        if graph is None and request.batch > self.graph_batch:
            graph = False
        return replace(request, kernels=self.kernels, fused=self.fused or request.fused, graph=graph)

    def with_batching(self, **options: Any) -> Engine:
        """This engine with the options of batching that are not None."""
        given = {name: value for name, value in options.items() if value is not None}
        return replace(self, batching=replace(self.batching, **given))


def validated(raw: Any) -> Engine:
    """The engine that ``raw``, the content of a file, describes. Raises pydantic's ValidationError or DataError."""
    from pydantic import TypeAdapter

    return TypeAdapter(Engine).validate_python(raw).check()


def trusted(raw: dict[str, Any]) -> Engine:
    """The engine that ``raw``, the content of a shipped file, describes. Tests check these files, so pydantic is not loaded."""
    kernels: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in raw.get("kernels", {}).items()}
    widths = {kind: {name: (float(low), float(high)) for name, (low, high) in ends.items()} for kind, ends in raw.get("widths", {}).items()}
    by_device = tuple(DeviceDefaults(**{**entry, "named": tuple(entry.get("named", ()))}) for entry in raw.get("by_device", ()))
    overhead = raw.get("overhead", {})
    parts = {
        "by_device": by_device,
        "kernels": KernelChoice(**kernels),
        "batching": Batching(**raw.get("batching", {})),
        "overhead": Overhead(**{**overhead, "kinds": tuple(overhead.get("kinds", KINDS))}),
        "roof_shares": {maker: RoofShares(**shares) for maker, shares in raw.get("roof_shares", {}).items()},
    }
    return Engine(**{**raw, **parts, "widths": widths, "vendors": tuple(raw.get("vendors", ()))})
