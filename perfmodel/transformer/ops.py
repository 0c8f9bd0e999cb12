"""The kernels of one pass through a model, as seen by one GPU: rows in the order in which they run, equal ones together."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.arith import Number
from perfmodel.core.cost import READ, WRITE, stored
from perfmodel.kernels.collectives import ALL_REDUCE, ALL_TO_ALL
from perfmodel.transformer.attention_ops import attention_ops
from perfmodel.transformer.attention_parts import norm
from perfmodel.transformer.moe import MLP, SHARED, activation_function, expert_ops, mlp_matrices
from perfmodel.transformer.op import WEIGHTS, Op, activation, collective, linear, stream
from perfmodel.transformer.spec import DenseMlp, Layer, ModelSpec, MoeMlp
from perfmodel.transformer.step import Step, share

EMBEDDING, HEAD = "embedding lookup", "LM head"


def step_ops(model: ModelSpec, step: Step) -> list[Op]:
    """Every kernel of ``step`` on one GPU of each pipeline stage, all stages one after the other.

    The last norm and the matrix hidden -> vocab see the last position of each sequence only.
    """
    ops = [embedding(model, step), *_reduce(model, step)]
    if step.fused:  # every other norm runs with the residual add before it
        ops.append(norm("norm", model, step, step.tokens, model.hidden))
    for layer, count in model.layer_kinds:
        ops += [op.times(count) for op in layer_ops(layer, model, step)]
    if not step.fused:
        ops.append(norm("last norm", model, step, step.sequences, model.hidden))
    return merged([*ops, *head_ops(model, step)])


def embedding(model: ModelSpec, step: Step) -> Op:
    """One row of the table per token, and of the table of positions where there is one. A lookup, no matmul.

    All tokens may be the same one, so that one row of the table is all that must be read.
    """
    elements, positions = step.tokens * model.hidden, step.n * model.hidden if model.learned_positions else 0
    least = stored(WEIGHTS, READ, model.hidden + positions, step.weight_bits).elements
    looked_up = replace(stored(WEIGHTS, READ, elements + positions, step.weight_bits), compulsory=least)
    accesses = (looked_up, activation(WRITE, elements, step))
    return stream(EMBEDDING, step, "copy", accesses, like=("scale", "torch-scale", step.tokens, model.hidden))


def head_ops(model: ModelSpec, step: Step) -> list[Op]:
    """The LM head, its columns divided among tensor-parallel GPUs, which gather the logits."""
    columns = share(model.vocab, step.split.tp)
    if step.published and model.head_format is not None:
        step = replace(step, formats=((HEAD, model.head_format),))
    return [linear(HEAD, step, step.sequences, model.hidden, columns, matrices=((HEAD, model.hidden, columns),))]


def layer_ops(layer: Layer, model: ModelSpec, step: Step) -> list[Op]:
    """One layer: norm, attention, residual add, norm, MLP, residual add."""
    if step.published:
        step = replace(step, formats=layer.formats)
    tokens = step.tokens
    norms = [norm("norm", model, step, tokens, model.hidden) for _ in range(layer.norms)]
    ends = [_residual(model, step) for _ in range(2)]
    reduce = _reduce(model, step)
    before = norms[2:] if step.fused else norms  # fused: two of the norms run with the residual adds
    return [*before, *attention_ops(layer, model, step), *reduce, ends[0], *_mlp_ops(layer, model, step), *reduce, ends[1]]


def _reduce(model: ModelSpec, step: Step) -> list[Op]:
    """The sum of what tensor-parallel GPUs have each in part: of a lookup, of attention, of an MLP."""
    if step.split.tp == 1:
        return []
    return [collective(ALL_REDUCE, step.split.tp, step.tokens * model.hidden, step)]


def _residual(model: ModelSpec, step: Step) -> Op:
    """x + y; fused with the norm after it, which leaves both the sum and its norm."""
    elements, like = step.tokens * model.hidden, ("scale", "torch-add", step.tokens, model.hidden)
    reads = activation(READ, 2 * elements, step)
    if not step.fused:
        return stream("residual add", step, "add", (reads, activation(WRITE, elements, step)), like=like)
    weights = stored(WEIGHTS, READ, model.hidden * (2 if model.norm == "layer" else 1), step.weight_bits)
    accesses = (reads, activation(WRITE, 2 * elements, step), weights)
    return stream("residual add and norm", step, "norm", accesses, like=("scale", "torch-scale", 2 * step.tokens, model.hidden))


def _mlp_ops(layer: Layer, model: ModelSpec, step: Step) -> list[Op]:
    mlp = layer.mlp
    if isinstance(mlp, DenseMlp):
        return dense_ops("", mlp, model, step, MLP)
    ops = expert_ops(mlp, model, step)
    if step.split.ep > 1:
        sent = step.tokens * mlp.experts_per_token * model.hidden
        exchange = collective(ALL_TO_ALL, step.split.ep, sent, step)
        ops = [ops[0], exchange, *ops[1:-1], exchange, ops[-1]]
    return [*ops, *_shared_ops(mlp, model, step)]


def _shared_ops(mlp: MoeMlp, model: ModelSpec, step: Step) -> list[Op]:
    """The expert that sees every token."""
    if not mlp.shared_width:
        return []
    shared = DenseMlp(mlp.shared_width, mlp.gated, mlp.bias, mlp.activation)
    gate = [linear("shared expert gate", step, step.tokens, model.hidden, 1)] if mlp.shared_gate else []
    return [*dense_ops("shared expert, ", shared, model, step, SHARED), *gate]


def dense_ops(prefix: str, mlp: DenseMlp, model: ModelSpec, step: Step, module: str = MLP) -> list[Op]:
    """Gate and up in one matmul, the activation function, down. ``module``: what their names begin with in a checkpoint."""
    tokens, width = step.tokens, share(mlp.width, step.split.tp)
    columns = 2 * width if mlp.gated else width
    bias, down_bias = (columns, model.hidden) if mlp.bias else (0, 0)
    name = "gate and up projection" if mlp.gated else "up projection"
    into, out = mlp_matrices(module, model.hidden, width, mlp.gated)
    first = linear(prefix + name, step, tokens, model.hidden, columns, matrices=into, bias=bias, stores=width if step.fused else None)
    between = [] if step.fused else [activation_function(mlp.gated, step, tokens, width, mlp.activation)]
    return [first, *between, linear(f"{prefix}down projection", step, tokens, width, model.hidden, matrices=out, bias=down_bias)]


def merged(ops: list[Op]) -> list[Op]:
    """Equal rows as one with their counts added up, in the order of first occurrence."""
    counts: dict[Op, Number] = {}
    for op in ops:
        alone = replace(op, count=1)
        counts[alone] = counts.get(alone, 0) + op.count
    return [replace(op, count=count) for op, count in counts.items()]
