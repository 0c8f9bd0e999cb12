"""The one description of a model's parts: operations in the order in which they run, with their matrices and tensors.

Everything else is derived from it: ``parameters`` adds up what the operations learn; ``ops`` has the kernels of an inference step,
a method per kind of operation; ``training.step.layer`` those of a training step; ``training.recorder`` and ``training.huggingface``
what autograd keeps of each.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.arith import Number
from perfmodel.transformer.mixers import mixer
from perfmodel.transformer.operation import (
    ATTENTION,
    CHOSEN,
    EMBEDDING,
    ENTER,
    EXPERTS,
    HEAD,
    HEAD_ROW,
    LAST_NORM,
    LEAVE,
    MLP,
    MLP_PART,
    NORMS,
    RESIDUAL,
    ROUTER,
    SHARED,
    TABLE,
    Matrix,
    Operation,
    linear,
    summed,
)
from perfmodel.transformer.spec import DenseMlp, Layer, ModelSpec, MoeMlp
from perfmodel.transformer.step import share


def local_layer(layer: Layer, tp: int, expert_tp: int | None = None) -> Layer:
    """The part of ``layer`` on one of ``tp`` GPUs: its heads, its columns of the MLP. KV heads are copied if there are more GPUs.

    ``expert_tp``: GPUs that share an expert, by default ``tp``.
    """
    expert_tp = tp if expert_tp is None else expert_tp
    if tp == expert_tp == 1:
        return layer
    mlp = layer.mlp
    if mlp is not None:
        mlp = replace(mlp, width=share(mlp.width, expert_tp if isinstance(mlp, MoeMlp) else tp))
    if isinstance(mlp, MoeMlp):
        mlp = replace(mlp, shared_width=share(mlp.shared_width, tp))
    return replace(layer, attention=layer.attention.divided(tp), mlp=mlp)


def operations(
    model: ModelSpec, layer: Layer, tp: int = 1, ep: int = 1, *, expert_tp: int | None = None, dropout: bool = False
) -> list[Operation]:
    """Operations of one layer on one GPU: norm, attention, sum, norm, MLP, sum. Norms beyond two come after attention and after the MLP.

    With ``ep`` expert-parallel GPUs each has its share of the experts, and the whole router. ``expert_tp``: as in ``local_layer``.
    """
    local, hidden = local_layer(layer, tp, expert_tp), model.hidden
    listed: list[Operation] = []

    def add(*more: Operation) -> str:
        """Adds operations; returns the tensor that the last one writes."""
        listed.extend(more)
        return more[-1].writes

    def add_residual(part: str, place: str, stream: str, branch: str, writes: str) -> str:
        """Adds the sum of ``stream`` and ``branch``, with dropout before it; returns the tensor ``writes``."""
        if dropout:
            result = f"{part} result after dropout"
            branch = add(Operation("dropout", f"dropout after {place}", part, (branch,), result, hidden, own=True))
        return add(Operation("add", f"sum with {place}", RESIDUAL, (stream, branch), writes, hidden, own=True))

    add(_norm(model, "norm before attention", "layer input", "attention input"), ENTER)
    branch, mlp = add(*mixer(local.attention, hidden)), local.mlp
    add(LEAVE)
    if layer.norms > 2:
        branch = add(_norm(model, "norm after attention", branch, "attention result, normed"))
    if mlp is None:
        add_residual(ATTENTION, "attention", "layer input", branch, "layer output")
        return listed
    middle = add_residual(ATTENTION, "attention", "layer input", branch, "input of the MLP's norm")
    add(_norm(model, "norm before the MLP", middle, "MLP input"), ENTER)
    mlp_operations = _dense("", mlp, hidden) if isinstance(mlp, DenseMlp) else _experts(mlp, hidden, share(mlp.experts, ep))
    branch = add(*mlp_operations)
    add(LEAVE)
    for index in range(3, int(layer.norms)):
        suffix = "" if index == 3 else f" ({index - 2})"
        branch = add(_norm(model, f"norm after the MLP{suffix}", branch, f"MLP result, normed{suffix}"))
    add_residual(MLP_PART, "the MLP", middle, branch, "layer output")
    return listed


def _norm(model: ModelSpec, name: str, reads: str, writes: str) -> Operation:
    learned = model.hidden if model.norm == "rms" else 2 * model.hidden
    row = "norm" if name != LAST_NORM else LAST_NORM
    return Operation("norm", name, NORMS, (reads,), writes, model.hidden, vectors=learned, row=row, own=True)


def _mlp_matrices(mlp: DenseMlp | MoeMlp, hidden: Number, group: str, module: str, count: Number = 1) -> tuple[list[Matrix], list[Matrix]]:
    """(matrices into an MLP, matrix out of it). ``module``: prefix of their names in a checkpoint, where one expert represents all."""
    names = ("gate", "up") if mlp.gated else ("up",)
    into = [Matrix(name, group, hidden, mlp.width, count, f"{module}{name}_proj") for name in names]
    return into, [Matrix("down", group, mlp.width, hidden, count, f"{module}down_proj")]


def _dense(prefix: str, mlp: DenseMlp, hidden: Number) -> list[Operation]:
    """Operations of a dense MLP: gate and up in one matmul, the activation function, down."""
    into, out = _mlp_matrices(mlp, hidden, MLP, "mlp.shared_experts." if prefix else "mlp.")
    gate_and_up = prefix + ("gate and up" if mlp.gated else "up")
    activated = f"{prefix}activation"
    return [
        linear(f"{gate_and_up} projection", "MLP input", gate_and_up, into, mlp.bias, gathers=True),
        Operation("activation", f"{prefix}activation function", MLP_PART, (gate_and_up,), activated, mlp.width),
        linear(f"{prefix}down projection", activated, f"{prefix}MLP result", out, mlp.bias, own=True, gathers=True),
    ]


def _experts(mlp: MoeMlp, hidden: Number, held: Number) -> list[Operation]:
    """Operations of a mixture: router, the ``held`` experts of this GPU, weighted sum, and the shared expert."""
    into, out = _mlp_matrices(mlp, hidden, EXPERTS, "mlp.experts.0.", held)
    router = Matrix("router", ROUTER, hidden, mlp.experts)
    gate_and_up = "gate and up" if mlp.gated else "up"
    projected, activated, result = f"{gate_and_up} of experts", "activation of experts", "results of experts"
    columns = summed(matrix.outputs for matrix in into)
    bias, down_bias = (held * columns, held * hidden) if mlp.bias else (0, 0)
    total = "routed result" if mlp.shared_width else "MLP result"
    sent, row = "tokens sent to experts", f"experts, {gate_and_up}"
    routed = [
        Operation("router", "router", ROUTER, ("MLP input",), "router's probabilities", mlp.experts, (router,), mlp.router_extra),
        Operation("experts", "experts, first matrices", EXPERTS, (sent,), projected, columns, tuple(into), bias, row=row),
        Operation("activation", "experts, activation function", EXPERTS, (projected,), activated, mlp.width),
        Operation("experts", "experts, down projection", EXPERTS, (activated,), result, hidden, tuple(out), down_bias, row="experts, down"),
        Operation("combine", "weighted sum of experts", EXPERTS, (result, CHOSEN), total, hidden, own=True),
    ]
    if not mlp.shared_width:
        return routed
    shared = _dense(SHARED, DenseMlp(mlp.shared_width, mlp.gated, mlp.bias, mlp.activation), hidden)
    if mlp.shared_gate:
        shared.append(Operation("shared_gate", "shared expert gate", MLP_PART, ("MLP input",), features=1, vectors=hidden))
    both = (total, f"{SHARED}MLP result")
    return [*routed, *shared, Operation("join", "sum of experts", RESIDUAL, both, "MLP result", hidden, own=True)]


def first_operations(model: ModelSpec, tp: int = 1, *, dropout: bool = False) -> list[Operation]:
    """Operations of the lookup of embedding and, if learned, positions."""
    tables = [Matrix("embedding", TABLE, share(model.vocab, tp), model.hidden)]
    if model.learned_positions and model.max_positions is not None:
        tables.append(Matrix("positions", TABLE, model.max_positions, model.hidden))
    hidden = "hidden state"
    lookup = Operation("embedding", "embedding", EMBEDDING, (), hidden, model.hidden, tuple(tables), row="embedding lookup", own=True)
    after = Operation("dropout", "dropout after the embedding", EMBEDDING, (hidden,), f"{hidden} after dropout", model.hidden, own=True)
    return [lookup, LEAVE, *([after] if dropout else [])]


def last_operations(model: ModelSpec, tp: int = 1) -> list[Operation]:
    """Operations of the last norm, the logits and, in training, the loss."""
    head = Matrix("head", TABLE, model.hidden, share(model.vocab, tp), stored=HEAD_ROW)
    return [
        _norm(model, LAST_NORM, "last layer output", "head input"),
        ENTER,
        linear("head", "head input", "logits", [head], row=HEAD_ROW, gathers=True),
        Operation("loss", "loss", HEAD, ("logits",), "loss"),
    ]


def operations_at(where: Layer | str, model: ModelSpec, tp: int = 1, ep: int = 1, *, dropout: bool = False) -> list[Operation]:
    """Operations of a layer (``operations``), of the embedding or of the head."""
    if isinstance(where, Layer):
        return operations(model, where, tp, ep, dropout=dropout)
    return last_operations(model, tp) if where == HEAD else first_operations(model, tp, dropout=dropout)
