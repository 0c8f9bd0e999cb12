"""The matrices of a layer, one by one, and what one GPU of a tensor- and expert-parallel group holds of them.

Adapters, factored second moments and Muon all go by the shape of a matrix; everything else of a layer is a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from perfmodel.core.arith import Number
from perfmodel.transformer.parameters import layer_parts, router
from perfmodel.transformer.spec import DenseMlp, GroupedAttention, LatentAttention, Layer, ModelSpec, MoeMlp
from perfmodel.transformer.step import share
from perfmodel.transformer.training.question import Parallel

ATTENTION, MLP, EXPERTS, ROUTER, TABLE = "attention", "mlp", "experts", "router", "table"


@dataclass(frozen=True, slots=True)
class Matrix:
    """``count`` matrices inputs -> outputs. ``group``: attention, mlp, experts, router, or table (embedding, positions, head)."""

    name: str
    group: str
    inputs: Number
    outputs: Number
    count: Number = 1

    @property
    def elements(self) -> Number:
        """Weights of all of them."""
        return self.count * self.inputs * self.outputs


@dataclass(frozen=True, slots=True)
class Holding:
    """What a GPU holds: matrices one by one, and the elements of all vectors. ``expert_vectors``: those that belong to experts.

    ``experts``: parameters that expert-parallel GPUs divide; ``dense``: those of which every data-parallel GPU has a copy.
    """

    matrices: tuple[Matrix, ...]
    vectors: Number = 0
    expert_vectors: Number = 0
    experts: Number = field(init=False, compare=False)
    dense: Number = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Sums, taken once: a search asks for them often."""
        in_experts = sum(matrix.elements for matrix in self.matrices if matrix.group == EXPERTS) + self.expert_vectors
        every = sum(matrix.elements for matrix in self.matrices) + self.vectors
        object.__setattr__(self, "experts", in_experts)
        object.__setattr__(self, "dense", every - in_experts)

    @property
    def parameters(self) -> Number:
        """All of them."""
        return self.dense + self.experts


def local_layer(layer: Layer, parallel: Parallel) -> Layer:
    """``layer`` as one GPU sees it: its heads, its columns of the MLP, its experts. K and V heads are copied beyond one each."""
    tp, attention, mlp = parallel.tp, layer.attention, layer.mlp
    if tp == 1 and parallel.ep == 1:
        return layer
    if isinstance(attention, GroupedAttention):
        attention = replace(attention, heads=share(attention.heads, tp), kv_heads=max(attention.kv_heads // tp, 1))
    else:
        attention = replace(attention, heads=share(attention.heads, tp))
    if isinstance(mlp, MoeMlp):
        widths = {"width": share(mlp.width, tp), "shared_width": share(mlp.shared_width, tp)}
        mlp = replace(mlp, experts=share(mlp.experts, parallel.ep), **widths)
    else:
        mlp = replace(mlp, width=share(mlp.width, tp))
    return replace(layer, attention=attention, mlp=mlp)


def layer_matrices(model: ModelSpec, layer: Layer, parallel: Parallel) -> list[Matrix]:
    """The matrices of ``layer`` that one GPU holds; a router is copied to each."""
    here, hidden = local_layer(layer, parallel), model.hidden
    attention = here.attention
    found = _grouped(attention, hidden) if isinstance(attention, GroupedAttention) else _latent(attention, hidden)
    mlp = here.mlp
    if isinstance(mlp, DenseMlp):
        return [*found, *_mlp(MLP, hidden, mlp.width, mlp.gated)]
    found += _mlp(EXPERTS, hidden, mlp.width, mlp.gated, mlp.experts)
    if mlp.shared_width:
        found += _mlp(MLP, hidden, mlp.shared_width, mlp.gated)
    assert isinstance(layer.mlp, MoeMlp)
    return [*found, Matrix("router", ROUTER, hidden, layer.mlp.experts)]


def _grouped(a: GroupedAttention, hidden: Number) -> list[Matrix]:
    queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
    values = [] if a.shared_kv else [Matrix("V", ATTENTION, hidden, keys)]
    return [Matrix("Q", ATTENTION, hidden, queries), Matrix("K", ATTENTION, hidden, keys), *values, Matrix("O", ATTENTION, queries, hidden)]


def _latent(a: LatentAttention, hidden: Number) -> list[Matrix]:
    queries = a.heads * a.qk_head_dim
    if a.q_lora_rank is None:
        into = [Matrix("Q", ATTENTION, hidden, queries)]
    else:
        into = [Matrix("Q down", ATTENTION, hidden, a.q_lora_rank), Matrix("Q", ATTENTION, a.q_lora_rank, queries)]
    latent = Matrix("KV down", ATTENTION, hidden, a.kv_lora_rank + a.qk_rope_head_dim)
    up = Matrix("V", ATTENTION, a.kv_lora_rank, a.heads * (a.qk_nope_head_dim + a.v_head_dim))
    return [*into, latent, up, Matrix("O", ATTENTION, a.heads * a.v_head_dim, hidden)]


def _mlp(group: str, hidden: Number, width: Number, gated: bool, count: Number = 1) -> list[Matrix]:
    gate = [Matrix("gate", group, hidden, width, count)] if gated else []
    return [*gate, Matrix("up", group, hidden, width, count), Matrix("down", group, width, hidden, count)]


def layer_holding(model: ModelSpec, layer: Layer, parallel: Parallel) -> Holding:
    """All parameters of ``layer`` on one GPU, by the exact counts of ``parameters.layer_parts``."""
    here = local_layer(layer, parallel)
    parts = layer_parts(model, here)
    if isinstance(layer.mlp, MoeMlp):
        parts["router"] = router(model.hidden, layer.mlp)
    matrices = layer_matrices(model, layer, parallel)
    in_experts = parts.get("experts", 0) - sum(matrix.elements for matrix in matrices if matrix.group == EXPERTS)
    return Holding(tuple(matrices), sum(parts.values()) - sum(matrix.elements for matrix in matrices), in_experts)


def table_holding(model: ModelSpec, parallel: Parallel, *, first: bool, last: bool) -> Holding:
    """Embedding and positions of the first stage, last norm and head of the last; a tied head has a copy where stages differ."""
    rows = share(model.vocab, parallel.tp)
    found = []
    if first:
        found.append(Matrix("embedding", TABLE, rows, model.hidden))
        if model.learned_positions and model.max_positions is not None:
            found.append(Matrix("positions", TABLE, model.max_positions, model.hidden))
    if last and not (model.tied_embeddings and first):
        found.append(Matrix("head", TABLE, model.hidden, rows))
    return Holding(tuple(found), (model.hidden if model.norm == "rms" else 2 * model.hidden) if last else 0)


def together(holdings: Sequence[tuple[Holding, Number]]) -> Holding:
    """Holdings, each so many times."""
    matrices = [replace(matrix, count=matrix.count * times) for holding, times in holdings for matrix in holding.matrices]
    vectors = sum(holding.vectors * times for holding, times in holdings)
    return Holding(tuple(matrices), vectors, sum(holding.expert_vectors * times for holding, times in holdings))
