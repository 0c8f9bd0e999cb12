"""Kernels of a layer or an end of the model, forward and backward; forward kernels that run again; exchanges between GPUs.

Most forward kernels are those of a prefill, each with its backward kernels. Routed experts differ: every expert gets tokens, all experts of
a GPU run as one grouped matmul, and tokens are put in the order of their experts and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.cost import READ, WRITE, Access, stored
from perfmodel.core.dtypes import DROPOUT_MASK_SIZE
from perfmodel.kernels.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, P2P, REDUCE_SCATTER
from perfmodel.kernels.matmul import Matmul
from perfmodel.transformer.layer import local_layer, operations_at
from perfmodel.transformer.op import Op, activation, activation_function
from perfmodel.transformer.operation import EMBEDDING, EXPERTS, HEAD_ROW, Operation
from perfmodel.transformer.ops import Rows
from perfmodel.transformer.spec import Layer, MoeMlp
from perfmodel.transformer.step import share
from perfmodel.transformer.training.matrices import is_targeted
from perfmodel.transformer.training.step.row import OTHERS, MicroBatch, attention, backward, gradients, pointwise, priced, product
from perfmodel.transformer.training.step.system import CONTEXT, EXPERT, TENSOR, Exchange

LOGITS = "logits"
VOCABULARY_STEP = 128
"""The number of columns of the logits on one GPU is a multiple of this. Source: Megatron-LM, --make-vocab-size-divisible-by."""
LOSS_SUMS = 3
"""Numbers per token that GPUs with parts of the vocabulary exchange: maximum, sum, logit of the label (Shoeybi et al. 2019)."""
BEHIND = "gradient of inputs"
"""Name of the matmul that can hide the second all-gather of the tokens."""


@dataclass(slots=True)
class LayerOps:
    """Kernels and exchanges in the order in which they run.

    ``core``: forward kernels that selective recomputation runs again. ``unused``: number of forward kernels at the end that recomputation
    can leave out, as backward does not need their results.
    """

    forward: list[Op] = field(default_factory=list)
    backward: list[Op] = field(default_factory=list)
    core: list[Op] = field(default_factory=list)
    unused: int = 0
    forward_exchanges: list[Exchange] = field(default_factory=list)
    backward_exchanges: list[Exchange] = field(default_factory=list)

    def add(self, forward: Iterable[Op], backward: Iterable[Op]) -> None:
        """Adds the kernels of the next operation: forward after those before, backward ahead of them."""
        self.forward += forward
        self.backward[:0] = backward

    def exchange(self, forward: Sequence[Exchange], backward: Sequence[Exchange]) -> None:
        """Adds exchanges between GPUs, in the same order."""
        self.forward_exchanges += forward
        self.backward_exchanges[:0] = backward

    @property
    def full(self) -> list[Op]:
        """Kernels that full recomputation runs again."""
        return self.forward[: len(self.forward) - self.unused]

    @property
    def skippable(self) -> list[Op]:
        """Forward kernels that full recomputation can leave out."""
        return self.forward[len(self.forward) - self.unused :]


def layer_ops(where: Layer | str, batch: MicroBatch) -> LayerOps:
    """Kernels and exchanges of one layer, of the embedding (with the gradient of its table), or of the head (last norm, logits, loss)."""
    s, p = batch.shape, batch.shape.parallel
    layer = where if isinstance(where, Layer) else None
    rows = _TrainingRows(batch, None if layer is None else local_layer(layer, p.tp))
    ops = rows.of(operations_at(where, s.model, p.tp, p.ep, dropout=s.dropout))
    if batch.eager and layer is not None and layer.norms <= 3:
        # PyTorch's checkpointing stops once the last tensor that backward needs is there again: a dropout's mask, or the MLP's activation
        ops.unused = 1 if s.dropout else 2
    return ops


class _TrainingRows:
    """Kernels of operations: a method per kind that differs between training and inference.

    ``inference``: rows of a prefill, from which most kernels come. ``collected``: the kernels and exchanges so far.
    """

    def __init__(self, batch: MicroBatch, layer: Layer | None = None) -> None:
        self.batch, self.shape, self.step, self.collected = batch, batch.shape, batch.forward, LayerOps()
        self.inference = Rows(self.shape.model, batch.forward, layer, self.shape.tokens, self.shape.local_tokens)

    def of(self, operations: Iterable[Operation]) -> LayerOps:
        """Kernels and exchanges of ``operations``."""
        for op in operations:
            getattr(self, op.kind, self.derived)(op)
        return self.collected

    def derived(self, op: Operation) -> None:
        """Adds the kernels of inference and their backward kernels. Tensor-parallel GPUs add up gradients where they add up results."""
        for row in self.inference.rows(op):
            if row.exchange is None:
                self.with_backward(row)
            else:
                exchange = Exchange(TENSOR, row.exchange.op, row.exchange.bytes)
                self.collected.exchange([exchange], [exchange])

    def with_backward(self, op: Op) -> None:
        """Adds a kernel and its backward kernels."""
        self.collected.add([op], backward(op, self.batch))

    # Matrices

    def linear(self, op: Operation) -> None:
        """Adds a matmul, and the adapters beside it; two matmuls backward."""
        [matmul] = self.inference.linear(op)
        adapters_forward, adapters_backward = self._adapters(op, matmul)
        forward_ops, backward_ops = [matmul, *adapters_forward], [*adapters_backward, *backward(matmul, self.batch)]
        if op.kernel == HEAD_ROW and not self.batch.eager:
            forward_ops, backward_ops = _padded(forward_ops, op.features), _padded(backward_ops, op.features)
        self.collected.add(forward_ops, backward_ops)

    def _adapters(self, op: Operation, adapted: Op) -> tuple[list[Op], list[Op]]:
        """Low-rank adapters beside frozen matrices: two small matmuls forward, four backward, for each matrix that has one."""
        rank, step, forward_ops, backward_ops = self.shape.rank, self.step, list[Op](), list[Op]()
        if rank is None:
            return forward_ops, backward_ops
        assert adapted.timed is not None
        w: Matmul = adapted.timed.workload
        for matrix in op.matrices:
            if not is_targeted(matrix, self.shape.targets):
                continue
            title = f"adapter of {matrix.name}"
            first = product(f"{title}, A", step, Matmul(w.m, rank, w.k, dtype=w.dtype), weights="B")
            second = product(f"{title}, B", step, Matmul(w.m, matrix.outputs, rank, dtype=w.dtype), weights="B")
            forward_ops += [first, second, pointwise(f"{title}, sum", step, w.m, matrix.outputs, reads=2)]
            backward_ops += [*backward(second, self.batch, trained=True), *backward(first, self.batch, trained=True)]
            backward_ops.append(pointwise(f"{title}, sum of gradients", step, w.m, w.k, reads=2))
        return forward_ops, backward_ops

    # Attention, activation function, residual stream

    def attention(self, op: Operation) -> None:
        """Adds attention, with K and V passed around context-parallel GPUs, backward dK and dV too (ring, Liu et al. 2023)."""
        [fused] = self.inference.attention(op)
        forward_ops, backward_ops = attention(fused, self.batch)
        self.collected.core += forward_ops
        self.collected.add(forward_ops, backward_ops)
        s = self.shape
        if s.cp > 1:
            kv_bytes = s.tokens * self.inference.attended.kept * s.size
            ring = Exchange(CONTEXT, P2P, kv_bytes, s.cp - 1, "attention")
            self.collected.exchange([ring], [replace(ring, bytes=2 * kv_bytes)])

    def activation(self, op: Operation) -> None:
        """Adds the activation function, in many kernels if it is written out."""
        rows, cols = self.pairs if op.part == EXPERTS else self.shape.tokens, op.features
        assert self.inference.mlp is not None
        fused = activation_function(self.inference.mlp, self.step, rows, cols)
        if fused.name == "GELU" and self.batch.eager:
            self._written_out_gelu(rows, cols)
        else:
            self.with_backward(fused)

    def _written_out_gelu(self, rows: Number, cols: Number) -> None:
        """Adds the kernels of GPT-2's GELU in huggingface/transformers, 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).

        Of one tensor, forward: the cube, its factor, the factor of the sum, tanh, 1 +, half of x; backward: four factors and the square. Of
        two tensors, forward: two sums or products; backward: two gradients of the product, those of tanh and of the cube, two sums of
        gradients. Source: NewGELUActivation of transformers; the kernels that a profiler lists.
        """

        def kernels(name: str, of_one: int, of_two: int) -> list[Op]:
            one_tensor = pointwise(f"{name}, of one tensor", self.step, rows, cols)
            two_tensors = pointwise(f"{name}, of two tensors", self.step, rows, cols, reads=2)
            return [one_tensor.times(of_one), two_tensors.times(of_two)]

        self.collected.add(kernels("GELU", 6, 2), kernels("GELU's gradient", 5, 6))

    # Exchanges around matrices that tensor-parallel GPUs share (Korthikanti et al. 2022, section 4.2)

    def _tensor_exchange(self, op: str, behind: str = "") -> Exchange:
        return Exchange(TENSOR, op, self.shape.tokens * self.shape.hidden * self.shape.size, behind=behind)

    def enter(self, op: Operation) -> None:
        """Adds exchanges: backward sums the GPUs' partial gradients of the input.

        With sequence parallelism forward gathers the tokens, and backward gathers them again for the weight gradients, as only a share was
        kept.
        """
        if self.shape.sp > 1:
            back = [self._tensor_exchange(ALL_GATHER, BEHIND), self._tensor_exchange(REDUCE_SCATTER)]
            self.collected.exchange([self._tensor_exchange(ALL_GATHER)], back)
        elif self.shape.parallel.tp > 1:
            self.collected.exchange([], [self._tensor_exchange(ALL_REDUCE)])

    def leave(self, op: Operation) -> None:
        """Adds exchanges that add up partial sums: an all-reduce, or a reduce-scatter under sequence parallelism."""
        if self.shape.sp > 1:
            self.collected.exchange([self._tensor_exchange(REDUCE_SCATTER)], [self._tensor_exchange(ALL_GATHER)])
        elif self.shape.parallel.tp > 1:
            self.collected.exchange([self._tensor_exchange(ALL_REDUCE)], [])

    # Residual stream

    def _stream(self, name: str, reads: int = 1, mask: str = "") -> Op:
        """A kernel over the hidden state. ``mask``: READ or WRITE if it also accesses a dropout mask, a byte per element."""
        rows, cols = self.shape.local_tokens, self.shape.hidden
        mask_access = stored("mask", mask, rows * cols, 8 * DROPOUT_MASK_SIZE) if mask else None
        return pointwise(name, self.step, rows, cols, reads=reads, more=mask_access)

    def dropout(self, op: Operation) -> None:
        """Adds dropout as a separate kernel, or in the forward pass as part of the residual add."""
        alone = self.batch.eager or op.part == EMBEDDING
        self.collected.add([self._stream("dropout", mask=WRITE)] if alone else [], [self._stream("dropout, gradient", mask=READ)])

    def add(self, op: Operation) -> None:
        """Adds the kernel of x + y, and backward of the sum of the two gradients of x."""
        if self.shape.dropout and not self.batch.eager:
            residual_add = self._stream("dropout and residual add", 2, WRITE)
        else:
            residual_add = self._stream("residual add", 2)
        self.collected.add([residual_add], [self._stream("sum of gradients", 2)])

    # Experts: tokens spread evenly, so that a GPU's experts get as many (token, expert) pairs as its own tokens make

    @property
    def pairs(self) -> Number:
        """Number of (token, expert) pairs."""
        assert isinstance(self.inference.mlp, MoeMlp)
        return self.shape.tokens * self.inference.mlp.experts_per_token

    def router(self, op: Operation) -> None:
        """Adds the router, and exchanges of tokens on their way to their experts and back."""
        s = self.shape
        if s.parallel.ep > 1:
            there_and_back = [Exchange(EXPERT, ALL_TO_ALL, self.pairs * s.hidden * s.size, 2)]
            self.collected.exchange(there_and_back, there_and_back)
        self.with_backward(self.inference.router(op)[0])
        self._move_rows("tokens by expert", s.tokens, self.pairs)

    def experts(self, op: Operation) -> None:
        """Adds one grouped matmul."""
        groups = max(op.matrices[0].count, 1)
        w = Matmul(ceil_div(self.pairs, groups), op.features, op.matrices[0].inputs, groups, dtype=self.step.dtype)
        self.with_backward(product(op.kernel, self.step, w, weights="B"))

    def combine(self, op: Operation) -> None:
        """Adds the weighted sum of the results of a token's experts."""
        self._move_rows(op.name, self.pairs, self.shape.tokens)

    def _move_rows(self, name: str, read: Number, written: Number) -> None:
        """Adds kernels that gather or scatter rows of the hidden state, and their gradients the other way round."""

        def moved(name: str, read: Number, written: Number) -> list[Op]:
            hidden, step = self.shape.hidden, self.step
            accesses = (activation(READ, read * hidden, step), activation(WRITE, written * hidden, step))
            return [priced(name, step, OTHERS, accesses, max(read, written) * hidden)]

        self.collected.add(moved(name, read, written), moved(f"{name}, gradient", written, read))

    def shared_gate(self, op: Operation) -> None:
        """Adds nothing: a vector is too small to be counted."""

    # The ends of the model

    def embedding(self, op: Operation) -> None:
        """Adds the lookup and the gradient of its table: zeros, and rows of the tokens. A tied table also gets a gradient from the head."""
        step, s, backward_ops = self.step, self.shape, list[Op]()
        table = op.matrices[0].elements
        if s.rank is None:
            rows, gradient = activation(READ, step.tokens * s.hidden, step), gradients(table, s.size)
            backward_ops.append(priced("embedding, gradient of the table", step, OTHERS, (rows, gradient)))
            if s.model.tied_embeddings and s.parallel.pp == 1:
                two_gradients = gradients(2 * table, s.size, READ)
                backward_ops.append(priced("sum of the tied table's gradients", step, OTHERS, (two_gradients, gradient), table))
        self.collected.add(self.inference.embedding(op), backward_ops)

    def loss(self, op: Operation) -> None:
        """Adds softmax and loss in fp32: one kernel each way, or PyTorch's sequence of kernels."""
        size, step, tp = self.shape.size, self.step, self.shape.parallel.tp
        logits = step.tokens * share(self.shape.model.vocab, tp)

        def kernel(name: str, reads: int, writes: int) -> Op:
            """A kernel that reads and writes so many bytes per logit."""
            accesses: tuple[Access, ...] = (stored(LOGITS, WRITE, logits, 8 * writes),)
            if reads:
                accesses = (stored(LOGITS, READ, logits, 8 * reads), *accesses)
            return priced(name, step, OTHERS, accesses, 4 * logits)

        if not self.batch.eager:
            self.collected.add([kernel("softmax and loss", size, 4)], [kernel("gradient of the loss", 4, size)])
        else:
            forward_ops = [kernel("log-softmax", 4, 4)]
            backward_ops = [kernel("gradient of the loss, zeros", 0, 4), kernel("log-softmax, gradient", 8, 4)]
            if size != 4:
                forward_ops.insert(0, kernel("logits to fp32", size, 4))
                backward_ops.append(kernel("gradient of the logits from fp32", 4, size))
            self.collected.add(forward_ops, backward_ops)
        if tp > 1:
            self.collected.exchange([Exchange(TENSOR, ALL_REDUCE, 4 * step.tokens, LOSS_SUMS)], [])


def _padded(ops: list[Op], columns: Number) -> list[Op]:
    """``ops`` timed with a vocabulary padded to whole tiles, as in Megatron-LM; needed work and counts stay those of the real one."""
    padded_columns, padded_ops = ceil_div(columns, VOCABULARY_STEP) * VOCABULARY_STEP, []
    for op in ops:
        assert op.timed is not None
        workload = op.timed.workload
        sizes = {name: padded_columns for name in ("m", "n", "k") if getattr(workload, name) == columns}
        padded_ops.append(replace(op, timed=op.timed._replace(workload=replace(workload, **sizes))))
    return padded_ops
