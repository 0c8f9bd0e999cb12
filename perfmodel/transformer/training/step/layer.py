"""The rows of a layer or an end of the model, forward and backward, which of the forward ones run again, and what passes between GPUs.

Most forward rows are those of a prefill, each followed by what it means backward. Routed experts are not: every expert gets tokens,
and all of a GPU's experts run as one grouped matmul; tokens are put in the order of their experts and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.cost import READ, WRITE, Access, stored
from perfmodel.core.dtypes import DROPOUT_MASK_SIZE
from perfmodel.kernels.collectives import ALL_REDUCE
from perfmodel.kernels.matmul import Matmul
from perfmodel.transformer.layer import EMBEDDING, EXPERTS, HEAD_ROW, Operation, first_operations, last_operations, local_layer, operations
from perfmodel.transformer.op import Op, activation, activation_function
from perfmodel.transformer.ops import Rows
from perfmodel.transformer.spec import Layer, ModelSpec, MoeMlp
from perfmodel.transformer.step import ModelPass, share
from perfmodel.transformer.training.lora import is_targeted
from perfmodel.transformer.training.step import micro_batch
from perfmodel.transformer.training.step.micro_batch import TENSOR, Exchange, MicroBatch
from perfmodel.transformer.training.step.row import OTHERS, StepOp, attention, backward, gradients, pointwise, priced, product

LOGITS = "logits"
VOCABULARY_STEP = 128
"""Columns of the logits on one GPU come in multiples of it. Source: Megatron-LM, --make-vocab-size-divisible-by."""
LOSS_SUMS = 3
"""Numbers per token that GPUs with parts of the vocabulary exchange: maximum, sum, logit of the label (Shoeybi et al. 2019)."""
GELU_KERNELS = (("GELU", 6, 2), ("GELU's gradient", 5, 6))
"""Kernels of GPT-2's activation function as huggingface/transformers writes it, forward and backward: those that read one tensor, and two.

0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). Forward: the cube, its factor, the factor of the sum, tanh, 1 +, half of x; two sums or
products. Backward: four factors and the square; two gradients of the product, those of tanh and of the cube, two sums of gradients.
Source: its source, NewGELUActivation; the kernels that a profiler lists.
"""


@dataclass(slots=True)
class LayerOps:
    """Rows in the order in which they run, backward those of the last operation first.

    ``core``: forward rows that selective recomputation runs again. ``unused``: how many of the last rows a second forward pass
    can leave out, as nothing that backward needs comes after them.
    """

    forward: list[StepOp] = field(default_factory=list)
    backward: list[StepOp] = field(default_factory=list)
    core: list[StepOp] = field(default_factory=list)
    unused: int = 0
    forward_exchanges: list[Exchange] = field(default_factory=list)
    backward_exchanges: list[Exchange] = field(default_factory=list)

    def add(self, forward: Iterable[StepOp], back: Iterable[StepOp]) -> None:
        """One more operation."""
        self.forward += forward
        self.backward[:0] = back

    def pass_on(self, forward: Sequence[Exchange], back: Sequence[Exchange]) -> None:
        """What passes between GPUs."""
        self.forward_exchanges += forward
        self.backward_exchanges[:0] = back


def layer_ops(layer: Layer, frame: MicroBatch) -> LayerOps:
    """The rows of one layer."""
    p = frame.shape.parallel
    found = _TrainingRows(frame, local_layer(layer, p.tp)).of(operations(frame.model, layer, p.tp, p.ep, dropout=frame.shape.dropout))
    # PyTorch's checkpointing stops once the last tensor that backward needs is there again: a dropout's mask, or the MLP's activation
    found.unused = (1 if frame.shape.dropout else 2) if frame.eager and layer.norms <= 3 else 0
    return found


def embedding_ops(model: ModelSpec, frame: MicroBatch) -> LayerOps:
    """The lookup, and the gradient of its table."""
    return _TrainingRows(frame).of(first_operations(model, frame.shape.parallel.tp, dropout=frame.shape.dropout))


def head_ops(model: ModelSpec, frame: MicroBatch) -> LayerOps:
    """Last norm, logits of every token, loss."""
    return _TrainingRows(frame).of(last_operations(model, frame.shape.parallel.tp))


class _TrainingRows:
    """Rows of operations: a method per kind that training does otherwise than inference."""

    def __init__(self, frame: MicroBatch, layer: Layer | None = None) -> None:
        self.frame, self.shape, self.step, self.found = frame, frame.shape, frame.forward, LayerOps()
        self.ahead = Rows(frame.model, frame.forward, layer, frame.tokens, frame.own_tokens)

    def of(self, found: Iterable[Operation]) -> LayerOps:
        """The rows of operations."""
        for op in found:
            getattr(self, op.kind, self.derived)(op)
        return self.found

    def derived(self, op: Operation) -> None:
        """Rows of inference, with what they mean backward."""
        for row in self.ahead.rows(op):
            self.both(StepOp(row))

    def both(self, row: StepOp) -> None:
        self.found.add([row], backward(row, self.frame))

    # Matrices

    def linear(self, op: Operation) -> None:
        """A matmul, and the adapters beside it; two matmuls backward."""
        [row] = self.ahead.linear(op)
        there, back = self._adapters(op, row)
        rows = ([StepOp(row), *there], [*back, *backward(StepOp(row), self.frame)])
        if op.kernel == HEAD_ROW and not self.frame.eager:
            rows = (_padded(rows[0], op.features), _padded(rows[1], op.features))
        self.found.add(*rows)

    def _adapters(self, op: Operation, row: Op) -> tuple[list[StepOp], list[StepOp]]:
        """Low-rank adapters beside frozen matrices: two small matmuls forward, four backward, for each matrix that has one."""
        rank, step, forward, back = self.shape.rank, self.step, list[StepOp](), list[StepOp]()
        assert row.timed is not None
        w: Matmul = row.timed.workload

        def matmul(name: str, m: Number, n: Number, k: Number, weights: str = "B") -> StepOp:
            return product(name, step, Matmul(m, n, k, dtype=w.dtype), weights=weights)

        for matrix in op.matrices if rank is not None else ():
            if not is_targeted(matrix, self.shape.targets):
                continue
            title, columns = f"adapter of {matrix.name}", matrix.outputs
            first, second = f"{title}, A", f"{title}, B"
            forward += [matmul(first, w.m, rank, w.k), matmul(second, w.m, columns, rank)]
            forward.append(pointwise(f"{title}, sum", step, w.m, columns, reads=2))
            back += [matmul(f"{second}, gradient of inputs", w.m, rank, columns)]
            back += [matmul(f"{second}, gradient of weights", rank, columns, w.m, "C")]
            back += [matmul(f"{first}, gradient of inputs", w.m, w.k, rank)]
            back += [matmul(f"{first}, gradient of weights", w.k, rank, w.m, "C")]
            back.append(pointwise(f"{title}, sum of gradients", step, w.m, w.k, reads=2))
        return forward, back

    # Attention, activation function, residual stream

    def attention(self, op: Operation) -> None:
        """Attention, in which K and V of other context-parallel GPUs pass by."""
        [row] = self.ahead.attention(op)
        forward, back = attention(row, self.frame)
        self.found.core += forward
        self.found.add(forward, back)
        self.found.pass_on(*micro_batch.ring(self.frame, self.ahead.attended.kept))

    def activation(self, op: Operation) -> None:
        """The activation function, in many kernels if it is written out."""
        rows = self.pairs if op.part == EXPERTS else self.frame.tokens
        made = activation_function(self.ahead.mlp, self.step, rows, op.features)
        if made.name == "GELU" and self.frame.eager:
            self.found.add(*(_new_gelu(self.step, rows, op.features, *kernels) for kernels in GELU_KERNELS))
        else:
            self.both(StepOp(made))

    def enter(self, op: Operation) -> None:
        """Tokens are gathered, or gradients summed."""
        self.found.pass_on(*micro_batch.enters(self.frame))

    def leave(self, op: Operation) -> None:
        """Partial sums are added up."""
        self.found.pass_on(*micro_batch.leaves(self.frame))

    def dropout(self, op: Operation) -> None:
        """A kernel of its own, or forward a part of the residual add."""
        alone = self.frame.eager or op.part == EMBEDDING
        self.found.add([_dropout(self.frame)] if alone else [], [_dropout(self.frame, "dropout, gradient")])

    def add(self, op: Operation) -> None:
        """x + y; backward, the two gradients of x are added."""
        frame, rows = self.frame, self.frame.own_tokens
        made = pointwise("residual add", self.step, rows, frame.hidden, reads=2)
        if self.shape.dropout and not frame.eager:
            made = _beside(made, "dropout and residual add", stored("mask", WRITE, rows * frame.hidden, 8 * DROPOUT_MASK_SIZE))
        self.found.add([made], [pointwise("sum of gradients", self.step, rows, frame.hidden, reads=2)])

    # Experts: the tokens of a GPU's experts are as many as its own, times experts each

    @property
    def pairs(self) -> Number:
        """Tokens, each as often as it has experts."""
        assert isinstance(self.ahead.mlp, MoeMlp)
        return self.frame.tokens * self.ahead.mlp.experts_per_token

    def router(self, op: Operation) -> None:
        """The router, and tokens on their way to their experts."""
        assert isinstance(self.ahead.mlp, MoeMlp)
        passed = micro_batch.experts(self.frame, self.ahead.mlp.experts_per_token)
        self.found.pass_on(passed, passed)
        self.both(StepOp(self.ahead.router(op)[0]))
        self._moved("tokens by expert", self.frame.tokens, self.pairs)

    def experts(self, op: Operation) -> None:
        """One grouped matmul."""
        groups = max(op.matrices[0].count, 1)
        w = Matmul(ceil_div(self.pairs, groups), op.features, op.matrices[0].inputs, groups, dtype=self.step.dtype)
        self.both(product(op.kernel, self.step, w, weights="B"))

    def combine(self, op: Operation) -> None:
        """The weighted sum of what a token's experts made."""
        self._moved(op.name, self.pairs, self.frame.tokens)

    def _moved(self, name: str, read: Number, written: Number) -> None:
        """Kernels that gather or scatter rows of the hidden state, and their gradients the other way round."""

        def moved(name: str, read: Number, written: Number) -> list[StepOp]:
            hidden, step = self.frame.hidden, self.step
            accesses = (activation(READ, read * hidden, step), activation(WRITE, written * hidden, step))
            return [priced(name, step, OTHERS, accesses, max(read, written) * hidden)]

        self.found.add(moved(name, read, written), moved(f"{name}, gradient", written, read))

    def shared_gate(self, op: Operation) -> None:
        """A vector: too small to be counted."""

    # The ends of the model

    def embedding(self, op: Operation) -> None:
        """The gradient of the table: zeros, and the rows of the tokens. A tied table has another one from the head."""
        step, s, model, back = self.step, self.shape, self.frame.model, list[StepOp]()
        table = op.matrices[0].elements
        if s.rank is None:
            rows = activation(READ, step.tokens * model.hidden, step)
            back.append(priced("embedding, gradient of the table", step, OTHERS, (rows, gradients(table, s.gradient_size))))
            if model.tied_embeddings and s.parallel.pp == 1:
                both = gradients(2 * table, s.gradient_size, READ)
                back.append(priced("sum of the tied table's gradients", step, OTHERS, (both, gradients(table, s.gradient_size)), table))
        self.found.add([StepOp(row) for row in self.ahead.embedding(op)], back)

    def loss(self, op: Operation) -> None:
        """Softmax and loss over fp32 numbers: in one kernel each way, or as PyTorch writes them."""
        size, step, tp = self.shape.size, self.step, self.shape.parallel.tp
        logits = step.tokens * share(self.frame.model.vocab, tp)

        def passes(name: str, reads: int, writes: int) -> StepOp:
            accesses: tuple[Access, ...] = (stored(LOGITS, WRITE, logits, 8 * writes),)
            if reads:
                accesses = (stored(LOGITS, READ, logits, 8 * reads), *accesses)
            return priced(name, step, OTHERS, accesses, 4 * logits)

        if self.frame.eager:
            there = [passes("log-softmax", 4, 4)]
            back = [passes("gradient of the loss, zeros", 0, 4), passes("log-softmax, gradient", 8, 4)]
            if size != 4:
                there, back = [passes("logits to fp32", size, 4), *there], [*back, passes("gradient of the logits from fp32", 4, size)]
        else:
            there, back = [passes("softmax and loss", size, 4)], [passes("gradient of the loss", 4, size)]
        self.found.add(there, back)
        if tp > 1:
            self.found.pass_on([Exchange(TENSOR, ALL_REDUCE, 4 * step.tokens, LOSS_SUMS)], [])


def _padded(rows: list[StepOp], columns: Number) -> list[StepOp]:
    """``rows`` timed with a vocabulary padded to whole tiles, as Megatron-LM does; what they need and count is that of the real one."""
    whole, found = ceil_div(columns, VOCABULARY_STEP) * VOCABULARY_STEP, []
    for row in rows:
        timed = row.op.timed
        assert timed is not None
        sizes = {name: whole for name in ("m", "n", "k") if getattr(timed.workload, name) == columns}
        found.append(replace(row, op=replace(row.op, timed=replace(timed, workload=replace(timed.workload, **sizes)))))
    return found


def _new_gelu(step: ModelPass, rows: Number, cols: Number, name: str, one: int, two: int) -> list[StepOp]:
    """One pass of GPT-2's activation function: so many kernels that read one tensor, and two."""
    single, double = pointwise(f"{name}, of one tensor", step, rows, cols), pointwise(f"{name}, of two tensors", step, rows, cols, reads=2)
    return [single.times(one), double.times(two)]


def _dropout(frame: MicroBatch, name: str = "dropout") -> StepOp:
    """Reads and writes a hidden state, and writes or reads a byte per element that says which stay."""
    elements, kind = frame.own_tokens * frame.hidden, READ if "gradient" in name else WRITE
    made = pointwise(name, frame.forward, frame.own_tokens, frame.hidden)
    return _beside(made, name, stored("mask", kind, elements, 8 * DROPOUT_MASK_SIZE))


def _beside(row: StepOp, name: str, more: Access) -> StepOp:
    """``row`` with one more access."""
    timed = row.op.timed
    assert timed is not None
    w = timed.workload
    workload = replace(w, shared=w.shared + ceil_div(more.elements * more.element_size, w.dtype.size))
    kernel = replace(row.op.kernel, name=name, accesses=(*row.op.kernel.accesses, more))
    return StepOp(replace(row.op, name=name, kernel=kernel, timed=replace(timed, workload=workload)))
