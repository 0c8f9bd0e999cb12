"""A layer of routed experts: the router, the experts that a batch touches, and those that see every token."""

from __future__ import annotations

from perfmodel.arith import Number, ceil_div, floor
from perfmodel.cost import READ, WRITE, Kernel
from perfmodel.ops.matmul import Matmul
from perfmodel.trace import is_traced, plain, template
from perfmodel.transformer.op import MATMUL, WEIGHTS, Op, Timed, activation, linear, needed_flops, stored, stream
from perfmodel.transformer.spec import ModelSpec, MoeMlp
from perfmodel.transformer.step import Step, share


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
    ops = [linear("router", step, tokens, model.hidden, mlp.experts, bias=mlp.router_extra)]
    in_bias, out_bias = (columns, model.hidden) if mlp.bias else (0, 0)
    ops.append(
        _experts("experts, gate and up" if mlp.gated else "experts, up", step, pairs, touched, model.hidden, columns, inside, in_bias)
    )
    if not step.fused:
        ops.append(activation_function(mlp.gated, step, pairs, width, mlp.activation))
    ops.append(_experts("experts, down", step, pairs, touched, width, model.hidden, model.hidden, out_bias))
    moved = (activation(READ, pairs * model.hidden, step), activation(WRITE, tokens * model.hidden, step))
    rows = max(ceil_div(pairs + tokens, 2), 1)  # a copy reads as much as it writes
    ops.append(stream("weighted sum of experts", step, "add", moved, like=("scale", "torch-scale", rows, model.hidden)))
    return ops


def activation_function(gated: bool, step: Step, rows: Number, width: Number, activation_name: str) -> Op:
    """SiLU x gate, or the activation function alone, as a kernel of its own."""
    name = {"silu": "SiLU", "swish": "SiLU"}.get(activation_name, "GELU" if "gelu" in activation_name else activation_name)
    kind, implementation = ("silu-mul", "torch-silu-mul") if gated else ("gelu", "torch-scale")
    accesses = (activation(READ, (2 if gated else 1) * rows * width, step), activation(WRITE, rows * width, step))
    title = f"{name} x gate" if gated else name
    return stream(title, step, kind, accesses, like=("scale", implementation, rows, width), strided=gated)


def _experts(name: str, step: Step, pairs: Number, touched: Number, inputs: Number, outputs: Number, stores: Number, bias: Number) -> Op:
    """One matmul per touched expert, together: each pair's row, and the weights of the touched experts once.

    It is timed as that many equal matmuls.
    """
    elements = floor(touched * (inputs * outputs + bias))
    accesses = (
        activation(READ, pairs * inputs, step),
        stored(WEIGHTS, READ, elements, step.weight_bits),
        activation(WRITE, pairs * stores, step),
    )
    kernel = needed_flops(Kernel(name, step.dtype, accesses), step, 2 * pairs * inputs * outputs)
    groups = max(round(plain(touched)), 1)
    w = Matmul(ceil_div(pairs, groups), outputs, inputs, groups, dtype=step.dtype)
    same = step.weight_bits == 8 * step.dtype.size
    obstacle = "" if same else f"no kernel with {step.weight_bits}-bit weights and {step.dtype.name} activations is calibrated"
    return Op(name, MATMUL, 1, kernel, Timed("matmul", w, ("torch-matmul", "cublas"), obstacle))
