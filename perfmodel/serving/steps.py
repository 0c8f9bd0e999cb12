"""Seconds of an engine's step from the kernels of ``transformer``, fast enough for thousands of steps.

The kernels of a step fall into parts, each a function of few numbers. Kernels that treat all tokens of a data-parallel group alike depend
on the number of tokens; experts on the tokens of all groups; attention of decoding sequences on their number and length; attention of
prompts on their number, new tokens and cached tokens. A part is predicted at nodes, when they are first needed, and interpolated linearly
between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import zip_longest

from perfmodel.core.arith import Number
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
"""Nodes per factor of two that stand for a node at every number."""
NODES = {
    "group": ((8, 1), (1, 1)),
    "routed": ((8, 1), (1, 1)),
    "routed unevenly": ((16, 16, 1), (1, 1, 1)),
    "stages": ((1,), (1,)),
    "heads": ((2, 1), (1, 1)),
    "decode": ((4, 8, 2), (1, EXACT, EXACT)),
    "prompt": ((4, 4, 2), (1, 1, 1)),
    "power": ((1, 1, 1), (1, 1, 1)),
    "host": ((4, 2), (1, 1)),
}
"""Nodes per factor of two in each argument of a part: many if tiles and waves of kernels make jumps. The second, coarse set serves to rank
many layouts under one load."""
STEPPED = {"group": (True, False), "routed": (True, False), "routed unevenly": (True, True, False), "prompt": (False, True, False)}
"""Whether an argument of a part fills tiles of matmuls or attention, so that the time has jumps. Other parts have no such argument."""
Table = dict[tuple[int, ...], Times]
"""Times at the nodes of a part, by its arguments."""


@dataclass(eq=False, slots=True)
class KnownKernels:
    """Times of kernels on one device, each predicted once: ``alone``, ``in_steps`` without and with a graph, as ``rows``."""

    alone: dict[Op, OpTime] = field(default_factory=dict)
    in_steps: tuple[dict[Op, Times], dict[Op, Times]] = field(default_factory=lambda: ({}, {}))
    rows: dict[tuple[Op, bool], PassRow] = field(default_factory=dict)


@dataclass(eq=False)
class KernelTimes:
    """Times of steps of ``model`` on one replica; implements ``StepTimes``. ``base_pass``: a pass with number formats, layout and kernels.

    ``host``: layers that no GPU holds. ``coarse``: one node per factor of two, to rank many layouts. ``power``: limit and clock; if neither
    is given, kernels run as they do alone after a pause. Results so far: ``known`` for kernels, ``nodes`` for parts at nodes, ``between``
    for interpolated parts, and ``steps``.
    """

    model: ModelSpec
    device: Device
    engine: Engine
    base_pass: ModelPass
    fallbacks: FallbackDevices = tuple
    known: KnownKernels = field(default_factory=KnownKernels)
    host: HostLayers | None = None
    coarse: bool = False
    nodes: dict[str, Table] = field(default_factory=dict)
    power: PowerOptions = field(default_factory=PowerOptions)
    between: dict[tuple[str, tuple[int, ...]], Times] = field(init=False, default_factory=dict)
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
        value, low, high = (round_s(ways, self._slowest) for ways in zip(*map(by_batch.__getitem__, batches), strict=True))
        return value, low, high

    @cached_property
    def _slowest(self) -> float:
        """Share of a pass that the slowest pipeline stage takes."""
        return slowest_share(self.model, self.base_pass.split.pp)

    def _through(self, step: Iteration) -> Times:
        """Seconds of ``step`` through all pipeline stages."""
        tokens, split = step.chunk + step.decodes * step.queries, self.base_pass.split
        if not tokens:
            return NOTHING
        prompts, tokens_each = _prompts_of(step)
        (fullest, heads), graph = self._fullest(step), int(self._in_graph(step))
        parts = [self._between("group", (fullest, graph), self._in_group)]
        if self.expert_layers and not self.coarse and split.dp > 1:
            parts.append(self._between("routed unevenly", (fullest, min(tokens, fullest * split.dp), graph), self._routed_unevenly))
        elif self.expert_layers:
            parts.append(self._between("routed", (tokens, graph), self._routed))
        if split.pp > 1:
            parts.append(self._between("stages", (fullest,), self._to_next_stage))
        parts.append(self._between("heads", (heads, graph), self._heads))
        if step.decodes:
            parts.append(self._between("decode", (step.decodes, step.queries, step.context), self._decoding))
        if step.chunk:
            parts.append(self._between("prompt", (prompts, tokens_each, max(step.chunk_context - tokens_each, 0)), self._prompts))
        engine_s = self.own_seconds(step.decodes + prompts, bool(step.chunk)) + self.host_s(step)
        if self.power.given:
            arguments = step.chunk, step.decodes, step.context if step.decodes else step.chunk_context
            value, low, high = added(parts)
            slower, *_ = self._between("power", arguments, self._slowdown)
            return value * slower + engine_s, low * slower + engine_s, high * slower + engine_s
        return added([*parts, (engine_s, engine_s, engine_s)])

    def _slowdown(self, chunk: int, decodes: int, context: int) -> Times:
        """Factor on the kernels of a step that runs repeatedly under the power limit, as value and both ends of an interval."""
        step = Iteration(chunk=chunk, chunk_context=chunk if decodes else max(chunk, context), decodes=decodes, context=context)
        factor = slowdown(self.passed(step), self.power, self.own_seconds(decodes + (chunk > 0), chunk > 0))
        return factor, factor, factor

    def host_s(self, step: Iteration) -> float:
        """Seconds of the layers that the host runs; 0 if GPUs hold all."""
        if self.host is None:
            return 0.0
        tokens = step.chunk + step.decodes * step.queries
        context = max(step.context if step.decodes else step.chunk_context, tokens)
        return self._between("host", (tokens, context), self._on_host)[0]

    def _on_host(self, tokens: int, context: int) -> Times:
        seconds = 0.0 if self.host is None else self.host.seconds(tokens, context)
        return seconds, seconds, seconds

    def own_seconds(self, sequences: float, prompts: bool = False) -> float:
        """Seconds of engine overhead in a step. Each data-parallel group has its own process for its sequences.

        Sources: NVIDIA/TensorRT-LLM, docs, "Parallelism in TensorRT LLM" (attention DP: each rank runs the requests it was given); vLLM
        docs, "Data Parallel Deployment" (an engine core process for each rank).
        """
        o = self.engine.overhead
        started = o.step_s + o.prompt_s + o.expert_layer_s * self.expert_layers if prompts else o.step_s
        return started + o.kernel_s * self.kernels + o.sequence_s * sequences / self.base_pass.split.dp

    @cached_property
    def expert_layers(self) -> int:
        """Number of layers with routed experts."""
        return sum(isinstance(layer.mlp, MoeMlp) for layer in self.model.layers)

    @cached_property
    def kernels(self) -> int:
        """Number of kernels of a decode step."""
        return int(sum(op.count for op in step_ops(self.model, replace(self.base_pass, phase=DECODE, batch=1, n=1, kv_len=1))))

    def passed(self, step: Iteration) -> PassEstimate:
        """Rows of ``step`` for a report, computed without interpolation."""
        return run_pass(
            self.model, self.pass_of(step), self.device, self.fallbacks, self._in_graph(step), self.known.rows, priced=self._priced
        )

    def _in_graph(self, step: Iteration) -> bool:
        """Whether the kernels that see all tokens of a data-parallel group are launched as a CUDA graph.

        vLLM: ``max_cudagraph_capture_size`` of ``vllm/config/compilation.py``; SGLang: ``cuda_graph_max_bs`` of ``srt/server_args.py``.
        """
        engine = self.engine
        return self._fullest(step)[0] <= engine.graph_batch and (engine.piecewise_graphs or not step.chunk)

    def _fullest(self, step: Iteration) -> tuple[int, int]:
        """Tokens of the fullest data-parallel group, and the positions of it that need logits. A prompt belongs to one group."""
        (prompts, tokens_each), dp = _prompts_of(step), self.base_pass.split.dp
        waiting, decoding = share(prompts, dp), share(step.decodes, dp) * step.queries
        return (waiting * tokens_each if dp > 1 else step.chunk) + decoding, waiting + decoding

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

    # Parts of a step

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
        dp = self.base_pass.split.dp
        elsewhere = min(max(tokens - fullest, 0), fullest * (dp - 1))
        decodes_each = -(-elsewhere // (dp - 1))
        pass_ = replace(self.base_pass, phase=DECODE, batch=elsewhere + decodes_each, n=1, kv_len=1) if decodes_each else None
        if fullest > decodes_each:
            pass_ = replace(self.base_pass, phase=PREFILL, batch=1, n=fullest - decodes_each, kv_len=fullest - decodes_each, beside=pass_)
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
        """Seconds of attention of prompts, of ``tokens`` new ones each, after ``before`` cached ones."""
        step = replace(self.base_pass, phase=PREFILL, batch=prompts, n=tokens, kv_len=tokens + before)
        return self._rows(dict.fromkeys(sequence_ops(self.model, step), 1), 0)

    def _rows(self, rows: Mapping[Op, Number], graph: int) -> Times:
        """Seconds in a step of ``rows``: kernels with the number of their runs. ``graph``: 1 in a CUDA graph, else 0."""
        times, (value, low, high) = self.known.in_steps[graph], NOTHING
        for op, count in rows.items():
            time = times.get(op)
            if time is None:
                time = times[op] = self._alone(op).in_step(self.device, bool(graph), self._launches)
            value, low, high = value + time[0] * count, low + time[1] * count, high + time[2] * count
        return value, low, high

    def _alone(self, op: Op) -> OpTime:
        """The time of one run of ``op``, worked out once."""
        time = self.known.alone.get(op)
        if time is None:
            time = self.known.alone[op] = time_of_run(op, self.device, self.fallbacks, self._priced)
        return time

    @cached_property
    def _priced(self) -> Pricing | None:
        """Pricing of kernels for an engine whose kernels have no time models; None for others."""
        shares = shares_on(self.engine, self.device)
        if shares is None:
            return None
        return priced_by(shares, self.device, self.has_k_quants)

    @property
    def has_k_quants(self) -> bool:
        """Whether most weights are packed in blocks of 256, as in Q4_K_M of GGUF files."""
        main = None if self.model.quantized is None else self.model.quantized.main
        return main is not None and main.name.endswith("_k")

    @cached_property
    def _launches(self) -> LaunchCorrection:
        return launch_correction(self.device, self.fallbacks)

    # Interpolation

    def _between(self, part: str, at: tuple[int, ...], exact: Callable[..., Times]) -> Times:
        """Seconds of a part of a step at the arguments ``at``, interpolated between nodes, at which ``exact`` gives them."""
        seconds = self.between.get((part, at))
        if seconds is not None:
            return seconds
        nodes, (value, low, high) = self.nodes.setdefault(part, {}), NOTHING
        for place, weight in corners(at, NODES[part][self.coarse], () if self.coarse else STEPPED.get(part, ())):
            node = nodes.get(place)
            if node is None:
                node = nodes[place] = exact(*place)
            value, low, high = value + weight * node[0], low + weight * node[1], high + weight * node[2]
        self.between[part, at] = value, low, high
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


def corners(at: tuple[int, ...], per_octave: tuple[int, ...], steps: tuple[bool, ...] = ()) -> list[tuple[tuple[int, ...], float]]:
    """The nodes around ``at`` with their weights; ``per_octave`` and ``steps`` of each argument as in ``around``.

    >>> corners((7, 3), (2, 1)), corners((7, 3), (EXACT, 2))
    ([((6, 2), 0.25), ((6, 4), 0.25), ((8, 2), 0.25), ((8, 4), 0.25)], [((7, 3), 1.0)])
    """
    weighted: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    for number, nodes, stepped in zip_longest(at, per_octave, steps, fillvalue=False):
        below, above = around(number, nodes, stepped) if nodes else (number, number)
        rest = (number - below) / (above - below) if below < number < above else 0.0
        ends = ((below, 1 - rest), (above, rest)) if rest else ((number, 1.0),)
        weighted = [((*place, node), weight * end_weight) for place, weight in weighted for node, end_weight in ends]
    return weighted


@cache
def around(value: int, per_octave: int = 2, steps: bool = False) -> tuple[int, int]:
    """The nodes on both sides of ``value``. Nodes are all numbers up to twice ``per_octave``, then ``per_octave`` per factor of two.

    ``steps``: the time may jump just above a node, where another tile begins; values above it lie between the next number and the next
    node.

    >>> [around(value) for value in (0, 3, 5, 6, 7, 100)], around(100, 8), around(10, 8)
    ([(0, 0), (3, 3), (4, 6), (6, 6), (6, 8), (96, 128)], (96, 104), (10, 10))
    >>> [around(value, steps=True) for value in (3, 96, 97, 127, 128, 129)]
    [(3, 3), (65, 96), (97, 128), (97, 128), (97, 128), (129, 192)]
    """
    if steps and value > 1:
        below, above = _enclosing(value - 1, per_octave)
        return below + 1, above
    below, above = _enclosing(value, per_octave)
    return below, below if below == value else above


def _enclosing(value: int, per_octave: int) -> tuple[int, int]:
    """The last node up to ``value``, and the node after it."""
    size = max((1 << (value.bit_length() - 1)) // per_octave, 1) if value else 1
    return value // size * size, value // size * size + size


def _shared_as_routed(layer: Layer, experts: int) -> Layer:
    mlp = layer.mlp
    return replace(layer, mlp=mlp.shared_as_routed()) if isinstance(mlp, MoeMlp) and mlp.experts == experts else layer


def step_times(model: ModelSpec, device: Device, engine: Engine, base_pass: ModelPass, fallbacks: FallbackDevices = tuple) -> KernelTimes:
    """Step times of ``engine`` with the formats and layout of ``base_pass``, with its own kernels and by default a typical router."""
    kernels, imbalance = engine.kernels_for(model, device, base_pass.split), router_imbalance(model, base_pass.imbalance)
    base_pass = replace(base_pass, kernels=kernels, fused=engine.fused, imbalance=imbalance)
    if engine.kernels.shared_as_routed and base_pass.split.ep == 1:
        model = replace(model, layers=tuple(_shared_as_routed(layer, engine.kernels.shared_as_routed) for layer in model.layers))
    return KernelTimes(model, device, engine, on_device(base_pass, device), fallbacks)
