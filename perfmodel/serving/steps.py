"""Seconds of an engine's step, from the kernels of ``transformer``: fast enough to be asked thousands of times.

A step's kernels fall into parts: those that see every token of a data-parallel group alike, by the number of tokens; experts, by those of
all groups; attention of decoding sequences, by their number and length; attention of prompts, by their number, new tokens and what was
cached before. Each is predicted at nodes and interpolated between them, linearly in what grows with bytes and work; nodes are made when
they are first asked for.
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
from perfmodel.transformer.op_time import LaunchCorrection, OpTime, Pricing, launch_correction, time_alone
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
"""Share of a step whose kernels have the roof for a time: beyond it no interval is given."""
EXACT = 0
"""Stands for nodes at every number."""
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
"""Nodes per factor of two in each argument of a part of a step: many where tiles and waves of a kernel make steps in between; and few, to
rank many layouts under one load, whose decoding sequences have one length."""
STEPPED = {"group": (True, False), "routed": (True, False), "routed unevenly": (True, True, False), "prompt": (False, True, False)}
"""Whether an argument fills tiles of matmuls and of attention: tokens, and new tokens of a prompt. Of other parts none does."""
Table = dict[tuple[int, ...], Times]
"""Nodes of a part of a step, by its arguments."""


@dataclass(eq=False, slots=True)
class KnownKernels:
    """Kernels on one device, each predicted once: ``alone``; in steps, launched one by one and by a CUDA graph; as rows to be shown."""

    alone: dict[Op, OpTime] = field(default_factory=dict)
    in_steps: tuple[dict[Op, Times], dict[Op, Times]] = field(default_factory=lambda: ({}, {}))
    rows: dict[tuple[Op, bool], PassRow] = field(default_factory=dict)


@dataclass(eq=False)
class KernelTimes:
    """Steps of ``model`` on one replica; ``like`` is a pass with its formats, split and kernels. Implements ``StepTimes``.

    ``host``: layers that no GPU holds. ``coarse``: one node per factor of two in everything, to rank many layouts.
    ``known``: the time of each kernel by now. ``power``: limit and clock; where neither is given kernels take what they take alone after a
    pause.
    ``nodes``: what is known by now of each part; ``between``: from them, and ``steps`` from these.
    """

    model: ModelSpec
    device: Device
    engine: Engine
    like: ModelPass
    fallbacks: FallbackDevices = tuple
    known: KnownKernels = field(default_factory=KnownKernels)
    host: HostLayers | None = None
    coarse: bool = False
    nodes: dict[str, Table] = field(default_factory=dict)
    power: PowerOptions = field(default_factory=PowerOptions)
    between: dict[tuple[str, tuple[int, ...]], Times] = field(init=False, default_factory=dict)
    steps: dict[Iteration, Times] = field(init=False, default_factory=dict)

    def finely(self) -> KernelTimes:
        """The same steps in the tables of one layout; rows of kernels are shared."""
        return replace(self, coarse=False, nodes={})

    def seconds(self, step: Iteration) -> float:
        """Seconds of the kernels of ``step`` and of the engine around them; 0 for a step without tokens."""
        return self.interval(step)[0]

    def interval(self, step: Iteration) -> Times:
        """Seconds of ``step`` with the ends of their interval."""
        found = self.steps.get(step)
        if found is None:
            found = self.steps[step] = self._in_stages(step) if self.like.split.pp > 1 else self._through(step)
        return found

    def _in_stages(self, step: Iteration) -> Times:
        """Seconds of a round of micro-batches, one in each pipeline stage."""
        batches = micro_batches(step, self.like.split.pp, self.engine.batching.chunked)
        known = {one: self._through(one) for one in set(batches)}
        value, low, high = (round_s(ways, self._slowest) for ways in zip(*map(known.__getitem__, batches), strict=True))
        return value, low, high

    @cached_property
    def _slowest(self) -> float:
        """Share of a pass that the slowest pipeline stage takes."""
        return slowest_share(self.model, self.like.split.pp)

    def _through(self, step: Iteration) -> Times:
        """Seconds of ``step`` through all pipeline stages."""
        tokens, split = step.chunk + step.decodes * step.queries, self.like.split
        if not tokens:
            return NOTHING
        prompts, each = _prompts_of(step)
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
            parts.append(self._between("prompt", (prompts, each, max(step.chunk_context - each, 0)), self._prompts))
        own = self.own_seconds(step.decodes + prompts, bool(step.chunk)) + self.host_s(step)
        if self.power.given:
            asked = step.chunk, step.decodes, step.context if step.decodes else step.chunk_context
            value, low, high = added(parts)
            slower, *_ = self._between("power", asked, self._slowdown)
            return value * slower + own, low * slower + own, high * slower + own
        return added([*parts, (own, own, own)])

    def _slowdown(self, chunk: int, decodes: int, context: int) -> Times:
        """Seconds of the kernels of a step that runs again and again under the power limit, over those without; thrice the same."""
        step = Iteration(chunk=chunk, chunk_context=chunk if decodes else max(chunk, context), decodes=decodes, context=context)
        found = slowdown(self.passed(step), self.power, self.own_seconds(decodes + (chunk > 0), chunk > 0))
        return found, found, found

    def host_s(self, step: Iteration) -> float:
        """Seconds of the layers that the host runs; 0 where GPUs hold all."""
        if self.host is None:
            return 0.0
        tokens = step.chunk + step.decodes * step.queries
        context = max(step.context if step.decodes else step.chunk_context, tokens)
        return self._between("host", (tokens, context), self._on_host)[0]

    def _on_host(self, tokens: int, context: int) -> Times:
        found = 0.0 if self.host is None else self.host.seconds(tokens, context)
        return found, found, found

    def own_seconds(self, sequences: float, prompts: bool = False) -> float:
        """Seconds that the engine takes beside the kernels of a step. Each data-parallel group has a process of its own for its sequences.

        Sources: NVIDIA/TensorRT-LLM, docs, "Parallelism in TensorRT LLM" (attention DP: each rank runs the requests it was given); vLLM
        docs, "Data Parallel Deployment" (an engine core process for each rank).
        """
        o = self.engine.overhead
        started = o.step_s + o.prompt_s + o.expert_layer_s * self.expert_layers if prompts else o.step_s
        return started + o.kernel_s * self.kernels + o.sequence_s * sequences / self.like.split.dp

    @cached_property
    def expert_layers(self) -> int:
        """Number of layers with routed experts."""
        return sum(isinstance(layer.mlp, MoeMlp) for layer in self.model.layers)

    @cached_property
    def kernels(self) -> int:
        """Number of kernels of a decode step."""
        return int(sum(op.count for op in step_ops(self.model, replace(self.like, phase=DECODE, batch=1, n=1, kv_len=1))))

    def passed(self, step: Iteration) -> PassEstimate:
        """Rows of ``step``, exactly and not between nodes: to be shown."""
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
        """Tokens of the fullest data-parallel group, and its positions whose logits are wanted: a prompt is in one group."""
        (prompts, each), dp = _prompts_of(step), self.like.split.dp
        waiting, decoding = share(prompts, dp), share(step.decodes, dp) * step.queries
        return (waiting * each if dp > 1 else step.chunk) + decoding, waiting + decoding

    def pass_of(self, step: Iteration) -> ModelPass:
        """The pass through the model that ``step`` is."""
        decode = None
        if step.decodes:
            context = max(step.context, step.queries)
            decode = replace(self.like, phase=DECODE, batch=step.decodes, n=step.queries, kv_len=context)
        if not step.chunk:
            assert decode is not None
            return decode
        each = max(step.chunk // max(step.prompts, 1), 1)
        return replace(self.like, phase=PREFILL, batch=step.prompts, n=each, kv_len=max(step.chunk_context, each), beside=decode)

    # Parts of a step

    def _in_group(self, tokens: int, graph: int) -> Times:
        """Seconds of all layers but attention and experts, for ``tokens`` of one data-parallel group."""
        split = Split(self.like.split.tp)
        step = replace(self.like, phase=PREFILL, batch=1, n=tokens, kv_len=tokens, split=split)
        return self._rows(group_ops(self.model, step), graph)

    def _routed(self, tokens: int, graph: int) -> Times:
        """Seconds of routers and experts, for ``tokens`` in equal groups."""
        return self._rows(routed_ops(self.model, replace(self.like, phase=DECODE, batch=tokens, n=1, kv_len=1)), graph)

    def _routed_unevenly(self, fullest: int, tokens: int, graph: int) -> Times:
        """Seconds of routers and experts, for ``tokens`` of all groups, ``fullest`` of them in one: as many single ones in each, and a
        prompt in that.
        """
        dp = self.like.split.dp
        elsewhere = min(max(tokens - fullest, 0), fullest * (dp - 1))
        each = -(-elsewhere // (dp - 1))
        one = replace(self.like, phase=DECODE, batch=elsewhere + each, n=1, kv_len=1) if each else None
        if fullest > each:
            one = replace(self.like, phase=PREFILL, batch=1, n=fullest - each, kv_len=fullest - each, beside=one)
        return NOTHING if one is None else self._rows(routed_ops(self.model, one), graph)

    def _to_next_stage(self, tokens: int) -> Times:
        """Seconds in which stages hand on ``tokens`` of a group."""
        step = replace(self.like, phase=DECODE, batch=tokens * self.like.split.dp, n=1, kv_len=1)
        return self._rows(dict.fromkeys(to_next_stage(self.model, step), 1), 0)

    def _heads(self, heads: int, graph: int) -> Times:
        """Seconds of the last norm and the head for ``heads`` positions of a group, and of gathering their logits."""
        if not heads:
            return NOTHING
        step = replace(self.like, phase=DECODE, batch=heads * self.like.split.dp, n=1, kv_len=1)
        return self._rows(dict.fromkeys([*head_ops(self.model, step), *gathered_logits(self.model, step)], 1), graph)

    def _decoding(self, sequences: int, queries: int, context: int) -> Times:
        """Seconds of attention of decoding sequences, in a CUDA graph where one holds those of a group."""
        step = replace(self.like, phase=DECODE, batch=sequences, n=queries, kv_len=max(context, queries))
        graph = share(sequences, self.like.split.dp) <= self.engine.graph_batch
        return self._rows(dict.fromkeys(sequence_ops(self.model, step), 1), int(graph))

    def _prompts(self, prompts: int, tokens: int, before: int) -> Times:
        """Seconds of attention of prompts, of ``tokens`` new ones each, after ``before`` cached ones."""
        step = replace(self.like, phase=PREFILL, batch=prompts, n=tokens, kv_len=tokens + before)
        return self._rows(dict.fromkeys(sequence_ops(self.model, step), 1), 0)

    def _rows(self, rows: Mapping[Op, Number], graph: int) -> Times:
        """Seconds of ``rows`` in a step, kernels with how often each runs; ``graph``: 1 in a CUDA graph, else 0."""
        known, (value, low, high) = self.known.in_steps[graph], NOTHING
        for op, count in rows.items():
            found = known.get(op)
            if found is None:
                found = known[op] = self._alone(op).in_step(self.device, bool(graph), self._launches)
            value, low, high = value + found[0] * count, low + found[1] * count, high + found[2] * count
        return value, low, high

    def _alone(self, op: Op) -> OpTime:
        """The time of one run of ``op`` alone."""
        found = self.known.alone.get(op)
        if found is None:
            found = self.known.alone[op] = time_alone(op, self.device, self.fallbacks, self._priced)
        return found

    @cached_property
    def _priced(self) -> Pricing | None:
        """What gives the time of a kernel, for an engine whose kernels have no time models."""
        shares = shares_on(self.engine, self.device)
        if shares is None:
            return None
        return priced_by(shares, self.device, self.has_k_quants)

    @property
    def has_k_quants(self) -> bool:
        """Whether most weights are packed in blocks of 256, as in GGUF files by the name of Q4_K_M."""
        main = None if self.model.quantized is None else self.model.quantized.main
        return main is not None and main.name.endswith("_k")

    @cached_property
    def _launches(self) -> LaunchCorrection:
        return launch_correction(self.device, self.fallbacks)

    # Interpolation

    def _between(self, part: str, at: tuple[int, ...], exact: Callable[..., Times]) -> Times:
        """Seconds of a part of a step, multilinear between the nodes around ``at``, where ``exact`` gives them."""
        found = self.between.get((part, at))
        if found is not None:
            return found
        known, (value, low, high) = self.nodes.setdefault(part, {}), NOTHING
        for place, weight in corners(at, NODES[part][self.coarse], () if self.coarse else STEPPED.get(part, ())):
            node = known.get(place)
            if node is None:
                node = known[place] = exact(*place)
            value, low, high = value + weight * node[0], low + weight * node[1], high + weight * node[2]
        self.between[part, at] = value, low, high
        return value, low, high


def _prompts_of(step: Iteration) -> tuple[int, int]:
    """Number of prompts of ``step``, and tokens of each."""
    prompts = max(step.prompts, 1) if step.chunk else 0
    return prompts, max(step.chunk // prompts, 1) if prompts else 0


def mostly_predicted(step: PassEstimate) -> bool:
    """Whether the roof stands for a small part of a step alone, of which no time is predicted: else times are the least."""
    return sum(row.seconds for row in step.rows if row.prediction is None) <= AT_ROOF * step.seconds


def has_guesses(step: PassEstimate) -> bool:
    """Whether the time of a kernel is taken from devices whose kernels do not run here."""
    return any(row.prediction is not None and row.prediction.guess for row in step.rows)


def added(parts: Iterable[Times]) -> Times:
    """Sums of ``parts``, one after another."""
    value, low, high = NOTHING
    for one, lower, higher in parts:
        value, low, high = value + one, low + lower, high + higher
    return value, low, high


def corners(at: tuple[int, ...], per_octave: tuple[int, ...], steps: tuple[bool, ...] = ()) -> list[tuple[tuple[int, ...], float]]:
    """The nodes around ``at``, each with its weight; ``per_octave`` and ``steps`` of each argument, as of ``around``.

    >>> corners((7, 3), (2, 1)), corners((7, 3), (EXACT, 2))
    ([((6, 2), 0.25), ((6, 4), 0.25), ((8, 2), 0.25), ((8, 4), 0.25)], [((7, 3), 1.0)])
    """
    found: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    for number, nodes, stepped in zip_longest(at, per_octave, steps, fillvalue=False):
        below, above = around(number, nodes, stepped) if nodes else (number, number)
        rest = (number - below) / (above - below) if below < number < above else 0.0
        ends = ((below, 1 - rest), (above, rest)) if rest else ((number, 1.0),)
        found = [((*place, node), weight * own) for place, weight in found for node, own in ends]
    return found


@cache
def around(value: int, per_octave: int = 2, steps: bool = False) -> tuple[int, int]:
    """The nodes on both sides of ``value``: all numbers up to twice ``per_octave``, then so many per factor of two.

    ``steps``: the time may jump behind each node, where another tile begins: what is above a node lies between the next number and
    the next node.

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
    """The last node up to ``value`` and the one after it, ``per_octave`` per factor of two."""
    size = max((1 << (value.bit_length() - 1)) // per_octave, 1) if value else 1
    return value // size * size, value // size * size + size


def _shared_as_routed(layer: Layer, experts: int) -> Layer:
    mlp = layer.mlp
    return replace(layer, mlp=mlp.shared_as_routed()) if isinstance(mlp, MoeMlp) and mlp.experts == experts else layer


def step_times(model: ModelSpec, device: Device, engine: Engine, like: ModelPass, fallbacks: FallbackDevices = tuple) -> KernelTimes:
    """Steps of ``engine`` with the formats and the split of ``like``, in its own kernels, with a typical router where none is given."""
    kernels, imbalance = engine.kernels_for(model, device, like.split), router_imbalance(model, like.imbalance)
    like = replace(like, kernels=kernels, fused=engine.fused, imbalance=imbalance)
    if engine.kernels.shared_as_routed and like.split.ep == 1:
        model = replace(model, layers=tuple(_shared_as_routed(layer, engine.kernels.shared_as_routed) for layer in model.layers))
    return KernelTimes(model, device, engine, on_device(like, device), fallbacks)
