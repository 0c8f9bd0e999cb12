"""The two ends of the model: embedding, last norm, logits and loss."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.cost import READ, WRITE, Access, stored
from perfmodel.kernels.collectives import ALL_REDUCE
from perfmodel.transformer.attention_parts import norm
from perfmodel.transformer.op import activation, linear
from perfmodel.transformer.ops import embedding
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import share
from perfmodel.transformer.training.step import exchange
from perfmodel.transformer.training.step.backward import backward
from perfmodel.transformer.training.step.exchange import TENSOR, Exchange
from perfmodel.transformer.training.step.layer import LayerOps, dropout
from perfmodel.transformer.training.step.micro_batch import MicroBatch
from perfmodel.transformer.training.step.row import OTHERS, StepOp, gradients, priced

LOGITS = "logits"
VOCABULARY_STEP = 128
"""Columns of the logits on one GPU come in multiples of it. Source: Megatron-LM, --make-vocab-size-divisible-by."""
LOSS_SUMS = 3
"""Numbers per token that GPUs with parts of the vocabulary exchange: maximum, sum, logit of the label (Shoeybi et al. 2019)."""


def embedding_ops(model: ModelSpec, frame: MicroBatch) -> LayerOps:
    """The lookup, and the gradient of its table: zeros, and the rows of the tokens. A tied table has another one from the head."""
    found, step, s = LayerOps(), frame.forward, frame.shape
    lookup = StepOp(embedding(model, step))
    table = share(model.vocab, s.parallel.tp) * model.hidden
    back = []
    if s.rank is None:
        rows = activation(READ, step.tokens * model.hidden, step)
        back.append(priced("embedding, gradient of the table", step, OTHERS, (rows, gradients(table, s.gradient_size))))
        if model.tied_embeddings and s.parallel.pp == 1:
            both = gradients(2 * table, s.gradient_size, READ)
            back.append(priced("sum of the tied table's gradients", step, OTHERS, (both, gradients(table, s.gradient_size)), table))
    found.add([lookup], back)
    found.pass_on(exchange.leaves(frame))
    if s.dropout:
        found.add([dropout(frame)], [dropout(frame, "dropout, gradient")])
    return found


def head_ops(model: ModelSpec, frame: MicroBatch) -> LayerOps:
    """Last norm, logits of every token, loss."""
    found, step, columns = LayerOps(), frame.forward, share(model.vocab, frame.shape.parallel.tp)
    found.derived([norm("last norm", model, step, frame.own_tokens, model.hidden)], frame)
    found.pass_on(exchange.enters(frame))
    logits = StepOp(linear("LM head", step, step.tokens, model.hidden, columns))
    rows = ([logits], backward(logits, frame))
    if not frame.eager:
        rows = (_padded(rows[0], columns), _padded(rows[1], columns))
    found.add(*rows)
    found.add(*_loss(frame, step.tokens * columns))
    if frame.shape.parallel.tp > 1:
        found.pass_on(([Exchange(TENSOR, ALL_REDUCE, 4 * step.tokens, LOSS_SUMS)], []))
    return found


def _padded(rows: list[StepOp], columns: Number) -> list[StepOp]:
    """``rows`` timed with a vocabulary padded to whole tiles, as Megatron-LM does; what they need and count is that of the real one."""
    whole, found = ceil_div(columns, VOCABULARY_STEP) * VOCABULARY_STEP, []
    for row in rows:
        timed = row.op.timed
        assert timed is not None
        sizes = {name: whole for name in ("m", "n", "k") if getattr(timed.workload, name) == columns}
        found.append(replace(row, op=replace(row.op, timed=replace(timed, workload=replace(timed.workload, **sizes)))))
    return found


def _loss(frame: MicroBatch, logits: Number) -> tuple[list[StepOp], list[StepOp]]:
    """Softmax and loss over fp32 numbers: in one kernel each way, or as PyTorch writes them."""
    size, step = frame.shape.size, frame.forward

    def passes(name: str, reads: int, writes: int) -> StepOp:
        accesses: tuple[Access, ...] = (stored(LOGITS, WRITE, logits, 8 * writes),)
        if reads:
            accesses = (stored(LOGITS, READ, logits, 8 * reads), *accesses)
        return priced(name, step, OTHERS, accesses, 4 * logits)

    if not frame.eager:
        return [passes("softmax and loss", size, 4)], [passes("gradient of the loss", 4, size)]
    cast = [passes("logits to fp32", size, 4)] if size != 4 else []
    back = [passes("gradient of the loss, zeros", 0, 4), passes("log-softmax, gradient", 8, 4)]
    return [*cast, passes("log-softmax", 4, 4)], [*back, *([passes("gradient of the logits from fp32", 4, size)] if cast else [])]
