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
GELU_KERNELS = (("GELU", 6, 2), ("GELU's gradient", 5, 6))
"""Kernels of GPT-2's activation function in huggingface/transformers, forward and backward: number of those that read one tensor, and two.

0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). Forward: the cube, its factor, the factor of the sum, tanh, 1 +, half of x; two sums or
products. Backward: four factors and the square; two gradients of the product, those of tanh and of the cube, two sums of gradients.
Source: its source, NewGELUActivation; the kernels that a profiler lists.
"""


BEHIND = "gradient of inputs"
"""Name of the matmul that can hide the second all-gather of the tokens."""


@dataclass(slots=True)
class LayerOps:
    """Kernels in the order in which they run, backward those of the last operation first.

    ``core``: forward kernels that selective recomputation runs again. ``unused``: number of last forward kernels that recomputation can
    leave out, as backward does not need their results.
    """

    forward: list[Op] = field(default_factory=list)
    backward: list[Op] = field(default_factory=list)
    core: list[Op] = field(default_factory=list)
    unused: int = 0
    forward_exchanges: list[Exchange] = field(default_factory=list)
    backward_exchanges: list[Exchange] = field(default_factory=list)

    def add(self, forward: Iterable[Op], back: Iterable[Op]) -> None:
        """Adds the kernels of one more operation."""
        self.forward += forward
        self.backward[:0] = back

    def pass_on(self, forward: Sequence[Exchange], back: Sequence[Exchange]) -> None:
        """Adds exchanges between GPUs."""
        self.forward_exchanges += forward
        self.backward_exchanges[:0] = back

    @property
    def full(self) -> list[Op]:
        """Kernels that full recomputation runs again."""
        return self.forward[: len(self.forward) - self.unused]

    @property
    def rest(self) -> list[Op]:
        """Forward kernels that full recomputation can leave out."""
        return self.forward[len(self.forward) - self.unused :]


def layer_ops(where: Layer | str, batch: MicroBatch) -> LayerOps:
    """Kernels and exchanges of one layer, of the embedding (with the gradient of its table), or of the head (last norm, logits, loss)."""
    s, p, layer = batch.shape, batch.shape.parallel, where if isinstance(where, Layer) else None
    rows = _TrainingRows(batch, None if layer is None else local_layer(layer, p.tp))
    ops = rows.of(operations_at(where, s.model, p.tp, p.ep, dropout=s.dropout))
    if batch.eager and layer is not None and layer.norms <= 3:
        # PyTorch's checkpointing stops once the last tensor that backward needs is there again: a dropout's mask, or the MLP's activation
        ops.unused = 1 if s.dropout else 2
    return ops


class _TrainingRows:
    """Kernels of operations: a method per kind that differs between training and inference."""

    def __init__(self, batch: MicroBatch, layer: Layer | None = None) -> None:
        self.batch, self.shape, self.step, self.collected = batch, batch.shape, batch.forward, LayerOps()
        self.ahead = Rows(self.shape.model, batch.forward, layer, self.shape.tokens, self.shape.local_tokens)

    def of(self, operations: Iterable[Operation]) -> LayerOps:
        """Kernels and exchanges of ``operations``."""
        for op in operations:
            getattr(self, op.kind, self.derived)(op)
        return self.collected

    def derived(self, op: Operation) -> None:
        """Adds the kernels of inference and their backward kernels. Tensor-parallel GPUs add up gradients where they add up results."""
        for row in self.ahead.rows(op):
            if (passed := row.exchange) is None:
                self.both(row)
            else:
                self.collected.pass_on(*([Exchange(TENSOR, passed.op, passed.bytes)] for _ in range(2)))

    def both(self, op: Op) -> None:
        self.collected.add([op], backward(op, self.batch))

    # Matrices

    def linear(self, op: Operation) -> None:
        """Adds a matmul, and the adapters beside it; two matmuls backward."""
        [matmul] = self.ahead.linear(op)
        there, back = self._adapters(op, matmul)
        forward, back = [matmul, *there], [*back, *backward(matmul, self.batch)]
        if op.kernel == HEAD_ROW and not self.batch.eager:
            forward, back = _padded(forward, op.features), _padded(back, op.features)
        self.collected.add(forward, back)

    def _adapters(self, op: Operation, adapted: Op) -> tuple[list[Op], list[Op]]:
        """Low-rank adapters beside frozen matrices: two small matmuls forward, four backward, for each matrix that has one."""
        rank, step, forward, back = self.shape.rank, self.step, list[Op](), list[Op]()
        assert adapted.timed is not None
        w: Matmul = adapted.timed.workload
        for matrix in op.matrices if rank is not None else ():
            if not is_targeted(matrix, self.shape.targets):
                continue
            title = f"adapter of {matrix.name}"
            first = product(f"{title}, A", step, Matmul(w.m, rank, w.k, dtype=w.dtype), weights="B")
            second = product(f"{title}, B", step, Matmul(w.m, matrix.outputs, rank, dtype=w.dtype), weights="B")
            forward += [first, second, pointwise(f"{title}, sum", step, w.m, matrix.outputs, reads=2)]
            back += [*backward(second, self.batch, trained=True), *backward(first, self.batch, trained=True)]
            back.append(pointwise(f"{title}, sum of gradients", step, w.m, w.k, reads=2))
        return forward, back

    # Attention, activation function, residual stream

    def attention(self, op: Operation) -> None:
        """Adds attention, with K and V passed around context-parallel GPUs, backward dK and dV too (ring, Liu et al. 2023)."""
        [fused] = self.ahead.attention(op)
        forward, back = attention(fused, self.batch)
        self.collected.core += forward
        self.collected.add(forward, back)
        s = self.shape
        if s.cp > 1:
            size = s.tokens * self.ahead.attended.kept * s.size
            self.collected.pass_on(*([Exchange(CONTEXT, P2P, times * size, s.cp - 1, "attention")] for times in (1, 2)))

    def activation(self, op: Operation) -> None:
        """Adds the activation function, in many kernels if it is written out."""
        rows, cols = self.pairs if op.part == EXPERTS else self.shape.tokens, op.features
        assert self.ahead.mlp is not None
        fused = activation_function(self.ahead.mlp, self.step, rows, cols)
        if fused.name != "GELU" or not self.batch.eager:
            self.both(fused)
            return

        def kernels(name: str, one: int, two: int) -> list[Op]:
            single = pointwise(f"{name}, of one tensor", self.step, rows, cols)
            return [single.times(one), pointwise(f"{name}, of two tensors", self.step, rows, cols, reads=2).times(two)]

        self.collected.add(*(kernels(*each) for each in GELU_KERNELS))

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
            self.collected.pass_on([self._tensor_exchange(ALL_GATHER)], back)
        elif self.shape.parallel.tp > 1:
            self.collected.pass_on([], [self._tensor_exchange(ALL_REDUCE)])

    def leave(self, op: Operation) -> None:
        """Adds exchanges that add up partial sums: an all-reduce, or a reduce-scatter under sequence parallelism."""
        if self.shape.sp > 1:
            self.collected.pass_on([self._tensor_exchange(REDUCE_SCATTER)], [self._tensor_exchange(ALL_GATHER)])
        elif self.shape.parallel.tp > 1:
            self.collected.pass_on([self._tensor_exchange(ALL_REDUCE)], [])

    # Residual stream

    def _stream(self, name: str, reads: int = 1, mask: str = "") -> Op:
        """A kernel over the hidden state. ``mask``: whether it reads or writes a dropout mask, a byte per element."""
        rows, cols = self.shape.local_tokens, self.shape.hidden
        more = stored("mask", mask, rows * cols, 8 * DROPOUT_MASK_SIZE) if mask else None
        return pointwise(name, self.step, rows, cols, reads=reads, more=more)

    def dropout(self, op: Operation) -> None:
        """Adds dropout as a separate kernel, or in the forward pass as part of the residual add."""
        alone = self.batch.eager or op.part == EMBEDDING
        self.collected.add([self._stream("dropout", mask=WRITE)] if alone else [], [self._stream("dropout, gradient", mask=READ)])

    def add(self, op: Operation) -> None:
        """Adds the kernel of x + y, and backward of the sum of the two gradients of x."""
        dropped = self.shape.dropout and not self.batch.eager
        made = self._stream("dropout and residual add", 2, WRITE) if dropped else self._stream("residual add", 2)
        self.collected.add([made], [self._stream("sum of gradients", 2)])

    # Experts: the tokens of a GPU's experts are as many as its own, times experts each

    @property
    def pairs(self) -> Number:
        """Number of (token, expert) pairs."""
        assert isinstance(self.ahead.mlp, MoeMlp)
        return self.shape.tokens * self.ahead.mlp.experts_per_token

    def router(self, op: Operation) -> None:
        """Adds the router, and exchanges of tokens on their way to their experts and back."""
        s = self.shape
        if s.parallel.ep > 1:
            passed = [Exchange(EXPERT, ALL_TO_ALL, self.pairs * s.hidden * s.size, 2)]
            self.collected.pass_on(passed, passed)
        self.both(self.ahead.router(op)[0])
        self._move_rows("tokens by expert", s.tokens, self.pairs)

    def experts(self, op: Operation) -> None:
        """Adds one grouped matmul."""
        groups = max(op.matrices[0].count, 1)
        w = Matmul(ceil_div(self.pairs, groups), op.features, op.matrices[0].inputs, groups, dtype=self.step.dtype)
        self.both(product(op.kernel, self.step, w, weights="B"))

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
        step, s, back = self.step, self.shape, list[Op]()
        table = op.matrices[0].elements
        if s.rank is None:
            rows = activation(READ, step.tokens * s.hidden, step)
            back.append(priced("embedding, gradient of the table", step, OTHERS, (rows, gradients(table, s.size))))
            if s.model.tied_embeddings and s.parallel.pp == 1:
                both = gradients(2 * table, s.size, READ)
                back.append(priced("sum of the tied table's gradients", step, OTHERS, (both, gradients(table, s.size)), table))
        self.collected.add(self.ahead.embedding(op), back)

    def loss(self, op: Operation) -> None:
        """Adds softmax and loss in fp32: one kernel each way, or PyTorch's sequence of kernels."""
        size, step, tp = self.shape.size, self.step, self.shape.parallel.tp
        logits = step.tokens * share(self.shape.model.vocab, tp)

        def passes(name: str, reads: int, writes: int) -> Op:
            moved = ((READ, reads), (WRITE, writes))
            accesses: tuple[Access, ...] = tuple(stored(LOGITS, kind, logits, 8 * each) for kind, each in moved if each)
            return priced(name, step, OTHERS, accesses, 4 * logits)

        if not self.batch.eager:
            self.collected.add([passes("softmax and loss", size, 4)], [passes("gradient of the loss", 4, size)])
        else:
            there = [passes("logits to fp32", size, 4)] if size != 4 else []
            back = [passes("gradient of the loss, zeros", 0, 4), passes("log-softmax, gradient", 8, 4)]
            back += [passes("gradient of the logits from fp32", 4, size)] if size != 4 else []
            self.collected.add([*there, passes("log-softmax", 4, 4)], back)
        if tp > 1:
            self.collected.pass_on([Exchange(TENSOR, ALL_REDUCE, 4 * step.tokens, LOSS_SUMS)], [])


def _padded(ops: list[Op], columns: Number) -> list[Op]:
    """``ops`` timed with a vocabulary padded to whole tiles, as in Megatron-LM; needed work and counts stay those of the real one."""
    whole, padded = ceil_div(columns, VOCABULARY_STEP) * VOCABULARY_STEP, []
    for op in ops:
        assert op.timed is not None
        sizes = {name: whole for name in ("m", "n", "k") if getattr(op.timed.workload, name) == columns}
        padded.append(replace(op, timed=op.timed._replace(workload=replace(op.timed.workload, **sizes))))
    return padded
