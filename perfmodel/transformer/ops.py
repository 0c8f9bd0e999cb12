"""The kernels of one pass through a model, as seen by one GPU: rows in the order in which they run, equal ones together.

Fused attention in prefill (FlashAttention-2's IO); in decode K and V are read once per KV head for all its query heads. K and V
come from the cache, into which the step has just written its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from perfmodel.core.arith import Number, minimum
from perfmodel.core.cost import READ, WRITE, Access, Tile, in_bits, stored
from perfmodel.core.dtypes import DTYPES, Dtype
from perfmodel.core.trace import plain
from perfmodel.core.workload import Attention
from perfmodel.kernels.attention.algorithms.flash2 import forward
from perfmodel.kernels.collectives import ALL_REDUCE, ALL_TO_ALL
from perfmodel.kernels.latent_decode import LatentDecode, NarrowCacheAttention
from perfmodel.transformer.layer import EXPERTS, HEAD_ROW, LAST_NORM, Matrix, Operation, first_operations, last_operations, local_layer
from perfmodel.transformer.layer import operations as layer_operations
from perfmodel.transformer.moe import Routing, activation_function
from perfmodel.transformer.op import ATTENTION, CACHE, WEIGHTS, Op, Timed, activation, collective, linear, stream, tile_rows
from perfmodel.transformer.spec import GroupedAttention, LatentAttention, Layer, ModelSpec, MoeMlp
from perfmodel.transformer.step import ModelPass

EMBEDDING = "embedding lookup"
FRESH = "K and V"
"""Those that the step itself has made: an L2 may hold them."""
KEY_TILE = 64
"""Columns of the roof's attention tile: FlashAttention-2's for head dims from 128 on."""
BESIDE_SUMS = ("norm before attention", "norm before the MLP", LAST_NORM)
"""Norms that run with the residual add before them if element-wise operations are fused."""


def step_ops(model: ModelSpec, step: ModelPass) -> list[Op]:
    """Every kernel of ``step`` on one GPU of each pipeline stage, all stages one after the other.

    The last norm and the matrix hidden -> vocab see the last position of each sequence only.
    """
    ops = Rows(model, step).of(first_operations(model, step.split.tp))
    if step.fused:  # every other norm runs with the residual add before it
        ops.append(norm("norm", model, step, step.tokens, model.hidden))
    for layer, count in model.layer_kinds:
        ops += [op.times(count) for op in layer_ops(layer, model, step)]
    return merged([*ops, *head_ops(model, step)])


def layer_ops(layer: Layer, model: ModelSpec, step: ModelPass) -> list[Op]:
    """One layer on one GPU."""
    if step.weights_from_file:
        step = replace(step, formats=layer.formats)
    here = local_layer(layer, step.split.tp)
    return Rows(model, step, here).of(layer_operations(model, layer, step.split.tp))


def head_ops(model: ModelSpec, step: ModelPass) -> list[Op]:
    """Last norm and LM head, whose columns are divided among tensor-parallel GPUs, which gather the logits."""
    if step.weights_from_file and model.head_format is not None:
        step = replace(step, formats=((HEAD_ROW, model.head_format),))
    return Rows(model, step, tokens=step.sequences).of(last_operations(model, step.split.tp))


def merged(ops: Iterable[Op]) -> list[Op]:
    """Equal rows as one with their counts added up, in the order of first occurrence."""
    counts: dict[Op, Number] = {}
    for op in ops:
        alone = replace(op, count=1)
        counts[alone] = counts.get(alone, 0) + op.count
    return [replace(op, count=count) for op, count in counts.items()]


class Rows:
    """Kernels of a forward pass: a method per kind of operation; kinds without one have no kernel of their own.

    ``layer``: as one GPU sees it; None for an end of the model. ``tokens``: that pass through, by default all new ones of the GPU;
    ``own``: those that pass through norms of the hidden state, if fewer do.
    """

    def __init__(
        self, model: ModelSpec, step: ModelPass, layer: Layer | None = None, tokens: Number | None = None, own: Number | None = None
    ) -> None:
        self.model, self.step = model, step
        self.tokens = step.tokens if tokens is None else tokens
        self.own_tokens = self.tokens if own is None else own
        if layer is not None:
            self.attended, self.mlp = layer.attention, layer.mlp

    def of(self, found: Iterable[Operation]) -> list[Op]:
        """The rows of operations, in order."""
        known = list(found)
        if any(op.kind == "router" for op in known):
            assert isinstance(self.mlp, MoeMlp)
            matrices = tuple(matrix for op in known for matrix in op.matrices if matrix.group == EXPERTS)
            self.routing = Routing(self.mlp, self.model.hidden, self.step, matrices)
        return [row for op in known for row in self.rows(op)]

    def rows(self, op: Operation) -> list[Op]:
        """Those of one."""
        found: list[Op] = getattr(self, op.kind)(op) if hasattr(self, op.kind) else []
        return found

    def leave(self, op: Operation) -> list[Op]:
        """The sum of what tensor-parallel GPUs have each in part: of a lookup, of attention, of an MLP."""
        tp = self.step.split.tp
        return [] if tp == 1 else [collective(ALL_REDUCE, tp, self.step.tokens * self.model.hidden, self.step)]

    def embedding(self, op: Operation) -> list[Op]:
        """One row of the table per token, and of the table of positions where there is one. A lookup, no matmul.

        All tokens may be the same one, so that one row of the table is all that must be read.
        """
        step, hidden = self.step, self.model.hidden
        elements, positions = step.tokens * hidden, step.n * hidden if self.model.learned_positions else 0
        least = stored(WEIGHTS, READ, hidden + positions, step.weight_bits).elements
        looked_up = replace(stored(WEIGHTS, READ, elements + positions, step.weight_bits), compulsory=least)
        like = ("scale", "torch-scale", step.tokens, hidden)
        return [stream(EMBEDDING, step, "copy", (None, None), like, more=(looked_up, activation(WRITE, elements, step)))]

    def norm(self, op: Operation) -> list[Op]:
        """One kernel, or none if the residual add before it does it."""
        if self.step.fused and op.name in BESIDE_SUMS:
            return []
        kind = self.model.norm if op.own else "rms"  # latents pass an RMS norm whatever the model's norms are
        return [norm(op.kernel, self.model, self.step, self.own_tokens if op.own else self.tokens, op.features, kind=kind)]

    def linear(self, op: Operation) -> list[Op]:
        """One matmul; if element-wise operations are fused, the activation function runs inside of that of the gate."""
        step, tokens = self.step, self.tokens
        if op.name == "KV up projection":
            a = self.attended
            assert isinstance(a, LatentAttention)
            if self._absorbed:
                return [self._absorbing("Q times W_UK", a.qk_nope_head_dim, a.kv_lora_rank, a.qk_nope_head_dim)]
            tokens = step.sequences * step.kv_len
        inside = step.fused and op.name.endswith("up projection") and op.matrices[0].group == "mlp"
        stores = op.matrices[0].outputs if inside else None
        inputs = op.matrices[0].inputs
        return [linear(op.kernel, step, tokens, inputs, op.features, matrices=op.matrices, bias=op.vectors, stores=stores)]

    def qk_norm(self, op: Operation) -> list[Op]:
        """Q and K in one kernel."""
        a, step, tokens = self.attended, self.step, self.tokens
        assert isinstance(a, GroupedAttention)
        rows, d = a.heads + a.kv_heads, a.head_dim
        elements = tokens * (a.heads * d + a.kv_heads * d)
        return [stream(op.kernel, step, "norm", (elements, elements), ("norm", "torch-rms-norm", tokens * rows, d), weights=2 * d)]

    def rotate(self, op: Operation) -> list[Op]:
        """RoPE, and what a token adds to the cache."""
        a = self.attended
        if isinstance(a, LatentAttention):
            rope = a.qk_rope_head_dim
            return rotate_and_keep(self.step, a.heads * rope + rope, a.kept, a.heads * rope)
        queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
        return rotate_and_keep(self.step, 0 if self.model.learned_positions else queries + keys, 2 * keys, queries)

    @property
    def _absorbed(self) -> bool:
        """Decode leaves latents as they are: W_UK is multiplied into Q, W_UV into the result.

        Source: DeepSeek-V2, section 2.1.2 and appendix B. Prefill, and any step without a cache, expands them to K and V.
        """
        return self.step.n == 1 and self.step.cached

    def _workload(self, heads: Number, kv_heads: Number, d: Number, dv: Number, window: Number | None = None) -> Attention:
        step = self.step
        return Attention(step.n, step.kv_len, d, dv, step.sequences, heads, kv_heads, step.dtype, causal=True, window=window)

    def attention(self, op: Operation) -> list[Op]:
        """Attention, over the latents themselves in decode."""
        a, step = self.attended, self.step
        if isinstance(a, GroupedAttention):
            window = None if a.window is None or a.window >= step.kv_len else a.window
            return [attend(self._workload(a.heads, a.kv_heads, a.head_dim, a.head_dim, window), step, sinks=op.vectors)]
        if not self._absorbed:
            w = self._workload(a.heads, a.heads, a.qk_head_dim, a.v_head_dim)
            return [_expanded(attend(w, step), w)]
        made = attend(self._workload(a.heads, 1, a.kept, a.kv_lora_rank), step, latent=True)
        return [made, self._absorbing("W_UV of the result", a.kv_lora_rank, a.v_head_dim, a.v_head_dim)]

    def _absorbing(self, name: str, inputs: Number, outputs: Number, features: Number) -> Op:
        """A product of each head with its ``features`` of the matrix that expands latents."""
        a = self.attended
        assert isinstance(a, LatentAttention)
        matrix = Matrix("V", "attention", a.kv_lora_rank, a.heads * features, stored="self_attn.kv_b_proj")
        return linear(name, self.step, self.tokens, inputs, outputs, matrices=(matrix,), batch=a.heads)

    def add(self, op: Operation) -> list[Op]:
        """x + y; fused with the norm after it, which leaves both the sum and its norm."""
        step, hidden = self.step, self.model.hidden
        elements = step.tokens * hidden
        if not step.fused:
            return [stream("residual add", step, "add", (2 * elements, elements), ("scale", "torch-add", step.tokens, hidden))]
        like, weights = ("scale", "torch-scale", 2 * step.tokens, hidden), hidden * (2 if self.model.norm == "layer" else 1)
        return [stream("residual add and norm", step, "norm", (2 * elements, 2 * elements), like, weights=weights)]

    def activation(self, op: Operation) -> list[Op]:
        """The activation function, if no matmul does it."""
        if op.part == EXPERTS:
            return self.routing.activation()
        return [] if self.step.fused else [activation_function(self.mlp, self.step, self.tokens, op.features)]

    def router(self, op: Operation) -> list[Op]:
        """The router, and tokens on their way to the GPUs of their experts."""
        row = linear(op.kernel, self.step, self.tokens, self.model.hidden, op.features, bias=op.vectors)
        return [row, *self._exchange()]

    def experts(self, op: Operation) -> list[Op]:
        """One matmul per touched expert."""
        return [self.routing.matmul(op)]

    def combine(self, op: Operation) -> list[Op]:
        """The way back, and the weighted sum."""
        return [*self._exchange(), self.routing.weighted_sum()]

    def _exchange(self) -> list[Op]:
        ep, step = self.step.split.ep, self.step
        assert isinstance(self.mlp, MoeMlp)
        sent = step.tokens * self.mlp.experts_per_token * self.model.hidden
        return [] if ep == 1 else [collective(ALL_TO_ALL, ep, sent, step)]

    def shared_gate(self, op: Operation) -> list[Op]:
        """The weight of the shared expert's output."""
        return [linear(op.kernel, self.step, self.tokens, self.model.hidden, 1)]


def _expanded(op: Op, w: Attention) -> Op:
    """K and V are activations that the projection has just made, not the cache."""
    fresh = tuple(in_bits(a, FRESH, 8 * w.dtype.size) if a.tensor in (CACHE, FRESH) else a for a in op.kernel.accesses)
    return replace(op, kernel=replace(op.kernel, accesses=fresh), timed=Timed("attention", w, None))


def rotate_and_keep(step: ModelPass, rotated: Number, kept: Number, queries: Number) -> list[Op]:
    """RoPE over ``rotated`` elements per token, and ``kept`` elements per token written to the cache; one kernel if fused."""
    tokens = step.tokens
    written = stored(CACHE, WRITE, tokens * kept, step.kv_bits)
    if step.fused and step.cached and rotated:
        moved = queries + kept
        elements, like = (tokens * moved, tokens * queries), ("scale", "torch-scale", tokens, moved)
        return [stream("RoPE and KV write", step, "rotate", elements, like, more=(written,))]
    ops = []
    if rotated:
        ops.append(stream("RoPE", step, "rotate", (tokens * rotated,) * 2, ("scale", "torch-rope", tokens, rotated)))
    if step.cached:
        like = ("scale", "torch-scale", tokens, kept)
        ops.append(stream("KV write", step, "copy", (tokens * kept, None), like, more=(written,), strided=True))
    return ops


def attend(w: Attention, step: ModelPass, *, sinks: Number = 0, latent: bool = False) -> Op:
    """Attention over the cache. ``latent``: V is the first part of K. ``sinks``: learned scores that join the softmax.

    A single query sees the last ``window`` keys only: they are all the kernel is given.
    """
    window = w.window
    if w.n == 1:
        w = replace(w, causal=False, kv_len=w.kv_len if window is None else minimum(w.kv_len, window), window=None, packed=True)
    rows = w.row_group * w.n
    [kernel] = forward(w, Tile(tile_rows(rows), KEY_TILE))
    accesses: tuple[Access, ...] = tuple(
        in_bits(access, CACHE if step.kv_len > step.n else FRESH, step.kv_bits) if access.tensor in ("K", "V") else access
        for access in kernel.accesses
        if not (latent and access.tensor == "V")
    )
    if sinks:
        accesses = (*accesses, stored(WEIGHTS, READ, sinks, step.weight_bits))
    fp8 = w.n == 1 and step.kv_bits == 8 and step.dtype.size == 2 and not step.integer_kv
    form = DTYPES["fp8"] if fp8 else None
    name = "attention" if window is None else f"attention, window {plain(window)}"
    timed = _latent_timed(w, step) if latent else _timed(w, step, form)
    return Op(name, ATTENTION, 1, replace(kernel, name=name, accesses=accesses), timed, form)


def _timed(w: Attention, step: ModelPass, form: Dtype | None) -> Timed:
    """``form``: what it multiplies in, if that is narrower than the activations."""
    if form is None:
        same = step.kv_bits == 8 * step.dtype.size and not step.integer_kv
        return Timed("attention", w, None, "" if same else _no_cache_kernel(step))
    sizes = {name: getattr(w, name) for name in ("n", "kv_len", "d", "dv", "batch", "heads", "kv_heads", "dtype")}
    return Timed("attention", NarrowCacheAttention(**sizes, packed=True, kv_bits=step.kv_bits), ("vllm-flash-attn-fp8-cache",))


def _latent_timed(w: Attention, step: ModelPass) -> Timed:
    """The cache's rows are K, the first ``dv`` elements of each V; Q is rotated and the cache written by other rows."""
    sizes = {name: getattr(w, name) for name in ("batch", "heads", "kv_len", "n", "dtype")}
    obstacle = "" if step.kv_bits in (8, 16) and not step.integer_kv else _no_cache_kernel(step)
    cache = LatentDecode(**sizes, kv_lora_rank=w.dv, rope=w.d - w.dv, kv_bits=step.kv_bits, appends=False)
    return Timed("latent-attention", cache, ("trtllm-mla",), obstacle)


def _no_cache_kernel(step: ModelPass) -> str:
    return f"no kernel with a {step.kv_bits}-bit {'integer ' if step.integer_kv else ''}cache is calibrated"


def norm(name: str, model: ModelSpec, step: ModelPass, rows: Number, cols: Number, *, kind: str | None = None) -> Op:
    """A norm of ``rows`` vectors with learned weights."""
    layer = (kind or model.norm) == "layer"
    like = ("norm", "torch-layer-norm" if layer else "torch-rms-norm", rows, cols)
    return stream(name, step, "layer norm" if layer else "norm", (rows * cols,) * 2, like, weights=cols * (2 if layer else 1))
