"""A layer of routed experts: the router, the experts that a batch touches, and those that see every token."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.arith import Number, ceil_div, floor
from perfmodel.core.cost import READ, WRITE, Kernel, matmul_work, stored
from perfmodel.core.trace import is_traced, plain, template
from perfmodel.kernels.experts import ACTIVATE, DOWN, SUM, UP, Experts
from perfmodel.kernels.matmul import Matmul
from perfmodel.transformer.layer import Matrix, Operation, summed
from perfmodel.transformer.op import (
    MATMUL,
    WEIGHTS,
    Op,
    Timed,
    activation,
    matrix_bytes,
    multiplied_in,
    product_timed,
    stream,
    widest,
)
from perfmodel.transformer.spec import DenseMlp, MoeMlp
from perfmodel.transformer.step import ModelPass, share
from perfmodel.transformer.weight_formats._base import MatrixFormat


def expected_touched(experts: Number, per_token: Number, tokens: Number) -> Number:
    """Experts that at least one of ``tokens`` picks, on average, if each picks ``per_token`` different ones, all alike.

    E (1 - (1 - k / E)^T).

    >>> expected_touched(8, 2, 1), round(expected_touched(8, 2, 4), 3), round(expected_touched(256, 8, 64), 1)
    (2.0, 5.469, 222.4)
    """
    value = float(plain(experts) * (1 - (1 - plain(per_token) / plain(experts)) ** plain(tokens)))
    if is_traced(experts, per_token, tokens):
        return template("({} * (1 - (1 - {} / {})^({})))", value, experts, per_token, experts, tokens)
    return value


class Routing:
    """The routed experts of a layer in one step.

    One GPU of an expert-parallel group holds ``experts / ep`` of them and works on its share of all pairs of token and expert.
    ``mlp``: as one GPU of a tensor-parallel group sees it; ``matrices``: of an expert, into it and out.
    """

    def __init__(self, mlp: MoeMlp, hidden: Number, step: ModelPass, matrices: tuple[Matrix, ...]) -> None:
        self.mlp, self.hidden, self.step = mlp, hidden, step
        self.pairs = share(step.all_tokens * mlp.experts_per_token, step.split.ep)
        self.touched = expected_touched(mlp.experts, mlp.experts_per_token, step.all_tokens) / step.split.ep
        self.calibrated = self._calibrated(widest(step, matrices))

    def _calibrated(self, stored: MatrixFormat) -> Experts | None:
        """The routed experts as the workload of a calibrated kernel; None for those that none was calibrated of."""
        mlp, step = self.mlp, self.step
        if not mlp.gated or step.dtype.size != 2 or stored.bits not in (8, 16) or stored.is_integer:
            return None
        form = multiplied_in(step, stored) or step.dtype
        own, picked = share(mlp.experts, step.split.ep), min(plain(self.touched), plain(self.pairs))
        return Experts(step.tokens, self.hidden, mlp.width, own, mlp.experts_per_token, max(picked, 1), form, self.pairs)

    def _as_part(self, part: str, op: Op) -> Op:
        """``op`` asked as that part of calibrated experts first; fused, the activation function runs with the matmul before it."""
        if self.calibrated is None or op.timed is None:
            return op
        w = replace(self.calibrated, parts=(UP, ACTIVATE) if part == UP and self.step.fused else (part,))
        return replace(op, timed=replace(op.timed, preferred=Timed("moe", w, ("triton-moe", "trtllm-moe"))))

    def matmul(self, op: Operation) -> Op:
        """One matmul per touched expert, together: each pair's row, and the weights of the touched experts once.

        Where no kernel of experts is calibrated, it is timed as that many equal matmuls.
        """
        step, pairs, matrices = self.step, self.pairs, op.matrices
        inputs, outputs, bias = matrices[0].inputs, op.features, summed(m.outputs for m in matrices) if op.vectors else 0
        part = DOWN if matrices[0].name == "down" else UP
        stores = matrices[0].outputs if part == UP and step.fused else outputs
        if step.formats:
            each = matrix_bytes(step, matrices) + ceil_div(bias * step.weight_bits, 8)
            weights = stored(WEIGHTS, READ, floor(self.touched * each), 8)
        else:
            weights = stored(WEIGHTS, READ, floor(self.touched * (inputs * outputs + bias)), step.weight_bits)
        accesses = (activation(READ, pairs * inputs, step), weights, activation(WRITE, pairs * stores, step))
        flops = 2 * pairs * inputs * outputs
        work = matmul_work(step.dtype, flops)
        kernel = Kernel(op.kernel, step.dtype, accesses, flops=flops, executed_flops=flops, work=work, needed=work)
        groups = max(round(plain(self.touched)), 1)
        w = Matmul(ceil_div(pairs, groups), outputs, inputs, groups, dtype=step.dtype)
        timed, form = product_timed(w, step, widest(step, matrices))
        return self._as_part(part, Op(op.kernel, MATMUL, 1, kernel, timed, form))

    def activation(self) -> list[Op]:
        """The activation function, if no matmul does it."""
        if self.step.fused:
            return []
        return [self._as_part(ACTIVATE, activation_function(self.mlp, self.step, self.pairs, self.mlp.width))]

    def weighted_sum(self) -> Op:
        """The results of each token's experts, added up."""
        step, pairs, hidden = self.step, self.pairs, self.hidden
        rows = max(ceil_div(pairs + step.tokens, 2), 1)  # a copy reads as much as it writes
        moved, like = (pairs * hidden, step.tokens * hidden), ("scale", "torch-scale", rows, hidden)
        return self._as_part(SUM, stream("weighted sum of experts", step, "add", moved, like))


def activation_function(mlp: DenseMlp | MoeMlp, step: ModelPass, rows: Number, width: Number) -> Op:
    """SiLU x gate, or the activation function alone, as a kernel of its own."""
    name = {"silu": "SiLU", "swish": "SiLU"}.get(mlp.activation, "GELU" if "gelu" in mlp.activation else mlp.activation)
    kind, implementation = ("silu-mul", "torch-silu-mul") if mlp.gated else ("gelu", "torch-scale")
    moved, like = ((2 if mlp.gated else 1) * rows * width, rows * width), ("scale", implementation, rows, width)
    return stream(f"{name} x gate" if mlp.gated else name, step, kind, moved, like, strided=mlp.gated)
