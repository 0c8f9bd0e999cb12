"""Routed experts in training: every expert gets tokens, and all of a GPU's experts run as one grouped matmul.

Tokens are put in the order of their experts and back, which moves each as often as it has experts.
"""

from __future__ import annotations

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.cost import READ, WRITE
from perfmodel.kernels.matmul import Matmul
from perfmodel.transformer.moe import activation_function
from perfmodel.transformer.op import activation, linear
from perfmodel.transformer.spec import MoeMlp
from perfmodel.transformer.step import share
from perfmodel.transformer.training.step.backward import backward
from perfmodel.transformer.training.step.micro_batch import MicroBatch
from perfmodel.transformer.training.step.row import OTHERS, StepOp, priced, product

Pair = tuple[list[StepOp], list[StepOp]]


def expert_rows(mlp: MoeMlp, frame: MicroBatch) -> list[Pair]:
    """Forward and backward rows of each operation, in order; the tokens of a GPU's experts are as many as its own, times experts each."""
    step, tokens, hidden = frame.forward, frame.tokens, frame.hidden
    pairs, groups = tokens * mlp.experts_per_token, max(share(mlp.experts, frame.shape.parallel.ep), 1)
    width, per_expert = share(mlp.width, frame.shape.parallel.tp), ceil_div(pairs, groups)
    columns = 2 * width if mlp.gated else width
    router = StepOp(linear("router", step, tokens, hidden, mlp.experts, bias=mlp.router_extra))
    between = StepOp(activation_function(mlp.gated, step, pairs, width, mlp.activation))
    name = "experts, gate and up" if mlp.gated else "experts, up"
    first = product(name, step, Matmul(per_expert, columns, hidden, groups, dtype=step.dtype), weights="B")
    last = product("experts, down", step, Matmul(per_expert, hidden, width, groups, dtype=step.dtype), weights="B")
    return [
        ([router], backward(router, frame)),
        (_moved("tokens by expert", frame, tokens, pairs), _moved("tokens by expert, gradient", frame, pairs, tokens)),
        *(([row], backward(row, frame)) for row in (first, between, last)),
        (_moved("weighted sum of experts", frame, pairs, tokens), _moved("weighted sum of experts, gradient", frame, tokens, pairs)),
    ]


def _moved(name: str, frame: MicroBatch, read: Number, written: Number) -> list[StepOp]:
    """A kernel that gathers or scatters rows of the hidden state."""
    accesses = (activation(READ, read * frame.hidden, frame.forward), activation(WRITE, written * frame.hidden, frame.forward))
    return [priced(name, frame.forward, OTHERS, accesses, max(read, written) * frame.hidden)]
