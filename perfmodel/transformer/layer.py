"""The one description of a model's parts: operations in the order in which they run, with their matrices and tensors.

Everything else is derived from it: ``parameters`` adds up what the operations learn; ``ops`` has the kernels of an inference step,
a method per kind of operation; ``training.step.layer`` those of a training step; ``training.recorder`` and ``training.huggingface``
what autograd keeps of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.core.arith import Number, maximum
from perfmodel.transformer.spec import DenseMlp, GroupedAttention, LatentAttention, Layer, ModelSpec, MoeMlp
from perfmodel.transformer.step import share

ATTENTION, MLP, EXPERTS, ROUTER, TABLE = "attention", "mlp", "experts", "router", "table"
"""Groups of matrices; a table is the embedding, the positions or the head."""
MLP_PART, NORMS, RESIDUAL, EMBEDDING, HEAD = "MLP", "norms", "residual", "embedding", "head"
"""Parts of a model, beside those called as their matrices are."""
LAST_NORM, HEAD_ROW, CHOSEN = "last norm", "LM head", "weights of the chosen"
SHARED = "shared expert, "
"""Before the names of the operations of the expert that sees every token."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """``count`` matrices inputs -> outputs. ``group``: attention, mlp, experts, router or table. ``stored``: its name in a checkpoint."""

    name: str
    group: str
    inputs: Number
    outputs: Number
    count: Number = 1
    stored: str = ""

    @property
    def elements(self) -> Number:
        """Weights of all of them; the formula of a matrix and of one the other way round is the same."""
        first, second = sorted((self.inputs, self.outputs), key=repr, reverse=True)
        return self.count * (first * second)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a layer or of an end of the model.

    ``kind``: the method that handles it. ``name``: on autograd's tape; ``row``: name of its kernel, if different. ``reads``, ``writes``:
    tensors; ``features``: of the result, per token. ``matrices``: multiplied with the same input. ``vectors``: number of biases and norm
    weights. ``heads``: vectors per token that a norm normalizes. ``own``: with sequence parallelism, a GPU has the result of its own
    tokens only; ``gathers``: it gathers the tokens of all GPUs first, or scatters their partial sums last.
    """

    kind: str
    name: str = ""
    part: str = ""
    reads: tuple[str, ...] = ()
    writes: str = ""
    features: Number = 0
    matrices: tuple[Matrix, ...] = ()
    vectors: Number = 0
    heads: Number = 1
    row: str = ""
    own: bool = False
    gathers: bool = False

    @property
    def kernel(self) -> str:
        """The name of its kernel."""
        return self.row or self.name


ENTER, LEAVE = Operation("enter"), Operation("leave")
"""Where the hidden state enters matrices that tensor-parallel GPUs share, and where their partial sums are added up."""


def summed(values: Iterable[Number]) -> Number:
    """Their sum, equal ones as a product: traced numbers keep short formulas.

    >>> summed([3, 4, 3])
    10
    """
    alike: dict[str, list[Number]] = {}
    for value in values:
        alike.setdefault(repr(value), []).append(value)
    return sum(len(same) * same[0] for same in alike.values())


def weights(matrices: Iterable[Matrix]) -> Number:
    """Weights of ``matrices``."""
    return summed(matrix.elements for matrix in matrices)


def local_layer(layer: Layer, tp: int, expert_tp: int | None = None) -> Layer:
    """``layer`` as one of ``tp`` GPUs sees it: its heads, its columns of the MLP. K and V heads are copied beyond one each.

    ``expert_tp``: GPUs that share a routed expert; by default the same.
    """
    expert_tp = tp if expert_tp is None else expert_tp
    if tp == expert_tp == 1:
        return layer
    a, mlp = layer.attention, layer.mlp
    a = replace(a, heads=a.heads // tp)
    if isinstance(a, GroupedAttention):
        a = replace(a, kv_heads=maximum(a.kv_heads // tp, 1))
    if isinstance(mlp, MoeMlp):
        mlp = replace(mlp, width=share(mlp.width, expert_tp), shared_width=share(mlp.shared_width, tp))
    else:
        mlp = replace(mlp, width=share(mlp.width, tp))
    return replace(layer, attention=a, mlp=mlp)


def operations(
    model: ModelSpec, layer: Layer, tp: int = 1, ep: int = 1, *, expert_tp: int | None = None, dropout: bool = False
) -> list[Operation]:
    """One layer on one GPU: norm, attention, sum, norm, MLP, sum. Norms beyond two come after attention and after the MLP.

    With ``ep`` expert-parallel GPUs each has its share of the experts, and all of the router; ``expert_tp`` as in ``local_layer``.
    """
    here, hidden = local_layer(layer, tp, expert_tp), model.hidden
    found: list[Operation] = []

    def add(*more: Operation) -> str:
        found.extend(more)
        return more[-1].writes

    def residual(part: str, place: str, stream: str, branch: str, writes: str) -> str:
        if dropout:
            result = f"{'attention' if part == ATTENTION else part} result after dropout"
            branch = add(Operation("dropout", f"dropout after {place}", part, (branch,), result, hidden, own=True))
        return add(Operation("add", f"sum with {place}", RESIDUAL, (stream, branch), writes, hidden, own=True))

    add(_norm(model, "norm before attention", "layer input", "attention input"), ENTER)
    a, mlp = here.attention, here.mlp
    branch = add(*(_grouped(a, hidden) if isinstance(a, GroupedAttention) else _latent(a, hidden)))
    add(LEAVE)
    if layer.norms > 2:
        branch = add(_norm(model, "norm after attention", branch, "attention result, normed"))
    middle = residual(ATTENTION, "attention", "layer input", branch, "input of the MLP's norm")
    add(_norm(model, "norm before the MLP", middle, "MLP input"), ENTER)
    branch = add(*(_dense("", mlp, hidden) if isinstance(mlp, DenseMlp) else _experts(mlp, hidden, share(mlp.experts, ep))))
    add(LEAVE)
    for index in range(3, int(layer.norms)):
        suffix = "" if index == 3 else f" ({index - 2})"
        branch = add(_norm(model, f"norm after the MLP{suffix}", branch, f"MLP result, normed{suffix}"))
    residual(MLP_PART, "the MLP", middle, branch, "layer output")
    return found


def _norm(model: ModelSpec, name: str, reads: str, writes: str) -> Operation:
    learned = model.hidden if model.norm == "rms" else 2 * model.hidden
    row = "norm" if name != LAST_NORM else LAST_NORM
    return Operation("norm", name, NORMS, (reads,), writes, model.hidden, vectors=learned, row=row, own=True)


def linear(name: str, reads: str, writes: str, matrices: Sequence[Matrix], bias: bool = False, **options: Any) -> Operation:
    """``reads`` times ``matrices`` side by side."""
    features, part = summed(matrix.outputs for matrix in matrices), {MLP: MLP_PART, TABLE: HEAD}.get(matrices[0].group, ATTENTION)
    return Operation("linear", name, part, (reads,), writes, features, tuple(matrices), features if bias else 0, **options)


def _matrix(name: str, stored: str, inputs: Number, outputs: Number) -> Matrix:
    return Matrix(name, ATTENTION, inputs, outputs, stored=f"self_attn.{stored}_proj")


def _latent_norm(name: str, reads: str, features: Number, row: str) -> Operation:
    return Operation("norm", name, ATTENTION, (reads,), f"{reads}, normed", features, vectors=features, row=row)


def _grouped(a: GroupedAttention, hidden: Number) -> list[Operation]:
    """Q, K and V in one matmul."""
    queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
    made = [_matrix("Q", "q", hidden, queries), _matrix("K", "k", hidden, keys), _matrix("V", "v", hidden, keys)]
    joint, heads = "Q, K, V as projected", ("Q", "K", "V")
    found = [
        linear("QKV projection", "attention input", joint, made[: 2 if a.shared_kv else 3], a.qkv_bias, gathers=True),
        Operation("split", "split and RoPE", ATTENTION, (joint,)),
    ]
    if a.qk_norm:
        found.append(Operation("qk_norm", "norm of", ATTENTION, heads[:2], vectors=2 * a.head_dim, row="Q and K norm"))
        heads = ("Q, normed", "K, normed", "V")
    output = _matrix("O", "o", queries, hidden)
    return [*found, Operation("rotate", part=ATTENTION), *_attended(heads, output, a.heads if a.sinks else 0, a.output_bias)]


def _latent(a: LatentAttention, hidden: Number) -> list[Operation]:
    """Source: DeepSeek-V2, section 2.1."""
    queries, inputs, into = a.heads * a.qk_head_dim, "attention input", list[Operation]()
    q = _matrix("Q", "q", hidden, queries)
    if a.q_lora_rank is not None:
        down = _matrix("Q down", "q_a", hidden, a.q_lora_rank)
        q = _matrix("Q", "q_b", a.q_lora_rank, queries)
        into.append(linear("Q down projection", inputs, "latent of Q", [down], a.bias, gathers=True))
        into.append(_latent_norm("norm of Q's latent", "latent of Q", a.q_lora_rank, "Q latent norm"))
    name, reads = ("Q projection", inputs) if not into else ("Q up projection", into[-1].writes)
    latent = Matrix("KV down", ATTENTION, hidden, a.kv_lora_rank + a.qk_rope_head_dim, stored="self_attn.kv_a_proj_with_mqa")
    up = _matrix("V", "kv_b", a.kv_lora_rank, a.heads * (a.qk_nope_head_dim + a.v_head_dim))
    return [
        *into,
        linear(name, reads, "Q", [q], row="Q up projection", gathers=not into),
        linear("KV down projection", inputs, "latent and rotated key", [latent], a.bias),
        replace(_latent_norm("norm of the latent", "latent", a.kv_lora_rank, "KV latent norm"), reads=("latent and rotated key",)),
        Operation("rotate", part=ATTENTION),
        linear("KV up projection", "latent, normed", "K and V of each head", [up]),
        Operation("split", "rotated key beside K", ATTENTION, ("K and V of each head", "latent and rotated key")),
        *_attended(("Q", "K", "V"), _matrix("O", "o", a.heads * a.v_head_dim, hidden), 0, a.bias),
    ]


def _attended(heads: tuple[str, ...], output: Matrix, sinks: Number, bias: bool) -> list[Operation]:
    result = "attention output"
    return [
        Operation("attention", "attention", ATTENTION, heads, result, output.inputs, vectors=sinks),
        linear("output projection", result, "attention result", [output], bias, own=True, gathers=True),
    ]


def _mlp_matrices(mlp: DenseMlp | MoeMlp, hidden: Number, group: str, module: str, count: Number = 1) -> tuple[list[Matrix], list[Matrix]]:
    """Those into and out of an MLP. ``module``: what their names in a checkpoint begin with; an expert stands for all of its layer."""
    into = [Matrix(name, group, hidden, mlp.width, count, f"{module}{name}_proj") for name in (("gate", "up") if mlp.gated else ("up",))]
    return into, [Matrix("down", group, mlp.width, hidden, count, f"{module}down_proj")]


def _dense(prefix: str, mlp: DenseMlp, hidden: Number) -> list[Operation]:
    """Gate and up in one matmul, the activation function, down."""
    into, out = _mlp_matrices(mlp, hidden, MLP, "mlp.shared_experts." if prefix else "mlp.")
    made = prefix + ("gate and up" if mlp.gated else "up")
    inside = f"{prefix}activation"
    return [
        linear(f"{made} projection", "MLP input", made, into, mlp.bias, gathers=True),
        Operation("activation", f"{prefix}activation function", MLP_PART, (made,), inside, mlp.width),
        linear(f"{prefix}down projection", inside, f"{prefix}MLP result", out, mlp.bias, own=True, gathers=True),
    ]


def _experts(mlp: MoeMlp, hidden: Number, held: Number) -> list[Operation]:
    """Router, ``held`` experts of this GPU, weighted sum, and the expert that sees every token."""
    into, out = _mlp_matrices(mlp, hidden, EXPERTS, "mlp.experts.0.", held)
    router = Matrix("router", ROUTER, hidden, mlp.experts)
    made, inside, result = ("gate and up of experts" if mlp.gated else "up of experts"), "activation of experts", "results of experts"
    columns = summed(matrix.outputs for matrix in into)
    biases = (held * columns, held * hidden) if mlp.bias else (0, 0)
    first, last = "experts, gate and up" if mlp.gated else "experts, up", "experts, down"
    total = "routed result" if mlp.shared_width else "MLP result"
    found = [
        Operation("router", "router", ROUTER, ("MLP input",), "router's probabilities", mlp.experts, (router,), mlp.router_extra),
        Operation(
            "experts", "experts, first matrices", EXPERTS, ("tokens sent to experts",), made, columns, tuple(into), biases[0], row=first
        ),
        Operation("activation", "experts, activation function", EXPERTS, (made,), inside, mlp.width),
        Operation("experts", "experts, down projection", EXPERTS, (inside,), result, hidden, tuple(out), biases[1], row=last),
        Operation("combine", "weighted sum of experts", EXPERTS, (result, CHOSEN), total, hidden, own=True),
    ]
    if not mlp.shared_width:
        return found
    shared = _dense(SHARED, DenseMlp(mlp.shared_width, mlp.gated, mlp.bias, mlp.activation), hidden)
    if mlp.shared_gate:
        shared.append(Operation("shared_gate", "shared expert gate", MLP_PART, ("MLP input",), features=1, vectors=hidden))
    both = (total, f"{SHARED}MLP result")
    return [*found, *shared, Operation("join", "sum of experts", RESIDUAL, both, "MLP result", hidden, own=True)]


def first_operations(model: ModelSpec, tp: int = 1, *, dropout: bool = False) -> list[Operation]:
    """The lookup of embedding and, if learned, positions."""
    tables = [Matrix("embedding", TABLE, share(model.vocab, tp), model.hidden)]
    if model.learned_positions and model.max_positions is not None:
        tables.append(Matrix("positions", TABLE, model.max_positions, model.hidden))
    made = "hidden state"
    lookup = Operation("embedding", "embedding", EMBEDDING, (), made, model.hidden, tuple(tables), row="embedding lookup", own=True)
    after = Operation("dropout", "dropout after the embedding", EMBEDDING, (made,), f"{made} after dropout", model.hidden, own=True)
    return [lookup, LEAVE, *([after] if dropout else [])]


def last_operations(model: ModelSpec, tp: int = 1) -> list[Operation]:
    """Last norm, logits and, in training, the loss."""
    head = Matrix("head", TABLE, model.hidden, share(model.vocab, tp), stored=HEAD_ROW)
    return [
        _norm(model, LAST_NORM, "last layer output", "head input"),
        ENTER,
        linear("head", "head input", "logits", [head], row=HEAD_ROW, gathers=True),
        Operation("loss", "loss", HEAD, ("logits",), "loss"),
    ]
