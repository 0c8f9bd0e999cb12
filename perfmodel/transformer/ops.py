"""The kernels of one pass through a model on one GPU: rows in the order of their runs, equal ones together.

Prefill runs fused attention (FlashAttention-2's IO); decode reads K and V once per KV head for all its query heads. K and V come from the
cache, into which the step has just written its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property

from perfmodel.core.arith import Number, ceil_div, floor
from perfmodel.core.cost import READ, WRITE, Kernel, in_bits, matmul_work, stored
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.trace import plain
from perfmodel.core.workload import Attention
from perfmodel.kernels.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from perfmodel.kernels.experts import ACTIVATE, DOWN, SUM, UP, Experts
from perfmodel.kernels.matmul import Matmul
from perfmodel.transformer import op as kernels
from perfmodel.transformer.layer import first_operations, last_operations, local_layer, operations
from perfmodel.transformer.mixers import with_joint_latents
from perfmodel.transformer.op import CACHE, FRESH, MATMUL, WEIGHTS, Op, Timed, activation, linear, stream
from perfmodel.transformer.operation import ATTENTION, EXPERTS, HEAD_ROW, LAST_NORM, MLP, ROUTER, Matrix, Operation, summed
from perfmodel.transformer.routing import loads_on, pairs_on, received, sent, touched_on
from perfmodel.transformer.sparse_rows import SparseRows
from perfmodel.transformer.spec import GroupedAttention, LatentAttention, Layer, ModelSpec, MoeMlp
from perfmodel.transformer.step import ModelPass, share

EMBEDDING = "embedding lookup"
ROUTED = (ROUTER, EXPERTS)
"""Parts of a layer that see the tokens of all data-parallel groups."""
BY_TOKEN = ("linear", "norm", "qk_norm", "rotate")
"""Kinds of operations whose time depends only on the number of tokens, except those in ``op.BY_SEQUENCE``."""
BESIDE_SUMS = ("norm before attention", "norm before the MLP", LAST_NORM)
"""Norms that run with the residual add before them if element-wise operations are fused."""


def step_ops(model: ModelSpec, step: ModelPass) -> list[Op]:
    """Every kernel of ``step`` on one GPU of each pipeline stage, all stages one after the other.

    The last norm and the matrix hidden -> vocab see the last position of each sequence only.
    """
    return merged([*_body(model, step), *((op, 1) for op in head_ops(model, step))])


Wanted = Callable[[Operation], bool]
"""Function that says whether the kernels of an operation are wanted."""


def every(op: Operation) -> bool:
    """True: all kernels are wanted."""
    return True


def group_ops(model: ModelSpec, step: ModelPass) -> dict[Op, Number]:
    """Kernels that see the tokens of one data-parallel group and do not depend on sequence lengths, each with its number of runs.

    The last norm and the head are left out.
    """
    return counted((op, count) for op, count in _body(model, step, lambda op: op.part not in ROUTED) if not op.by_sequence)


def routed_ops(model: ModelSpec, step: ModelPass) -> dict[Op, Number]:
    """Kernels that see the tokens of all groups (router, experts, exchanges between them), each with its number of runs."""
    return counted(_layer_rows(model, step, lambda op: op.part in ROUTED))


def sequence_ops(model: ModelSpec, step: ModelPass) -> list[Op]:
    """Kernels of ``step_ops`` whose time depends on the length of each sequence; the other kernels are not built."""
    return merged((op, count) for op, count in _layer_rows(_attention_alone(model), step, _sees_sequences) if op.by_sequence)


def _sees_sequences(op: Operation) -> bool:
    """Whether rows of ``op`` may depend on the length of each sequence."""
    return op.part == ATTENTION and (op.name in kernels.BY_SEQUENCE or op.kind not in BY_TOKEN)


@cached_by_identity
def _attention_alone(model: ModelSpec) -> ModelSpec:
    """``model`` without MLPs, so that layers with the same attention are equal."""
    layers = []
    for layer in model.layers:
        formats = tuple((name, form) for name, form in layer.formats if not name.startswith("mlp."))
        layers.append(replace(layer, mlp=None, formats=formats or layer.formats))
    return replace(model, layers=tuple(layers))


def _body(model: ModelSpec, step: ModelPass, wanted: Wanted = every) -> list[tuple[Op, Number]]:
    """Kernels of the lookup and of all layers, each with the number of times that its ``count`` runs are repeated."""
    ops = Rows(model, step).of(first_operations(model, step.split.tp))
    if step.fused:  # every other norm runs with the residual add before it
        ops.append(kernels.norm("norm", model, step, step.tokens, model.hidden))
    return [*((op, 1) for op in ops), *_layer_rows(model, step, wanted)]


def _layer_rows(model: ModelSpec, step: ModelPass, wanted: Wanted = every) -> list[tuple[Op, Number]]:
    """Kernels of each different layer, each with the number of such layers."""
    return [(op, count) for layer, count in model.layer_kinds for op in layer_ops(layer, model, step, wanted)]


def layer_ops(layer: Layer, model: ModelSpec, step: ModelPass, wanted: Wanted = every) -> list[Op]:
    """Kernels of one layer on one GPU, of its ``wanted`` operations alone."""
    if step.weights_from_file:
        step = replace(step, formats=layer.formats)
    tp, expert_tp = step.split.tp, step.split.expert_tp
    local, local_operations = _local(model, layer, tp, expert_tp)
    return Rows(model, step, local).of(op for op in local_operations if wanted(op))


@cached_by_identity
def _local(model: ModelSpec, layer: Layer, tp: int, expert_tp: int) -> tuple[Layer, list[Operation]]:
    """The part of ``layer`` on one GPU and the operations that it runs, the same for every step."""
    return local_layer(layer, tp, expert_tp), operations(model, layer, tp, expert_tp=expert_tp)


def head_ops(model: ModelSpec, step: ModelPass) -> list[Op]:
    """Kernels of the last norm and the LM head, whose columns are divided among tensor-parallel GPUs, which gather the logits."""
    if step.weights_from_file and model.head_format is not None:
        step = replace(step, formats=((HEAD_ROW, model.head_format),))
    return Rows(model, step, tokens=step.heads).of(last_operations(model, step.split.tp))


def merged(ops: Iterable[tuple[Op, Number]]) -> list[Op]:
    """Rows with their numbers of runs as ``count``: equal ones are joined, in the order of first occurrence. ``ops`` as in ``counted``."""
    return [op if _is_one(count) else replace(op, count=count) for op, count in counted(ops).items()]


def counted(ops: Iterable[tuple[Op, Number]]) -> dict[Op, Number]:
    """Number of runs of each kernel, in the order of first occurrence; ``ops``: rows, each with how often its ``count`` runs occur."""
    counts: dict[Op, Number] = {}
    for op, times in ops:
        single_run = op if _is_one(op.count) else replace(op, count=1)
        counts[single_run] = counts.get(single_run, 0) + op.count * times
    return counts


def _is_one(count: Number) -> bool:
    return isinstance(count, int) and count == 1


class Rows(SparseRows):
    """Kernels of a forward pass: one method per kind of operation; a kind without a method has no separate kernel.

    ``layer``: one GPU's part of it; None for embedding and head. ``tokens``: number processed, by default all new ones of the GPU.
    ``own``: number in norms of the hidden state, if smaller.
    """

    def __init__(
        self, model: ModelSpec, step: ModelPass, layer: Layer | None = None, tokens: Number | None = None, own: Number | None = None
    ) -> None:
        self.model, self.step = model, step
        self.tokens = step.tokens if tokens is None else tokens
        self.own_tokens = self.tokens if own is None else own
        self.layer = layer
        self.routed: tuple[Matrix, ...] = ()
        if layer is not None:
            self.attended, self.mlp = layer.attention, layer.mlp

    def of(self, operations: Iterable[Operation]) -> list[Op]:
        """Kernels of ``operations``, in order."""
        listed = with_joint_latents(operations) if self.step.fused else list(operations)
        self.routed = tuple(matrix for op in listed for matrix in op.matrices if matrix.group == EXPERTS)
        rows = [row for op in listed for row in self.rows(op)]
        if not self.step.kernels.fused_all_reduce:
            return rows
        from perfmodel.transformer.fused_all_reduce import fused

        return fused(rows)

    def rows(self, op: Operation) -> list[Op]:
        """Kernels of one operation."""
        rows: list[Op] = getattr(self, op.kind)(op) if hasattr(self, op.kind) else []
        return rows

    def leave(self, op: Operation) -> list[Op]:
        """All-reduce of the partial sums of tensor-parallel GPUs after a lookup, attention or an MLP."""
        tp = self.step.split.tp
        return [] if tp == 1 else [kernels.collective(ALL_REDUCE, tp, self.step.tokens * self.model.hidden, self.step)]

    def embedding(self, op: Operation) -> list[Op]:
        """Kernel of the lookup: it reads a row of the table per token, and of the table of positions if there is one.

        All tokens may be the same, so only one row of the table must be read.
        """
        step, hidden = self.step, self.model.hidden
        elements, positions = step.tokens * hidden, step.n * hidden if self.model.learned_positions else 0
        least = stored(WEIGHTS, READ, hidden + positions, step.weight_bits).elements
        looked_up = stored(WEIGHTS, READ, elements + positions, step.weight_bits)._replace(compulsory=least)
        like = ("scale", "torch-scale", step.tokens, hidden)
        return [stream(EMBEDDING, step, "copy", (None, None), like, more=(looked_up, activation(WRITE, elements, step)))]

    def norm(self, op: Operation) -> list[Op]:
        """Kernel of a norm; none if the residual add before does it."""
        if self.step.fused and op.name in BESIDE_SUMS:
            return []
        kind = self.model.norm if op.own else "rms"  # latents pass an RMS norm whatever the model's norms are
        return [kernels.norm(op.kernel, self.model, self.step, self.own_tokens if op.own else self.tokens, op.features, kind=kind)]

    def linear(self, op: Operation) -> list[Op]:
        """Kernels of a matmul; if element-wise operations are fused, the gate's matmul also runs the activation function."""
        step, tokens = self.step, self.tokens
        if op.name == "KV up projection":
            a = self.attended
            assert isinstance(a, LatentAttention)
            beside = self._rows_beside(op)
            if self._absorbed:
                return [self._absorbing("Q times W_UK", a.qk_nope_head_dim, a.kv_lora_rank, a.qk_nope_head_dim), *beside]
            whole = linear(op.kernel, step, step.sequences * step.kv_len, op.matrices[0].inputs, op.features, matrices=op.matrices)
            return [whole, *beside]
        runs_activation = step.fused and op.name.endswith("up projection") and op.matrices[0].group == MLP
        stores = op.matrices[0].outputs if runs_activation else None
        inputs = op.matrices[0].inputs
        product = linear(op.kernel, step, tokens, inputs, op.features, matrices=op.matrices, bias=op.vectors, stores=stores)
        return [*kernels.rounding(step, tokens, op.matrices), product]

    def qk_norm(self, op: Operation) -> list[Op]:
        """Kernel of the norms of Q and K; GPUs that share the heads of a norm first add up the squares of each token, in fp32.

        Source: sgl-project/sglang, python/sglang/srt/models/minimax_m2.py, MiniMaxM2RMSNormTP.
        """
        a, step, tokens = self.attended, self.step, self.tokens
        assert isinstance(a, GroupedAttention)
        rows, d = a.heads + a.kv_heads, a.head_dim
        elements = tokens * (a.heads * d + a.kv_heads * d)
        rows_and_columns = (2 * tokens, ceil_div(elements, 2 * tokens)) if a.whole_norm else (tokens * rows, d)
        like = ("norm", "torch-rms-norm", *rows_and_columns)
        row = stream(op.kernel, step, "norm", (elements, elements), like, weights=a.norm_weights)
        if step.split.tp == 1 or not a.whole_norm:
            return [row]
        sums = kernels.collective(ALL_REDUCE, step.split.tp, ceil_div(2 * tokens * DTYPES["fp32"].size, step.dtype.size), step)
        return [replace(sums, name="all-reduce of norms"), row]

    def rotate(self, op: Operation) -> list[Op]:
        """Kernels of RoPE, and of a token's entries in the cache."""
        a = self.attended
        if isinstance(a, LatentAttention):
            rope = a.qk_rope_head_dim
            return kernels.rotate_and_keep(self.step, a.heads * rope + rope, a.kept, a.heads * rope)
        assert isinstance(a, GroupedAttention)
        queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
        rotated = 0 if self.model.learned_positions or not a.rotated else queries + keys
        return kernels.rotate_and_keep(self.step, rotated, 2 * keys, queries)

    def _rows_beside(self, op: Operation) -> list[Op]:
        """Rows of ``op`` for the sequences of the pass ``beside`` this one."""
        other = self.step.beside
        return [] if other is None else Rows(self.model, other, self.layer).rows(op)

    def _workload(self, heads: Number, kv_heads: Number, d: Number, dv: Number, window: Number | None = None) -> Attention:
        step = self.step
        return Attention(step.n, step.kv_len, d, dv, step.sequences, heads, kv_heads, step.dtype, causal=True, window=window)

    def attention(self, op: Operation) -> list[Op]:
        """Attention of the pass and of the pass ``beside`` it, in separate kernels."""
        return [*self._attention(op), *self._rows_beside(op)]

    def _attention(self, op: Operation) -> list[Op]:
        """Kernels of attention; decode attends to the latents themselves."""
        a, step = self.attended, self.step
        if isinstance(a, GroupedAttention):
            if self._selects:
                return [self._blocks_attended(self._workload(a.heads, a.kv_heads, a.head_dim, a.head_dim))]
            window = None if a.window is None or a.window >= step.kv_len else a.window
            return [kernels.attend(self._workload(a.heads, a.kv_heads, a.head_dim, a.head_dim, window), step, sinks=op.vectors)]
        assert isinstance(a, LatentAttention)
        if not self._absorbed:
            w = self._workload(a.heads, a.heads, a.qk_head_dim, a.v_head_dim)
            return [_expanded(kernels.attend(w, step), w)]
        w = self._workload(a.heads, 1, a.kept, a.kv_lora_rank)
        over_latents = self._selected() if self._selects else kernels.attend(w, step, latent=True)
        return [over_latents, self._absorbing("W_UV of the result", a.kv_lora_rank, a.v_head_dim, a.v_head_dim)]

    def add(self, op: Operation) -> list[Op]:
        """Kernel of x + y; fused with the norm after it, which leaves both the sum and its norm."""
        step, hidden = self.step, self.model.hidden
        elements = step.tokens * hidden
        if not step.fused:
            return [stream("residual add", step, "add", (2 * elements, elements), ("scale", "torch-add", step.tokens, hidden))]
        weights = hidden * (2 if self.model.norm == "layer" else 1)
        like = ("scale", "torch-scale", 2 * step.tokens, hidden)
        return [stream("residual add and norm", step, "norm", (2 * elements, 2 * elements), like, weights=weights)]

    def activation(self, op: Operation) -> list[Op]:
        """Kernel of the activation function, if no matmul does it."""
        if self.step.fused:
            return []
        routed = op.part == EXPERTS
        assert self.mlp is not None
        row = kernels.activation_function(self.mlp, self.step, self._pairs if routed else self.tokens, op.features)
        return [self._as_part(ACTIVATE, row) if routed else row]

    def router(self, op: Operation) -> list[Op]:
        """Kernels of the router, and exchanges of tokens on their way to the GPUs of their experts."""
        row = linear(op.kernel, self.step, self.tokens, self.model.hidden, op.features, bias=op.vectors)
        return [row, *sent(self.step, self._experts, self.model.hidden, ALL_GATHER, kernels.widest(self.step, self.routed))]

    def experts(self, op: Operation) -> list[Op]:
        """Kernel of one matmul per touched expert: a row per pair of token and expert, and the weights of the touched experts once.

        Without a calibrated kernel of experts it is timed as that many equal matmuls.
        """
        step, pairs, touched, matrices = self.step, self._pairs, self._touched, op.matrices
        inputs, outputs = matrices[0].inputs, op.features
        bias = summed(matrix.outputs for matrix in matrices) if op.vectors else 0
        part = DOWN if matrices[0].name == "down" else UP
        stores = matrices[0].outputs if part == UP and step.fused else outputs
        if step.formats:
            expert_bytes = kernels.matrix_bytes(step, matrices) + ceil_div(bias * step.weight_bits, 8)
            weights = stored(WEIGHTS, READ, floor(touched * expert_bytes), 8)
        else:
            weights = stored(WEIGHTS, READ, floor(touched * (inputs * outputs + bias)), step.weight_bits)
        accesses = (activation(READ, pairs * inputs, step), weights, activation(WRITE, pairs * stores, step))
        flops = 2 * pairs * inputs * outputs
        work = matmul_work(step.dtype, flops)
        kernel = Kernel(op.kernel, step.dtype, accesses, flops=flops, executed_flops=flops, work=work, needed=work)
        matmuls = max(round(plain(touched)), 1)
        w = Matmul(ceil_div(pairs, matmuls), outputs, inputs, matmuls, dtype=step.dtype)
        timed, compute_dtype = kernels.product_timed(w, step, kernels.widest(step, matrices))
        return [self._as_part(part, Op(op.kernel, MATMUL, 1, kernel, timed, compute_dtype))]

    def combine(self, op: Operation) -> list[Op]:
        """Exchanges on the way back, and the kernel that sums the weighted results of each token's experts."""
        step, pairs, hidden = self.step, self._pairs, self.model.hidden
        rows = max(ceil_div(pairs + received(step), 2), 1)  # a copy reads as much as it writes
        moved, like = (pairs * hidden, received(step) * hidden), ("scale", "torch-scale", rows, hidden)
        back = sent(step, self._experts, hidden, REDUCE_SCATTER, kernels.widest(step, self.routed))
        return [*back, self._as_part(SUM, stream(op.name, step, "add", moved, like))]

    @property
    def _experts(self) -> MoeMlp:
        assert isinstance(self.mlp, MoeMlp)
        return self.mlp

    @cached_property
    def _pairs(self) -> Number:
        """Number of (token, expert) pairs on the fullest GPU."""
        return pairs_on(self.step, self._experts)

    @cached_property
    def _touched(self) -> Number:
        """Mean number of experts of the fullest GPU that tokens pick."""
        return touched_on(self.step, self._experts)

    def _as_part(self, part: str, op: Op) -> Op:
        """``op``, predicted first as that part of calibrated experts; if fused, the matmul before it runs the activation function."""
        mlp, step = self._experts, self.step
        if not mlp.gated or step.dtype.size != 2 or op.timed is None:
            return op
        w = Experts(
            tokens=received(step),
            hidden=self.model.hidden,
            width=mlp.width,
            experts=share(mlp.experts, step.split.ep),
            experts_per_token=mlp.experts_per_token,
            touched=max(min(plain(self._touched), plain(self._pairs)), 1),
            dtype=step.dtype,
            pairs=self._pairs,
            parts=(UP, ACTIVATE) if part == UP and step.fused else (part,),
            loads=loads_on(step, mlp),
        )
        return replace(op, timed=op.timed._replace(preferred=kernels.experts_timed(w, step, kernels.widest(step, self.routed))))

    def shared_gate(self, op: Operation) -> list[Op]:
        """Kernel of the weight of the shared expert's output."""
        return [linear(op.kernel, self.step, self.tokens, self.model.hidden, 1)]


def _expanded(op: Op, w: Attention) -> Op:
    """``op`` with K and V as activations that the projection has just made. It is timed with V padded to the width of K.

    Source: vllm-project/vllm, v1/attention/backends/mla/common.py (V padded for FlashAttention-2).
    """
    fresh = tuple(in_bits(a, FRESH, 8 * w.dtype.size) if a.tensor in (CACHE, FRESH) else a for a in op.kernel.accesses)
    padded = Timed("attention", replace(w, dv=w.d), None, similar="attention with V as wide as K")
    return replace(op, kernel=op.kernel._replace(accesses=fresh), timed=Timed("attention", w, None, preferred=padded))
