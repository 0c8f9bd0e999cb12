"""A layer of routed experts: the router, the experts that a batch touches, and those that see every token."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.arith import Number, ceil_div, floor
from perfmodel.core.cost import READ, WRITE, Kernel, stored
from perfmodel.core.trace import is_traced, plain, template
from perfmodel.kernels.experts import ACTIVATE, DOWN, SUM, UP, Experts
from perfmodel.kernels.matmul import Matmul
from perfmodel.transformer.op import (
    MATMUL,
    WEIGHTS,
    Matrix,
    Op,
    Timed,
    activation,
    linear,
    matrix_bytes,
    multiplied_in,
    needed_flops,
    product_timed,
    stream,
    widest,
)
from perfmodel.transformer.spec import ModelSpec, MoeMlp
from perfmodel.transformer.step import Step, share

MLP, SHARED, EXPERT = "mlp.", "mlp.shared_experts.", "mlp.experts.0."
"""What the names of an MLP's matrices begin with in a checkpoint; an expert stands for all of its layer."""


def mlp_matrices(module: str, hidden: Number, width: Number, gated: bool) -> tuple[tuple[Matrix, ...], tuple[Matrix, ...]]:
    """The matrices into and out of an MLP."""
    into = ("gate_proj", "up_proj") if gated else ("up_proj",)
    return tuple((module + name, hidden, width) for name in into), ((f"{module}down_proj", width, hidden),)


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


def expert_ops(mlp: MoeMlp, model: ModelSpec, step: Step) -> list[Op]:
    """Router, expert matmuls with their activation function, weighted sum.

    One GPU of an expert-parallel group holds ``experts / ep`` of them and works on its share of all pairs of token and expert.
    """
    tokens, tp, ep = step.tokens, step.split.tp, step.split.ep
    width, pairs = share(mlp.width, tp), share(step.all_tokens * mlp.experts_per_token, ep)
    touched = expected_touched(mlp.experts, mlp.experts_per_token, step.all_tokens) / ep
    columns = 2 * width if mlp.gated else width
    inside = width if step.fused else columns
    into, out = mlp_matrices(EXPERT, model.hidden, width, mlp.gated)
    routed = _routed(mlp, model, step, width, pairs, touched, (*into, *out))
    in_bias, out_bias = (columns, model.hidden) if mlp.bias else (0, 0)
    title = "experts, gate and up" if mlp.gated else "experts, up"
    found = {UP: _experts(title, step, pairs, touched, into, inside, in_bias)}
    if not step.fused:
        found[ACTIVATE] = activation_function(mlp.gated, step, pairs, width, mlp.activation)
    found[DOWN] = _experts("experts, down", step, pairs, touched, out, model.hidden, out_bias)
    moved = (activation(READ, pairs * model.hidden, step), activation(WRITE, tokens * model.hidden, step))
    rows = max(ceil_div(pairs + tokens, 2), 1)  # a copy reads as much as it writes
    found[SUM] = stream("weighted sum of experts", step, "add", moved, like=("scale", "torch-scale", rows, model.hidden))
    router = linear("router", step, tokens, model.hidden, mlp.experts, bias=mlp.router_extra)
    return [router, *(_as_part(part, op, routed, step.fused) for part, op in found.items())]


def _routed(
    mlp: MoeMlp, model: ModelSpec, step: Step, width: Number, pairs: Number, touched: Number, matrices: tuple[Matrix, ...]
) -> Experts | None:
    """The routed experts as the workload of a calibrated kernel; None for those that none was calibrated of."""
    stored = widest(step, matrices)
    if not mlp.gated or step.dtype.size != 2 or stored.bits not in (8, 16) or stored.is_integer:
        return None
    form = multiplied_in(step, stored) or step.dtype
    own, picked = share(mlp.experts, step.split.ep), min(plain(touched), plain(pairs))
    return Experts(step.tokens, model.hidden, width, own, mlp.experts_per_token, max(picked, 1), form, pairs)


def _as_part(part: str, op: Op, routed: Experts | None, fused: bool) -> Op:
    """``op`` asked as that part of calibrated experts first; fused, the activation function runs with the matmul before it."""
    if routed is None or op.timed is None:
        return op
    w = replace(routed, parts=(UP, ACTIVATE) if part == UP and fused else (part,))
    return replace(op, timed=replace(op.timed, preferred=Timed("moe", w, ("triton-moe", "trtllm-moe"))))


def activation_function(gated: bool, step: Step, rows: Number, width: Number, activation_name: str) -> Op:
    """SiLU x gate, or the activation function alone, as a kernel of its own."""
    name = {"silu": "SiLU", "swish": "SiLU"}.get(activation_name, "GELU" if "gelu" in activation_name else activation_name)
    kind, implementation = ("silu-mul", "torch-silu-mul") if gated else ("gelu", "torch-scale")
    accesses = (activation(READ, (2 if gated else 1) * rows * width, step), activation(WRITE, rows * width, step))
    title = f"{name} x gate" if gated else name
    return stream(title, step, kind, accesses, like=("scale", implementation, rows, width), strided=gated)


def _experts(name: str, step: Step, pairs: Number, touched: Number, matrices: tuple[Matrix, ...], stores: Number, bias: Number) -> Op:
    """One matmul per touched expert, together: each pair's row, and the weights of the touched experts once.

    Where no kernel of experts is calibrated, it is timed as that many equal matmuls.
    """
    inputs, outputs = matrices[0][1], sum(columns for _, _, columns in matrices)
    if step.formats:
        each = matrix_bytes(step, matrices) + ceil_div(bias * step.weight_bits, 8)
        weights = stored(WEIGHTS, READ, floor(touched * each), 8)
    else:
        weights = stored(WEIGHTS, READ, floor(touched * (inputs * outputs + bias)), step.weight_bits)
    accesses = (activation(READ, pairs * inputs, step), weights, activation(WRITE, pairs * stores, step))
    kernel = needed_flops(Kernel(name, step.dtype, accesses), step, 2 * pairs * inputs * outputs)
    groups = max(round(plain(touched)), 1)
    w = Matmul(ceil_div(pairs, groups), outputs, inputs, groups, dtype=step.dtype)
    timed, form = product_timed(w, step, widest(step, matrices))
    return Op(name, MATMUL, 1, kernel, timed, form)
