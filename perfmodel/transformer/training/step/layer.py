"""The rows of one layer, forward and backward, which of the forward ones run again, and what passes between GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.cost import READ, WRITE, Access, stored
from perfmodel.core.dtypes import DROPOUT_MASK_SIZE
from perfmodel.transformer.attention_ops import attention_ops
from perfmodel.transformer.attention_parts import kv_elements_per_token, norm
from perfmodel.transformer.op import ATTENTION, Op
from perfmodel.transformer.ops import dense_ops
from perfmodel.transformer.spec import DenseMlp, Layer, MoeMlp
from perfmodel.transformer.training.matrices import layer_matrices
from perfmodel.transformer.training.step import exchange
from perfmodel.transformer.training.step.adapters import adapters
from perfmodel.transformer.training.step.attention import attention
from perfmodel.transformer.training.step.backward import added_up, backward
from perfmodel.transformer.training.step.exchange import Exchange
from perfmodel.transformer.training.step.experts import expert_rows
from perfmodel.transformer.training.step.gelu import new_gelu
from perfmodel.transformer.training.step.micro_batch import MicroBatch
from perfmodel.transformer.training.step.row import StepOp, pointwise

Rows = Sequence[StepOp]
Exchanges = Sequence[Exchange]


@dataclass(slots=True)
class LayerOps:
    """Rows in the order in which they run, backward those of the last operation first.

    ``core``: forward rows that selective recomputation runs again. ``unused``: how many of the last rows a second forward pass
    can leave out, as nothing that backward needs comes after them. ``columns``: of each matrix that may have an adapter.
    """

    forward: list[StepOp] = field(default_factory=list)
    backward: list[StepOp] = field(default_factory=list)
    core: list[StepOp] = field(default_factory=list)
    unused: int = 0
    forward_exchanges: list[Exchange] = field(default_factory=list)
    backward_exchanges: list[Exchange] = field(default_factory=list)
    columns: dict[str, Number] = field(default_factory=dict)

    def add(self, forward: Rows, back: Rows) -> None:
        """One more operation."""
        self.forward += forward
        self.backward[:0] = back

    def pass_on(self, ways: tuple[Exchanges, Exchanges]) -> None:
        """What passes between GPUs, forward and backward."""
        self.forward_exchanges += ways[0]
        self.backward_exchanges[:0] = ways[1]

    def derived(self, ops: Sequence[Op], frame: MicroBatch) -> None:
        """Rows of inference, with what they mean backward."""
        for op in ops:
            if op.name == "GELU" and frame.eager and op.timed is not None:
                self.add(*new_gelu(frame.forward, op.timed.workload.rows, op.timed.workload.cols))
            elif op.group == ATTENTION:
                forward, back = attention(op, frame)
                self.core += forward
                self.add(forward, back)
            else:
                row = StepOp(op)
                beside, back = adapters(op, frame, self.columns)
                self.add([row, *beside], [*back, *backward(row, frame)])


def layer_ops(layer: Layer, frame: MicroBatch) -> LayerOps:
    """Norm, attention, sum, norm, MLP, sum. Norms beyond two come after attention and after the MLP."""
    model, step, found = frame.model, frame.forward, LayerOps()
    if frame.shape.rank is not None:
        found.columns = {matrix.name: matrix.outputs for matrix in layer_matrices(model, layer, frame.shape.parallel)}

    def normed(times: int = 1) -> None:
        found.derived([norm("norm", model, step, frame.own_tokens, model.hidden) for _ in range(times)], frame)

    normed()
    found.pass_on(exchange.enters(frame))
    found.pass_on(exchange.ring(frame, kv_elements_per_token(layer.attention, step)))
    found.derived(attention_ops(layer, model, step), frame)
    found.pass_on(exchange.leaves(frame))
    normed(int(layer.norms > 2))
    residual(found, frame)
    normed()
    found.pass_on(exchange.enters(frame))
    _mlp(found, layer, frame)
    found.pass_on(exchange.leaves(frame))
    normed(max(int(layer.norms) - 3, 0))
    residual(found, frame)
    # PyTorch's checkpointing stops once the last tensor that backward needs is there again: a dropout's mask, or the MLP's activation
    found.unused = (1 if frame.shape.dropout else 2) if frame.eager and layer.norms <= 3 else 0
    return found


def _mlp(found: LayerOps, layer: Layer, frame: MicroBatch) -> None:
    mlp, model, step = layer.mlp, frame.model, frame.forward
    if isinstance(mlp, DenseMlp):
        found.derived(dense_ops("", mlp, model, step), frame)
        return
    passed = exchange.experts(frame, mlp.experts_per_token)
    found.pass_on((passed, passed))
    for forward, back in expert_rows(mlp, frame):
        found.add(forward, back)
    found.derived(_shared(mlp, frame), frame)


def _shared(mlp: MoeMlp, frame: MicroBatch) -> list[Op]:
    """The expert that sees every token."""
    if not mlp.shared_width:
        return []
    return dense_ops("shared expert, ", DenseMlp(mlp.shared_width, mlp.gated, mlp.bias, mlp.activation), frame.model, frame.forward)


def residual(found: LayerOps, frame: MicroBatch) -> None:
    """x + y, with dropout before it: kernels of their own, or one. Backward, the two gradients of x are added."""
    rows, step, drops = frame.own_tokens, frame.forward, frame.shape.dropout
    add = pointwise("residual add", step, rows, frame.hidden, reads=2)
    if drops and frame.eager:
        found.add([dropout(frame)], [dropout(frame, "dropout, gradient")])
    elif drops:
        mask = stored("mask", WRITE, rows * frame.hidden, 8 * DROPOUT_MASK_SIZE)
        add = _beside(add, "dropout and residual add", mask)
        found.add([], [dropout(frame, "dropout, gradient")])
    found.add([add], [added_up("sum of gradients", frame, rows)])


def dropout(frame: MicroBatch, name: str = "dropout") -> StepOp:
    """Reads and writes a hidden state, and writes or reads a byte per element that says which stay."""
    rows = frame.own_tokens
    kind = READ if "gradient" in name else WRITE
    return _beside(
        pointwise(name, frame.forward, rows, frame.hidden), name, stored("mask", kind, rows * frame.hidden, 8 * DROPOUT_MASK_SIZE)
    )


def _beside(row: StepOp, name: str, more: Access) -> StepOp:
    """``row`` with one more access."""
    timed = row.op.timed
    assert timed is not None
    w = timed.workload
    workload = replace(w, shared=w.shared + ceil_div(more.elements * more.element_size, w.dtype.size))
    kernel = replace(row.op.kernel, name=name, accesses=(*row.op.kernel.accesses, more))
    return StepOp(replace(row.op, name=name, kernel=kernel, timed=replace(timed, workload=workload)))
