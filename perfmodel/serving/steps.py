"""Seconds of an engine's step from the kernels of ``transformer``, fast enough for thousands of steps.

The kernels of a step fall into parts, each a function of few numbers. Kernels that treat all tokens of a data-parallel group alike depend
on the number of tokens; experts on the tokens of all groups; attention of decoding sequences on their number and length; attention of
prompts on their number, new tokens and cached tokens. A part is predicted at nodes, when they are first needed, and interpolated linearly
between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import zip_longest

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.hardware import Device
from perfmodel.core.power import PowerOptions
from perfmodel.serving.engine import Engine
from perfmodel.serving.host_layers import HostLayers
from perfmodel.serving.iteration import Iteration, micro_batches, round_s, slowest_share
from perfmodel.serving.roof_shares import priced_by, shares_on
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.transformer.estimate import PassEstimate, PassRow, on_device, run_pass
from perfmodel.transformer.op import Op
from perfmodel.transformer.op_time import LaunchCorrection, OpTime, Pricing, launch_correction, time_of_run
from perfmodel.transformer.ops import group_ops, head_ops, routed_ops, sequence_ops, step_ops
from perfmodel.transformer.parallel import gathered_logits, to_next_stage
from perfmodel.transformer.routing import router_imbalance
from perfmodel.transformer.spec import Layer, ModelSpec, MoeMlp
from perfmodel.transformer.step import DECODE, PREFILL, ModelPass, Split, share
from perfmodel.transformer.step_power import slowdown

Times = tuple[float, float, float]
"""Seconds of a step or of a part of it, with the low and the high end of their interval."""
NOTHING: Times = (0.0, 0.0, 0.0)
AT_ROOF = 0.1
"""Largest share of a step that may have a roof in place of a prediction; beyond it no interval is given."""
EXACT = 0
"""Stands for a node at every number, in place of nodes per factor of two."""
FINE_NODES = {
    "group": (8, 1),
    "routed": (8, 1),
    "routed unevenly": (16, 16, 1),
    "stages": (1,),
    "heads": (2, 1),
    "decode": (4, 8, 2),
    "prompt": (4, 4, 2),
    "power": (1, 1, 1),
    "host": (4, 2),
}
"""Nodes per factor of two in each argument of a part of a step: many where tiles and waves of kernels make the time jump."""
COARSE_NODES = {part: (1,) * len(nodes) for part, nodes in FINE_NODES.items()} | {"decode": (1, EXACT, EXACT)}
"""Nodes per factor of two in tables that only rank many layouts under one load."""
STEPPED = {"group": (True, False), "routed": (True, False), "routed unevenly": (True, True, False), "prompt": (False, True, False)}
"""Whether an argument of a part fills tiles of matmuls or attention, so that the time has jumps. Other parts have no such argument."""
Arguments = tuple[int, ...]
Table = dict[Arguments, Times]
"""Times at the nodes of a part, by its arguments."""


@dataclass(eq=False, slots=True)
class KernelCache:
    """Times of kernels on one device, each predicted once.

    ``alone``: the time of one run. ``in_steps``: the time in a step, kernel by kernel and in a CUDA graph. ``rows``: the row of a report.
    """

    alone: dict[Op, OpTime] = field(default_factory=dict)
    in_steps: tuple[dict[Op, Times], dict[Op, Times]] = field(default_factory=lambda: ({}, {}))
    rows: dict[tuple[Op, bool], PassRow] = field(default_factory=dict)


@dataclass(eq=False)
class KernelTimes:
    """Times of steps of ``model`` on one replica; implements ``StepTimes``. ``base_pass``: a pass with number formats, layout and kernels.

    ``host``: layers that no GPU holds. ``coarse``: whether tables have the coarse nodes. ``power``: limit and clock; if neither is given,
    kernels run as they do alone after a pause. Results so far: ``kernel_cache``; ``nodes`` of parts, at which their kernels are predicted;
    ``interpolated``: times of parts between nodes; ``steps``: times of whole steps.
    """

    model: ModelSpec
    device: Device
    engine: Engine
    base_pass: ModelPass
    fallbacks: FallbackDevices = tuple
    kernel_cache: KernelCache = field(default_factory=KernelCache)
    host: HostLayers | None = None
    coarse: bool = False
    nodes: dict[str, Table] = field(default_factory=dict)
    power: PowerOptions = field(default_factory=PowerOptions)
    interpolated: dict[tuple[str, Arguments], Times] = field(init=False, default_factory=dict)
    steps: dict[Iteration, Times] = field(init=False, default_factory=dict)

    def finely(self) -> KernelTimes:
        """The same replica with fine tables; times of kernels are shared."""
        return replace(self, coarse=False, nodes={})

    def seconds(self, step: Iteration) -> float:
        """Seconds of ``step``, kernels and engine overhead; 0 for a step without tokens."""
        return self.interval(step)[0]

    def interval(self, step: Iteration) -> Times:
        """Seconds of ``step`` with the ends of their interval."""
        seconds = self.steps.get(step)
        if seconds is None:
            seconds = self.steps[step] = self._in_stages(step) if self.base_pass.split.pp > 1 else self._through(step)
        return seconds

    def _in_stages(self, step: Iteration) -> Times:
        """Seconds of a round of micro-batches, one in each pipeline stage."""
        batches = micro_batches(step, self.base_pass.split.pp, self.engine.batching.chunked)
        by_batch = {batch: self._through(batch) for batch in set(batches)}
        slowest = slowest_share(self.model, self.base_pass.split.pp)
        value, low, high = (round_s([by_batch[batch][end] for batch in batches], slowest) for end in range(3))
        return value, low, high

    def _through(self, step: Iteration) -> Times:
        """Seconds of ``step`` through all pipeline stages."""
        tokens = step.chunk + step.decodes * step.queries
        if not tokens:
            return NOTHING
        prompts, tokens_each = _prompts_of(step)
        value, low, high = added(self._parts(step, tokens, prompts, tokens_each))
        engine_s = self.overhead_s(step.decodes + prompts, bool(step.chunk)) + self.host_s(step)
        factor = 1.0
        if self.power.given:
            context = step.context if step.decodes else step.chunk_context
            factor, *_ = self._part("power", (step.chunk, step.decodes, context), self._slowdown)
        return value * factor + engine_s, low * factor + engine_s, high * factor + engine_s

    def _parts(self, step: Iteration, tokens: int, prompts: int, tokens_each: int) -> Iterator[Times]:
        """Seconds of the kernels of each part of ``step``, which has ``tokens`` in all and ``prompts`` of ``tokens_each``."""
        split, graph = self.base_pass.split, int(self._in_graph(step))
        fullest, heads = self._fullest(step)
        yield self._part("group", (fullest, graph), self._in_group)
        if self.expert_layers and not self.coarse and split.dp > 1:
            yield self._part("routed unevenly", (fullest, min(tokens, fullest * split.dp), graph), self._routed_unevenly)
        elif self.expert_layers:
            yield self._part("routed", (tokens, graph), self._routed)
        if split.pp > 1:
            yield self._part("stages", (fullest,), self._to_next_stage)
        yield self._part("heads", (heads, graph), self._heads)
        if step.decodes:
            yield self._part("decode", (step.decodes, step.queries, step.context), self._decoding)
        if step.chunk:
            yield self._part("prompt", (prompts, tokens_each, max(step.chunk_context - tokens_each, 0)), self._prompts)

    def _slowdown(self, chunk: int, decodes: int, context: int) -> Times:
        """Factor on the kernels of a step that runs repeatedly under the power limit, as value and both ends of an interval."""
        step = Iteration(chunk=chunk, chunk_context=chunk if decodes else max(chunk, context), decodes=decodes, context=context)
        factor = slowdown(self.estimate(step), self.power, self.overhead_s(decodes + (chunk > 0), chunk > 0))
        return factor, factor, factor

    def host_s(self, step: Iteration) -> float:
        """Seconds of the layers that the host runs; 0 if GPUs hold all."""
        if self.host is None:
            return 0.0
        tokens = step.chunk + step.decodes * step.queries
        context = max(step.context if step.decodes else step.chunk_context, tokens)
        return self._part("host", (tokens, context), self._on_host)[0]

    def _on_host(self, tokens: int, context: int) -> Times:
        """Seconds of the host's layers, without an interval."""
        seconds = 0.0 if self.host is None else self.host.seconds(tokens, context)
        return seconds, seconds, seconds

    def overhead_s(self, sequences: float, prompts: bool = False) -> float:
        """Seconds of engine overhead in a step of ``sequences``; ``prompts``: whether prompts run in it.

        Each data-parallel group has its own process for its sequences. Sources: NVIDIA/TensorRT-LLM, docs, "Parallelism in TensorRT LLM"
        (attention DP: each rank runs the requests it was given); vLLM docs, "Data Parallel Deployment" (an engine core process per rank).
        """
        overhead = self.engine.overhead
        step_s = overhead.step_s
        if prompts:
            step_s = step_s + overhead.prompt_s + overhead.expert_layer_s * self.expert_layers
        return step_s + overhead.kernel_s * self.kernels + overhead.sequence_s * sequences / self.base_pass.split.dp

    @cached_property
    def expert_layers(self) -> int:
        """Number of layers with routed experts."""
        return sum(isinstance(layer.mlp, MoeMlp) for layer in self.model.layers)

    @cached_property
    def kernels(self) -> int:
        """Number of kernels of a decode step."""
        return int(sum(op.count for op in step_ops(self.model, replace(self.base_pass, phase=DECODE, batch=1, n=1, kv_len=1))))

    def estimate(self, step: Iteration) -> PassEstimate:
        """The kernels of ``step`` as rows of a report, computed without interpolation."""
        rows = self.kernel_cache.rows
        return run_pass(self.model, self.pass_of(step), self.device, self.fallbacks, self._in_graph(step), rows, priced=self._priced)

    def _in_graph(self, step: Iteration) -> bool:
        """Whether the kernels that see all tokens of a data-parallel group are launched as a CUDA graph.

        vLLM: ``max_cudagraph_capture_size`` of ``vllm/config/compilation.py``; SGLang: ``cuda_graph_max_bs`` of ``srt/server_args.py``.
        """
        engine = self.engine
        return self._fullest(step)[0] <= engine.graph_batch and (engine.piecewise_graphs or not step.chunk)

    def _fullest(self, step: Iteration) -> tuple[int, int]:
        """Tokens of the fullest data-parallel group, and the number of its positions that need logits. A prompt belongs to one group."""
        dp = self.base_pass.split.dp
        prompts, tokens_each = _prompts_of(step)
        prompts_here, decoding_tokens = share(prompts, dp), share(step.decodes, dp) * step.queries
        prompt_tokens = prompts_here * tokens_each if dp > 1 else step.chunk
        return prompt_tokens + decoding_tokens, prompts_here + decoding_tokens

    def pass_of(self, step: Iteration) -> ModelPass:
        """``step`` as a pass through the model."""
        decode = None
        if step.decodes:
            context = max(step.context, step.queries)
            decode = replace(self.base_pass, phase=DECODE, batch=step.decodes, n=step.queries, kv_len=context)
        if not step.chunk:
            assert decode is not None
            return decode
        tokens_each = max(step.chunk // max(step.prompts, 1), 1)
        return replace(
            self.base_pass, phase=PREFILL, batch=step.prompts, n=tokens_each, kv_len=max(step.chunk_context, tokens_each), beside=decode
        )

    # Parts of a step: ``graph`` is 1 for kernels in a CUDA graph, else 0

    def _in_group(self, tokens: int, graph: int) -> Times:
        """Seconds of all kernels but attention and experts, for ``tokens`` of one data-parallel group."""
        split = Split(self.base_pass.split.tp)
        step = replace(self.base_pass, phase=PREFILL, batch=1, n=tokens, kv_len=tokens, split=split)
        return self._rows(group_ops(self.model, step), graph)

    def _routed(self, tokens: int, graph: int) -> Times:
        """Seconds of routers and experts, for ``tokens`` in equal groups."""
        return self._rows(routed_ops(self.model, replace(self.base_pass, phase=DECODE, batch=tokens, n=1, kv_len=1)), graph)

    def _routed_unevenly(self, fullest: int, tokens: int, graph: int) -> Times:
        """Seconds of routers and experts for ``tokens`` of all groups; ``fullest``: tokens of the group that has a prompt."""
        other_groups = self.base_pass.split.dp - 1
        elsewhere = min(max(tokens - fullest, 0), fullest * other_groups)
        decodes_each = ceil_div(elsewhere, other_groups)
        prompt_tokens = fullest - decodes_each
        pass_ = replace(self.base_pass, phase=DECODE, batch=elsewhere + decodes_each, n=1, kv_len=1) if decodes_each else None
        if prompt_tokens > 0:
            pass_ = replace(self.base_pass, phase=PREFILL, batch=1, n=prompt_tokens, kv_len=prompt_tokens, beside=pass_)
        return NOTHING if pass_ is None else self._rows(routed_ops(self.model, pass_), graph)

    def _to_next_stage(self, tokens: int) -> Times:
        """Seconds to send ``tokens`` of a group to the next stage."""
        step = replace(self.base_pass, phase=DECODE, batch=tokens * self.base_pass.split.dp, n=1, kv_len=1)
        return self._rows(dict.fromkeys(to_next_stage(self.model, step), 1), 0)

    def _heads(self, heads: int, graph: int) -> Times:
        """Seconds of the last norm and the head for ``heads`` positions of a group, and of gathering their logits."""
        if not heads:
            return NOTHING
        step = replace(self.base_pass, phase=DECODE, batch=heads * self.base_pass.split.dp, n=1, kv_len=1)
        return self._rows(dict.fromkeys([*head_ops(self.model, step), *gathered_logits(self.model, step)], 1), graph)

    def _decoding(self, sequences: int, queries: int, context: int) -> Times:
        """Seconds of attention of decoding sequences, in a CUDA graph where one holds those of a group."""
        step = replace(self.base_pass, phase=DECODE, batch=sequences, n=queries, kv_len=max(context, queries))
        graph = share(sequences, self.base_pass.split.dp) <= self.engine.graph_batch
        return self._rows(dict.fromkeys(sequence_ops(self.model, step), 1), int(graph))

    def _prompts(self, prompts: int, tokens: int, before: int) -> Times:
        """Seconds of attention of ``prompts``, each with ``tokens`` new tokens after ``before`` cached ones."""
        step = replace(self.base_pass, phase=PREFILL, batch=prompts, n=tokens, kv_len=tokens + before)
        return self._rows(dict.fromkeys(sequence_ops(self.model, step), 1), 0)

    def _rows(self, rows: Mapping[Op, Number], graph: int) -> Times:
        """Seconds in a step of ``rows``: kernels with the number of their runs."""
        times = self.kernel_cache.in_steps[graph]
        value, low, high = NOTHING
        for op, count in rows.items():
            time = times.get(op)
            if time is None:
                time = times[op] = self._alone(op).in_step(self.device, bool(graph), self._launches)
            value, low, high = value + time[0] * count, low + time[1] * count, high + time[2] * count
        return value, low, high

    def _alone(self, op: Op) -> OpTime:
        """The time of one run of ``op`` alone, predicted once."""
        alone = self.kernel_cache.alone
        if op not in alone:
            alone[op] = time_of_run(op, self.device, self.fallbacks, self._priced)
        return alone[op]

    @cached_property
    def _priced(self) -> Pricing | None:
        """Pricing of kernels for an engine whose kernels have no time models; None for others."""
        shares = shares_on(self.engine, self.device)
        return None if shares is None else priced_by(shares, self.device, self.has_k_quants)

    @property
    def has_k_quants(self) -> bool:
        """Whether most weights are packed in blocks of 256, as in Q4_K_M of GGUF files."""
        main = None if self.model.quantized is None else self.model.quantized.main
        return main is not None and main.name.endswith("_k")

    @cached_property
    def _launches(self) -> LaunchCorrection:
        return launch_correction(self.device, self.fallbacks)

    # Interpolation

    def _part(self, part: str, at: Arguments, exact: Callable[..., Times]) -> Times:
        """Seconds of a part of a step at the arguments ``at``, interpolated between nodes, at which ``exact`` gives them."""
        seconds = self.interpolated.get((part, at))
        if seconds is not None:
            return seconds
        per_octave, stepped = (COARSE_NODES[part], ()) if self.coarse else (FINE_NODES[part], STEPPED.get(part, ()))
        table = self.nodes.setdefault(part, {})
        value, low, high = NOTHING
        for node, weight in corners(at, per_octave, stepped):
            if node not in table:
                table[node] = exact(*node)
            node_value, node_low, node_high = table[node]
            value, low, high = value + weight * node_value, low + weight * node_low, high + weight * node_high
        self.interpolated[part, at] = value, low, high
        return value, low, high


def _prompts_of(step: Iteration) -> tuple[int, int]:
    """Number of prompts of ``step``, and tokens of each."""
    prompts = max(step.prompts, 1) if step.chunk else 0
    return prompts, max(step.chunk // prompts, 1) if prompts else 0


def mostly_predicted(step: PassEstimate) -> bool:
    """Whether only a small part of a step has a roof in place of a prediction; if not, times are lower limits."""
    return sum(row.seconds for row in step.rows if row.prediction is None) <= AT_ROOF * step.seconds


def has_guesses(step: PassEstimate) -> bool:
    """Whether the time of a kernel is a guess, taken from devices whose kernels do not run on this one."""
    return any(row.prediction is not None and row.prediction.guess for row in step.rows)


def added(parts: Iterable[Times]) -> Times:
    """The sum of ``parts`` with its interval."""
    value, low, high = NOTHING
    for seconds, lower, higher in parts:
        value, low, high = value + seconds, low + lower, high + higher
    return value, low, high


def corners(at: Arguments, per_octave: Arguments, stepped: tuple[bool, ...] = ()) -> list[tuple[Arguments, float]]:
    """The nodes around ``at`` with their weights in linear interpolation; ``per_octave``, ``stepped``: of each argument, as in ``around``.

    >>> corners((7, 3), (2, 1)), corners((7, 3), (EXACT, 2))
    ([((6, 2), 0.25), ((6, 4), 0.25), ((8, 2), 0.25), ((8, 4), 0.25)], [((7, 3), 1.0)])
    """
    nodes: list[tuple[Arguments, float]] = [((), 1.0)]
    for number, argument_per_octave, argument_stepped in zip_longest(at, per_octave, stepped, fillvalue=False):
        ends: tuple[tuple[int, float], ...] = ((number, 1.0),)
        if argument_per_octave != EXACT:
            below, above = around(number, argument_per_octave, argument_stepped)
            if below < number < above:
                weight_above = (number - below) / (above - below)
                ends = ((below, 1 - weight_above), (above, weight_above))
        nodes = [((*node, end), weight * end_weight) for node, weight in nodes for end, end_weight in ends]
    return nodes


@cache
def around(value: int, per_octave: int = 2, stepped: bool = False) -> tuple[int, int]:
    """The nodes on both sides of ``value``. Nodes are all numbers up to twice ``per_octave``, then ``per_octave`` per factor of two.

    ``stepped``: the time may jump just above a node, where another tile begins; values above it lie between the next number and the next
    node.

    >>> [around(value) for value in (0, 3, 5, 6, 7, 100)], around(100, 8), around(10, 8)
    ([(0, 0), (3, 3), (4, 6), (6, 6), (6, 8), (96, 128)], (96, 104), (10, 10))
    >>> [around(value, stepped=True) for value in (3, 96, 97, 127, 128, 129)]
    [(3, 3), (65, 96), (97, 128), (97, 128), (97, 128), (129, 192)]
    """
    if stepped and value > 1:
        below, above = _enclosing(value - 1, per_octave)
        return below + 1, above
    below, above = _enclosing(value, per_octave)
    return below, below if below == value else above


def _enclosing(value: int, per_octave: int) -> tuple[int, int]:
    """The last node up to ``value``, and the node after it."""
    octave = 1 << (value.bit_length() - 1) if value else 1  # the largest power of two up to the value
    distance = max(octave // per_octave, 1)
    below = value // distance * distance
    return below, below + distance


def _shared_as_routed(layer: Layer, experts: int) -> Layer:
    """``layer`` with its shared expert among the routed ones, if it has this number of ``experts``."""
    mlp = layer.mlp
    return replace(layer, mlp=mlp.shared_as_routed()) if isinstance(mlp, MoeMlp) and mlp.experts == experts else layer


def step_times(model: ModelSpec, device: Device, engine: Engine, base_pass: ModelPass, fallbacks: FallbackDevices = tuple) -> KernelTimes:
    """Step times of ``engine`` with the formats and layout of ``base_pass``, with its own kernels and by default a typical router."""
    kernels, imbalance = engine.kernels_for(model, device, base_pass.split), router_imbalance(model, base_pass.imbalance)
    base_pass = replace(base_pass, kernels=kernels, fused=engine.fused, imbalance=imbalance)
    if engine.kernels.shared_as_routed and base_pass.split.ep == 1:
        model = replace(model, layers=tuple(_shared_as_routed(layer, engine.kernels.shared_as_routed) for layer in model.layers))
    return KernelTimes(model, device, engine, on_device(base_pass, device), fallbacks)
