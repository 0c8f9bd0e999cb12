"""The rows of tokens on their way to their experts and back, where a library of such exchanges sends them."""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.core.cost import READ, Kernel
from perfmodel.core.dtypes import DTYPES, Dtype
from perfmodel.kernels.expert_exchange import expert_exchange
from perfmodel.transformer.op import COLLECTIVE, Op, Timed, activation
from perfmodel.transformer.spec import MoeMlp
from perfmodel.transformer.step import ModelPass
from perfmodel.transformer.weight_formats._base import MatrixFormat


def sent_in(form: MatrixFormat, step: ModelPass) -> Dtype:
    """The format of a dispatch: 8 bits where experts multiply in 8 bits or fewer floats. Source: DeepEP, README.md."""
    return DTYPES["fp8"] if form.bits <= 8 and not form.is_integer and step.dtype.size == 2 else step.dtype


def exchange(op: str, mlp: MoeMlp, tokens: Number, hidden: Number, step: ModelPass, form: MatrixFormat) -> Op:
    """``op`` of ``tokens`` of each GPU of the stage; ``form`` in which experts are stored."""
    w = expert_exchange(op, step.split.stage, tokens, hidden, int(mlp.experts), int(mlp.experts_per_token), sent_in(form, step))
    kernel = Kernel(w.title, step.dtype, (activation(READ, tokens * hidden, step, "buffer"),))
    return Op(w.title, COLLECTIVE, 1, kernel, Timed("collective", w, step.kernels.of_collective(op)))
