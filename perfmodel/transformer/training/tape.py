"""Autograd's record of a chain of operations: the tensors saved for the backward pass, and the memory allocated meanwhile.

In the forward pass an operation allocates what it writes; a tensor is freed once no later operation reads it and none keeps it. In the
backward pass, in reverse order, an operation allocates the gradients of its inputs and of its weights, then frees the gradients of its
results and the tensors that it kept. Source: the semantics of torch.autograd, PyTorch's notes on saved tensors.

``attention_peak`` gives the most bytes that attention allocates in PyTorch beside its inputs and the gradient of its result. The result is
held until the end, as a model holds it. Bytes are those of tensors; PyTorch's allocator may hand out up to 1 MiB more for a tensor that
fills most of a free block (c10/cuda/CUDACachingAllocator.cpp, kSmallSize).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import field, replace

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.dtypes import STATISTIC_SIZE
from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.frozen import dataclass
from perfmodel.core.workload import Attention


@dataclass(frozen=True, slots=True)
class TapeNode:
    """One operation. ``reads``: tensors that get a gradient; ``saves``: tensors kept until its backward pass has run.

    ``gradients``: bytes of its weights' gradients that stay. ``scratch``, ``backward_scratch``: bytes held only while it runs, forward
    and backward. ``adds``: an addition; its inputs share the gradient of its output.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    saves: tuple[str, ...] = ()
    gradients: Number = 0
    scratch: Number = 0
    backward_scratch: Number = 0
    adds: bool = False


@dataclass(slots=True)
class Tape:
    """Operations in order, and the bytes of every tensor.

    ``stream``: the tensor that enters; the one that leaves is the first that the last operation writes. ``views``: tensors that share the
    bytes of another, with the bytes of their gradients. ``parts``: part of the model to which each tensor belongs. ``rerun``: names of
    consecutive operations that run again before their backward pass, so that they keep none of their results.
    """

    stream: str
    sizes: dict[str, Number]
    nodes: list[TapeNode] = field(default_factory=list)
    views: dict[str, Number] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    rerun: frozenset[str] = frozenset()

    @property
    def out(self) -> str:
        """The tensor that leaves; the one that enters if there is no operation."""
        return self.nodes[-1].writes[0] if self.nodes else self.stream

    @property
    def repeated(self) -> list[TapeNode]:
        """The operations that run again."""
        return [node for node in self.nodes if node.name in self.rerun]

    def saved(self) -> dict[str, str]:
        """Tensors kept at the end of the forward pass, in the order of first use, with the operation that frees each."""
        inside = {name for node in self.repeated for name in node.writes}
        freed_by: dict[str, str] = {}
        for node in self.nodes:
            for name in node.saves:
                if node.name not in self.rerun or name not in inside:
                    freed_by.setdefault(name, node.name)
        return freed_by

    def gradient_size(self, name: str) -> Number:
        """Bytes of the gradient of a tensor."""
        return self.views.get(name, self.sizes[name])


@dataclass(frozen=True, slots=True)
class TapePass:
    """Bytes of a pass over a tape, beyond those at its start. ``high``: at the peak, in operation ``at``; ``net``: at the end.

    ``high_saved``, ``net_saved``: bytes of tensors saved for the backward pass, by name, at the peak and at the end.
    """

    high: Number
    net: Number
    at: str
    high_saved: Mapping[str, Number] = field(default_factory=dict, repr=False, compare=False)
    net_saved: Mapping[str, Number] = field(default_factory=dict, repr=False, compare=False)


def added(sizes: Mapping[str, Number], more: Mapping[str, Number], times: Number = 1) -> dict[str, Number]:
    """``sizes`` plus ``times`` the sizes ``more``, by name."""
    return {name: sizes.get(name, 0) + times * more.get(name, 0) for name in {**sizes, **more}}


def chained(passes: Iterable[TapePass]) -> TapePass:
    """One pass made of ``passes`` in turn."""
    whole = TapePass(0, 0, "")
    for once in passes:
        if whole.net + once.high > whole.high:
            whole = replace(whole, high=whole.net + once.high, at=once.at, high_saved=added(whole.net_saved, once.high_saved))
        whole = replace(whole, net=whole.net + once.net, net_saved=added(whole.net_saved, once.net_saved))
    return whole


def forward(tape: Tape, keep: Collection[str] | None = None) -> TapePass:
    """The forward pass: it starts with the entering stream, and ends with kept tensors (or ``keep``) and the leaving stream.

    >>> tape = Tape("x", {"x": 8, "y": 8, "z": 8}, [TapeNode("square", ("x",), ("y",), ("x",)), TapeNode("sum", ("y",), ("z",))])
    >>> forward(tape), backward(tape)
    (TapePass(high=16, net=8, at='sum'), TapePass(high=8, net=-8, at='sum'))
    """
    return chained(_forward(tape, tape.saved() if keep is None else keep))


def _forward(tape: Tape, kept: Collection[str]) -> Iterator[TapePass]:
    """Each operation as a pass; before them a pass that saves the entering stream, if it is kept."""
    last_read = {name: index for index, node in enumerate(tape.nodes) for name in node.reads}
    live = {tape.stream}
    yield TapePass(0, 0, "", net_saved={name: tape.sizes[name] for name in live.intersection(kept)})
    for index, node in enumerate(tape.nodes):
        live.update(node.writes)
        saved = {name: tape.sizes[name] for name in node.writes if name in kept}
        no_longer_read = {name for name in (*node.reads, *node.writes) if last_read.get(name, -1) <= index}
        freed = (live & no_longer_read).difference(kept, {tape.out})
        live -= freed
        written = sum(tape.sizes[name] for name in node.writes)
        yield TapePass(written + node.scratch, written - sum(tape.sizes[name] for name in freed), node.name, saved, saved)


def backward(tape: Tape) -> TapePass:
    """The backward pass: it starts with the gradient of the leaving stream, and ends with the gradient of the entering one.

    A second gradient of a tensor is made, added to the first and freed. ``net`` counts kept tensors as freed, and gradients of weights as
    held.
    """
    return chained(_backward(tape))


def _backward(tape: Tape) -> Iterator[TapePass]:
    """Each operation as a pass, the last one first."""
    gradient_of = {tape.out: tape.out}  # live gradients by tensor, as the tensor for which each was allocated: additions share theirs
    freed_by = {name: node for node in reversed(tape.nodes) for name in node.saves}
    repeated = tape.repeated
    for node in reversed(tape.nodes):
        if repeated and node is repeated[-1]:
            yield _again(tape, repeated)
        allocated, second = node.gradients, 0  # second gradients of tensors, which are added to the first and freed
        for name in node.reads:
            if name in gradient_of:
                second += 0 if node.adds else tape.gradient_size(name)
            elif node.adds:
                gradient_of[name] = gradient_of[node.writes[0]]
            else:
                gradient_of[name] = name
                allocated += tape.gradient_size(name)
        used = {gradient_of.pop(name) for name in node.writes if name in gradient_of}
        released = sum(tape.gradient_size(owner) for owner in used.difference(gradient_of.values()))
        freed = {name: -tape.sizes[name] for name in node.saves if freed_by[name] is node}
        net = allocated - released + sum(freed.values())
        yield TapePass(allocated + second + node.backward_scratch, net, node.name, net_saved=freed)


def _again(tape: Tape, repeated: list[TapeNode]) -> TapePass:
    """The second run of ``repeated``; it keeps the tensors that their backward pass needs and that no other operation kept."""
    kept = tape.saved()
    written = {name for node in repeated for name in node.writes}
    wanted = {name for node in repeated for name in node.saves if name in written and name not in kept}
    existing = {name: 0 for node in repeated for name in node.reads if name not in written}  # tensors that take no further bytes
    once = forward(replace(tape, nodes=repeated, sizes={**tape.sizes, tape.stream: 0, **existing}, rerun=frozenset()), wanted)
    return replace(once, net=sum(once.net_saved.values()), at=f"{once.at}, again")


EAGER, SDPA_FLASH = "torch-eager", "torch-sdpa-flash"
RANDOM_STATE = 2 * 512
"""Bytes of the seed and the offset of dropout: one 512 B block of the allocator for each."""


@dataclass(frozen=True, slots=True)
class AttentionPeak:
    """Bytes without the inputs: peak of both passes, peak of forward, and bytes kept between the passes. ``at``: operation at the peak."""

    bytes: Number
    forward: Number
    kept: Number
    at: str


def attention_peak(w: Attention, implementation: str) -> AttentionPeak:
    """Peak bytes of forward and backward of ``w`` in ``implementation``, torch-eager or torch-sdpa-flash; UsageError for another.

    Eager, with S bytes of scores and u of the result, peaks at 4 S + 2 u in softmax's backward pass; a mask is one of the inputs.

    >>> w = Attention(1024, 1024, 64, 64, batch=8, heads=16, kv_heads=16)
    >>> attention_peak(w, "torch-eager"), attention_peak(w, "torch-sdpa-flash").bytes
    (AttentionPeak(bytes=1107296256, forward=553648128, kept=285212672, at='softmax, backward'), 101712896)
    """
    tapes = {EAGER: _eager, SDPA_FLASH: _flash}
    if implementation not in tapes:
        raise UsageError(f"--model-code: no peak is known of {implementation!r}", suggest(implementation, list(tapes)))
    tape = tapes[implementation](w)
    forward_pass, backward_pass = forward(tape), backward(tape)
    backward_high = forward_pass.net + backward_pass.high
    if forward_pass.high > backward_high:
        return AttentionPeak(forward_pass.high, forward_pass.high, forward_pass.net, f"{forward_pass.at}, forward")
    return AttentionPeak(backward_high, forward_pass.high, forward_pass.net, f"{backward_pass.at}, backward")


def _tape(w: Attention, nodes: list[TapeNode], sizes: dict[str, Number]) -> Tape:
    """Tape of ``nodes``; ``sizes``: bytes of further tensors. The result, dQ, dK and dV take bytes; inputs and dO exist already."""
    keys, rows = w.batch * w.kv_heads * w.kv_len * w.dtype.size, w.batch * w.heads * w.n * w.dtype.size
    views = {"Q": rows * w.d, "K": keys * w.d, "V": keys * w.dv, "result": 0}
    return Tape("Q", {**dict.fromkeys(views, 0), "result": rows * w.dv, **sizes}, nodes, views=views)


def _eager(w: Attention) -> Tape:
    """Tape of separate kernels, each of which writes a tensor of its own name."""
    scores = w.batch * w.heads * w.n * w.kv_len * w.dtype.size
    nodes = [TapeNode("Q K^T", ("Q", "K"), ("Q K^T",)), TapeNode("scaled", ("Q K^T",), ("scaled",))]
    if w.causal:
        nodes.append(TapeNode("masked", ("scaled",), ("masked",), adds=True))
    # backward multiplies softmax with its gradient before it adds up the rows
    nodes.append(TapeNode("softmax", nodes[-1].writes, ("softmax",), ("softmax",), backward_scratch=scores))
    score_tensors = [node.name for node in nodes]
    nodes.append(TapeNode("P V", ("softmax", "V"), ("result",), ("softmax",), scratch=scores))  # the scores still have a name
    return _tape(w, nodes, dict.fromkeys(score_tensors, scores))


def _flash(w: Attention) -> Tape:
    """Tape of FlashAttention-2: the logsumexp is kept; backward sums dQ in fp32, with rows padded to 128 and features to 32.

    Source: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd. With grouped heads, backward first makes dK and dV per
    query head.
    """
    rows = w.batch * w.heads * ceil_div(w.n, 128) * 128
    sums = STATISTIC_SIZE * rows * (ceil_div(w.d, 32) * 32 + 1)
    per_query_head = 0 if w.heads == w.kv_heads else w.batch * w.heads * w.kv_len * w.dtype.size * (w.d + w.dv)
    kept = STATISTIC_SIZE * w.batch * w.heads * w.n + RANDOM_STATE
    node = TapeNode("attention", ("Q", "K", "V"), ("result", "logsumexp"), ("logsumexp",), backward_scratch=sums + per_query_head)
    return _tape(w, [node], {"logsumexp": kept})
